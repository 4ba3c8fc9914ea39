"""Between messages and tokens: a renderer that extends sampled ids, and a parser of tool calls.

Message, Tool --ChatRenderer--> prompt ids --engine--> reply ids --parse_reply--> Message
"""

from agentrl_workers.chat.parser import parse_reply
from agentrl_workers.chat.renderer import ChatError, ChatRenderer

__all__ = ["ChatError", "ChatRenderer", "parse_reply"]

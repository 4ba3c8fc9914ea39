"""Write a task for language-model agents in one file, play it by hand, and serve it.

    Task (setup, @tool methods) -- Session --> runner --> HTTP worker --> controller --> agents
                                               (one session table, any transport)

`agentrl_env_sdk.worker` serves a task; `agentrl_env_sdk.tasks` holds two small ones.
"""

from agentrl_core import Message, SampleStatus, Tool
from agentrl_env_sdk.content import image_part, text_part
from agentrl_env_sdk.datasets import Generated, JsonLines
from agentrl_env_sdk.rewards import metric, reward
from agentrl_env_sdk.session import AgentReply, Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.tools import tool

__all__ = [
    "AgentReply",
    "Generated",
    "JsonLines",
    "Message",
    "SampleStatus",
    "Session",
    "Task",
    "Tool",
    "image_part",
    "metric",
    "reward",
    "text_part",
    "tool",
]

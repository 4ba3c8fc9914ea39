"""A checkpoint as an OpenAI-compatible endpoint.

client --ChatRequest--> app --prompt ids--> Engine --tokens--> Reply --chunks or whole--> client
"""

from agentrl_workers.serve.app import create_app
from agentrl_workers.serve.server import serve

__all__ = ["create_app", "serve"]

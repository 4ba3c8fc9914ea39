"""A checkpoint as an OpenAI-compatible endpoint.

    client --JSON--> app --ChatRequest--> Answer --prompt ids--> Engine
    client <--chunks, or the whole--------- Answer <--Replies <--tokens--+

`requests` says what is accepted, `replies` turns tokens into text as soon as it is certain, `answers` puts
replies into OpenAI's shapes, `app` holds the routes, `server` loads a checkpoint and listens.
"""

from agentrl_workers.serve.app import create_app
from agentrl_workers.serve.server import serve

__all__ = ["create_app", "serve"]

"""`guess` as an OpenEnv server."""

import uvicorn

from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk.adapters.openenv import create_app
from agentrl_env_sdk.tasks.guess import Guess

listener = listen("127.0.0.1", 0)
print(f"at {url_of(listener, path='')}", flush=True)
uvicorn.Server(uvicorn.Config(create_app(Guess()), log_level="warning")).run(sockets=[listener])

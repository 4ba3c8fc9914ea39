"""A task of ours as an OpenEnv server: `uvicorn openenv_server:app --port 8000`, in this folder."""

from agentrl_env_sdk.adapters.openenv import create_app
from agentrl_env_sdk.tasks.guess import Guess

app = create_app(Guess())

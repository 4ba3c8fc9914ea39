"""A server of the real OpenEnv package: a typed environment, or one with MCP tools.

python openenv_server.py typed|mcp
"""

import socket
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Word(Action):
    text: str = Field(min_length=2, description="the word to say")


class Heard(Observation):
    heard: str


class Parrot(Environment[Word, Heard, State]):
    """Says the word again; three letters end the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id)
        return Heard(heard=f"seed {seed}, level {kwargs.get('level')}")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        if action.text == "fail":
            raise RuntimeError("the parrot is ill")
        return Heard(heard=action.text, reward=len(action.text) / 10, done=len(action.text) == 3)

    @property
    def state(self):
        return self._state


class Adder(MCPEnvironment):
    """Adds numbers with an MCP tool."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("adder")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id)
        return Observation(metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation()

    @property
    def state(self):
        return self._state


if sys.argv[1] == "typed":
    app = create_app(Parrot, Word, Heard, max_concurrent_envs=4)
else:
    app = create_app(Adder, CallToolAction, CallToolObservation, max_concurrent_envs=4)
listener = socket.create_server(("127.0.0.1", 0))
print(f"at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])

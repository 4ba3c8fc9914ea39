"""An OpenEnv server as a task.

OPENENV_URL=http://127.0.0.1:8000 agentrl-env play examples/adapters/openenv_task.py
"""

import os

from agentrl_env_sdk.adapters.openenv import OpenEnvTask


class Echo(OpenEnvTask):
    """Whatever runs at `OPENENV_URL`."""

    def __init__(self) -> None:
        url = os.environ.get("OPENENV_URL", "http://127.0.0.1:8000")
        super().__init__(url, name="echo", splits={"train": 100}, instructions="Use the environment.")

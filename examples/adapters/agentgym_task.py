"""An AgentGym environment server as a task.

AGENTGYM_URL=http://127.0.0.1:36001 agentrl-env play examples/adapters/agentgym_task.py
"""

import os

from agentrl_env_sdk.adapters.agentgym import AgentGymTask


class TextCraft(AgentGymTask):
    """AgentGym's TextCraft; other servers have other wires, see `WIRES`."""

    def __init__(self) -> None:
        super().__init__(
            os.environ.get("AGENTGYM_URL", "http://127.0.0.1:36001"),
            wire="textcraft",
            name="textcraft",
            splits={"train": 400, "test": 44},
            instructions="Craft the goal. Actions: get N ITEM, craft N ITEM using N ITEM, inventory.",
        )

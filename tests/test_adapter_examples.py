"""The examples of adapters that need nothing beside the workspace run; `interop` runs those that do."""

from pathlib import Path
from typing import Any

import pytest

from agentrl_env_sdk import testing

EXAMPLES = Path(__file__).parents[1] / "examples" / "adapters"


@pytest.mark.parametrize("name", ["gymnasium_task.py", "pettingzoo_task.py"])
async def test_the_oracle_of_an_example_solves_it(name: str):
    async with testing.play(str(EXAMPLES / name), split="test", seed=3) as episode:
        task: Any = episode.runner.task
        await episode.play(testing.OracleAgent(task.oracle))
        assert (episode.status, episode.metrics["score"]) == ("completed", task.optimum)

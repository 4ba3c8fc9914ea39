"""A verl data set of a served task, and the file that names the agent loop; run it where verl is installed.

    python verl_data.py http://127.0.0.1:5021/api guess

Then train with

    data.train_files=guess.parquet data.return_raw_chat=True actor_rollout_ref.rollout.mode=async
    actor_rollout_ref.rollout.agent.agent_loop_config_path=agent_loops.yaml
"""

import asyncio
import sys
from pathlib import Path

import pandas  # pyright: ignore[reportMissingImports]

from agentrl_core import SampleIndex
from agentrl_core.client import SessionClient
from agentrl_env_sdk.adapters.verl import AGENT_NAME, rows


async def indices_of(url: str, task: str) -> list[SampleIndex]:
    """The samples to train on."""
    async with SessionClient(url) as client:
        return await client.indices(task, split="train")


url, task = sys.argv[1:]
pandas.DataFrame(rows(task, asyncio.run(indices_of(url, task)))).to_parquet(f"{task}.parquet")
Path("agent_loops.yaml").write_text(
    f"- name: {AGENT_NAME}\n  _target_: agentrl_env_sdk.adapters.verl.SessionAgentLoop\n  url: {url}\n"
)

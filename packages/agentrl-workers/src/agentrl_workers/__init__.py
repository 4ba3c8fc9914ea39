"""Train language-model agents with asynchronous reinforcement learning.

    Mixture -> DistributedTaskManager -> Rollout (session client, EnginePool) -> Trajectory
       ^                                                                            |
    Buffer <- Ledger <- groups                                                      v
       |                                                             groups of scored episodes
       v
    Batch -> Reference, Actor (Ray pools) -> WeightPublisher -> engines at version + 1

`agentrl_workers.trainer.Trainer` is the loop, `agentrl_workers.collective.spawn` starts the pools,
`agentrl_workers.engines` samples. Settings import no torch; the rest is imported where it is used.
"""

import os

from agentrl_workers.config import TrainConfig, load_config, make_config

# Under `uv run`, Ray would upload the working folder and build a second environment for its workers.
# It reads this when it is imported, so it must stand before.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

__all__ = ["TrainConfig", "load_config", "make_config"]

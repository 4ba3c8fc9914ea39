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

from agentrl_workers.config import TrainConfig, load_config, make_config

__all__ = ["TrainConfig", "load_config", "make_config"]

"""The three pools of a run, started together and stopped together.

rollout: Generator a bundle | train: Actor and Reference share each bundle
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import ray

from agentrl_core import PolicyVersion
from agentrl_workers.actor import Actor, ActorSettings
from agentrl_workers.collective import CollectiveHandle, spawn
from agentrl_workers.config import TrainConfig
from agentrl_workers.generator import Generator, GeneratorSettings
from agentrl_workers.placement import Placement, assign, engine_gpus, plan_resources
from agentrl_workers.reference import Reference, ReferenceSettings


@dataclass(slots=True)
class Pools:
    """Handles of the running pools."""

    rollout: CollectiveHandle
    """Samples."""
    actor: CollectiveHandle
    """Trains."""
    reference: CollectiveHandle | None
    """Remembers the initial model; absent where the objective has no divergence to it."""
    placements: tuple[Placement, ...]
    """What they occupy."""
    generator: GeneratorSettings
    """Of the rollout's workers."""

    @classmethod
    async def start(
        cls, config: TrainConfig, *, model_path: str, version: PolicyVersion, log_dir: Path
    ) -> "Pools":
        """Reserve the bundles and start every worker.

        Args:
            config: the run.
            model_path: weights that the rollout samples with at first.
            version: of those weights.
            log_dir: folder for what servers say, on each node.

        Raises:
            ConfigError: the cluster cannot hold the pools.
            PoolError: a worker could not start.
        """
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        gpus = any(node.get("GPU", 0) > 0 for node in nodes.values())
        plan = plan_resources(config, gpus=gpus)
        assign(plan, nodes)
        rollout_bundles, train_bundles = await asyncio.gather(
            *(Placement.reserve(pool, timeout_s=config.placement_timeout_s) for pool in plan.pools)
        )
        generator = GeneratorSettings(
            model=config.model.model_copy(update={"path": model_path}),
            rollout=config.rollout,
            seed=config.seed,
            version=version,
            log_dir=str(log_dir),
        )
        start_rollout = spawn(
            Generator,
            rollout_bundles,
            name="rollout",
            num_gpus=float(engine_gpus(config) * gpus),
            process_group=False,
        )
        try:
            rollout, actor, reference = await asyncio.gather(
                start_rollout(generator),
                _start_actor(config, train_bundles, gpus=gpus),
                _start_reference(config, train_bundles, gpus=gpus),
            )
        except BaseException:
            rollout_bundles.release()
            train_bundles.release()
            raise
        return cls(rollout, actor, reference, (rollout_bundles, train_bundles), generator)

    def stop(self) -> None:
        """End every worker and give the bundles back."""
        for pool in (self.rollout, self.actor, self.reference):
            if pool is not None:
                pool.kill()
        for placement in self.placements:
            placement.release()


async def _start_actor(config: TrainConfig, placement: Placement, *, gpus: bool) -> CollectiveHandle:
    settings = ActorSettings(
        model=config.model,
        actor=config.actor,
        algorithm=config.algorithm,
        temperature=config.rollout.temperature,
        num_updates=config.steps * config.actor.updates_per_step,
        seed=config.seed,
    )
    return await spawn(Actor, placement, name="actor", num_cpus=0.5, num_gpus=0.5 * gpus)(settings)


async def _start_reference(
    config: TrainConfig, placement: Placement, *, gpus: bool
) -> CollectiveHandle | None:
    if config.algorithm.kl_coefficient == 0.0:
        return None
    settings = ReferenceSettings(
        model=config.model,
        temperature=config.rollout.temperature,
        micro_batch_tokens=config.actor.micro_batch_tokens,
    )
    return await spawn(Reference, placement, name="reference", num_cpus=0.5, num_gpus=0.5 * gpus)(settings)

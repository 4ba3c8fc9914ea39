"""Where the pools run: resource bundles by pool, checked before they are asked for."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from agentrl_core import ConfigError
from agentrl_workers.config import TrainConfig

Resources = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What a pool asks for."""

    name: str
    """`rollout` or `train`."""
    bundles: tuple[Resources, ...]
    """Resources of each bundle; a bundle lies on one node."""


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """Every pool of a run; the reference shares the actor's bundles."""

    pools: tuple[PoolPlan, ...]
    """The pools."""


def plan_resources(config: TrainConfig, *, gpus: bool) -> ResourcePlan:
    """One device a bundle: a GPU each where the cluster has any, else a CPU each."""
    bundle = {"CPU": 1.0, "GPU": 1.0} if gpus else {"CPU": 1.0}
    return ResourcePlan(
        pools=(
            PoolPlan("rollout", tuple(bundle for _ in range(config.rollout.replicas))),
            PoolPlan("train", tuple(bundle for _ in range(config.actor.ranks))),
        )
    )


def check_fits(plan: ResourcePlan, nodes: Sequence[Resources]) -> None:
    """Whether the cluster can ever hold the plan.

    Raises:
        ConfigError: a bundle is larger than every node, or the sum is more than the cluster has.
    """
    for pool in plan.pools:
        for bundle in pool.bundles:
            if not any(all(node.get(kind, 0.0) >= need for kind, need in bundle.items()) for node in nodes):
                largest = max(nodes, key=lambda node: sum(node.get(kind, 0.0) for kind in bundle), default={})
                raise ConfigError(
                    f"no node can hold a bundle {dict(bundle)} of the pool `{pool.name}`; "
                    f"the largest node has { {kind: largest.get(kind, 0.0) for kind in bundle} }"
                )
    for kind in ("CPU", "GPU"):
        need = sum(bundle.get(kind, 0.0) for pool in plan.pools for bundle in pool.bundles)
        have = sum(node.get(kind, 0.0) for node in nodes)
        if need > have:
            raise ConfigError(
                f"the pools need {need:g} {kind}s together, the cluster has {have:g}; "
                "lower `rollout.replicas` or `actor.ranks`, or add nodes"
            )


class Placement:
    """A pool's reserved bundles."""

    def __init__(self, group: PlacementGroup, plan: PoolPlan) -> None:
        self.group = group
        self.plan = plan

    @classmethod
    async def reserve(cls, plan: PoolPlan, *, timeout_s: float) -> "Placement":
        """Wait until the cluster has the bundles free.

        Raises:
            ConfigError: they are not free within the deadline.
        """
        group = placement_group([dict(bundle) for bundle in plan.bundles], strategy="PACK")
        try:
            async with asyncio.timeout(timeout_s):
                await group.ready()
        except TimeoutError as error:
            remove_placement_group(group)
            free = {kind: ray.available_resources().get(kind, 0.0) for kind in plan.bundles[0]}
            raise ConfigError(
                f"the {len(plan.bundles)} bundles {dict(plan.bundles[0])} of the pool `{plan.name}` "
                f"did not come free within {timeout_s:.0f} s; free now: {free}"
            ) from error
        return cls(group, plan)

    def release(self) -> None:
        """Give the bundles back; whatever still runs in them ends."""
        remove_placement_group(self.group)

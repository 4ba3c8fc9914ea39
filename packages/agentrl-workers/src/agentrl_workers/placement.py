"""Where the pools run: resource bundles by pool, checked before they are asked for."""

import asyncio
from collections.abc import Mapping
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
    """The bundles: an engine's GPUs together on one node, a GPU a rank; CPUs alone where there is no GPU."""
    return ResourcePlan(
        pools=(
            PoolPlan("rollout", (_bundle(engine_gpus(config) * gpus),) * config.rollout.replicas),
            PoolPlan("train", (_bundle(int(gpus)),) * config.actor.ranks),
        )
    )


def engine_gpus(config: TrainConfig) -> int:
    """GPUs that an engine takes where there are any; a server that runs elsewhere takes none here."""
    sglang = config.rollout.sglang
    return 0 if sglang.url is not None else sglang.tensor_parallel


def _bundle(gpus: int) -> Resources:
    return {"CPU": 1.0, "GPU": float(gpus)} if gpus else {"CPU": 1.0}


def assign(plan: ResourcePlan, nodes: Mapping[str, Resources]) -> dict[str, list[str]]:
    """Which node each bundle would lie on, pool by pool, filling one node after another.

    Raises:
        ConfigError: a bundle is larger than every node, the sum is more than the cluster has, or what is
            free is in pieces that are too small.
    """
    if not nodes:
        raise ConfigError("the cluster has no node")
    _check_largest(plan, nodes)
    _check_sum(plan, nodes)
    free = {name: dict(node) for name, node in nodes.items()}
    places: dict[str, list[str]] = {pool.name: [] for pool in plan.pools}
    for pool in sorted(plan.pools, key=lambda pool: -sum(pool.bundles[0].values())):
        for bundle in pool.bundles:
            name = next((name for name, left in free.items() if _holds(left, bundle)), None)
            if name is None:
                left = {name: _part(resources, bundle) for name, resources in free.items()}
                raise ConfigError(
                    f"a bundle {dict(bundle)} of the pool `{pool.name}` fits on no node beside the others; "
                    f"left are {left}"
                )
            places[pool.name].append(name)
            for kind, need in bundle.items():
                free[name][kind] -= need
    return places


def _check_largest(plan: ResourcePlan, nodes: Mapping[str, Resources]) -> None:
    for pool in plan.pools:
        for bundle in pool.bundles:
            if not any(_holds(node, bundle) for node in nodes.values()):
                largest = max(nodes, key=lambda name: sum(_part(nodes[name], bundle).values()))
                raise ConfigError(
                    f"no node can hold a bundle {dict(bundle)} of the pool `{pool.name}`; "
                    f"the largest node, {largest}, has {_part(nodes[largest], bundle)}"
                )


def _check_sum(plan: ResourcePlan, nodes: Mapping[str, Resources]) -> None:
    for kind in ("CPU", "GPU"):
        need = sum(bundle.get(kind, 0.0) for pool in plan.pools for bundle in pool.bundles)
        have = sum(node.get(kind, 0.0) for node in nodes.values())
        if need > have:
            raise ConfigError(
                f"the pools need {need:g} {kind}s together, the cluster has {have:g}; "
                "lower `rollout.replicas` or `actor.ranks`, or add nodes"
            )


def _holds(node: Resources, bundle: Resources) -> bool:
    return all(node.get(kind, 0.0) >= need for kind, need in bundle.items())


def _part(node: Resources, bundle: Resources) -> dict[str, float]:
    return {kind: node.get(kind, 0.0) for kind in bundle}


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

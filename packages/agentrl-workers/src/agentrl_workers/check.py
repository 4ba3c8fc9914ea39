"""The dry run of a config: what will run where, how much memory it takes, and what cannot work.

config + nodes -> Check (sections, errors, warnings) -> text or JSON
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import ray
import torch

from agentrl_core import ConfigError
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.config import TrainConfig
from agentrl_workers.models import load_tokenizer
from agentrl_workers.placement import Resources, assign, plan_resources
from agentrl_workers.sizes import ModelSize, actor_bytes, engine_bytes, model_size, reference_bytes

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that pools can run on."""

    name: str
    """Its address."""
    resources: Resources
    """CPUs and GPUs that Ray hands out."""
    memory_bytes: int
    """Memory that its processes share."""
    gpu_bytes: int | None = None
    """Memory of one of its GPUs; None where it has none, or where that is not known."""


@dataclass(slots=True)
class Check:
    """What a dry run found."""

    sections: dict[str, list[str]] = field(default_factory=dict)
    """Facts by heading."""
    errors: list[str] = field(default_factory=list)
    """Why the run cannot work."""
    warnings: list[str] = field(default_factory=list)
    """What is likely not meant."""

    def text(self) -> str:
        """For a terminal."""
        blocks = [[title, *(f"  {line}" for line in lines)] for title, lines in self.sections.items()]
        blocks.append(
            [f"warning: {text}" for text in self.warnings] + [f"error: {text}" for text in self.errors]
            or ["no error found"]
        )
        return "\n\n".join("\n".join(block) for block in blocks)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {"sections": self.sections, "errors": self.errors, "warnings": self.warnings}


def this_machine(config: TrainConfig) -> Node:
    """Where `--address local` runs: as many slots as the config asks for."""
    gpus = torch.cuda.device_count()
    return Node(
        name="this machine",
        resources={"CPU": float(config.rollout.replicas + config.actor.ranks), "GPU": float(gpus)},
        memory_bytes=psutil.virtual_memory().total,
        gpu_bytes=torch.cuda.get_device_properties(0).total_memory if gpus else None,
    )


def nodes_of_ray() -> list[Node]:
    """The living nodes of the cluster that this process is connected to; of their GPUs only the count."""
    return [
        Node(node["NodeManagerAddress"], node["Resources"], memory_bytes=int(node["Resources"]["memory"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def check(config: TrainConfig, nodes: Sequence[Node]) -> Check:
    """Look for what would go wrong, without starting anything.

    Args:
        config: the run.
        nodes: where it would run.
    """
    found = Check()
    gpus = any(node.resources.get("GPU", 0) > 0 for node in nodes)
    places = _check_placement(found, config, nodes, gpus=gpus)
    _check_step(found, config)
    _check_staleness(found, config)
    _check_algorithm(found, config)
    try:
        ChatRenderer(load_tokenizer(config.model.path))
        size = model_size(config.model.path)
    except ConfigError as error:
        found.errors.append(str(error))
        return found
    _check_model(found, config, size, gpus=gpus)
    _check_memory(found, config, size, nodes, places)
    return found


def _check_placement(
    found: Check, config: TrainConfig, nodes: Sequence[Node], *, gpus: bool
) -> Mapping[str, Sequence[str]]:
    """Returns the node of each bundle, pool by pool; empty where they do not fit."""
    plan = plan_resources(config, gpus=gpus)
    try:
        places = assign(plan, {node.name: node.resources for node in nodes})
    except ConfigError as error:
        found.errors.append(str(error))
        return {}
    lines = []
    for pool in plan.pools:
        counts = Counter(places[pool.name])
        where = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
        lines.append(f"{pool.name:<8} {len(pool.bundles)} x {_told(pool.bundles[0])}: {where}")
    shares = "the actor alone" if config.algorithm.kl_coefficient == 0 else "the actor and the reference"
    lines.append(f"a bundle of `train` holds {shares}")
    found.sections["what runs where"] = lines
    return places


def _check_step(found: Check, config: TrainConfig) -> None:
    batch, actor = config.batch, config.actor
    episodes = batch.groups * batch.group_size
    fewest, more = divmod(episodes, actor.updates_per_step)
    each = f"{fewest} episodes" if not more else f"{fewest} or {fewest + 1} episodes"
    longest = config.rollout.context_length
    together = max(1, actor.micro_batch_tokens // longest)
    found.sections["a step"] = [
        f"{batch.groups} groups of {batch.group_size} = {episodes} episodes "
        f"in {actor.updates_per_step} updates of {each}, over {actor.ranks} ranks",
        f"a micro-batch holds {together} or more sequences of {longest} tokens; an update runs at most "
        f"{math.ceil(math.ceil((fewest + bool(more)) / actor.ranks) / together)} on a rank",
        f"{config.steps} steps train on {config.steps * episodes} episodes",
    ]
    if fewest + bool(more) < actor.ranks:
        found.errors.append(
            f"an update has {fewest + bool(more)} episodes for {actor.ranks} ranks; "
            "lower `actor.ranks` or `actor.updates_per_step`, or raise `batch.groups`"
        )
    if more:
        found.warnings.append(
            f"{episodes} episodes do not divide into {actor.updates_per_step} equal updates; "
            "change `actor.updates_per_step` or `batch`"
        )
    if actor.micro_batch_tokens < longest:
        found.warnings.append(
            f"a sequence may have {longest} tokens, more than `actor.micro_batch_tokens` "
            f"({actor.micro_batch_tokens}); it becomes a micro-batch alone, and memory is counted for it"
        )
    if actor.warmup_steps >= config.steps * actor.updates_per_step:
        found.warnings.append(
            f"`actor.warmup_steps` ({actor.warmup_steps}) is not over after the run's "
            f"{config.steps * actor.updates_per_step} updates; the learning rate is never reached"
        )


def _check_staleness(found: Check, config: TrainConfig) -> None:
    groups, size = config.batch.groups, config.batch.group_size
    concurrency = config.rollout.concurrency
    admitted = min(2 * math.ceil(concurrency / size), (config.max_lag + 1) * groups)
    lag = min(float(config.max_lag), admitted / groups)
    mode = "synchronous" if config.max_lag == 0 else "asynchronous"
    found.sections["staleness"] = [
        f"{mode}: at most {admitted} groups are under way, {admitted / groups:.1f} steps' worth",
        f"tokens are about {lag:.1f} updates old when they are trained on, never more than {config.max_lag}",
    ]
    if concurrency < size:
        found.warnings.append(
            f"`rollout.concurrency` ({concurrency}) plays no group of {size} at once; its members meet "
            "different weights"
        )
    slots = config.rollout.replicas * config.rollout.num_slots
    if concurrency > slots:
        found.warnings.append(
            f"`rollout.concurrency` ({concurrency}) is more than the {slots} sequences that the engines "
            "decode at once; what is above waits"
        )
    if config.max_lag > 0 and admitted < groups:
        found.warnings.append(
            f"{admitted} groups under way are fewer than the {groups} of a step: the actor waits; "
            "raise `rollout.concurrency`"
        )


def _check_algorithm(found: Check, config: TrainConfig) -> None:
    algorithm = config.algorithm
    if algorithm.dual_clip is not None and algorithm.dual_clip <= 1.0 + algorithm.clip_high:
        found.errors.append(
            f"`algorithm.dual_clip` ({algorithm.dual_clip:g}) must be greater than 1 + `algorithm.clip_high` "
            f"({1.0 + algorithm.clip_high:g}), or it cuts what the clip allows"
        )


def _check_model(found: Check, config: TrainConfig, size: ModelSize, *, gpus: bool) -> None:
    found.sections["model"] = [
        f"{size.parameters:,} parameters in {config.model.dtype}, {size.layers} layers, "
        f"{size.vocabulary:,} tokens"
    ]
    longest = config.rollout.context_length
    if size.context_length is not None and longest > size.context_length:
        found.errors.append(
            f"`rollout.context_length` ({longest}) is more than the {size.context_length} tokens that the "
            f"model was made for"
        )
    if config.model.dtype == "bfloat16" and not gpus:
        found.warnings.append("bfloat16 is slow on a CPU; `model.dtype=float32` trains faster here")


def _check_memory(
    found: Check,
    config: TrainConfig,
    size: ModelSize,
    nodes: Sequence[Node],
    places: Mapping[str, Sequence[str]],
) -> None:
    dtype, longest = config.model.dtype, config.rollout.context_length
    parts = {
        "engine": engine_bytes(size, config.rollout, dtype=dtype),
        "actor": actor_bytes(size, config.actor, dtype=dtype, longest=longest),
    }
    if config.algorithm.kl_coefficient > 0:
        budget = config.actor.micro_batch_tokens
        parts["reference"] = reference_bytes(size, dtype=dtype, micro_batch_tokens=budget, longest=longest)
    found.sections["memory a rank (estimated)"] = [
        f"{name:<9} {_gib(sum(held.values()))} = "
        + " + ".join(f"{what} {_gib(amount)}" for what, amount in held.items())
        for name, held in parts.items()
    ]
    sampled = sum(parts["engine"].values())
    trained = sum(sum(held.values()) for name, held in parts.items() if name != "engine")
    for node in nodes:
        bundles = [sampled] * list(places.get("rollout", ())).count(node.name)
        bundles += [trained] * list(places.get("train", ())).count(node.name)
        need, have, what = sum(bundles), node.memory_bytes, "memory"
        if node.resources.get("GPU", 0) > 0:
            need, have, what = max(bundles, default=0), node.gpu_bytes, "a GPU"
        if have is not None and need > have:
            found.errors.append(
                f"{node.name}: the run needs about {_gib(need)} of {what}, there are {_gib(have)}; lower "
                "`actor.micro_batch_tokens`, `rollout.num_slots` or `rollout.context_length`, or raise "
                "`actor.ranks` where a node has room for more"
            )


def _gib(amount: int) -> str:
    return f"{amount / _GIB:.2f} GiB"


def _told(bundle: Resources) -> str:
    return " and ".join(f"{amount:g} {kind}" for kind, amount in bundle.items())

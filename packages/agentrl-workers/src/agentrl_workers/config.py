"""The trainer's settings: YAML in, one frozen tree of models out; a key that nobody knows is refused."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl_core import ConfigError


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TaskConfig(_Config):
    """A task to train on."""

    name: str
    """Name under which its workers register with the controller."""
    split: str | None = "train"
    """Which of its samples; null takes all, for workers that name no splits."""
    weight: float = Field(default=1.0, gt=0.0)
    """Share of the groups relative to the other tasks."""


class ModelConfig(_Config):
    """The model that is trained."""

    path: str
    """A folder with a `transformers` causal language model and its tokenizer."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in the actor, the reference and the engines."""


PauseMode = Literal["retract", "in_place", "abort"]


class SGLangConfig(_Config):
    """One server: started as a child process, or a running one that `url` names."""

    url: str | None = None
    """A running server, such as `http://10.0.0.7:30000`; null starts one."""
    api_key: str | None = Field(default=None, repr=False, exclude=True)
    """Sent as a bearer token: the server's admin key where it has one, else its API key. A run's
    `config.yaml` does not hold it."""
    python: str | None = None
    """Interpreter of the environment that has SGLang; null takes this process's own."""
    arguments: tuple[str, ...] = ()
    """More words for the server's command line, such as `("--enable-metrics",)`; they win over ours."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the server gets on top of ours."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share the model."""
    pause: PauseMode = "retract"
    """What happens to running requests while weights change.

    `retract` computes their keys and values anew under the new weights, `in_place` goes on over the old
    ones, `abort` ends them and asks again for the rest of each reply.
    """
    transfer: Literal["distributed", "disk"] = "distributed"
    """Whether `load_weights` broadcasts to the server or leaves files for it to read."""
    transfer_folder: str | None = None
    """Where `disk` leaves the files; the server must see it, too. Null takes a temporary folder."""
    backend: Literal["nccl", "gloo"] | None = None
    """Of the broadcast; null takes NCCL for tensors on CUDA, gloo for others.

    NCCL refuses two ranks on one GPU: take gloo where the tensors lie on the server's.
    """
    address: str = "127.0.0.1"
    """Address of this machine as the server sees it, for the broadcast."""
    bucket_bytes: int = Field(default=64 * 2**20, ge=1)
    """Tensors are sent together up to this size; a larger one goes alone."""
    verify: bool = True
    """Whether the server's own checksums are compared after each load."""
    start_timeout_s: float = Field(default=900.0, gt=0.0)
    """Longest wait for a new server to answer."""
    control_timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest wait for one control request: pause, continue, flush, begin, end, checksums."""
    transfer_timeout_s: float = Field(default=300.0, gt=0.0)
    """Longest wait for one bucket, one reading of files, or the members of a group."""

    @model_validator(mode="after")
    def _check(self) -> "SGLangConfig":
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"`url` must be an address such as `http://10.0.0.7:30000`, got `{self.url}`")
        if self.url is not None and (self.arguments or self.environment or self.python):
            raise ValueError(
                "`url` names a running server, which takes no `arguments`, `environment` or `python`; "
                "remove them, or remove `url` to start a server"
            )
        return self


class RolloutConfig(_Config):
    """The pool that samples, and the limits of an episode."""

    engine: Literal["embedded", "sglang"] = "embedded"
    """What samples: the engine in plain torch, or a SGLang server a replica."""
    sglang: SGLangConfig = SGLangConfig()
    """The servers, where `engine` is `sglang`."""
    replicas: int = Field(default=1, ge=1)
    """Engines."""
    num_slots: int = Field(default=64, ge=1)
    """Sequences that an engine decodes at the same time."""
    context_length: int = Field(default=1024, ge=16)
    """Longest sequence in tokens, prompt and replies together."""
    concurrency: int = Field(default=64, ge=1)
    """Episodes that run at the same time over all engines."""
    max_turns: int = Field(default=32, ge=1)
    """Replies in an episode before it is truncated."""
    max_tokens_per_turn: int = Field(default=256, ge=1)
    """Tokens in a reply; a longer one ends the episode as truncated."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Divides the logits, while sampling and while training."""
    retries: int = Field(default=2, ge=0)
    """How often an episode is tried again after a failure of the infrastructure."""
    start_timeout_s: float = Field(default=300.0, gt=0.0)
    """Longest wait for a free slot on a task worker."""
    turn_timeout_s: float = Field(default=120.0, gt=0.0)
    """Longest wait for the environment's answer to one reply."""
    generate_timeout_s: float = Field(default=300.0, gt=0.0)
    """Longest wait for one reply of an engine."""
    max_replacements: int = Field(default=16, ge=0)
    """Engines that may die and be replaced in a run; one more ends it."""

    @model_validator(mode="after")
    def _check(self) -> "RolloutConfig":
        if self.engine != "sglang" and self.sglang != SGLangConfig():
            raise ValueError("`sglang` has settings, but `engine` is `embedded`; set `engine: sglang`")
        if self.sglang.url is not None and self.replicas > 1:
            raise ValueError(
                f"`sglang.url` names one server, which takes weights from one engine, but `replicas` is "
                f"{self.replicas}; set it to 1, or remove `url` to start servers"
            )
        return self


class BatchConfig(_Config):
    """What one optimiser step trains on."""

    groups: int = Field(default=16, ge=1)
    """Groups in a step."""
    group_size: int = Field(default=8, ge=2)
    """Episodes of the same sample in a group; they are each other's baseline."""


class AlgorithmConfig(_Config):
    """The objective."""

    task_normalisation: bool = True
    """Bring each task's advantages to mean 0 and deviation 1 after the group step."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio's lower bound is 1 minus this."""
    clip_high: float = Field(default=0.28, gt=0.0)
    """The ratio's upper bound is 1 plus this."""
    dual_clip: float | None = Field(default=3.0, gt=1.0)
    """Bound on the loss where the advantage is negative; null for none."""
    kl_coefficient: float = Field(default=1e-4, ge=0.0)
    """Weight of the k3 divergence to the reference; 0 does without a reference pool."""
    importance_cap: float = Field(default=2.0, gt=0.0)
    """Upper bound on the weight that corrects for tokens of older weights."""


class ActorConfig(_Config):
    """The pool that trains."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the model (FSDP2 where more than one)."""
    learning_rate: float = Field(default=1e-6, gt=0.0)
    """AdamW's, after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises from 0."""
    decay: Literal["constant", "cosine"] = "constant"
    """Whether the learning rate stays, or falls to a tenth along a cosine by the last step."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW's."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """The gradient is scaled down to this norm."""
    updates_per_step: int = Field(default=1, ge=1)
    """Optimiser updates that a step's batch is divided into."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Padded tokens in one forward and backward pass."""


class WeightsConfig(_Config):
    """How new weights reach the engines."""

    bucket_bytes: int = Field(default=64 * 2**20, ge=1)
    """Tensors are sent together up to this size; a larger one goes alone."""
    timeout_s: float = Field(default=120.0, gt=0.0)
    """Longest wait for one transfer."""


class CheckpointConfig(_Config):
    """When the run is saved."""

    every: int = Field(default=20, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that stay."""


class TrainConfig(_Config):
    """Everything that a training run depends on."""

    seed: int = Field(default=0, ge=0)
    """Of the data order, the episodes and the sampling."""
    steps: int = Field(default=100, ge=1)
    """Optimiser steps."""
    max_lag: int = Field(default=4, ge=0)
    """Updates that a token may be old when it is trained on; 0 trains synchronously."""
    controller: str = "http://127.0.0.1:5020/api"
    """Address of the controller's API."""
    tasks: tuple[TaskConfig, ...] = Field(min_length=1)
    """What to learn."""
    model: ModelConfig
    """Where to start."""
    rollout: RolloutConfig = RolloutConfig()
    """The pool that samples."""
    batch: BatchConfig = BatchConfig()
    """What a step trains on."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The objective."""
    actor: ActorConfig = ActorConfig()
    """The pool that trains."""
    weights: WeightsConfig = WeightsConfig()
    """How new weights reach the engines."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the run is saved."""
    logged_trajectories: int = Field(default=32, ge=0)
    """Trajectories of each step that are written to `trajectories.jsonl`."""
    placement_timeout_s: float = Field(default=300.0, gt=0.0)
    """Longest wait for the cluster to have a pool's resources free."""
    max_restarts: int = Field(default=0, ge=0)
    """How often a run goes on from its newest checkpoint by itself after a worker of its pools was lost."""
    stall_timeout_s: float = Field(default=900.0, gt=0.0)
    """Longest wait for a step's worth of finished groups."""

    @model_validator(mode="after")
    def _check(self) -> "TrainConfig":
        names = [task.name for task in self.tasks]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"tasks {double} are listed twice; give one entry a larger `weight` instead")
        if self.rollout.max_tokens_per_turn >= self.rollout.context_length:
            raise ValueError(
                f"`rollout.max_tokens_per_turn` ({self.rollout.max_tokens_per_turn}) must be smaller than "
                f"`rollout.context_length` ({self.rollout.context_length})"
            )
        if self.actor.updates_per_step > self.batch.groups * self.batch.group_size:
            raise ValueError(
                f"`actor.updates_per_step` ({self.actor.updates_per_step}) cannot exceed the "
                f"{self.batch.groups * self.batch.group_size} episodes of a step"
            )
        return self


def load_config(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file, set what the overrides say, and check it all.

    Args:
        path: the file.
        overrides: `section.key=value` each, the value written as YAML.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong; the message names each.
    """
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the config `{path}`: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"`{path}` must hold a mapping of settings, got {type(tree).__name__}")
    return make_config(tree, overrides)


def make_config(tree: Mapping[str, Any], overrides: Sequence[str] = ()) -> TrainConfig:
    """Check a tree of settings after setting what the overrides say.

    Raises:
        ConfigError: a key or value is wrong; the message names each.
    """
    settings: dict[str, Any] = _copy(tree)
    for override in overrides:
        _override(settings, override)
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from error


def dump_config(config: TrainConfig) -> str:
    """The resolved settings as YAML that `load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree


def _override(tree: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"`{override}` is no override; write `section.key=value`")
    node: Any = tree
    for key in keys[:-1]:
        node = (
            node[int(key)]
            if isinstance(node, list) and key.isdigit() and int(key) < len(node)
            else (node.setdefault(key, {}) if isinstance(node, dict) else None)
        )
        if not isinstance(node, dict | list):
            raise ConfigError(f"`{override}`: `{key}` has no settings below it")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"`{override}`: the value is no YAML: {error}") from error
    if isinstance(node, list):
        raise ConfigError(f"`{override}`: name a setting of one entry, such as `tasks.0.weight=2`")
    node[keys[-1]] = _number(value)


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-3` as text; everybody who types it means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(detail: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        message = str(detail["msg"]).removeprefix("Value error, ")
        given = "" if detail["type"] in ("missing", "value_error") else f", got {detail['input']!r}"
        return f"`{path}`: {message}{given}" if path else message
    known = _keys_beside(detail["loc"])
    nearest = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean `{nearest[0]}`?" if nearest else f"known here: {', '.join(known)}"
    return f"`{path}` is no setting; {hint}"


def _keys_beside(location: Sequence[Any]) -> list[str]:
    model: Any = TrainConfig
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next(
            (arg for arg in getattr(annotation, "__args__", ()) if hasattr(arg, "model_fields")), annotation
        )
    return sorted(model.model_fields)

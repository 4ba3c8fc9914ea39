"""How much memory a worker will take, from the model's config alone: no weight is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core import ConfigError
from agentrl_workers.config import ActorConfig, RolloutConfig
from agentrl_workers.models import model_folder

Bytes = Mapping[str, int]
"""Bytes by what they hold."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What memory depends on."""

    parameters: int
    """Numbers in the weights; tied ones count once."""
    layers: int
    """Decoder layers."""
    hidden: int
    """Width between layers."""
    intermediate: int
    """Width of the feed-forward part."""
    heads: int
    """Width of all query heads together."""
    kv: int
    """Width of all key heads together, as of all value heads."""
    vocabulary: int
    """Tokens."""
    context_length: int | None
    """Longest sequence that the model was made for."""


def model_size(path: str) -> ModelSize:
    """The size of a model in a folder.

    Raises:
        ConfigError: the folder holds no causal language model.
    """
    try:
        config = AutoConfig.from_pretrained(model_folder(path))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`{path}` holds no causal language model that transformers can load: {error}"
        ) from error
    text: Any = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelSize(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=head * text.num_attention_heads,
        kv=head * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        vocabulary=text.vocab_size,
        context_length=getattr(text, "max_position_embeddings", None),
    )


def actor_bytes(size: ModelSize, actor: ActorConfig, *, dtype: str, longest: int) -> Bytes:
    """What one rank of the actor holds at its peak.

    Args:
        size: the model.
        actor: ranks and micro-batches.
        dtype: of weights, gradients and both moments of AdamW.
        longest: tokens of the longest sequence, which is never divided.
    """
    wide = _wide(dtype)
    shard = -(-size.parameters // actor.ranks) * wide
    tokens = max(actor.micro_batch_tokens, longest)
    return {
        "weights": shard,
        "gradients": shard,
        "optimiser": 2 * shard,
        "activations": tokens * size.layers * _layer_bytes(size, wide),
        "logits": tokens * _logit_bytes(size, wide),
    }


def reference_bytes(size: ModelSize, *, dtype: str, micro_batch_tokens: int, longest: int) -> Bytes:
    """What one rank of the reference holds at its peak; it keeps the whole model and no gradient."""
    wide = _wide(dtype)
    tokens = max(micro_batch_tokens, longest)
    return {"weights": size.parameters * wide, "logits": tokens * _logit_bytes(size, wide)}


def engine_bytes(size: ModelSize, rollout: RolloutConfig, *, dtype: str) -> Bytes:
    """What a device of one engine holds: the weights, and keys and values of every slot's longest sequence.

    A SGLang server takes what `--mem-fraction-static` says; this is what the same requests need.
    """
    wide = _wide(dtype)
    cached = 2 * size.layers * size.kv * wide
    shares = rollout.sglang.tensor_parallel
    return {
        "weights": size.parameters * wide // shares,
        # One position more than the context takes what pads a batch.
        "cache": rollout.num_slots * (rollout.context_length + 1) * cached // shares,
    }


def _layer_bytes(size: ModelSize, wide: int) -> int:
    """What a token leaves in a layer for the backward pass, with attention that keeps no scores.

    Two norms keep their input, its float32 form and their output (3 each); the residual stream, queries,
    keys and values before and after the rotation, the attention's output; and the gate, its activation,
    the other branch and their product.
    """
    norms = 2 * (2 * size.hidden * wide + size.hidden * 4)
    attention = (3 * size.heads + 4 * size.kv + size.hidden) * wide
    feed_forward = (4 * size.intermediate + size.hidden) * wide
    return norms + attention + feed_forward


def _logit_bytes(size: ModelSize, wide: int) -> int:
    """The logits of a token, scaled by the temperature, their log-softmax, and the gradient of one."""
    return size.vocabulary * 4 * max(wide, 4)


def _wide(dtype: str) -> int:
    return getattr(torch, dtype).itemsize

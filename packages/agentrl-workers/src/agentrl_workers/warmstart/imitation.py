"""Supervised training of a small model on demonstrations."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.losses import masked_sum, token_logps
from agentrl_workers.samples import Sample, micro_batches
from agentrl_workers.warmstart.demonstrations import Demonstration
from agentrl_workers.warmstart.tokenizer import END, PAD

_CONTEXT_WEIGHT = 0.1
"""Weight of the environment's tokens: predicting them teaches the model to copy."""


@dataclass(frozen=True, slots=True)
class ImitationConfig:
    """Size of the model and length of the training."""

    steps: int = 2000
    """Optimiser updates."""
    batch_size: int = 48
    """Conversations in an update."""
    hidden_size: int = 64
    """Width of the model."""
    learning_rate: float = 3e-3
    """AdamW's highest."""


def new_model(tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, seed: int) -> Qwen3ForCausalLM:
    """A two-layer Qwen3 model with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.get_vocab()[END],
        pad_token_id=tokenizer.get_vocab()[PAD],
    )
    return Qwen3ForCausalLM(config)


def imitate(
    model: Qwen3ForCausalLM,
    samples: Sequence[Sample],
    config: ImitationConfig,
    *,
    seed: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Train on the samples' masked tokens, and a little on the others.

    Args:
        model: trained in place.
        samples: conversations; the mask marks the player's replies.
        config: length of the training.
        seed: of the order.
        on_step: called with the update's number and its loss on the replies, in nats a token.
    """
    chance = random.Random(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    model.train()
    for step in range(1, config.steps + 1):
        factor = max(0.05, 0.5 * (1.0 + math.cos(math.pi * step / config.steps)))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, step / 50) * factor
        chosen = chance.choices(samples, k=config.batch_size)
        (batch,) = micro_batches(chosen, max_tokens=2**31)
        logits_BTV = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT, use_cache=False).logits
        logp_BT = token_logps(logits_BTV, batch.ids_BT, temperature=1.0)
        others_BT = batch.attention_BT & ~batch.mask_BT
        others_BT[:, 0] = False
        replies = -masked_sum(logp_BT, batch.mask_BT)
        contexts = -masked_sum(logp_BT, others_BT)
        weight = batch.mask_BT.sum() + _CONTEXT_WEIGHT * others_BT.sum()
        loss = (replies + _CONTEXT_WEIGHT * contexts) / weight
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step, replies.item() / max(1, int(batch.mask_BT.sum())))


def demonstration_sample(demonstration: Demonstration, renderer: ChatRenderer) -> Sample:
    """A conversation as tokens, put together as a rollout puts it together."""
    messages = demonstration.messages
    replies = [n for n, message in enumerate(messages) if message.role == "assistant"]
    ids = renderer.prompt(messages[: replies[0]], demonstration.tools)
    mask = [False] * len(ids)
    for place, position in enumerate(replies):
        if place > 0:
            context = renderer.extension(messages[replies[place - 1] + 1 : position])
            ids += context
            mask += [False] * len(context)
        reply = renderer.reply(messages[position])
        ids += reply
        mask += [True] * len(reply)
    return Sample(
        ids=np.asarray(ids, dtype=np.int64),
        mask=np.asarray(mask, dtype=bool),
        logp_rollout=np.zeros(len(ids), dtype=np.float32),
        advantage=0.0,
    )

"""Log-probabilities of whole sequences under a model."""

from collections.abc import Sequence

import numpy as np
import torch

from agentrl_workers.losses import token_logps
from agentrl_workers.samples import Sample, micro_batches


@torch.no_grad()
def sequence_logps(
    model: torch.nn.Module,
    samples: Sequence[Sample],
    *,
    temperature: float,
    max_tokens: int,
    device: torch.device,
    count: int | None = None,
) -> list[np.ndarray]:
    """Log-probability of every token of each sequence (T); 0 for the first token.

    Args:
        model: a causal language model.
        samples: the sequences.
        temperature: divides the logits.
        max_tokens: padded tokens in a forward pass.
        device: where the model lies.
        count: forward passes to run, where all ranks must run as many.
    """
    result = [np.zeros(0, dtype=np.float32)] * len(samples)
    for batch in micro_batches(samples, max_tokens=max_tokens, count=count):
        moved = batch.to(device)
        logits_BTV = model(input_ids=moved.ids_BT, attention_mask=moved.attention_BT, use_cache=False).logits
        logps_BT = token_logps(logits_BTV, moved.ids_BT, temperature=temperature).cpu().numpy()
        for row, position in enumerate(batch.order_B):
            result[position] = logps_BT[row, : len(samples[position].ids)]
    return result

"""Draws the next tokens of a batch of requests with different settings."""

from collections.abc import Sequence

import torch

from agentrl_workers.engines.base import SamplingParams


def sample(
    logits_BV: torch.Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None],
    *,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Args:
        logits_BV: float32 logits.
        params: settings of each row.
        generators: a generator for each row that has a seed of its own.
        generator: draws for the others.

    Returns:
        Token ids (B) and their log-probabilities (B) under `softmax(logits / temperature)`, unfiltered;
        a temperature of 0 takes the likeliest token and reports its log-probability at temperature 1.
    """
    scale_B = torch.tensor([p.temperature or 1.0 for p in params], device=logits_BV.device)
    logps_BV = torch.log_softmax(logits_BV / scale_B[:, None], dim=-1)
    noise_BV = torch.empty_like(logps_BV).exponential_(generator=generator)
    for row, own in enumerate(generators):
        if own is not None:
            noise_BV[row].exponential_(generator=own)
    greedy = [row for row, p in enumerate(params) if p.temperature == 0.0]
    if greedy:
        noise_BV[greedy] = 1.0
    # The smallest of exponentials with rates p is token i with probability p_i.
    drawn_B = (_filtered(logps_BV, params) - noise_BV.log()).argmax(dim=-1)
    return drawn_B, logps_BV.gather(-1, drawn_B[:, None])[:, 0]


def _filtered(logps_BV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """The log-probabilities with what top-k, top-p and min-p drop set to -inf."""
    if all(p.top_p >= 1.0 and p.top_k < 1 and p.min_p <= 0.0 for p in params):
        return logps_BV
    device = logps_BV.device
    vocabulary = logps_BV.shape[-1]
    top_k_B = torch.tensor([p.top_k if p.top_k >= 1 else vocabulary for p in params], device=device)
    top_p_B = torch.tensor([p.top_p for p in params], device=device)
    min_p_B = torch.tensor([p.min_p for p in params], device=device)
    sorted_BV, order_BV = logps_BV.sort(dim=-1, descending=True)
    probs_BV = sorted_BV.exp()
    rank_V = torch.arange(vocabulary, device=device)
    before_BV = probs_BV.cumsum(dim=-1) - probs_BV
    keep_BV = (
        (rank_V[None] < top_k_B[:, None])
        & ((before_BV < top_p_B[:, None]) | (top_p_B[:, None] >= 1.0))
        & (probs_BV >= min_p_B[:, None] * probs_BV[:, :1])
    )
    keep_BV[:, 0] = True
    kept_BV = torch.full_like(logps_BV, float("-inf"))
    return kept_BV.scatter(-1, order_BV, torch.where(keep_BV, sorted_BV, float("-inf")))

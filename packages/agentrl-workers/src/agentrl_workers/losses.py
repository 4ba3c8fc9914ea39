"""Policy objectives and divergences, token by token; every function is pure and differentiable.

Shapes: `_BT` is batch by token. Sums over tokens go through `masked_sum`, whose denominators are counts of
the whole optimiser step and never of a micro-batch.
"""

import torch


def token_logps(logits_BTV: torch.Tensor, ids_BT: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Log-probability of each token given those before it; the first column is 0.

    Args:
        logits_BTV: of a causal model over `ids_BT`.
        ids_BT: the tokens.
        temperature: divides the logits, as it did while sampling; 0 counts as 1.
    """
    logits_BTV = logits_BTV[:, :-1].float() / (temperature or 1.0)
    picked_BT = logits_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
    logps_BT = picked_BT - logits_BTV.logsumexp(dim=-1)
    return torch.nn.functional.pad(logps_BT, (1, 0))


def token_entropy(logits_BTV: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Entropy in nats of the distribution that each token was drawn from; the first column is 0."""
    logps_BTV = torch.log_softmax(logits_BTV[:, :-1].float() / (temperature or 1.0), dim=-1)
    return torch.nn.functional.pad(-(logps_BTV.exp() * logps_BTV).sum(dim=-1), (1, 0))


def masked_sum(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Sum over the tokens of the mask; what lies outside counts for nothing, NaN included."""
    return torch.where(mask_BT, values_BT, torch.zeros_like(values_BT)).sum()


def clipped_loss(
    logp_BT: torch.Tensor,
    logp_old_BT: torch.Tensor,
    advantage_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """PPO's clipped surrogate as a loss: `-min(r A, clip(r, 1 - low, 1 + high) A)`.

    Sources: PPO, arXiv 1707.06347, equation 7; unequal bounds: DAPO, arXiv 2503.14476, equation 10;
    the bound `dual_clip` on the loss of a negative advantage: arXiv 1912.09729, equation 7.
    """
    ratio_BT = (logp_BT - logp_old_BT).exp()
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective_BT = torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    if dual_clip is not None:
        bounded_BT = torch.maximum(objective_BT, dual_clip * advantage_BT)
        objective_BT = torch.where(advantage_BT < 0, bounded_BT, objective_BT)
    return -objective_BT


def clipped_tokens(
    logp_BT: torch.Tensor,
    logp_old_BT: torch.Tensor,
    advantage_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """Which tokens get no gradient from `clipped_loss` because their ratio left the bounds."""
    ratio_BT = (logp_BT - logp_old_BT).exp()
    too_high_BT = (advantage_BT > 0) & (ratio_BT > 1.0 + clip_high)
    too_low_BT = (advantage_BT < 0) & (ratio_BT < 1.0 - clip_low)
    return too_high_BT | too_low_BT


def kl_k3(logp_BT: torch.Tensor, logp_reference_BT: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of the divergence to the reference: `e^d - d - 1`, `d = logp_ref - logp`.

    Source: "Approximating KL divergence", joschu.net/blog/kl-approx.html; GRPO, arXiv 2402.03300, equation 4.
    """
    difference_BT = logp_reference_BT - logp_BT
    return difference_BT.exp() - difference_BT - 1.0

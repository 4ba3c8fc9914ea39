"""Weights that correct for tokens sampled by other weights than the ones being trained."""

import torch


def truncated_weights(
    logp_old_BT: torch.Tensor, logp_rollout_BT: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Truncated importance weights `min(exp(logp_old - logp_rollout), cap)`, without gradient.

    `logp_old` comes from the trainer at batch formation, `logp_rollout` from the engine while sampling.
    Source: the decoupled objective of AReaL, arXiv 2505.24298, with the truncation of IMPALA,
    arXiv 1802.01561, section 4.1.
    """
    return (logp_old_BT - logp_rollout_BT).detach().exp().clamp(max=cap)

"""Trajectories turned into training sequences, and those into padded tensors of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from agentrl_core import Trajectory


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence to train on; a trajectory whose history was rewritten gives several.

    Arrays have the length of the sequence (T).
    """

    ids: np.ndarray
    """Tokens, int64."""
    mask: np.ndarray
    """True on the tokens that the policy sampled."""
    logp_rollout: np.ndarray
    """Log-probability under the version that sampled the token, float32; 0 outside the mask."""
    advantage: float
    """Advantage of the trajectory."""


def samples_of(trajectory: Trajectory, *, advantage: float) -> list[Sample]:
    """The sequences of a trajectory, exactly as they were sampled."""
    starts = [n for n, turn in enumerate(trajectory.turns) if n == 0 or turn.starts_sample]
    ends = [*starts[1:], len(trajectory.turns)]
    return [_sample(trajectory, start, end, advantage) for start, end in zip(starts, ends, strict=True)]


def _sample(trajectory: Trajectory, start: int, end: int, advantage: float) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    logps: list[float] = []
    for turn in trajectory.turns[start:end]:
        ids += [*turn.context_ids, *turn.token_ids]
        mask += [False] * len(turn.context_ids) + [True] * len(turn.token_ids)
        logps += [0.0] * len(turn.context_ids) + list(turn.logps)
    return Sample(
        ids=np.asarray(ids, dtype=np.int64),
        mask=np.asarray(mask, dtype=bool),
        logp_rollout=np.asarray(logps, dtype=np.float32),
        advantage=advantage,
    )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences padded on the right to the longest (B by T)."""

    ids_BT: torch.Tensor
    attention_BT: torch.Tensor
    """True on tokens, False on padding."""
    mask_BT: torch.Tensor
    """True on the tokens that count in the loss."""
    logp_rollout_BT: torch.Tensor
    advantage_BT: torch.Tensor
    order_B: list[int]
    """Position of each row in the list that was batched."""

    def to(self, device: torch.device) -> "MicroBatch":
        """The same tensors on a device."""
        moved = {
            field.name: getattr(self, field.name).to(device)
            for field in fields(self)
            if field.name != "order_B"
        }
        return MicroBatch(**moved, order_B=self.order_B)


def micro_batches(
    samples: Sequence[Sample], *, max_tokens: int, count: int | None = None
) -> list[MicroBatch]:
    """Sequences of like length together, at most `max_tokens` padded tokens a batch where a sequence fits.

    Args:
        samples: the sequences.
        max_tokens: rows times longest row; a longer sequence goes alone.
        count: pad with batches that count for nothing up to this many, so that all ranks run as many.

    Raises:
        ValueError: more than `count` batches are needed.
    """
    plan = plan_micro_batches([len(sample.ids) for sample in samples], max_tokens=max_tokens)
    if count is not None and len(plan) > count:
        raise ValueError(f"{len(plan)} micro-batches are needed, more than the {count} that all ranks run")
    batches = [_pad([samples[n] for n in rows], rows) for rows in plan]
    while count is not None and len(batches) < count:
        batches.append(_empty())
    return batches


def plan_micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Which sequences share a micro-batch, by position in `lengths`."""
    plan: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda n: (-lengths[n], n)):
        if plan and (len(plan[-1]) + 1) * lengths[plan[-1][0]] <= max_tokens:
            plan[-1].append(position)
        else:
            plan.append([position])
    return plan


def _pad(samples: Sequence[Sample], order: list[int]) -> MicroBatch:
    width = max(len(sample.ids) for sample in samples)

    def rows(values: Sequence[np.ndarray], dtype: type) -> torch.Tensor:
        padded = np.zeros((len(values), width), dtype=dtype)
        for row, value in zip(padded, values, strict=True):
            row[: len(value)] = value
        return torch.from_numpy(padded)

    mask_BT = rows([sample.mask for sample in samples], np.bool_)
    mask_BT[:, 0] = False  # Nothing predicts the first token of a sequence.
    return MicroBatch(
        ids_BT=rows([sample.ids for sample in samples], np.int64),
        attention_BT=rows([np.ones(len(sample.ids), dtype=bool) for sample in samples], np.bool_),
        mask_BT=mask_BT,
        logp_rollout_BT=rows([sample.logp_rollout for sample in samples], np.float32),
        advantage_BT=rows([np.full(len(s.ids), s.advantage, dtype=np.float32) for s in samples], np.float32),
        order_B=order,
    )


def _empty() -> MicroBatch:
    """One row of one padding token: a forward and backward pass that adds nothing."""
    zeros = torch.zeros((1, 2))
    return MicroBatch(
        ids_BT=zeros.long(),
        attention_BT=torch.ones((1, 2), dtype=torch.bool),
        mask_BT=zeros.bool(),
        logp_rollout_BT=zeros,
        advantage_BT=zeros,
        order_B=[],
    )

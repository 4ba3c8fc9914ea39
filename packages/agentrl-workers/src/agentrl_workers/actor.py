"""The worker that trains: one replica of the actor pool."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from agentrl_workers.config import ActorConfig, AlgorithmConfig, ModelConfig
from agentrl_workers.correction import truncated_weights
from agentrl_workers.losses import (
    clipped_loss,
    clipped_tokens,
    kl_k3,
    masked_sum,
    token_entropy,
    token_logps,
)
from agentrl_workers.models import default_device, load_model
from agentrl_workers.samples import MicroBatch, Sample, micro_batches, plan_micro_batches
from agentrl_workers.scoring import sequence_logps

_FINAL_RATE = 0.1
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True, slots=True)
class ActorSettings:
    """What an actor needs to know."""

    model: ModelConfig
    """Where to start."""
    actor: ActorConfig
    """How to optimise."""
    algorithm: AlgorithmConfig
    """What to optimise."""
    temperature: float
    """Of the rollout."""
    num_updates: int
    """Updates in the whole run; the learning rate decays over them."""
    seed: int
    """Of the worker."""


class Actor:
    """Holds the model and its optimiser; all replicas of the pool step together."""

    def __init__(self, settings: ActorSettings) -> None:
        torch.manual_seed(settings.seed)
        self.rank = dist.get_rank()
        self.device = default_device()
        self._settings = settings
        self._model = load_model(settings.model.path, dtype=settings.model.dtype, device=self.device)
        if dist.get_world_size() > 1:
            for layer in _layers(self._model):
                fully_shard(layer)
            fully_shard(self._model)
        actor = settings.actor
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=actor.learning_rate,
            betas=actor.betas,
            weight_decay=actor.weight_decay,
        )
        self.num_updates = 0

    def num_parameters(self) -> int:
        """Size of the model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and full tensors of the model, tied and buffers included; collective over the pool."""
        for name, tensor in self._model.state_dict().items():
            yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def step(
        self, updates: Sequence[Sequence[Sample]], references: Sequence[Sequence[np.ndarray]] | None
    ) -> dict[str, float]:
        """Train on a batch: one optimiser update for each of its parts.

        Every rank gets the whole batch and takes its share, so that the counts that losses are divided by
        are the same everywhere. The log-probabilities of the weights at batch formation anchor the ratio;
        with one update they are those of the forward pass itself.

        Args:
            updates: the sequences of each update.
            references: the reference's log-probabilities, sequence by sequence; none without a reference.

        Returns:
            Sums and means over the batch, the same on every rank.
        """
        anchors: list[list[np.ndarray] | None] = [None] * len(updates)
        if len(updates) > 1:
            anchors = [self._shared_logps(samples) for samples in updates]
        totals = torch.zeros(len(_SUMS), dtype=torch.float64)
        gap_max = torch.zeros(1, dtype=torch.float64)
        norms = []
        for part, samples in enumerate(updates):
            reference = references[part] if references is not None else None
            sums, gap = self._update(samples, anchors[part], reference)
            norms.append(self._apply())
            totals += sums
            gap_max = torch.maximum(gap_max, gap)
        dist.all_reduce(totals)
        dist.all_reduce(gap_max, op=dist.ReduceOp.MAX)
        return _metrics(dict(zip(_SUMS, totals.tolist(), strict=True)), gap_max.item(), norms)

    def _shared_logps(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of this rank's share; other places stay empty."""
        rows = self._share(samples)
        result = [np.empty(0, dtype=np.float32)] * len(samples)
        computed = sequence_logps(
            self._model,
            [samples[n] for n in rows],
            temperature=self._settings.temperature,
            max_tokens=self._settings.actor.micro_batch_tokens,
            device=self.device,
            count=self._count(samples),
        )
        for row, logps in zip(rows, computed, strict=True):
            result[row] = logps
        return result

    def _share(self, samples: Sequence[Sample], rank: int | None = None) -> list[int]:
        """Which sequences a rank computes: every n-th by length, so that shares weigh about the same."""
        order = sorted(range(len(samples)), key=lambda n: (-len(samples[n].ids), n))
        return order[(self.rank if rank is None else rank) :: dist.get_world_size()]

    def _count(self, samples: Sequence[Sample]) -> int:
        """Micro-batches that every rank runs: as many as the rank that needs most."""
        limit = self._settings.actor.micro_batch_tokens
        return max(
            len(
                plan_micro_batches(
                    [len(samples[n].ids) for n in self._share(samples, rank)], max_tokens=limit
                )
            )
            for rank in range(dist.get_world_size())
        )

    def _update(
        self,
        samples: Sequence[Sample],
        anchors: Sequence[np.ndarray] | None,
        references: Sequence[np.ndarray] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accumulate the gradient of one update's loss."""
        rows = self._share(samples)
        num_tokens = max(1, sum(int(sample.mask[1:].sum()) for sample in samples))
        batches = micro_batches(
            [samples[n] for n in rows],
            max_tokens=self._settings.actor.micro_batch_tokens,
            count=self._count(samples),
        )
        sums = torch.zeros(len(_SUMS), dtype=torch.float64)
        gap_max = torch.zeros(1, dtype=torch.float64)
        self._optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            order = [rows[n] for n in batch.order_B]
            loss, part, gap = self._loss(
                batch,
                anchor_BT=_padded(anchors, order, batch),
                reference_BT=_padded(references, order, batch),
            )
            # FSDP averages over the ranks; the loss is a sum over all of them divided by the global count.
            (loss * dist.get_world_size() / num_tokens).backward()
            sums += part
            gap_max = torch.maximum(gap_max, gap)
        return sums, gap_max

    def _loss(
        self, batch: MicroBatch, *, anchor_BT: torch.Tensor | None, reference_BT: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        algorithm = self._settings.algorithm
        batch = batch.to(self.device)
        logits_BTV = self._model(
            input_ids=batch.ids_BT, attention_mask=batch.attention_BT, use_cache=False
        ).logits
        logp_BT = token_logps(logits_BTV, batch.ids_BT, temperature=self._settings.temperature)
        old_BT = logp_BT.detach() if anchor_BT is None else anchor_BT.to(self.device)
        weight_BT = truncated_weights(old_BT, batch.logp_rollout_BT, cap=algorithm.importance_cap)
        bounds = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
        loss_BT = weight_BT * clipped_loss(
            logp_BT, old_BT, batch.advantage_BT, **bounds, dual_clip=algorithm.dual_clip
        )
        kl_BT = torch.zeros_like(logp_BT)
        if reference_BT is not None:
            kl_BT = kl_k3(logp_BT, reference_BT.to(self.device))
            loss_BT = loss_BT + algorithm.kl_coefficient * kl_BT
        mask_BT = batch.mask_BT
        loss = masked_sum(loss_BT, mask_BT)
        with torch.no_grad():
            gap_BT = torch.where(mask_BT, (old_BT - batch.logp_rollout_BT).abs(), 0.0)
            clipped_BT = clipped_tokens(logp_BT, old_BT, batch.advantage_BT, **bounds)
            entropy_BT = token_entropy(logits_BTV, temperature=self._settings.temperature)
            sums = torch.stack(
                [
                    mask_BT.sum(),
                    loss.detach(),
                    masked_sum(kl_BT, mask_BT),
                    masked_sum(entropy_BT, mask_BT),
                    gap_BT.sum(),
                    masked_sum(clipped_BT.float(), mask_BT),
                    masked_sum(weight_BT, mask_BT),
                    masked_sum(weight_BT**2, mask_BT),
                ]
            )
        return loss, sums.double().cpu(), gap_BT.max().double().cpu().reshape(1)

    def _apply(self) -> float:
        actor = self._settings.actor
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), actor.max_grad_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # type: ignore[union-attr]
        factor = learning_rate_factor(self.num_updates, config=actor, total=self._settings.num_updates)
        for group in self._optimizer.param_groups:
            group["lr"] = actor.learning_rate * factor
        if torch.isfinite(norm):
            self._optimizer.step()
        self.num_updates += 1
        return float(norm)

    def save(self, folder: str) -> None:
        """Write the model as `transformers` reads it, and the optimiser beside it; collective."""
        model = get_model_state_dict(self._model, options=_FULL)
        optimizer = get_optimizer_state_dict(self._model, self._optimizer, options=_FULL)
        if self.rank == 0:
            self._model.save_pretrained(folder, state_dict=model)
            state = {"optimizer": optimizer, "num_updates": self.num_updates}
            torch.save(state, Path(folder) / "optimizer.pt")

    def load(self, folder: str) -> None:
        """Go on from what `save` wrote; collective."""
        source = load_model(folder, dtype=self._settings.model.dtype)
        set_model_state_dict(
            self._model, dict(source.state_dict()), options=StateDictOptions(full_state_dict=True)
        )
        state: Mapping[str, Any] = torch.load(Path(folder) / "optimizer.pt", weights_only=True)
        set_optimizer_state_dict(
            self._model, self._optimizer, state["optimizer"], options=StateDictOptions(full_state_dict=True)
        )
        self.num_updates = state["num_updates"]


def learning_rate_factor(update: int, *, config: ActorConfig, total: int) -> float:
    """What the learning rate is multiplied by: a linear rise, then level or along half a cosine.

    Args:
        update: updates made before this one.
        config: warm-up and decay.
        total: updates in the whole run.
    """
    rise = min(1.0, (update + 1) / max(1, config.warmup_steps))
    if config.decay == "constant":
        return rise
    done = min(1.0, update / max(1, total))
    return rise * (_FINAL_RATE + (1.0 - _FINAL_RATE) * 0.5 * (1.0 + math.cos(math.pi * done)))


_SUMS = ("tokens", "loss", "kl", "entropy", "gap", "clipped", "weight", "weight_squared")


def _metrics(sums: Mapping[str, float], gap_max: float, norms: Sequence[float]) -> dict[str, float]:
    tokens = max(1.0, sums["tokens"])
    return {
        "policy/loss": sums["loss"] / tokens,
        "policy/kl_reference": sums["kl"] / tokens,
        "policy/entropy": sums["entropy"] / tokens,
        "policy/logp_gap_mean": sums["gap"] / tokens,
        "policy/logp_gap_max": gap_max,
        "policy/clip_fraction": sums["clipped"] / tokens,
        # (sum w)^2 / sum w^2, as a share of the tokens.
        "policy/effective_sample_size": sums["weight"] ** 2 / max(sums["weight_squared"], 1e-12) / tokens,
        "policy/grad_norm": sum(norms) / max(1, len(norms)),
    }


def _padded(
    rows: Sequence[np.ndarray] | None, order: Sequence[int], batch: MicroBatch
) -> torch.Tensor | None:
    if rows is None:
        return None
    padded = torch.zeros(batch.ids_BT.shape)
    for row, position in enumerate(order):
        padded[row, : len(rows[position])] = torch.from_numpy(np.asarray(rows[position]))
    return padded


def _layers(model: Any) -> Sequence[torch.nn.Module]:
    return list(model.base_model.layers)

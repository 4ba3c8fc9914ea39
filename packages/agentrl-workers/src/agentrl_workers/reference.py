"""The worker that remembers where training started: one replica of the reference pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist

from agentrl_workers.config import ModelConfig
from agentrl_workers.models import default_device, load_model
from agentrl_workers.samples import Sample
from agentrl_workers.scoring import sequence_logps


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """What a reference needs to know."""

    model: ModelConfig
    """The initial model."""
    temperature: float
    """Of the rollout."""
    micro_batch_tokens: int
    """Padded tokens in a forward pass."""


class Reference:
    """A frozen copy of the initial model."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._settings = settings
        self._device = default_device()
        self._model = load_model(settings.model.path, dtype=settings.model.dtype, device=self._device)
        self._model.eval().requires_grad_(False)

    def logps(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probability of every token (T) of this rank's share: every n-th sequence."""
        return sequence_logps(
            self._model,
            samples[dist.get_rank() :: dist.get_world_size()],
            temperature=self._settings.temperature,
            max_tokens=self._settings.micro_batch_tokens,
            device=self._device,
        )

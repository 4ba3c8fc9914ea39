"""The worker that samples: one replica of the rollout pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_core import PolicyVersion
from agentrl_workers.config import ModelConfig, RolloutConfig
from agentrl_workers.engines import Generation, SamplingParams
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.models import default_device, load_model


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """What a generator needs to know."""

    model: ModelConfig
    """Where to start."""
    rollout: RolloutConfig
    """Size of the batch and of the context."""
    seed: int
    """Of the sampling."""
    version: PolicyVersion
    """Of the weights in the model's folder."""


class Generator:
    """Owns an engine and answers requests for it."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self.device = default_device()
        self.engine = EmbeddedEngine(
            load_model(settings.model.path, dtype=settings.model.dtype, device=self.device),
            num_slots=settings.rollout.num_slots,
            context_length=settings.rollout.context_length,
            seed=settings.seed,
            version=settings.version,
        )

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Sample one reply.

        Raises:
            EngineError: the prompt does not fit, or the engine has stopped.
        """
        return await self.engine.generate(prompt_ids, sampling)

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()

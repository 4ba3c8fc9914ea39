"""The worker that samples: one replica of the rollout pool."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from agentrl_core import PolicyVersion
from agentrl_workers.config import ModelConfig, RolloutConfig
from agentrl_workers.engines import Engine, EngineError, EngineLostError, Generation, SamplingParams
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.engines.sglang import SGLangEngine
from agentrl_workers.models import default_device, load_model

_LAST_WORDS_S = 0.5
"""How long the process of a lost engine lives on, so that those who wait are told why."""


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
    log_dir: str
    """Folder for what servers say."""


class Generator:
    """Owns an engine and answers requests for it."""

    engine: Engine
    """The engine; a SGLang server's is there once `open` has returned."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        rollout = settings.rollout
        # A server has the GPUs for itself; what passes through here on the way to it stays in main memory.
        self.device = torch.device("cpu") if rollout.engine == "sglang" else default_device()
        if rollout.engine == "embedded":
            self.engine = EmbeddedEngine(
                load_model(settings.model.path, dtype=settings.model.dtype, device=self.device),
                num_slots=rollout.num_slots,
                context_length=rollout.context_length,
                seed=settings.seed,
                version=settings.version,
            )

    async def open(self) -> None:
        """Start the server that the engine needs, or reach it.

        Raises:
            EngineError: it does not come up.
        """
        settings = self._settings
        if settings.rollout.engine == "sglang":
            self.engine = await SGLangEngine.start(
                settings.rollout.sglang,
                model=settings.model.path,
                dtype=settings.model.dtype,
                context_length=settings.rollout.context_length,
                num_slots=settings.rollout.num_slots,
                version=settings.version,
                log=Path(settings.log_dir) / f"sglang-{os.environ['RANK']}.log",
            )

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Sample one reply.

        Raises:
            EngineError: the engine refuses the request.
            EngineLostError: the engine has failed; this process ends soon after, and makes room for another.
        """
        try:
            return await self.engine.generate(prompt_ids, sampling)
        except EngineError as error:
            if self.engine.alive():
                raise
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
            raise EngineLostError(str(error)) from error

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.close()

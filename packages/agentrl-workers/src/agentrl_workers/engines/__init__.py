"""Rollout engines: prompt ids in, sampled ids with log-probabilities and versions out.

    rollout --prompt_ids, SamplingParams--> Engine --Generation--> rollout
    weights --tensors, version------------> Engine (swapped between two tokens)

`base` holds the contract, `embedded` the engine in plain torch.
"""

from agentrl_workers.engines.base import (
    Engine,
    EngineError,
    EngineLostError,
    FinishReason,
    Generation,
    OnToken,
    SamplingParams,
)

__all__ = [
    "Engine",
    "EngineError",
    "EngineLostError",
    "FinishReason",
    "Generation",
    "OnToken",
    "SamplingParams",
]

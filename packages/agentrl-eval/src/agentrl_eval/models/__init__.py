"""Models to evaluate: endpoints and scripted policies behind one interface.

`agentrl_eval.models.openai` holds the endpoint; it takes a while to import.
"""

from agentrl_eval.models.base import (
    ContextLimitError,
    Model,
    ModelReply,
    ModelUnavailableError,
    ModelUnusableError,
)
from agentrl_eval.models.scripted import ScriptedModel

__all__ = [
    "ContextLimitError",
    "Model",
    "ModelReply",
    "ModelUnavailableError",
    "ModelUnusableError",
    "ScriptedModel",
]

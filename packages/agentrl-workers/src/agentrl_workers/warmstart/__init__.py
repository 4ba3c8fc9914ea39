"""Makes the quickstart's first model: small, from seed, speaking the tool-call format but playing badly.

players --play over the wire--> Demonstration --> tokenizer, imitation --> a model folder
"""

from agentrl_workers.warmstart.imitation import ImitationConfig
from agentrl_workers.warmstart.recipe import WarmstartConfig, WarmstartError, make_model

__all__ = ["ImitationConfig", "WarmstartConfig", "WarmstartError", "make_model"]

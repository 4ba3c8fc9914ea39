"""Makes the quickstart's first model: small, from seed, speaking the tool-call format but playing badly.

players --play over the wire--> Demonstration --> tokenizer, imitation --> a model folder
"""

from agentrl_workers.warmstart.recipe import WarmstartConfig, make_model

__all__ = ["WarmstartConfig", "make_model"]

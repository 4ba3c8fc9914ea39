"""An engine over a real SGLang server's HTTP API, the server started here or elsewhere.

    rollout --prompt_ids--> SGLangEngine --/generate-----------> server --Generation--> rollout
    weights --tensors-----> SGLangEngine --pause, broadcast----> server (verified, then continued)
    publisher --buckets--------- its own group ----------------> server, told by SGLangEngine

`server` is the process, `client` the requests, `wire` what they say,
`transfer` our end of the broadcast, `witness` the proof that weights arrived.
"""

from agentrl_workers.config import PauseMode, SGLangConfig
from agentrl_workers.engines.sglang.engine import SGLangEngine

__all__ = ["PauseMode", "SGLangConfig", "SGLangEngine"]

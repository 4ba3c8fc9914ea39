"""Evaluate models on agent tasks: every episode counted, every number with its interval.

    Plan --sampling--> Samples --runner (Model <-> session client)--> Records --> Results --> report
                                                                         |
                                                                      Journal (resume)

`agentrl_eval.models.openai.OpenAIModel` is the model behind an endpoint; it takes a while to import, and
so do `agentrl_eval.runner.evaluate`, which plays a plan, and `agentrl_eval.results`.
"""

from agentrl_eval.plan import Plan
from agentrl_eval.sampling import Sample

__all__ = ["Plan", "Sample"]

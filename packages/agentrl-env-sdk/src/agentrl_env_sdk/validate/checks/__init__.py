"""The checks by name, in the order in which they run; each is a function that can be called by itself."""

from collections.abc import Awaitable, Callable, Mapping

from agentrl_env_sdk.validate.checks.agents import do_nothing, oracle, random_play
from agentrl_env_sdk.validate.checks.blocking import blocking
from agentrl_env_sdk.validate.checks.cancellation import cancellation
from agentrl_env_sdk.validate.checks.concurrency import no_leaks
from agentrl_env_sdk.validate.checks.payloads import payloads
from agentrl_env_sdk.validate.checks.prompt import prompt
from agentrl_env_sdk.validate.checks.rewards import errors, rewards
from agentrl_env_sdk.validate.checks.schemas import schemas
from agentrl_env_sdk.validate.checks.seeds import different_seeds, same_seed
from agentrl_env_sdk.validate.checks.timeouts import timeouts
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import Subject

CHECKS: Mapping[str, Callable[[Subject], Awaitable[Finding]]] = {
    "errors": errors,
    "same-seed": same_seed,
    "different-seeds": different_seeds,
    "no-leaks": no_leaks,
    "oracle": oracle,
    "do-nothing": do_nothing,
    "random": random_play,
    "rewards": rewards,
    "prompt": prompt,
    "schemas": schemas,
    "payloads": payloads,
    "blocking": blocking,
    "cancellation": cancellation,
    "timeouts": timeouts,
}

__all__ = ["CHECKS"]

"""Episodes do not fail, and what they report can be counted and sent."""

import json
import math
from typing import Any

from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import Play, Subject, judged


async def errors(subject: Subject) -> Finding:
    """No episode ends as a failure of the task."""
    problems = [
        f"sample {play.recording.index!r} ends as `task error` after {len(play.actions)} turns of the "
        f"{agent} agent: {play.error}; whatever an agent does, answer it, and end the episode if it must end"
        for agent in subject.agents
        for play in await subject.plays(agent)
        if play.error is not None
    ]
    return judged("errors", f"played {subject.where} ({', '.join(subject.agents)})", problems)


async def rewards(subject: Subject) -> Finding:
    """Rewards are finite, returns and scores are in range, and metrics are JSON."""
    low, high = subject.task.reward_range
    problems: dict[str, None] = {}
    returns = []
    for agent in subject.agents:
        for play in await subject.plays(agent):
            returns.append(play.recording.reward)
            where = f"sample {play.recording.index!r}, {agent} agent"
            for problem in (*_of_return(play, low, high), *_of_metrics(play)):
                problems[f"{where}: {problem}"] = None
    did = f"returns from {min(returns):g} to {max(returns):g} in {len(returns)} episodes of {subject.where}"
    return judged("rewards", did, list(problems))


def _of_return(play: Play, low: float, high: float) -> list[str]:
    """What is wrong with the numbers that a trainer learns from."""
    found = [
        f"turn {turn} is worth {step.reward}; rewards must be finite"
        for turn, step in enumerate(play.recording.steps)
        if step.reward is not None and not math.isfinite(step.reward)
    ]
    if play.error is not None and "reward" in play.error:
        found.append(f"{play.error}; give a finite number")
    total = play.recording.reward
    if math.isfinite(total) and not low - 1e-9 <= total <= high + 1e-9:
        rule = (
            f"must be in [{low:g}, {high:g}]; scale it, or declare `reward_range = (low, high)` on the task"
        )
        found.append(f"the return {total:g} {rule}")
    score: Any = play.score
    if score is not None and not (isinstance(score, int | float) and 0 <= score <= 1):
        found.append(f"the score {score!r} must be in [0, 1]; scale it, or report it as a metric")
    return found


def _of_metrics(play: Play) -> list[str]:
    found = []
    for name, value in play.metrics.items():
        try:
            json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            found.append(f"metric `{name}` is no JSON ({error}), got {value!r:.80}; use plain finite values")
    return found

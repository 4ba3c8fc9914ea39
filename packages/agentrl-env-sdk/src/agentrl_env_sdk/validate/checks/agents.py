"""The best play reaches the declared optimum; doing nothing and chance do not."""

import math

from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import Play, Subject, counted, judged, skipped

_EPSILON = 1e-6
_BY_CHANCE = 0.9
"""Share of the optimum from which a play without sense is too good."""
_STANDARD_ERRORS = 3.0
_MIN_RANDOM = 16
"""Episodes of the random agent."""


async def oracle(subject: Subject) -> Finding:
    """The oracle ends each episode, and its mean score is the optimum."""
    if subject.oracle is None:
        return skipped("oracle", "the task has no `oracle` method and `--oracle` names none")
    optimum = subject.task.optimum
    if optimum is None or not 0 < optimum <= 1:
        problem = (
            f"`optimum` must be in (0, 1] where there is an oracle, got {optimum}; 1.0 where it always wins"
        )
        return judged("oracle", "looked at the declared optimum", [problem])
    plays = await subject.plays("oracle")
    problems = [told for play in plays if (told := _ending(play)) is not None]
    mean = _mean(plays)
    # An optimum below 1 is a mean over all samples, of which only some are played.
    spread = _STANDARD_ERRORS * math.sqrt(optimum * (1 - optimum) / len(plays))
    if mean < optimum - spread - _EPSILON:
        worst = min(plays, key=lambda play: play.score or 0.0)
        problems.append(
            f"the oracle's mean score is {mean:.3f}, the declared optimum {optimum:g}; it got "
            f"{worst.score} in sample {worst.recording.index!r} ({worst.status}): repair the oracle or the "
            "reward, or declare what can be reached"
        )
    return judged("oracle", f"mean score {mean:.3f} of {optimum:g} on {subject.where}", problems)


async def do_nothing(subject: Subject) -> Finding:
    """An agent that says nothing stays clear of the optimum."""
    return await _without_sense(subject, "do-nothing")


async def random_play(subject: Subject) -> Finding:
    """An agent that acts by chance stays clear of the optimum."""
    return await _without_sense(subject, "random")


async def _without_sense(subject: Subject, agent: str) -> Finding:
    optimum = subject.task.optimum
    if optimum is None or optimum <= 0:
        return skipped(agent, f"the task declares no optimum to stay below (`optimum` is {optimum})")
    plays = [*await subject.plays(agent)]
    if agent == "random":  # A lucky episode or two must not count as a way to win.
        wanted = math.ceil(_MIN_RANDOM / len(subject.samples))
        for chance in range(1, wanted):
            plays += [await subject.play(agent, index, agent_seed=chance) for index in subject.samples]
    mean = _mean(plays)
    problems = []
    if mean >= _BY_CHANCE * optimum:
        problems.append(
            f"the {agent} agent's mean score is {mean:.3f}, which must stay below {_BY_CHANCE:g} x the "
            f"optimum {optimum:g}: reward what only a sensible play reaches"
        )
    did = f"mean score {mean:.3f} of {optimum:g} in {counted(len(plays), 'episode')} of {subject.where}"
    return judged(agent, did, problems)


def _mean(plays: list[Play]) -> float:
    return sum(play.score or 0.0 for play in plays) / len(plays)


def _ending(play: Play) -> str | None:
    """What is wrong with how the oracle's episode ended."""
    index = play.recording.index
    if play.error is not None:
        return f"sample {index!r} ends as `task error` under the oracle: {play.error}"
    if play.score is None:
        return (
            f"the oracle stops after {len(play.actions)} turns of sample {index!r} and the episode goes on; "
            "it must play to the end"
        )
    return None

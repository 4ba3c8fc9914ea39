"""The reward cannot be read from the prompt: no fixed rule finds the winning answer in the opening.

That a right answer stands in the opening is no fault by itself: it may stand among others to choose from,
as the last step of a long play, or by chance. It is one where a rule that knows nothing of the task, such
as "the word after `answer is`", finds it in nearly all samples, and giving it at once wins.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_core import Message
from agentrl_env_sdk.oracle import Observation
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import SEED, Play, Subject, judged, skipped

_TOKEN = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+|[^\w\s]")
_MIN_SAMPLES = 4
_SHARE = 0.9
"""Of samples in which a rule must find the answer; the others may be exceptions."""
_MAX_CONTEXT = 3

Tokens = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """What a sample shows, and what wins it."""

    opening: Tokens
    answer: tuple[Tokens, ...]
    """What the winning action says, value by value."""


async def prompt(subject: Subject) -> Finding:
    """Look for the oracle's last action in what the agent sees first."""
    if subject.task.answer_is_shown:
        return skipped("prompt", "the task declares that its answer is shown (`answer_is_shown`)")
    if subject.oracle is None:
        return skipped("prompt", "it takes an oracle to know the answers")
    plays = [play for play in await subject.plays("oracle") if play.actions and (play.score or 0) > 0]
    cases = [_case(play) for play in plays]
    if len(cases) < _MIN_SAMPLES or len({case.answer for case in cases}) < 2:
        return skipped("prompt", f"it takes {_MIN_SAMPLES} samples with different answers, got {len(cases)}")
    did = f"looked for the oracle's last action in the openings of {subject.where}"
    rules = readable(cases)
    if rules is None:
        return judged("prompt", did, [])
    won = [play for play in plays if await _wins_at_once(subject, play)]
    if len(won) < _SHARE * len(plays):
        note = f"what the oracle does last can be read from the opening ({rules}), but does not win at once"
        return judged("prompt", did, [], notes=[note])
    shown = _values(plays[0].recording.actions[-1])
    problem = (
        f"the answer stands in the opening, {rules}: in sample {plays[0].recording.index!r} the oracle gives "
        f"{', '.join(shown)} and an agent that reads it there wins {len(won)} of {len(plays)} samples in one "
        "turn; keep answers out of messages and tools, or declare `answer_is_shown = True`"
    )
    return judged("prompt", did, [problem])


def readable(cases: Sequence[_Case]) -> str | None:
    """Rules that find each value of the answers in the openings; None where one has no such rule.

    A value that is the same in nearly all samples needs no rule; but then another must need one.
    """
    widths = {len(case.answer) for case in cases}
    if len(widths) != 1:
        return None
    found: list[str] = []
    for place in range(widths.pop()):
        values = [case.answer[place] for case in cases]
        if max(values.count(value) for value in set(values)) >= _SHARE * len(values):
            continue
        rule = _rule([case.opening for case in cases], values)
        if rule is None:
            return None
        found.append(rule)
    return " and ".join(found) or None


def _rule(openings: Sequence[Tokens], values: Sequence[Tokens]) -> str | None:
    """A rule that finds the value in its opening, and in nearly every one."""
    counts: dict[str, int] = {}
    for opening, value in zip(openings, values, strict=True):
        for rule in set(_rules_that_hold(opening, value)):
            counts[rule] = counts.get(rule, 0) + 1
    # Of rules that are as good, the one that is the easiest to understand.
    best = max(
        counts, key=lambda rule: (counts[rule], rule.startswith("after"), -len(rule), rule), default=None
    )
    return best if best is not None and counts[best] >= _SHARE * len(values) else None


def _rules_that_hold(opening: Tokens, value: Tokens) -> Iterator[str]:
    width = len(value)
    places = [at for at in range(len(opening) - width + 1) if opening[at : at + width] == value]
    for at in places:
        for size in range(1, _MAX_CONTEXT + 1):
            before, after = opening[max(0, at - size) : at], opening[at + width : at + width + size]
            # Where the context comes twice, the rule would not know which to take.
            if len(before) == size and _occurrences(opening, before) == 1:
                yield f"after `{' '.join(before)}`"
            if len(after) == size and _occurrences(opening, after) == 1:
                yield f"before `{' '.join(after)}`"
        yield f"at word {at + 1}"
        yield f"at word {len(opening) - at - width + 1} from the end"


def _occurrences(tokens: Tokens, wanted: Tokens) -> int:
    return sum(tokens[at : at + len(wanted)] == wanted for at in range(len(tokens) - len(wanted) + 1))


async def _wins_at_once(subject: Subject, play: Play) -> bool:
    """Whether the oracle's last action alone earns what its whole play earned."""
    episode = await begin(subject.runner(), play.recording.index, seed=SEED)
    alone = await subject.finish(episode, ScriptedAgent([play.recording.actions[-1]]))
    return (alone.score or 0.0) >= (play.score or 0.0) - 1e-6


def _case(play: Play) -> _Case:
    first = play.recording.steps[0]
    seen = Observation(first.messages, first.tools, 0.0, play.status, False, {})
    tools = [tool.model_dump(mode="json") for tool in seen.tools or ()]
    opening = _tokens(f"{seen.text}\n{json.dumps(tools, ensure_ascii=False) if tools else ''}")
    values = _values(play.recording.actions[-1])
    return _Case(opening, tuple(tokens for value in values if (tokens := _tokens(value))))


def _values(action: Message) -> list[str]:
    """What an action says apart from which tool it calls: its numbers and strings, or its text."""
    found = []
    for made in action.tool_calls or ():
        arguments = made.function.arguments
        try:
            given: Any = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            given = arguments
        found += [str(leaf) for leaf in _leaves(given)]
    return found or [action.text]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield value


def _tokens(text: str) -> Tokens:
    return tuple(_TOKEN.findall(text.casefold()))

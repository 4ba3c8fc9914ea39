"""What no author thinks of arrives: half characters, NaN, a megabyte, pictures; what goes out can be read."""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core import FunctionCall, Message, Reply, SampleStatus, ToolCall
from agentrl_env_sdk.content import image_part, text_part
from agentrl_env_sdk.oracle import Observation, act
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.testing.episode import Episode, begin
from agentrl_env_sdk.testing.values import Values
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import SEED, Play, Subject, judged

_MEGABYTE = 2**20
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)

TEXTS: Mapping[str, str] = {
    "a lone surrogate": "half \ud83d a character",
    "a NUL and control characters": "a\x00b\x1b[31m\u2028",
    "characters beyond the first plane": "𝔘𝔫𝔦 🙂 \u202e",
    "1 MB of text": "long " * (_MEGABYTE // 5),
    "an empty string": "",
}
"""What strings may hold."""
NUMBERS: Mapping[str, float] = {"an integer of 40 digits": 10**39, "a negative number": -1, "zero": 0}
"""What numbers may be."""


async def payloads(subject: Subject) -> Finding:
    """Each tool and plain text get each payload in an episode of its own; none ends as `task error`."""
    index = subject.samples[0]
    problems: dict[str, None] = {}
    runner = subject.runner(subject.variant())
    first = await begin(runner, index, seed=SEED)
    await first.cancel()
    actions = list(_actions(first))
    for what, action in actions:
        episode = await begin(runner, index, seed=SEED)
        play = await subject.finish(episode, ScriptedAgent([action]))
        problems |= dict.fromkeys(_faults(what, play))
    for agent in subject.agents:
        for played in await subject.plays(agent):
            problems |= dict.fromkeys(_unreadable(f"the {agent} agent's play", played))
    did = f"sent {len(actions)} payloads to sample {index!r} and read what came back as JSON"
    return judged("payloads", did, list(problems))


def _actions(episode: Episode) -> Iterator[tuple[str, Message]]:
    """Payloads with a description of each."""
    for what, text in TEXTS.items():
        yield f"{what} as the reply", Message(role="assistant", content=text)
    parts = [text_part("look"), image_part(_PIXEL)]
    yield "text and a picture as the reply", Message(role="assistant", content=parts)
    yield "no content at all", Message(role="assistant", content=None)
    for tool in episode.tools:
        name = tool.function.name
        schema = {"type": "object"} | tool.function.parameters
        arguments = Values(random.Random(0), [episode.last.text[:20] or "word"]).draw(schema)
        yield f"`{name}` with NaN", _called(name, '{"number": NaN, "x": Infinity}')
        for kind, payload in (*TEXTS.items(), *NUMBERS.items()):
            for place in _places(schema, arguments, payload):
                sent = {**arguments, place: payload}
                yield f"`{name}` with {kind} as `{place}`", _called(name, _dumped(name, sent))


def _places(schema: Mapping[str, Any], arguments: Mapping[str, Any], payload: Any) -> list[str]:
    """Arguments that may hold such a value as far as their type goes."""
    kinds = {"string"} if isinstance(payload, str) else {"integer", "number"}
    found = []
    for name, inner in schema.get("properties", {}).items():
        types = {option.get("type") for option in (inner, *inner.get("anyOf", ()))}
        if types & kinds or (not inner.get("type") and name in arguments):
            found.append(name)
    return found


def _dumped(name: str, arguments: Mapping[str, Any]) -> str:
    made = act(name, **arguments).function.arguments
    assert isinstance(made, str)
    return made


def _called(name: str, arguments: str) -> Message:
    call = ToolCall(id="call_1", type="function", function=FunctionCall(name=name, arguments=arguments))
    return Message(role="assistant", content="", tool_calls=[call])


def _faults(what: str, play: Play) -> Iterator[str]:
    if play.status is SampleStatus.TASK_ERROR:
        yield (
            f"{what} ends the episode as `task error`: {play.error}; answer what cannot be used with a text "
            'that says so, and encode with `errors="replace"`'
        )
    yield from _unreadable(what, play)


def _unreadable(what: str, play: Play) -> Iterator[str]:
    """Answers that do not arrive as they were sent."""
    for turn, step in enumerate(play.recording.steps):
        seen = Observation(
            step.messages, step.tools, step.reward or 0.0, step.status or play.status, False, {}
        )
        try:
            fault = _changed(seen)
        except (ValueError, TypeError, UnicodeError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            yield (
                f"{what}: the answer of turn {turn} does not survive the wire, {fault}; return text, parts "
                "of `text_part` and `image_part`, or what has a JSON form without NaN"
            )


def _changed(seen: Observation) -> str | None:
    """What another program reads differently in an answer."""
    messages = [message.to_wire() for message in seen.messages]
    text = json.dumps({"messages": messages, "reward": seen.reward}, ensure_ascii=False, allow_nan=False)
    read = Reply.model_validate_json(text.encode())
    after = [message.to_wire() for message in read.messages]
    return (
        None
        if after == messages
        else f"message {json.dumps(messages)[:80]} arrives as {json.dumps(after)[:80]}"
    )

"""A person as the agent: messages and tools shown, calls typed, and a look at what the task thinks.

typed line --> call or text --> Episode --> what is seen, earned, and how long it took
           `-> :command      --> state, rewards, times, a step back, a file to replay
"""

import json
import pprint
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import click

from agentrl_core import (
    ConfigError,
    FunctionCall,
    Message,
    SampleIndex,
    SampleStatus,
    SessionError,
    ToolCall,
)
from agentrl_env_sdk.isolation import IsolatedTask
from agentrl_env_sdk.oracle import Observation
from agentrl_env_sdk.recording import Recording, first_difference
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.testing.episode import Episode, EpisodeError, begin, choose
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.worker.runner import Runner

_CHECKPOINTS = 10_000
"""Forks that may wait at the same time, one a turn."""

HELP = """\
  guess number=5         call a tool; guess {"number": 5} is the same
  any other text         say it
  :state                 what the task keeps of this episode
  :rewards               what each turn earned
  :time                  how long each turn took
  :tools                 the tools that can be called
  :log                   all messages so far
  :back [N]              go N turns back (1)
  :save FILE             write the episode for `agentrl-env replay`
  :quit                  leave; the end of the input does the same"""


async def play_by_hand(task: Task, *, index: SampleIndex | None, split: str | None, seed: int | None) -> None:
    """Play one episode on standard input and output; the end of the input cancels it.

    Raises:
        ConfigError: the split or the sample is unknown.
    """
    runner = Runner(task, concurrency=_CHECKPOINTS)
    chosen = choose(runner, index=index, split=split)
    click.secho(f"{task.task_name}, sample {chosen}", bold=True)
    debugger = Debugger(await _timed(begin(runner, chosen, seed=seed)))
    try:
        while not debugger.is_over:
            line = await call(_read)  # on a thread that does not hold up Ctrl-C
            if line is None:
                break
            await debugger.take(line)
    finally:
        was_over = debugger.episode.finished
        await runner.cancel_all()
    if not was_over:
        click.echo("cancelled")


class Debugger:
    """An episode that can be looked into and taken back.

    Args:
        begun: the episode, and the seconds that its start took.
    """

    def __init__(self, begun: tuple[Episode, float]) -> None:
        self.episode, took = begun
        self.is_over = False
        self._times = [took]
        self._checkpoints: list[Episode] = []
        """Forks of the episode before each turn, where the task can make them."""
        self._commands: Mapping[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "state": self._state,
            "rewards": self._rewards,
            "time": self._time,
            "tools": self._tools,
            "log": self._log,
            "back": self._back,
            "save": self._save,
            "quit": self._quit,
        }
        _show(self.episode.opening)

    async def take(self, line: str) -> None:
        """Do what a line says."""
        text = line.strip()
        if text.startswith(":"):
            name, _, rest = text[1:].partition(" ")
            command = self._commands.get(name)
            if command is None:
                click.echo(f"there is no `:{name}`; there are {', '.join(f':{n}' for n in self._commands)}")
            else:
                try:
                    await command(rest.strip())
                except (EpisodeError, ConfigError) as error:
                    click.echo(f"error: {error}")
        elif self.episode.finished:
            click.echo(f"the episode has ended as `{self.episode.status}`; :back, :save FILE or :quit")
        else:
            await self._act(_message(line, len(self.episode.actions)))

    async def _act(self, message: Message) -> None:
        if self.episode.runner.task.can_snapshot:
            try:
                self._checkpoints.append(await self.episode.fork())
            except SessionError as error:
                click.echo(f"no snapshot: {error}")
        seen, took = await _timed(self.episode.act(message))
        self._times.append(took)
        _show(seen)

    async def _help(self, _: str) -> None:
        click.echo(HELP)

    async def _state(self, _: str) -> None:
        session = self.episode.session
        click.echo(
            f"sample {session.index!r} of split {session.split!r}, seed {session.seed}, "
            f"{session.turns_left} turns left, {session.invalid_actions} unusable replies"
        )
        click.echo(f"sample data: {pprint.pformat(session.sample, width=100)}")
        if isinstance(self.episode.runner.task, IsolatedTask):
            click.echo("state: in the episode's process; play with --in-process to see it")
            return
        click.echo(f"state: {pprint.pformat(session.state, width=100, sort_dicts=False)}")

    async def _rewards(self, _: str) -> None:
        total = 0.0
        for turn, seen in enumerate(self.episode.observations):
            total += seen.reward
            click.echo(f"{_turn(turn):8}  {seen.reward:+.4g}  total {total:.4g}")
        click.echo(f"metrics: {json.dumps(self.episode.metrics, default=str)}")

    async def _time(self, _: str) -> None:
        for turn, took in enumerate(self._times):
            click.echo(f"{_turn(turn):8}  {took * 1000:.1f} ms")
        click.echo(f"in all    {sum(self._times) * 1000:.1f} ms")

    async def _tools(self, _: str) -> None:
        _show_tools(self.episode.tools)

    async def _log(self, _: str) -> None:
        for message in self.episode.transcript:
            _show_message(message)

    async def _back(self, rest: str) -> None:
        if rest and not rest.isdecimal():
            click.echo(f":back takes a number of turns, got `{rest}`")
            return
        count = int(rest or 1)
        num_turns = len(self.episode.actions)
        if not 1 <= count <= num_turns:
            click.echo(f"cannot go {count} turns back, there were {num_turns}")
            return
        kept = num_turns - count
        if len(self._checkpoints) == num_turns:
            await self.episode.cancel()
            for fork in self._checkpoints[kept + 1 :]:
                await fork.cancel()
            self.episode = self._checkpoints[kept]
            del self._checkpoints[kept:]
        elif not await self._again(kept):
            return
        del self._times[kept + 1 :]
        click.secho(f"back at {_turn(kept)}", bold=True)
        _show(self.episode.last)

    async def _again(self, kept: int) -> bool:
        """Play the first turns anew in another episode; whether it went the same way."""
        episode = self.episode
        options = {"seed": episode.seed}
        other = await begin(episode.runner, episode.index, **options)
        for action in episode.actions[:kept]:
            if not other.finished:
                await other.act(action)
        before = Recording.of(episode)
        steps = before.steps[: kept + 1]
        parted = first_difference(before.model_copy(update={"steps": steps}), Recording.of(other))
        if parted is not None:
            click.echo(f"the task makes no snapshots and played again goes another way, {parted}")
            await other.cancel()
            return False
        click.echo("the task makes no snapshots; played again from the start")
        await episode.cancel()
        self.episode, self._checkpoints = other, []
        return True

    async def _save(self, rest: str) -> None:
        if not rest:
            click.echo("`:save FILE` needs the name of a file")
            return
        Recording.of(self.episode).save(Path(rest))
        click.echo(f"saved {len(self.episode.actions)} turns to {rest}")

    async def _quit(self, _: str) -> None:
        self.is_over = True


async def _timed(work: Awaitable[Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = await work
    return result, time.perf_counter() - began


def _turn(number: int) -> str:
    return f"turn {number}" if number else "opening"


def _show(seen: Observation) -> None:
    _show_tools(seen.tools or ())
    for message in seen.messages:
        _show_message(message)
    if seen.reward:
        click.secho(f"reward {seen.reward:+.3g}", fg="green")
    if seen.finish:
        colour = "red" if seen.status is SampleStatus.TASK_ERROR else None
        click.secho(f"end: {seen.status}, {json.dumps(seen.metrics, default=str)}", bold=True, fg=colour)


def _show_tools(tools: Any) -> None:
    for tool in tools:
        properties = tool.function.parameters.get("properties", {})
        signature = ", ".join(f"{name}: {_kind(schema)}" for name, schema in properties.items())
        click.secho(f"  tool {tool.function.name}({signature})  {tool.function.description}", dim=True)


def _show_message(message: Message) -> None:
    calls = [f"{made.function.name} {made.function.arguments}" for made in message.tool_calls or ()]
    parts = [part for part in message.content or () if isinstance(part, dict) and part.get("type") != "text"]
    shown = [message.text, *calls, *(f"[{part.get('type')}]" for part in parts)]
    click.echo(f"{message.role}: {' '.join(text for text in shown if text)}")


def _kind(schema: Mapping[str, Any]) -> str:
    if schema.get("enum"):
        return "|".join(map(str, schema["enum"]))
    options = schema.get("anyOf") or ()
    return "|".join(map(_kind, options)) if options else str(schema.get("type") or "any")


def _read() -> str | None:
    try:
        return input("> ")
    except EOFError:
        return None


def _message(line: str, turn: int) -> Message:
    """A typed line as the agent's message: a tool call where it looks like one, else text."""
    name, _, rest = line.strip().partition(" ")
    arguments = _arguments(rest.strip()) if name.isidentifier() else None
    if arguments is None:
        return Message(role="assistant", content=line)
    made = ToolCall(id=f"call_{turn}", type="function", function=FunctionCall(name=name, arguments=arguments))
    return Message(role="assistant", content="", tool_calls=[made])


def _arguments(text: str) -> str | None:
    """JSON as it is, `key=value` words as JSON, nothing as no arguments; None for any other text."""
    if text.startswith("{"):
        return text
    try:
        words = [word.partition("=") for word in shlex.split(text)]
    except ValueError:  # a quote that is never closed, as in "don't"
        return None
    if all(separator and key.isidentifier() for key, separator, _ in words):
        return json.dumps({key: _value(value) for key, _, value in words})
    return None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

"""A person as the agent: messages and tools shown, calls typed, rewards told."""

import json
import shlex
from typing import Any

import click

from agentrl_core import ConfigError, FunctionCall, Message, SampleIndex, ToolCall
from agentrl_env_sdk.session import Exchange
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.worker.runner import Runner


async def play_by_hand(task: Task, *, index: int | None, split: str | None, seed: int | None) -> None:
    """Play one episode on standard input and output; the end of the input cancels it.

    Raises:
        ConfigError: the split or the sample is unknown.
    """
    runner = Runner(task)
    chosen = _choose(runner, index, split)
    session_id, exchange = await runner.start(chosen, seed=seed)
    click.secho(f"{task.task_name}, sample {chosen}", bold=True)
    turn = 0
    while True:
        _show(exchange)
        if exchange.finish:
            return
        line = await call(_read)  # on a thread that does not hold up Ctrl-C
        if line is None:
            await runner.cancel(session_id)
            click.echo("cancelled")
            return
        exchange = await runner.interact(session_id, [_message(line, turn)])
        turn += 1


def _choose(runner: Runner, index: int | None, split: str | None) -> SampleIndex:
    splits = runner.samples.splits
    if split is not None and split not in splits:
        raise ConfigError(f"there is no split `{split}`; the task has {sorted(splits)}")
    indices = splits[split] if split is not None else next(iter(splits.values()))
    if index is None:
        return indices[0]
    if runner.samples.find(index) is None or (split is not None and index not in indices):
        where = f"split `{split}`" if split else "the task"
        raise ConfigError(f"{where} has no sample {index}")
    return index


def _show(exchange: Exchange) -> None:
    for tool in exchange.tools or []:
        properties = tool.function.parameters.get("properties", {})
        signature = ", ".join(f"{name}: {_kind(schema)}" for name, schema in properties.items())
        click.secho(f"  tool {tool.function.name}({signature})  {tool.function.description}", dim=True)
    for message in exchange.messages:
        click.echo(f"{message.role}: {message.text}")
    if exchange.reward:
        click.secho(f"reward {exchange.reward:+.3g}", fg="green")
    if exchange.finish:
        click.secho(f"end: {exchange.status}, {json.dumps(exchange.metrics)}", bold=True)


def _kind(schema: dict[str, Any]) -> str:
    return str(schema.get("type") or "any")


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

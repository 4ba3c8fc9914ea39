"""Plays the episodes of a plan: a model and an environment talk until one ends it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentrl_core import ErrorCode, Message, Outcome, Reply, SessionError, Tool, outcome_of
from agentrl_core.client import Session, SessionClient
from agentrl_eval.journal import Journal, Record
from agentrl_eval.models import ContextLimitError, Model, ModelReply, ModelUnavailableError
from agentrl_eval.plan import Plan, Sample, samples_of

_ATTEMPTS = 3

OnRecord = Callable[[Record, int], None]
"""Told of each episode's result and of how many episodes there are."""


@dataclass(slots=True)
class _Episode:
    """What an attempt has gathered so far."""

    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def take(self, reply: Reply) -> None:
        self.messages += reply.messages
        self.tools = reply.tools if reply.tools is not None else self.tools
        self.metrics.update(reply.metrics)
        self.reward += reply.reward

    def say(self, reply: ModelReply) -> None:
        self.messages.append(reply.message)
        self.turns += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


async def evaluate(
    plan: Plan,
    model: Model,
    client: SessionClient,
    journal: Journal,
    *,
    concurrency: int = 32,
    on_record: OnRecord = lambda record, total: None,  # noqa: ARG005
    stop: asyncio.Event | None = None,
) -> bool:
    """Play what the journal lacks; returns whether every episode has a result now.

    Args:
        plan: what to play.
        model: the agent.
        client: reaches the environments.
        journal: gets every attempt.
        concurrency: episodes at the same time.
        on_record: told of each result.
        stop: when set, nothing new begins and running episodes are cancelled.

    Raises:
        ConfigError: a sample is unknown.
        SessionError: a task is unknown, or the controller unreachable.
        ModelRefusedError: the endpoint refuses for good.
    """
    todo: list[Sample] = []
    for task in plan.tasks:
        todo += samples_of(plan, task, await client.indices(task, split=plan.split))
    left = [sample for sample in todo if sample not in journal.finished]
    queue = iter(left)
    stop = stop or asyncio.Event()

    async def work() -> None:
        for sample in queue:
            if stop.is_set():
                return
            record = await _attempts(plan, model, client, journal, sample)
            on_record(record, len(todo))

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(min(concurrency, len(left)))]
        watcher = group.create_task(_cancel_on(stop, workers))
        await asyncio.wait(workers) if workers else None
        watcher.cancel()
    return not stop.is_set()


async def _cancel_on(stop: asyncio.Event, workers: list[asyncio.Task[None]]) -> None:
    await stop.wait()
    for worker in workers:
        worker.cancel()


async def _attempts(
    plan: Plan, model: Model, client: SessionClient, journal: Journal, sample: Sample
) -> Record:
    """Play an episode, again where the infrastructure failed it, and write each attempt."""
    for attempt in range(1, _ATTEMPTS + 1):
        episode = _Episode()
        started = time.monotonic()
        outcome, reason = await _play(plan, model, client, sample, episode)
        final = outcome is not Outcome.INFRASTRUCTURE_ERROR or attempt == _ATTEMPTS
        score = episode.metrics.get("score")
        record = Record(
            task=sample.task,
            index=sample.index,
            repeat=sample.repeat,
            attempt=attempt,
            final=final,
            outcome=outcome,
            reason=reason,
            score=(score if isinstance(score, int | float) else episode.reward)
            if outcome.is_scored
            else None,
            reward=episode.reward,
            turns=episode.turns,
            prompt_tokens=episode.prompt_tokens,
            completion_tokens=episode.completion_tokens,
            duration_s=round(time.monotonic() - started, 4),
            metrics=episode.metrics,
        )
        journal.write(record, [message.to_wire() for message in episode.messages])
        if final:
            return record
    raise AssertionError("unreachable")


async def _play(
    plan: Plan, model: Model, client: SessionClient, sample: Sample, episode: _Episode
) -> tuple[Outcome, str]:
    session: Session | None = None
    seed = sample.seed(plan.seed)
    try:
        session = await client.start(sample.task, sample.index, seed=seed)
        return await _converse(plan, model, session, episode, seed)
    except ContextLimitError as error:
        return Outcome.TRUNCATED, str(error)
    except ModelUnavailableError as error:
        return Outcome.INFRASTRUCTURE_ERROR, f"model: {error}"
    except SessionError as error:
        if error.code in (ErrorCode.UNKNOWN_TASK, ErrorCode.UNAUTHORIZED):
            raise
        if error.code is ErrorCode.CANCELLED:
            return Outcome.CANCELLED, str(error)
        return Outcome.INFRASTRUCTURE_ERROR, f"{error.code}: {error}"
    finally:
        if session is not None and not session.finished:
            await _cancel(session)


async def _converse(
    plan: Plan, model: Model, session: Session, episode: _Episode, seed: int
) -> tuple[Outcome, str]:
    reply = session.opening
    episode.take(reply)
    while not reply.finish:
        if episode.turns >= plan.max_turns:
            return Outcome.TRUNCATED, f"no end after {episode.turns} turns"
        said = await model.reply(episode.messages, episode.tools, seed=seed + episode.turns)
        episode.say(said)
        if said.truncated:
            return Outcome.TRUNCATED, f"a reply was cut off at {plan.max_tokens} tokens"
        reply = await session.interact([said.message])
        episode.take(reply)
    outcome = outcome_of(reply.status)
    detail = reply.metrics.get("error")
    why = f"{reply.status}: {detail}" if detail else str(reply.status)
    return outcome, "" if outcome is Outcome.COMPLETED else why


async def _cancel(session: Session) -> None:
    """End a session on the way out; its server reaps it when even that fails."""
    try:
        await asyncio.shield(asyncio.ensure_future(session.cancel()))
    except SessionError:
        return

"""Plays the episodes of a plan: a model and an environment talk until one ends it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentrl_core import (
    AgentRLError,
    ConfigError,
    ErrorCode,
    Message,
    Outcome,
    Reply,
    SampleIndex,
    SessionError,
    Tool,
)
from agentrl_core.client import Session, SessionClient
from agentrl_eval.journal import Journal, Record
from agentrl_eval.models import Model, ModelReply
from agentrl_eval.outcomes import end_of, failure_of, score_of
from agentrl_eval.plan import Plan
from agentrl_eval.results import Results, summarise
from agentrl_eval.sampling import Sample, samples_of

_ATTEMPTS = 3
# Before the second and the third attempt: a worker that starts anew takes some seconds to announce itself.
_PAUSES_S = (2.0, 10.0)
_FIRST_CONTACT_S = 20.0
_LATE_START_S = 5.0
_GRACE_S = 2.0

_T = TypeVar("_T")

OnRecord = Callable[[Record, int], None]
"""Told of each episode's result and of how many episodes there are in all."""


async def evaluate(
    plan: Plan,
    model: Model,
    client: SessionClient,
    *,
    journal: Journal | None = None,
    concurrency: int = 32,
    on_record: OnRecord | None = None,
    stop: asyncio.Event | None = None,
) -> Results:
    """Play what the journal lacks and count all of it.

    Args:
        plan: what to play.
        model: the agent.
        client: reaches the environments.
        journal: gets every attempt; in memory where it is absent.
        concurrency: episodes at the same time.
        on_record: told of each result, those of the journal first.
        stop: when set, nothing new begins and running episodes are cancelled.

    Raises:
        ConfigError: a task, split or sample is unknown, or the controller does not answer.
        SessionError: the controller refuses.
        ModelUnusableError: the model will answer no conversation at all.
        CancelledError: stopped before it was known what there is to play.
    """
    started = time.monotonic()
    journal = Journal() if journal is None else journal
    stop = asyncio.Event() if stop is None else stop
    samples = await _unless_stopped(_planned_samples(plan, client), stop=stop)
    total = sum(map(len, samples.values()))
    finished = journal.finished()
    todo = [sample for episodes in samples.values() for sample in episodes if sample not in finished]

    def tell(record: Record) -> None:
        if on_record is not None:
            on_record(record, total)

    for record in journal.records:
        if record.final:
            tell(record)
    player = _Player(plan, model, client, journal)
    await _play_all(player, todo, concurrency=concurrency, tell=tell, stop=stop)
    planned = {task: len(episodes) for task, episodes in samples.items()}
    return summarise(plan, journal.records, planned=planned, wall_s=time.monotonic() - started)


async def _planned_samples(plan: Plan, client: SessionClient) -> dict[str, list[Sample]]:
    return {
        task: samples_of(
            plan, task=task, available=await available_samples(client, task=task, split=plan.split)
        )
        for task in plan.tasks
    }


async def _unless_stopped(work: Coroutine[Any, Any, _T], *, stop: asyncio.Event) -> _T:
    """What the work returns; cancelled together with it once a stop is asked for."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise asyncio.CancelledError
        return working.result()
    finally:
        working.cancel()
        stopping.cancel()


async def available_samples(client: SessionClient, *, task: str, split: str | None) -> list[SampleIndex]:
    """The samples of a task's split, in the task's order.

    Raises:
        ConfigError: the task or the split is unknown, or the controller does not answer.
        SessionError: the controller refuses.
    """
    try:
        async with asyncio.timeout(_FIRST_CONTACT_S):
            try:
                return await client.indices(task, split=split)
            except SessionError as error:
                if error.code not in (ErrorCode.UNKNOWN_TASK, ErrorCode.UNKNOWN_INDEX, ErrorCode.BAD_REQUEST):
                    raise
                tasks = await client.tasks()
                if task in tasks:
                    raise ConfigError(f"{error}; choose with `--split`, `all` takes every sample") from error
                served = ", ".join(f"`{name}`" for name in sorted(tasks)) or "none"
                raise ConfigError(f"no task `{task}` at {client.url}; tasks there: {served}") from error
    except TimeoutError as error:
        raise ConfigError(
            f"no answer from {client.url} within {_FIRST_CONTACT_S:.0f} s; is the controller running there?"
        ) from error


async def _play_all(
    player: "_Player",
    samples: list[Sample],
    *,
    concurrency: int,
    tell: Callable[[Record], None],
    stop: asyncio.Event,
) -> None:
    queue = iter(samples)

    async def work() -> None:
        for sample in queue:
            tell(await player.result_of(sample))

    async def watch(workers: list[asyncio.Task[None]]) -> None:
        await stop.wait()
        for worker in workers:
            worker.cancel()

    try:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(work()) for _ in range(min(concurrency, len(samples)))]
            watcher = group.create_task(watch(workers))
            if workers:
                await asyncio.wait(workers)
            watcher.cancel()
    except* AgentRLError as failures:
        # One says it all: the others met the same fault or were cancelled because of it.
        raise _first(failures) from None


def _first(failures: BaseException) -> BaseException:
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return failures


@dataclass(slots=True)
class _Episode:
    """What an attempt has gathered so far."""

    seed: int
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

    def record(self, sample: Sample, *, outcome: Outcome, **more: Any) -> Record:
        return Record(
            task=sample.task,
            index=sample.index,
            repeat=sample.repeat,
            outcome=outcome,
            score=score_of(self.metrics, reward=self.reward) if outcome.is_scored else None,
            reward=self.reward,
            turns=self.turns,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            metrics=self.metrics,
            **more,
        )


class _Player:
    """Plays single episodes of a plan."""

    def __init__(self, plan: Plan, model: Model, client: SessionClient, journal: Journal) -> None:
        self._plan = plan
        self._model = model
        self._client = client
        self._journal = journal
        self._tried = journal.attempts()

    async def result_of(self, sample: Sample) -> Record:
        """Play an episode, again where the infrastructure failed it, and write each attempt."""
        attempt = self._tried[sample]
        while True:
            attempt += 1
            episode = _Episode(seed=sample.seed(self._plan.seed))
            started = time.monotonic()
            outcome, reason = await self._play(sample, episode)
            final = outcome is not Outcome.INFRASTRUCTURE_ERROR or attempt >= _ATTEMPTS
            record = episode.record(
                sample,
                outcome=outcome,
                reason=reason.encode("utf-8", "replace").decode(),
                attempt=attempt,
                final=final,
                duration_s=round(time.monotonic() - started, 4),
            )
            await self._journal.write(record, episode.messages)
            if final:
                return record
            await asyncio.sleep(_PAUSES_S[attempt - 1])

    async def _play(self, sample: Sample, episode: _Episode) -> tuple[Outcome, str]:
        session: Session | None = None
        try:
            session = await self._open(sample, episode)
            return await self._converse(session, episode)
        except AgentRLError as error:
            return failure_of(error)
        finally:
            if session is not None:
                await _cancel(session)

    async def _open(self, sample: Sample, episode: _Episode) -> Session:
        """Start a session; when cancelled meanwhile, see that none is left behind."""
        start = asyncio.ensure_future(self._client.start(sample.task, sample.index, seed=episode.seed))
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, SessionError):
                async with asyncio.timeout(_LATE_START_S):
                    await _cancel(await start)
            raise

    async def _converse(self, session: Session, episode: _Episode) -> tuple[Outcome, str]:
        reply = session.opening
        episode.take(reply)
        while not reply.finish:
            if episode.turns >= self._plan.max_turns:
                return Outcome.TRUNCATED, f"no end after {episode.turns} turns"
            said = await self._model.reply(
                episode.messages, tools=episode.tools, seed=episode.seed + episode.turns
            )
            episode.say(said)
            if said.truncated:
                return Outcome.TRUNCATED, f"a reply was cut off at {self._plan.max_tokens} tokens"
            reply = await session.interact([said.message])
            episode.take(reply)
        return end_of(reply)


async def _cancel(session: Session) -> None:
    """End a session on the way out, also when cancelled meanwhile; its server reaps it when that fails."""
    ending = asyncio.ensure_future(session.cancel())
    with contextlib.suppress(SessionError):
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            with contextlib.suppress(SessionError, TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await ending
            raise

"""One episode: an engine plays a session, and what it sampled becomes a trajectory."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl_core import (
    ErrorCode,
    Message,
    Outcome,
    Reply,
    SampleIndex,
    SessionError,
    Tool,
    Trajectory,
    Turn,
    outcome_of,
)
from agentrl_core.client import Session, SessionClient
from agentrl_workers.chat import ChatError, ChatRenderer, parse_reply
from agentrl_workers.config import RolloutConfig
from agentrl_workers.engines import EngineError, Generation, SamplingParams


class Sampler(Protocol):
    """Draws replies; the pool of engines, seen from an episode."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, affinity: str
    ) -> Generation:
        """Sample one reply on the engine that served `affinity` before."""
        ...


@dataclass(frozen=True, slots=True)
class Episode:
    """What to play."""

    episode_id: str
    """Unique within the run."""
    group_id: str
    """Its group."""
    task: str
    """Task name."""
    index: SampleIndex
    """Sample of the task."""
    seed: int
    """Seed of the environment, the same within a group."""


@dataclass(slots=True)
class _Progress:
    """What an episode has gathered so far; its failure keeps it."""

    turns: list[Turn] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)


class _EndError(Exception):
    """Raised inside an episode to end it with an outcome of its own."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Rollout:
    """Plays episodes; a bad one is a trajectory with its class, not an exception."""

    def __init__(
        self, client: SessionClient, sampler: Sampler, renderer: ChatRenderer, config: RolloutConfig
    ) -> None:
        self._client = client
        self._sampler = sampler
        self._renderer = renderer
        self._config = config

    async def play(self, episode: Episode) -> Trajectory:
        """Play an episode to its end; cancelling the call cancels the session."""
        started = time.monotonic()
        progress = _Progress()
        try:
            outcome, reason = await self._play(episode, progress)
        except _EndError as ended:
            outcome, reason = ended.outcome, str(ended)
        except SessionError as error:
            cancelled = error.code is ErrorCode.CANCELLED
            outcome = Outcome.CANCELLED if cancelled else Outcome.INFRASTRUCTURE_ERROR
            reason = f"{error.code}: {error}"
        except ChatError as error:
            outcome, reason = Outcome.ENVIRONMENT_ERROR, str(error)
        except EngineError as error:
            outcome, reason = Outcome.INFRASTRUCTURE_ERROR, f"engine: {error}"
        score = progress.metrics.get("score")
        return Trajectory(
            trajectory_id=episode.episode_id,
            task=episode.task,
            index=episode.index,
            group_id=episode.group_id,
            turns=tuple(progress.turns),
            outcome=outcome,
            reason=reason,
            score=score if isinstance(score, int | float) else None,
            metrics=progress.metrics,
            duration_s=time.monotonic() - started,
        )

    async def _play(self, episode: Episode, progress: _Progress) -> tuple[Outcome, str]:
        session = await self._client.start(
            episode.task,
            episode.index,
            seed=episode.seed,
            group_id=episode.group_id,
            deadline_s=self._config.start_timeout_s,
        )
        try:
            return await self._converse(session, episode, progress)
        finally:
            if not session.finished:
                await _cancel(session)

    async def _converse(self, session: Session, episode: Episode, progress: _Progress) -> tuple[Outcome, str]:
        history = list(session.opening.messages)
        tools: list[Tool] | None = session.opening.tools
        reply = session.opening
        # A session that ends at its start has nothing to reply to, and perhaps no message at all.
        context_ids = [] if reply.finish else self._renderer.prompt(history, tools)
        starts_sample = True
        while not reply.finish:
            generation = await self._generate(context_ids, episode, progress)
            message = self._message(generation, turn=len(progress.turns))
            progress.turns.append(_turn(context_ids, generation, starts_sample=starts_sample))
            progress.ids += [*context_ids, *generation.token_ids]
            if generation.finish_reason != "stop":
                raise _EndError(
                    Outcome.TRUNCATED, f"a reply of {len(generation.token_ids)} tokens was cut off"
                )
            reply = await session.interact([message], deadline_s=self._config.turn_timeout_s)
            _book(reply, progress)
            if not reply.finish and len(progress.turns) >= self._config.max_turns:
                raise _EndError(Outcome.TRUNCATED, f"no end after {len(progress.turns)} turns")
            history += [message, *reply.messages]
            starts_sample = reply.tools is not None and reply.tools != tools
            if starts_sample:
                # The tools stand in the first prompt: with others, the tokens so far are no prefix any more.
                tools, progress.ids = reply.tools, []
                context_ids = self._renderer.prompt(history, tools)
            elif not reply.finish:
                context_ids = self._renderer.extension(reply.messages)
        return outcome_of(reply.status), "" if reply.status == "completed" else _reason(reply)

    async def _generate(self, context_ids: list[int], episode: Episode, progress: _Progress) -> Generation:
        prompt_ids = [*progress.ids, *context_ids]
        room = self._config.context_length - len(prompt_ids)
        if room <= 0:
            raise _EndError(
                Outcome.TRUNCATED,
                f"{len(prompt_ids)} tokens leave no room in a context of {self._config.context_length}",
            )
        sampling = SamplingParams(
            temperature=self._config.temperature,
            max_tokens=min(room, self._config.max_tokens_per_turn),
            stop_token_ids=self._renderer.stop_token_ids,
        )
        try:
            async with asyncio.timeout(self._config.generate_timeout_s):
                return await self._sampler.generate(prompt_ids, sampling, affinity=episode.group_id)
        except TimeoutError as error:
            raise EngineError(f"no reply within {self._config.generate_timeout_s:.0f} s") from error

    def _message(self, generation: Generation, *, turn: int) -> Message:
        return parse_reply(self._renderer.reply_text(generation.token_ids), call_prefix=f"call_{turn}_")


def _turn(context_ids: list[int], generation: Generation, *, starts_sample: bool) -> Turn:
    return Turn(
        context_ids=tuple(context_ids),
        token_ids=generation.token_ids,
        logps=generation.logps,
        segments=generation.segments,
        starts_sample=starts_sample,
    )


def _book(reply: Reply, progress: _Progress) -> None:
    """Credit the last turn with what the environment gave for it."""
    progress.turns[-1] = progress.turns[-1].model_copy(update={"reward": reply.reward})
    progress.metrics.update(reply.metrics)


def _reason(reply: Reply) -> str:
    detail = reply.metrics.get("error")
    return f"{reply.status}: {detail}" if detail else str(reply.status)


async def _cancel(session: Session) -> None:
    """End a session on the way out, even of a cancelled episode; its server reaps it where that fails."""
    ending = asyncio.ensure_future(session.cancel())
    try:
        await asyncio.shield(ending)
    except SessionError:
        return
    except asyncio.CancelledError:
        await asyncio.wait([ending])
        if not ending.cancelled():
            ending.exception()
        raise

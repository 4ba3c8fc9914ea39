"""Our sessions in TRL's GRPO trainer: a rollout function, its data set rows, and the reward.

    GRPOTrainer -- rollout_func(prompts) --> SessionRollouts -- sessions --> controller or task worker
         ^------- token ids, mask, rewards ----------'

The model samples through the trainer itself, whatever engine it uses; nothing of TRL is imported here.
"""

import asyncio
import json
import math
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from agentrl_core import (
    ConfigError,
    ErrorCode,
    Reply,
    SampleIndex,
    SampleStatus,
    SessionError,
)
from agentrl_core.client import Session, SessionClient
from agentrl_env_sdk.adapters.trl_chat import Chat

__all__ = ["SessionRollouts", "session_reward"]

_T = TypeVar("_T")


def session_reward(*, session_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function for `GRPOTrainer(reward_funcs=...)`: what the sessions earned.

    A session that failed through no fault of the agent has none, and TRL leaves it out of its group.
    """
    return list(session_reward)


@dataclass(slots=True)
class _Episode:
    """One session and its tokens."""

    session: Session | None = None
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    status: str = SampleStatus.RUNNING.value
    earned: float = 0.0
    num_turns: int = 0

    @property
    def is_over(self) -> bool:
        return self.status != SampleStatus.RUNNING

    @property
    def failed(self) -> bool:
        return self.status not in {each.value for each in SampleStatus if each not in _NO_RESULT}

    def append(self, token_ids: Sequence[int], *, sampled: int, logprobs: Sequence[float] | None) -> None:
        """Add tokens; `sampled` is 1 for the model's own and 0 for the environment's."""
        self.completion_ids += token_ids
        self.mask += [sampled] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids) if logprobs is None else logprobs

    def take(self, reply: Reply) -> None:
        """Count what the environment answered."""
        self.earned += reply.reward
        self.status = reply.status.value if reply.finish else self.status


_NO_RESULT = {SampleStatus.RUNNING, SampleStatus.TASK_ERROR, SampleStatus.CANCELLED, SampleStatus.UNKNOWN}
"""States that say nothing about the agent."""


class SessionRollouts:
    """A `rollout_func` for TRL's `GRPOTrainer`; each prompt is a row of `rows`, one session per prompt given.

    Besides the token ids it returns `env_mask` (1 for sampled tokens alone), `session_reward` (None for a
    session without a result), `session_status` and `session_turns`.

    Args:
        url: the controller's or the task worker's API, such as `http://127.0.0.1:5020/api`.
        token: bearer token.
        start_timeout_s: deadline of a session's start, waiting for a slot included.
        interact_timeout_s: deadline of an exchange.

    Raises:
        ConfigError: the address is none that HTTP can reach.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        start_timeout_s: float = 600.0,
        interact_timeout_s: float = 240.0,
    ) -> None:
        self._client = SessionClient(
            url, token=token, start_timeout_s=start_timeout_s, interact_timeout_s=interact_timeout_s
        )
        self._loop = _LoopThread()

    def rows(self, task: str, *, split: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Rows for `Dataset.from_list`: a prompt names a sample, the conversation comes from its session.

        Raises:
            SessionError: the task or the split is unknown, or the server is unreachable.
        """
        indices = self._loop.call(self._client.indices(task, split=split))
        return [_row(task, index) for index in indices[:limit]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._loop.call(self._client.close())
        self._loop.stop()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Play a session for each prompt.

        Raises:
            ConfigError: a prompt is no row of `rows`, or the trainer's template cannot be appended to.
        """
        samples = [_sample(prompt) for prompt in prompts]
        template = getattr(trainer, "chat_template", None)
        options = getattr(trainer, "chat_template_kwargs", None)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        chat = Chat(tokenizer, template=template, options=options)
        episodes = self._loop.call(_all([self._open(chat, task, index) for task, index in samples]))
        has_logprobs = True
        while live := [episode for episode in episodes if not episode.is_over]:
            contexts = [episode.prompt_ids + episode.completion_ids for episode in live]
            sampled, logprobs = trainer._generate_single_turn(contexts, None, {}, num_generations=1)
            has_logprobs = has_logprobs and logprobs is not None
            turns = []
            for place, episode in enumerate(live):
                left = _budget(trainer, episode)
                values = None if logprobs is None else list(logprobs[place])[:left]
                episode.append(list(sampled[place])[:left], sampled=1, logprobs=values)
                turns.append(self._turn(chat, trainer, episode, list(sampled[place])[:left]))
            self._loop.call(_all(turns))
        return _result(episodes, chat, has_logprobs=has_logprobs)

    async def _open(self, chat: Chat, task: str, index: SampleIndex) -> _Episode:
        episode = _Episode()
        try:
            episode.session = await self._client.start(task, index)
        except SessionError as error:
            episode.status = _status_of(error)
            return episode
        opening = episode.session.opening
        episode.take(opening)
        episode.prompt_ids = chat.prompt(opening.messages, opening.tools)
        return episode

    async def _turn(self, chat: Chat, trainer: Any, episode: _Episode, reply_ids: list[int]) -> None:
        """Hand a sampled reply to the session and take what it answers."""
        assert episode.session is not None
        episode.num_turns += 1
        reply = chat.reply(reply_ids, call_prefix=f"call_{episode.num_turns}_")
        try:
            answer = await episode.session.interact([reply])
            episode.take(answer)
            if episode.is_over:
                return
            more = chat.extension(answer.messages)
            is_cut = not reply_ids or reply_ids[-1] != chat.end_id
            if is_cut or len(more) >= _budget(trainer, episode):
                episode.status = SampleStatus.AGENT_CONTEXT_LIMIT.value
                await episode.session.cancel()
                return
        except SessionError as error:
            episode.status = _status_of(error)
            return
        episode.append(more, sampled=0, logprobs=None)


def _row(task: str, index: SampleIndex) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": json.dumps({"task": task, "index": index})}]}


def _sample(prompt: Any) -> tuple[str, SampleIndex]:
    try:
        named = json.loads(prompt if isinstance(prompt, str) else prompt[-1]["content"])
        return str(named["task"]), named["index"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        rule = "must name a sample; make the data set with `SessionRollouts.rows`"
        raise ConfigError(f"a prompt {rule}, got {str(prompt)[:80]!r}") from error


def _budget(trainer: Any, episode: _Episode) -> int:
    """Tokens that may still be appended."""
    longest = trainer.args.max_completion_length
    context = getattr(getattr(trainer.model, "config", None), "max_position_embeddings", None)
    limit = math.inf if context is None else context - len(episode.prompt_ids)
    return max(0, int(min(limit, longest)) - len(episode.completion_ids))


def _result(episodes: Sequence[_Episode], chat: Chat, *, has_logprobs: bool) -> dict[str, Any]:
    for episode in episodes:
        if not episode.completion_ids:  # TRL has no place for a rollout without tokens; this one is masked.
            episode.prompt_ids = episode.prompt_ids or [chat.end_id]
            episode.append([chat.end_id], sampled=0, logprobs=None)
    return {
        "prompt_ids": [episode.prompt_ids for episode in episodes],
        "completion_ids": [episode.completion_ids for episode in episodes],
        "logprobs": [episode.logprobs for episode in episodes] if has_logprobs else None,
        "env_mask": [episode.mask for episode in episodes],
        "session_reward": [None if episode.failed else episode.earned for episode in episodes],
        "session_status": [episode.status for episode in episodes],
        "session_turns": [episode.num_turns for episode in episodes],
    }


def _status_of(error: SessionError) -> str:
    """How a session that broke is recorded; none of these is a result."""
    return f"failed: {ErrorCode(error.code).value}"


async def _all(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    return list(await asyncio.gather(*works))


class _LoopThread:
    """An event loop on a thread of its own, since the trainer may be called where one runs already."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentrl-sessions", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

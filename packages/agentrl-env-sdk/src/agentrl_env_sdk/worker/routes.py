"""The worker's API, whatever carries it: the published routes, and the controller's bodies on them.

    HTTP request ----\
                      Ask -> Routes -> Runner -> Answer
    stream envelope --/
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl_core import ErrorCode, InteractRequest, SampleIndex, SessionError, WorkerStatus
from agentrl_env_sdk.content import plain
from agentrl_env_sdk.session import Exchange
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.worker.metrics import Statistics
from agentrl_env_sdk.worker.runner import Runner, SessionId

Cancelled = Callable[[SessionId], Awaitable[None]]

_HTTP_STATUS = {
    ErrorCode.NO_CAPACITY: 406,
    ErrorCode.SESSION_BUSY: 409,
}
"""Codes of the published wire; whatever else is refused is 400."""
_NO_QUERY: Mapping[str, str] = {}


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StartBody(_Body):
    """Body of `start_sample`."""

    name: str | None = None
    """The task, for agents that do not know what they talk to."""
    index: int | str = -1
    """Which sample; -1 with `custom_task`."""
    session_id: int | str | None = None
    """Identity that the session is to have; the header of that name does the same."""
    custom_task: Any = None
    """A sample of the caller's own instead of one of the task's."""
    seed: int | None = None
    """Seed for the episode's randomness; the sample's own where it is absent."""


class InteractBody(InteractRequest):
    """Body of `interact`."""

    session_id: int | str | None = None
    """The session; the header of that name does the same."""


class SessionBody(_Body):
    """Body of the routes that take nothing but a session."""

    session_id: int | str | None = None
    """The session; the header of that name does the same."""


class ForkBody(SessionBody):
    """Body of `fork`."""

    fork_id: int | str | None = None
    """Identity that the new session is to have."""


class OverallBody(_Body):
    """Body of `calculate_overall`."""

    results: list[dict[str, Any]] = []
    """The results to sum up."""


_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(slots=True)
class Ask:
    """A request to the worker."""

    body: bytes = b""
    """JSON; empty where the route takes nothing."""
    session_id: SessionId | None = None
    """Session that is named beside the body."""
    request_id: str | None = None
    """A repeated one gets the same answer again."""
    deadline_s: float | None = None
    """How long the caller waits."""
    query: Mapping[str, str] = field(default_factory=lambda: _NO_QUERY)
    """Parameters of routes that have no body."""
    address: str = ""
    """Where the caller reaches the API."""


@dataclass(slots=True)
class Answer:
    """What a request is answered, good or bad."""

    body: bytes
    """JSON."""
    http_status: int = 200
    """200, or how it was refused."""
    session_id: SessionId | None = None
    """The session that it began."""
    finish: bool | None = None
    """Whether the answer is its session's last; None where it is no exchange."""

    @property
    def detail(self) -> str:
        """Why it was refused."""
        return "" if self.http_status < 300 else str(json.loads(self.body).get("detail", ""))


class Routes:
    """Answers requests by the name of their route.

    Args:
        runner: plays the episodes.
        statistics: told how long turns take.
        cancelled: told of each session that `cancel_with_notice` has ended.

    Attributes:
        methods: HTTP method of each route.
    """

    def __init__(
        self, runner: Runner, *, statistics: Statistics | None = None, cancelled: Cancelled | None = None
    ) -> None:
        self._runner = runner
        self._statistics = statistics or Statistics()
        self._cancelled = cancelled
        self._notices: set[asyncio.Task[None]] = set()
        gets = (self.get_indices, self.get_sessions, self.worker_status, self.list_workers)
        posts = (
            *(self.start_sample, self.interact, self.fork, self.cancel, self.cancel_with_notice),
            *(self.sample_status, self.cancel_all, self.cancel_all_with_notice, self.calculate_overall),
        )
        self._handlers = {handler.__name__: handler for handler in (*gets, *posts)}
        self.methods = {handler.__name__: "GET" for handler in gets}
        self.methods |= {handler.__name__: "POST" for handler in posts}

    async def answer(self, route: str, ask: Ask) -> Answer:
        """Do what is asked; an error becomes an answer, too."""
        handler = self._handlers.get(route)
        if handler is None:
            return refusal(f"a worker has no route `{route[:100]}`", ErrorCode.BAD_REQUEST, 404)
        try:
            return await handler(ask)
        except Exception as error:
            return refused(error)

    async def start_sample(self, ask: Ask) -> Answer:
        """Begin an episode."""
        body = _parse(StartBody, ask.body)
        self._check_name(body.name)
        named = body.session_id
        session_id, exchange = await self._runner.start(
            body.index,
            session_id=_checked(named if named is not None else ask.session_id),
            custom_task=body.custom_task,
            seed=body.seed,
            request_id=ask.request_id,
            deadline_s=ask.deadline_s,
        )
        wire = _wire(exchange)
        if named is not None:
            wire["metric"] = wire["metrics"]
        return Answer(encode(wire), 200, session_id, exchange.finish)

    async def interact(self, ask: Ask) -> Answer:
        """Hand an agent's messages to an episode and answer with the environment's."""
        body = _parse(InteractBody, ask.body)
        named = body.session_id
        began = time.monotonic()
        exchange = await self._runner.interact(
            _session_id(named, ask), body.messages, request_id=ask.request_id, deadline_s=ask.deadline_s
        )
        self._statistics.turn(time.monotonic() - began)
        wire = _wire(exchange)
        # A controller names the session in the body and expects the answer below `env_out`; an agent that
        # comes without one names it in a header and expects the controller's flat answer.
        if named is not None:
            wire["metric"] = wire["metrics"]
            wire = {"session_id": named, "env_out": wire}
        return Answer(encode(wire), 200, None, exchange.finish)

    async def fork(self, ask: Ask) -> Answer:
        """Begin another episode where one stands, if its task makes snapshots."""
        body = _parse(ForkBody, ask.body)
        fork_id, exchange = await self._runner.fork(
            _session_id(body.session_id, ask),
            fork_id=_checked(body.fork_id),
            request_id=ask.request_id,
            deadline_s=ask.deadline_s,
        )
        return Answer(encode(_wire(exchange)), 200, fork_id, exchange.finish)

    async def cancel(self, ask: Ask) -> Answer:
        """End an episode and answer when it has ended."""
        await self._runner.cancel(_named(ask))
        return Answer(b"null")

    async def cancel_with_notice(self, ask: Ask) -> Answer:
        """End an episode; answered at once, and its end is told to the controller."""
        session_id = _named(ask)
        self._runner.status(session_id)
        self._end_and_tell(session_id)
        return Answer(b"null")

    async def cancel_all(self, ask: Ask) -> Answer:
        """End every episode."""
        del ask
        await self._runner.cancel_all()
        return Answer(b"null")

    async def cancel_all_with_notice(self, ask: Ask) -> Answer:
        """End every episode; answered at once, and each end is told to the controller."""
        del ask
        for session_id in list(self._runner.sessions):
            self._end_and_tell(session_id)
        return Answer(b"null")

    async def sample_status(self, ask: Ask) -> Answer:
        """State of an episode."""
        session_id = _named(ask)
        return Answer(encode({"session_id": session_id, "status": self._runner.status(session_id)}))

    async def calculate_overall(self, ask: Ask) -> Answer:
        """A summary of results, by the task."""
        body = _parse(OverallBody, ask.body)
        return Answer(encode(await call(self._runner.task.calculate_overall, body.results)))

    async def get_indices(self, ask: Ask) -> Answer:
        """Every sample of the task, or of the split `split`."""
        self._check_name(ask.query.get("name"))
        return Answer(encode(self._indices(ask.query.get("split"))))

    async def get_sessions(self, ask: Ask) -> Answer:
        """Sample of each episode that is being played."""
        del ask
        return Answer(encode({str(name): index for name, index in self._runner.sessions.items()}))

    async def worker_status(self, ask: Ask) -> Answer:
        """Slots, and how many are taken."""
        del ask
        runner = self._runner
        return Answer(encode({"concurrency": runner.concurrency, "current": len(runner.sessions)}))

    async def list_workers(self, ask: Ask) -> Answer:
        """The task and this worker, as a controller lists them."""
        worker = {
            "id": 0,
            "address": ask.address,
            "capacity": self._runner.concurrency,
            "current": len(self._runner.sessions),
            "last_visit": time.monotonic(),
            "status": WorkerStatus.ALIVE,
            "stale": self._runner.is_draining,
            "locked": False,
        }
        task = {
            "indices": self._indices(None),
            "splits": self._runner.samples.splits,
            "workers": {"0": worker},
        }
        return Answer(encode({self._runner.task.task_name: task}))

    def _indices(self, split: str | None) -> list[SampleIndex]:
        splits = self._runner.samples.splits
        if split is None:
            return [index for indices in splits.values() for index in indices]
        if split not in splits:
            message = f"task `{self._runner.task.task_name}` has no split `{split}`; it has {sorted(splits)}"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST)
        return splits[split]

    def _end_and_tell(self, session_id: SessionId) -> None:
        """Answer at once; the notice follows when the episode has ended."""

        async def work() -> None:
            await self._runner.cancel(session_id)
            if self._cancelled is not None:
                await self._cancelled(session_id)

        task = asyncio.create_task(work())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    def _check_name(self, name: str | None) -> None:
        """Refuse what is meant for another task; a controller does not say which it means."""
        own = self._runner.task.task_name
        if name not in (None, own):
            message = f"this worker serves task `{own}`, not `{name}`"
            raise SessionError(message, code=ErrorCode.UNKNOWN_TASK)


class _NoJsonError(SessionError):
    def __init__(self, message: str) -> None:
        super().__init__(message, code=ErrorCode.BAD_REQUEST)


def _parse(model: type[_Model], body: bytes) -> _Model:
    """A body as its model; what pydantic's own JSON reader does not take may still be tolerable."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError:
        pass
    try:
        content = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _NoJsonError(f"the body is no JSON: {error}") from error
    return model.model_validate(plain(content) if isinstance(content, dict) else content)


def _checked(session_id: SessionId | None) -> SessionId | None:
    """A new session's id, which has to stand in a header."""
    if isinstance(session_id, str) and not (session_id.isascii() and session_id.isprintable()):
        message = f"`session_id` must be a number or printable ASCII, got {session_id[:100]!r}"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return session_id


def _session_id(named: SessionId | None, ask: Ask) -> SessionId:
    session_id = named if named is not None else ask.session_id
    if session_id is None:
        message = "name the session: `session_id` in the body, or the header of that name"
        raise SessionError(message, code=ErrorCode.BAD_REQUEST)
    return session_id


def _named(ask: Ask) -> SessionId:
    return _session_id(_parse(SessionBody, ask.body).session_id, ask)


def _wire(exchange: Exchange) -> dict[str, Any]:
    tools = exchange.tools
    return {
        "messages": [message.to_wire() for message in exchange.messages],
        "tools": [tool.model_dump(mode="json") for tool in tools] if tools is not None else None,
        "status": exchange.status,
        "finish": exchange.finish,
        "reward": exchange.reward,
        "metrics": exchange.metrics,
    }


def encode(content: Any) -> bytes:
    """Strict JSON of whatever a task reports."""
    try:
        return pydantic_core.to_json(content, inf_nan_mode="null", fallback=_no_json)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(plain(content), allow_nan=False).encode()


def _no_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def refused(error: Exception) -> Answer:
    """How an error is told."""
    if isinstance(error, SessionError):
        http_status = 422 if isinstance(error, _NoJsonError) else _HTTP_STATUS.get(error.code, 400)
        return refusal(str(error), error.code, http_status)
    if isinstance(error, ValidationError):
        faults = "; ".join(
            f"`{'.'.join(map(str, fault['loc']))}`: {fault['msg']}" for fault in error.errors()
        )
        return refusal(faults, ErrorCode.BAD_REQUEST, 422)
    if isinstance(error, TimeoutError):
        message = "the deadline passed; an exchange's answer is kept for the same request id"
        return refusal(message, ErrorCode.DEADLINE_EXCEEDED, 504)
    # What the worker did not foresee, a summary that its task cannot compute for example.
    return refusal(f"{type(error).__name__}: {error}", ErrorCode.WORKER_FAILED, 500)


def refusal(message: str, code: ErrorCode, http_status: int) -> Answer:
    """An error as workers tell it."""
    return Answer(encode({"detail": message, "code": code}), http_status)

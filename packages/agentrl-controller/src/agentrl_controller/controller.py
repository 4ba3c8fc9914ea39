"""Routes sessions to workers: placement, affinity, answers that can be asked for again, and clean ends."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any

from agentrl_controller.admission import Admission
from agentrl_controller.config import ControllerConfig
from agentrl_controller.placement import place
from agentrl_controller.registry import Registry, Worker, sample_of
from agentrl_controller.sessions import Session, Sessions, SessionState
from agentrl_controller.transports import HttpTransport, WorkerError
from agentrl_core import (
    CUSTOM_INDEX,
    ErrorCode,
    Heartbeat,
    SampleIndex,
    SessionError,
    StartRequest,
    WorkerStatus,
)

_log = logging.getLogger("agentrl_controller")

_CANCEL_TIMEOUT_S = 10.0
_FULL_PAUSE_S = 0.2
_ROUND_S = 0.5
_KEPT_STARTS = 20_000

Started = tuple[int, Mapping[str, Any]]
"""A session's id and the worker's first answer."""


class Controller:
    """The state of one controller. Enter it to start its housekeeping."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig()
        self.registry = Registry()
        self.sessions = Sessions(max_finished=self.config.max_finished)
        self.admission = Admission(max_queue=self.config.max_queue)
        self._transport = HttpTransport(token=self.config.token)
        self._starts: OrderedDict[str, asyncio.Future[Started]] = OrderedDict()
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._background: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "Controller":
        self._spawn(self._keep_house())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._transport.close()

    async def start(
        self, request: StartRequest, *, request_id: str | None = None, deadline_s: float | None = None
    ) -> Started:
        """Open a session, waiting in line for a slot.

        A request id that has opened one gives the same answer again.

        Raises:
            SessionError: unknown task or sample, no slot in time, or the worker failed.
        """
        limit_s = deadline_s or self.config.start_timeout_s
        future = self._starts.get(request_id) if request_id is not None else None
        if future is None:
            future = self._spawn(self._start(request, limit_s, request_id))
            if request_id is not None:
                self._starts[request_id] = future
                _trim(self._starts, _KEPT_STARTS)
        try:
            return await asyncio.shield(future)
        except SessionError:
            if request_id is not None:
                self._starts.pop(request_id, None)  # A refusal opened nothing; it may be asked for anew.
            raise

    async def _start(self, request: StartRequest, limit_s: float, request_id: str | None) -> Started:
        end = time.monotonic() + limit_s
        index = self._check(request)
        again = False
        while True:
            worker = await self._slot(request, end=end, again=again)
            again = True
            session = self.sessions.add(
                task=request.name, index=index, custom_task=request.custom_task, worker=worker
            )
            try:
                answer = await self._open(
                    session, request, left_s=end - time.monotonic(), request_id=request_id
                )
            except WorkerError as error:
                self._end(session, SessionState.LOST, reason=str(error))
                await self._after_failed_start(worker, error)
                continue
            except TimeoutError as error:
                self._cancel(session)
                message = f"worker {worker.id} of `{request.name}` began no session within {limit_s:.1f} s"
                raise SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED) from error
            except asyncio.CancelledError:
                self._cancel(session)
                raise
            self._settle(session, finished=bool(answer.get("finish")))
            return session.id, answer

    def _check(self, request: StartRequest) -> SampleIndex:
        record = self.registry.task(request.name)
        if request.index == CUSTOM_INDEX and CUSTOM_INDEX not in record.known:
            if request.custom_task is None:
                message = f"index {CUSTOM_INDEX} stands for a custom task, but `custom_task` is missing"
                raise SessionError(message, code=ErrorCode.BAD_REQUEST)
            return CUSTOM_INDEX
        return sample_of(record, request.index, task=request.name)

    async def _slot(self, request: StartRequest, *, end: float, again: bool) -> Worker:
        """A worker with a free slot, after those who came before."""
        task = request.name
        my_turn = again or self.admission.is_first(task)
        while True:
            if my_turn:
                record = self.registry.task(task)
                home = self._homes.get(request.group_id) if request.group_id else None
                chosen = place((w.slots for w in record.workers.values()), home=home)
                if chosen is not None:
                    if request.group_id:
                        self._homes[request.group_id] = chosen
                        _trim(self._homes, _KEPT_STARTS)
                    return record.workers[chosen]
            await self.admission.wait(task, deadline_s=max(0.0, end - time.monotonic()), again=my_turn)
            my_turn = True

    async def _open(
        self, session: Session, request: StartRequest, *, left_s: float, request_id: str | None
    ) -> Mapping[str, Any]:
        body: dict[str, Any] = {"index": session.index, "session_id": session.id}
        if request.custom_task is not None:
            body["custom_task"] = request.custom_task
        if request.seed is not None:
            body["seed"] = request.seed
        # Another try goes to another session, so the worker must not take it for a repetition.
        unique = None if request_id is None else f"{request_id}/{session.id}"
        answer = await self._transport.post(
            session.worker.address, "start_sample", body, timeout_s=left_s, request_id=unique
        )
        if not isinstance(answer, dict):
            raise WorkerError(f"{session.worker.address} answered start_sample with {type(answer).__name__}")
        return answer

    async def _after_failed_start(self, worker: Worker, error: WorkerError) -> None:
        """Prepare another try, or give up.

        Raises:
            SessionError: the worker refused the sample, which another one would do, too.
        """
        if error.unreachable:
            self._lose(worker, WorkerStatus.DEAD, f"worker {worker.id} died: {error}")
        elif error.http_status == 406:
            # It is fuller than we know, after a restart of ours for example.
            await asyncio.sleep(_FULL_PAUSE_S)
        else:
            is_callers = error.http_status in (400, 422)
            code = ErrorCode.BAD_REQUEST if is_callers else ErrorCode.WORKER_FAILED
            raise SessionError(f"worker {worker.id} of `{worker.task}`: {error}", code=code) from error

    async def interact(
        self,
        session_id: int,
        messages: Any,
        *,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Hand messages to a session and return the worker's answer.

        Raises:
            SessionError: the session is unknown, busy, over or lost, or the deadline passed; after a deadline
                the answer can be asked for with the same request id.
        """
        session = self.sessions.find(session_id)
        limit_s = deadline_s or self.config.interact_timeout_s
        end = time.monotonic() + limit_s
        late = SessionError(
            f"session {session_id}: no answer within {limit_s:.1f} s", code=ErrorCode.DEADLINE_EXCEEDED
        )
        while (left_s := end - time.monotonic()) > 0.0:
            answer = session.answer if request_id is not None and session.request_id == request_id else None
            if answer is None:
                answer = self._begin_exchange(session, messages, request_id=request_id, limit_s=left_s)
            try:
                async with asyncio.timeout(left_s):
                    return await asyncio.shield(answer)
            except TimeoutError as error:
                raise late from error
            except SessionError as error:
                # The deadline of a caller before us passed; with time of our own left, we ask again.
                if error.code is not ErrorCode.DEADLINE_EXCEEDED or request_id is None:
                    raise
        raise late

    def _begin_exchange(
        self, session: Session, messages: Any, *, request_id: str | None, limit_s: float
    ) -> "asyncio.Future[Any]":
        _check_ready(session)
        session.move(SessionState.BUSY)
        session.request_id = request_id
        session.answer = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_mark_retrieved)
        self._spawn(self._exchange(session, answer, messages, limit_s))
        return answer

    async def _exchange(
        self, session: Session, answer: "asyncio.Future[Any]", messages: Any, limit_s: float
    ) -> None:
        worker = session.worker
        body = {"session_id": session.id, "messages": messages}
        try:
            reply = await self._transport.post(
                worker.address, "interact", body, timeout_s=limit_s, request_id=session.request_id
            )
            result = reply.get("env_out", reply) if isinstance(reply, dict) else None
            if not isinstance(result, dict):
                raise WorkerError(f"{worker.address} answered interact with {type(reply).__name__}")
        except TimeoutError:
            # The worker may still answer: the same request id asks it again.
            session.answer = None
            self._settle(session, finished=False)
            message = f"session {session.id}: worker {worker.id} did not answer within {limit_s:.1f} s"
            _fail(answer, SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED))
        except WorkerError as error:
            self._after_failed_exchange(session, answer, error)
        else:
            self._settle(session, finished=bool(result.get("finish")))
            if not answer.done():
                answer.set_result(result)

    def _after_failed_exchange(
        self, session: Session, answer: "asyncio.Future[Any]", error: WorkerError
    ) -> None:
        worker = session.worker
        reason = f"worker {worker.id} of `{worker.task}`: {error}"
        if error.unreachable:
            self._lose(worker, WorkerStatus.DEAD, reason)
        elif error.http_status == 409:
            session.answer = None
            self._settle(session, finished=False)
            _fail(answer, SessionError(reason, code=ErrorCode.SESSION_BUSY))
            return
        elif error.http_status == 422:
            self._settle(session, finished=False)
            _fail(answer, SessionError(reason, code=ErrorCode.BAD_REQUEST))
            return
        code = ErrorCode.WORKER_LOST if error.http_status in (None, 400, 404) else ErrorCode.WORKER_FAILED
        self._end(session, SessionState.LOST, reason=reason)
        _fail(answer, SessionError(reason, code=code))

    def _settle(self, session: Session, *, finished: bool) -> None:
        """Book an answer; a session that was cancelled or lost meanwhile stays so."""
        session.last_used = time.monotonic()
        if session.state not in (SessionState.STARTING, SessionState.BUSY):
            return
        if finished:
            self._end(session, SessionState.FINISHED)
        else:
            session.move(SessionState.IDLE)

    def _end(self, session: Session, state: SessionState, *, reason: str = "") -> None:
        if not session.state.has_ended:
            self.sessions.end(session, state, reason=reason)
            self.admission.release(session.task)

    async def cancel(self, session_id: int) -> None:
        """End a session; returns when its worker knows. Nothing happens to one that has ended.

        Raises:
            SessionError: the session is unknown.
        """
        session = self.sessions.find(session_id)
        if session.state.is_cancellable:
            await asyncio.shield(self._cancel(session))

    async def cancel_all(self, task: str | None) -> None:
        """End every session, or those of one task."""
        chosen = [s for s in self.sessions.live.values() if task in (None, s.task)]
        await asyncio.gather(*(self.cancel(session.id) for session in chosen))

    def _cancel(self, session: Session) -> asyncio.Task[None]:
        session.move(SessionState.CANCELLING)
        if session.answer is not None:
            _fail(
                session.answer, SessionError(f"session {session.id} was cancelled", code=ErrorCode.CANCELLED)
            )
        told = asyncio.Event()
        self._spawn(self._release(session, told))
        return self._spawn(_wait(told))

    async def _release(self, session: Session, told: asyncio.Event) -> None:
        """Tell the worker, and free the slot once it says that the session has ended there."""
        body = {"session_id": session.id}
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._transport.post(
                    session.worker.address, "cancel_with_notice", body, timeout_s=_CANCEL_TIMEOUT_S
                )
                told.set()
                await session.released.wait()
        except (WorkerError, TimeoutError) as error:
            _log.warning("session %s: the worker did not confirm its cancellation: %s", session.id, error)
        finally:
            told.set()
            self._end(session, SessionState.CANCELLED)

    def cancel_notice(self, session_id: int) -> None:
        """A worker says that a cancelled session has ended there."""
        session = self.sessions.live.get(session_id)
        if session is not None:
            session.released.set()

    def heartbeat(self, beat: Heartbeat) -> Worker:
        """Take in a worker's heartbeat.

        Raises:
            SessionError: its indices differ from those of the task's other workers.
        """
        worker = self.registry.heartbeat(beat, now=time.monotonic())
        for _ in range(min(worker.slots.free, self.admission.depth(worker.task))):
            self.admission.release(worker.task)
        return worker

    def _lose(self, worker: Worker, status: WorkerStatus, reason: str) -> None:
        """Give a worker up: its sessions end, and whoever waits for them is told."""
        worker.status = status
        _log.warning("%s; %d sessions are lost", reason, len(worker.sessions))
        for session_id in list(worker.sessions):
            session = self.sessions.live[session_id]
            self._end(session, SessionState.LOST, reason=reason)
            if session.answer is not None:
                _fail(session.answer, SessionError(reason, code=ErrorCode.WORKER_LOST))
            session.released.set()

    async def _keep_house(self) -> None:
        config = self.config
        while True:
            now = time.monotonic()
            for worker in self.registry.silent(now=now, lease_s=config.lease_s):
                reason = (
                    f"worker {worker.id} of `{worker.task}` has sent no heartbeat for {config.lease_s:g} s"
                )
                self._lose(worker, WorkerStatus.COMA, reason)
            for session in self.sessions.idle(longer_than_s=config.idle_timeout_s):
                _log.info("session %s is idle for %g s; cancelled", session.id, config.idle_timeout_s)
                self._cancel(session)
            self.registry.forget(now=now, forget_s=config.forget_s)
            self.sessions.forget(older_than_s=config.keep_finished_s)
            await asyncio.sleep(min(_ROUND_S, config.lease_s / 2))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(_mark_retrieved)
        return task


def _check_ready(session: Session) -> None:
    """Whether a session can take messages.

    Raises:
        SessionError: it cannot, and why.
    """
    state = session.state
    if state is SessionState.IDLE:
        return
    if state is SessionState.LOST:
        raise SessionError(f"session {session.id} is lost: {session.reason}", code=ErrorCode.WORKER_LOST)
    if state in (SessionState.CANCELLING, SessionState.CANCELLED):
        raise SessionError(f"session {session.id} was cancelled", code=ErrorCode.CANCELLED)
    if state is SessionState.FINISHED:
        raise SessionError(f"session {session.id} has finished", code=ErrorCode.SESSION_FINISHED)
    raise SessionError(f"session {session.id} answers another request", code=ErrorCode.SESSION_BUSY)


def _fail(answer: "asyncio.Future[Any]", error: SessionError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _mark_retrieved(future: "asyncio.Future[Any]") -> None:
    """A caller that went away leaves its error unread; that is no news."""
    if not future.cancelled():
        future.exception()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _trim(kept: OrderedDict[str, Any], count: int) -> None:
    while len(kept) > count:
        kept.popitem(last=False)

"""Exchanges: messages to a session's worker and its answer back, each given exactly once."""

import asyncio
import functools
import logging
import time
from collections.abc import Coroutine
from secrets import token_hex
from typing import Any

from agentrl_controller.answers import answer_of
from agentrl_controller.audit import Audit
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.config import ControllerConfig
from agentrl_controller.pool import Pool
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.statistics import Statistics
from agentrl_controller.tracing import Headers, Tracing
from agentrl_controller.transcripts import Transcripts
from agentrl_controller.transports import Call, Gateway, WorkerError, WorkerReply
from agentrl_controller.wire import decode, encode
from agentrl_core import ErrorCode, SessionError

_log = logging.getLogger("agentrl_controller")

_PAUSE_S = 0.1


class Exchanges:
    """Hands messages to workers. An exchange goes on until its worker answers; callers come and go.

    Attributes:
        num_running: exchanges under way.
    """

    def __init__(
        self,
        config: ControllerConfig,
        pool: Pool,
        gateway: Gateway,
        cancellations: Cancellations,
        audit: Audit,
        statistics: Statistics,
        transcripts: Transcripts,
        tracing: Tracing,
    ) -> None:
        self._config = config
        self._pool = pool
        self._gateway = gateway
        self._cancellations = cancellations
        self._audit = audit
        self._statistics = statistics
        self._transcripts = transcripts
        self._tracing = tracing
        self._max_running = config.max_in_flight or 10**9
        # Exchanges without an id of their own must not repeat those of an earlier life of the controller.
        self._unique = token_hex(4)
        self.num_running = 0
        self._is_closing = False

    def begin(
        self, session_id: int, body: bytes, *, request_id: str | None, limit_s: float, trace: str | None
    ) -> "asyncio.Future[bytes]":
        """Hand messages to a session.

        Args:
            session_id: the session.
            body: `{"messages": [...]}` as JSON.
            request_id: a repeated one gets the same answer.
            limit_s: how long the caller waits.
            trace: the caller's `traceparent`.

        Returns:
            The body of the worker's answer, or why there is none. Callers share it and must not cancel it.

        Raises:
            SessionError: the session is unknown, busy, over or lost, or the controller is overloaded.
        """
        session = self._pool.sessions.live.get(session_id) or self._pool.sessions.find(session_id)
        if request_id is not None and request_id == session.request_id and session.answer is not None:
            return session.answer
        if session.state is not SessionState.IDLE:
            _refuse(session)
        if self.num_running >= self._max_running:
            raise SessionError(
                f"{self.num_running} exchanges are under way, which is the limit",
                code=ErrorCode.NO_CAPACITY,
                retry_after_s=1.0,
            )
        data = body if session.worker.native else _published(session, body)
        session.move(SessionState.BUSY)
        session.num_exchanges += 1
        session.request_id = request_id
        session.began = time.monotonic()
        session.answer = answer = asyncio.get_running_loop().create_future()
        if not session.worker.native:
            self._pool.note(session)
        self._transcripts.add(session_id, "agent", body)
        self.num_running += 1
        # Most exchanges need no task of their own: a connection is free, and the worker answers.
        sent = None
        if not self._tracing.is_on:
            sent = self._gateway.try_call(self._call(session, data, limit_s, session.began, ()))
        if sent is None:
            self._spawn(self._exchange(session, answer, data, limit_s, trace, None), session)
        else:
            sent.add_done_callback(functools.partial(self._sent, session, answer, data, limit_s))
        return answer

    def _spawn(self, work: Coroutine[Any, Any, None], session: Session) -> None:
        session.job = asyncio.get_running_loop().create_task(work)

    def _sent(
        self,
        session: Session,
        answer: "asyncio.Future[bytes]",
        data: bytes,
        limit_s: float,
        sent: "asyncio.Future[WorkerReply]",
    ) -> None:
        if self._is_closing:
            if not sent.cancelled():
                sent.exception()  # So that asyncio does not report it.
            return
        if not sent.cancelled() and sent.exception() is None and sent.result().http_status < 300:
            try:
                self._take(session, answer, sent.result(), session.began)
            except WorkerError as error:
                self._failed(session, error)
            finally:
                self.num_running -= 1
        else:
            self._spawn(self._exchange(session, answer, data, limit_s, None, sent), session)

    def _take(
        self, session: Session, answer: "asyncio.Future[bytes]", reply: WorkerReply, sent: float
    ) -> None:
        """Take in a worker's answer.

        Raises:
            WorkerError: it is none.
        """
        now = time.monotonic()
        self._statistics.worker_s.observe(now - sent)
        result, finished = answer_of(reply, session.worker)
        self._transcripts.add(session.id, "environment", result)
        if not answer.done():
            answer.set_result(result)
        self._pool.settle(session, finished=finished)
        self._statistics.interact_s.observe(now - session.began)

    async def close(self) -> None:
        """Break off what is under way."""
        self._is_closing = True
        jobs = [session.job for session in self._pool.sessions.live.values() if session.job is not None]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    def expire(self, session_id: int, limit_s: float, *, cancels: bool) -> SessionError:
        """A caller's deadline passed; returns what it is told."""
        session = self._pool.sessions.find(session_id)
        message = f"session {session_id}: {session.worker} gave no answer within {limit_s:.1f} s; "
        message += "the session ends" if cancels else "the same request id asks for it again"
        error = SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED)
        if cancels:
            self._cancellations.begin(session, error=error)
        return error

    async def _exchange(
        self,
        session: Session,
        answer: "asyncio.Future[bytes]",
        data: bytes,
        limit_s: float,
        trace: str | None,
        first: "asyncio.Future[WorkerReply] | None",
    ) -> None:
        sent = session.began
        try:
            if self._tracing.is_on:
                about = {"task": session.task, "session": str(session.id), "worker": session.worker.address}
                with self._tracing.span("interact", trace, **about) as headers:
                    reply = await self._ask(session, data, limit_s, headers, first)
            else:
                reply = await self._ask(session, data, limit_s, (), first)
            self._take(session, answer, reply, sent)
        except TimeoutError:
            limit_s = max(limit_s, self._config.answer_timeout_s)
            message = (
                f"session {session.id} was given up: {session.worker} gave no answer within {limit_s:g} s"
            )
            self._cancellations.begin(session, error=SessionError(message, code=ErrorCode.WORKER_FAILED))
        except WorkerError as error:
            self._failed(session, error)
        except SessionError as error:
            self._undo(session, error)
        except Exception as error:
            _log.exception("the exchange of session %d failed", session.id, extra=session.about)
            message = f"the controller failed with {type(error).__name__}; its log says where"
            self._cancellations.begin(session, error=SessionError(message, code=ErrorCode.INTERNAL))
        finally:
            self.num_running -= 1
            session.job = None

    async def _ask(
        self,
        session: Session,
        data: bytes,
        limit_s: float,
        headers: Headers,
        first: "asyncio.Future[WorkerReply] | None",
    ) -> WorkerReply:
        """The worker's answer, asked for again where only the caller's deadline has passed.

        Raises:
            TimeoutError: it takes too long altogether.
        """
        now = session.began
        end = max(now + limit_s, now + self._config.answer_timeout_s)
        while True:
            call = self._call(session, data, limit_s, now, headers)
            try:
                return await self._gateway.call(session.worker, call, first=first)
            except WorkerError as error:
                may_ask_again = error.code == ErrorCode.DEADLINE_EXCEEDED and session.worker.native
                if not may_ask_again or session.state is not SessionState.BUSY:
                    raise
            first = None
            now = time.monotonic()
            if now >= end:
                raise TimeoutError
            await asyncio.sleep(_PAUSE_S)

    def _call(self, session: Session, data: bytes, limit_s: float, now: float, headers: Headers) -> Call:
        worker = session.worker
        told_end = session.began + limit_s
        end = max(told_end, session.began + self._config.answer_timeout_s)
        return Call(
            worker.address,
            "interact",
            data,
            end - now,
            "POST",
            session.id if worker.native else None,
            session.request_id or f"{session.id}/{self._unique}/{session.num_exchanges}",
            (told_end if now < told_end else end) - now,
            headers,
        )

    def _failed(self, session: Session, error: WorkerError) -> None:
        worker, reason = session.worker, f"session {session.id}, {session.worker}: {error}"
        if session.state is not SessionState.BUSY:
            return  # Cancelled or lost meanwhile; that has been seen to.
        if error.unreachable:
            if not self._pool.give_up(worker, str(error), asked=session.began):
                self._audit.begin(worker)
            self._pool.lose(session, SessionError(reason, code=ErrorCode.WORKER_LOST))
        elif error.http_status == 409:
            self._undo(session, SessionError(reason, code=ErrorCode.SESSION_BUSY))
        elif error.http_status == 422:
            self._undo(session, SessionError(reason, code=ErrorCode.BAD_REQUEST))
        else:
            is_gone = error.http_status in (None, 400, 404)
            code = ErrorCode.WORKER_LOST if is_gone else ErrorCode.WORKER_FAILED
            self._pool.lose(session, SessionError(reason, code=code))
            # The worker may hold the session all the same; or it is dying, which others want to know soon.
            self._cancellations.disown(session)
            if error.http_status is None:
                self._audit.begin(worker)

    def _undo(self, session: Session, error: SessionError) -> None:
        """The worker has not taken the messages; the session goes on as before."""
        self._pool.settle(session, finished=False)
        session.fail(error)
        session.request_id = None  # So that the same request may be made again.


def _published(session: Session, body: bytes) -> bytes:
    """The body as published workers want it.

    Raises:
        SessionError: it is none.
    """
    try:
        content: Any = decode(body)
        if isinstance(content, dict) and isinstance(content.get("messages"), list):
            return encode({**content, "session_id": session.id})
    except ValueError as error:
        raise SessionError(f"the body is no JSON: {error}", code=ErrorCode.BAD_REQUEST) from error
    raise SessionError("`messages` must be a list of messages", code=ErrorCode.BAD_REQUEST)


def _refuse(session: Session) -> None:
    """Say why a session takes no messages.

    Raises:
        SessionError: always.
    """
    state = session.state
    if state is SessionState.LOST:
        raise SessionError(session.reason, code=ErrorCode.WORKER_LOST)
    if state in (SessionState.CANCELLING, SessionState.CANCELLED):
        why = f": {session.reason}" if session.reason else ""
        raise SessionError(f"session {session.id} was cancelled{why}", code=ErrorCode.CANCELLED)
    if state is SessionState.FINISHED:
        raise SessionError(f"session {session.id} has finished", code=ErrorCode.SESSION_FINISHED)
    raise SessionError(f"session {session.id} answers another request", code=ErrorCode.SESSION_BUSY)

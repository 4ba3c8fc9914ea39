"""Exchanges: messages to a session's worker and its answer back, each given exactly once."""

import asyncio
import logging
import time
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
from agentrl_core import ErrorCode, SessionError, WorkerStatus

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
        session.job = asyncio.get_running_loop().create_task(
            self._exchange(session, answer, data, limit_s, trace)
        )
        return answer

    async def close(self) -> None:
        """Break off what is under way."""
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
    ) -> None:
        sent = time.monotonic()
        try:
            if self._tracing.is_on:
                about = {"task": session.task, "session": str(session.id), "worker": session.worker.address}
                with self._tracing.span("interact", trace, **about) as headers:
                    reply = await self._ask(session, data, limit_s, headers)
            else:
                reply = await self._ask(session, data, limit_s, ())
            self._statistics.worker_s.observe(time.monotonic() - sent)
            result, finished = answer_of(reply, session.worker)
            self._transcripts.add(session.id, "environment", result)
            if not answer.done():
                answer.set_result(result)
            self._pool.settle(session, finished=finished)
            self._statistics.interact_s.observe(time.monotonic() - session.began)
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
            _log.exception("the exchange of session %d failed", session.id)
            message = f"the controller failed with {type(error).__name__}; its log says where"
            self._cancellations.begin(session, error=SessionError(message, code=ErrorCode.INTERNAL))
        finally:
            self.num_running -= 1
            session.job = None

    async def _ask(self, session: Session, data: bytes, limit_s: float, headers: Headers) -> WorkerReply:
        """The worker's answer, asked for again where only the caller's deadline has passed.

        Raises:
            TimeoutError: it takes too long altogether.
        """
        worker = session.worker
        now = session.began
        told_end = now + limit_s
        end = max(told_end, now + self._config.answer_timeout_s)
        request_id = session.request_id or f"{session.id}/{self._unique}/{session.num_exchanges}"
        while True:
            call = Call(
                worker.address,
                "interact",
                data,
                timeout_s=end - now,
                session_id=session.id if worker.native else None,
                request_id=request_id,
                deadline_s=(told_end if now < told_end else end) - now,
                headers=headers,
            )
            try:
                return await self._gateway.call(worker, call)
            except WorkerError as error:
                may_ask_again = error.code == ErrorCode.DEADLINE_EXCEEDED and worker.native
                if not may_ask_again or session.state is not SessionState.BUSY:
                    raise
            now = time.monotonic()
            if now >= end:
                raise TimeoutError
            await asyncio.sleep(_PAUSE_S)

    def _failed(self, session: Session, error: WorkerError) -> None:
        worker, reason = session.worker, f"session {session.id}, {session.worker}: {error}"
        if session.state is not SessionState.BUSY:
            return  # Cancelled or lost meanwhile; that has been seen to.
        if error.unreachable:
            self._pool.lose_worker(worker, WorkerStatus.DEAD, str(error))
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
        raise SessionError(f"session {session.id} is lost: {session.reason}", code=ErrorCode.WORKER_LOST)
    if state in (SessionState.CANCELLING, SessionState.CANCELLED):
        why = f": {session.reason}" if session.reason else ""
        raise SessionError(f"session {session.id} was cancelled{why}", code=ErrorCode.CANCELLED)
    if state is SessionState.FINISHED:
        raise SessionError(f"session {session.id} has finished", code=ErrorCode.SESSION_FINISHED)
    raise SessionError(f"session {session.id} answers another request", code=ErrorCode.SESSION_BUSY)

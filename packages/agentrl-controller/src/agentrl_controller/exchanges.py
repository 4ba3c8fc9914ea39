"""Exchanges: messages to a session's worker and its answer back, each given exactly once."""

import asyncio
import time
from typing import Any

from agentrl_controller.answers import answer_body
from agentrl_controller.audit import Audit
from agentrl_controller.background import Background, mark_read
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.config import ControllerConfig
from agentrl_controller.pool import Pool
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.transports import HttpTransport, WorkerError
from agentrl_core import ErrorCode, SessionError, WorkerStatus

_PAUSE_S = 0.1


class Exchanges:
    """Hands messages to workers. An exchange goes on until its worker answers; callers come and go."""

    def __init__(
        self,
        config: ControllerConfig,
        pool: Pool,
        transport: HttpTransport,
        cancellations: Cancellations,
        audit: Audit,
        background: Background,
    ) -> None:
        self._config = config
        self._pool = pool
        self._transport = transport
        self._cancellations = cancellations
        self._audit = audit
        self._background = background

    async def interact(
        self, session_id: int, body: dict[str, Any], *, request_id: str | None, deadline_s: float | None
    ) -> bytes:
        """Hand messages to a session and return the body of the worker's answer.

        Raises:
            SessionError: the session is unknown, busy, over or lost, or the deadline passed; after a deadline
                the answer can be asked for with the same request id.
        """
        session = self._pool.sessions.find(session_id)
        limit_s = self._config.interact_timeout_s if deadline_s is None else deadline_s
        is_known = request_id is not None and request_id == session.request_id
        answer = session.answer if is_known else None
        if answer is None:
            answer = self._begin(session, body, request_id, limit_s)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(answer)
        except TimeoutError as error:
            raise SessionError(
                f"session {session_id}: {session.worker} gave no answer within {limit_s:.1f} s; the same "
                "request id asks for it again",
                code=ErrorCode.DEADLINE_EXCEEDED,
            ) from error

    def _begin(
        self, session: Session, body: dict[str, Any], request_id: str | None, limit_s: float
    ) -> "asyncio.Future[bytes]":
        _check_ready(session)
        session.move(SessionState.BUSY)
        session.num_exchanges += 1
        session.request_id = request_id
        session.answer = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(mark_read)
        self._background.spawn(self._exchange(session, answer, {**body, "session_id": session.id}, limit_s))
        return answer

    async def _exchange(
        self, session: Session, answer: "asyncio.Future[bytes]", body: dict[str, Any], limit_s: float
    ) -> None:
        try:
            result, finished = answer_body(await self._ask(session, body, limit_s))
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
        else:
            self._pool.settle(session, finished=finished)
            if not answer.done():
                answer.set_result(result)

    async def _ask(self, session: Session, body: dict[str, Any], limit_s: float) -> Any:
        """The worker's answer, asked for again where only the caller's deadline has passed.

        Raises:
            TimeoutError: it takes too long altogether.
        """
        address = session.worker.address
        told_end = time.monotonic() + limit_s
        end = max(told_end, time.monotonic() + self._config.answer_timeout_s)
        request_id = session.request_id or f"{session.id}/{session.num_exchanges}"
        while True:
            now = time.monotonic()
            deadline_s = (told_end if now < told_end else end) - now
            try:
                return await self._transport.post(
                    address,
                    "interact",
                    body,
                    timeout_s=end - now,
                    deadline_s=deadline_s,
                    request_id=request_id,
                )
            except WorkerError as error:
                may_ask_again = error.code == ErrorCode.DEADLINE_EXCEEDED and self._transport.replays(address)
                if not may_ask_again or session.state is not SessionState.BUSY:
                    raise
            if time.monotonic() >= end:
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
        why = f": {session.reason}" if session.reason else ""
        raise SessionError(f"session {session.id} was cancelled{why}", code=ErrorCode.CANCELLED)
    if state is SessionState.FINISHED:
        raise SessionError(f"session {session.id} has finished", code=ErrorCode.SESSION_FINISHED)
    raise SessionError(f"session {session.id} answers another request", code=ErrorCode.SESSION_BUSY)

"""Ends sessions early, so that neither the controller nor the worker keeps a slot for them."""

import asyncio
import logging

from agentrl_controller.background import Background
from agentrl_controller.pool import Pool
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.transports import Call, Gateway, WorkerError
from agentrl_controller.wire import encode
from agentrl_core import ErrorCode, SessionError

_log = logging.getLogger("agentrl_controller")

_TIMEOUT_S = 10.0
_AGAIN_S = 1.0


class Cancellations:
    """Tells workers to end sessions."""

    def __init__(self, pool: Pool, gateway: Gateway, background: Background) -> None:
        self._pool = pool
        self._gateway = gateway
        self._background = background

    async def cancel(self, session_id: int) -> None:
        """End a session; returns when its worker has been told. Nothing happens to one that has ended.

        Raises:
            SessionError: the session is unknown.
        """
        told = self.begin(self._pool.sessions.find(session_id))
        if told is not None:
            await told.wait()

    def begin(self, session: Session, *, error: SessionError | None = None) -> asyncio.Event | None:
        """Begin to end a session.

        Args:
            session: the session.
            error: what those who wait for its answer are told.

        Returns:
            Set when the worker has been told; None where there is nothing to cancel.
        """
        if not session.state.is_cancellable:
            return None
        session.move(SessionState.CANCELLING, reason=str(error) if error else "")
        self._pool.note(session)
        session.fail(error or SessionError(f"session {session.id} was cancelled", code=ErrorCode.CANCELLED))
        session.released = asyncio.Event()
        told = asyncio.Event()
        self._background.spawn(self._release(session, session.released, told))
        return told

    async def _release(self, session: Session, released: asyncio.Event, told: asyncio.Event) -> None:
        """Tell the worker, and free the slot once it says that the session has ended there."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._tell(session, told)
                told.set()
                await released.wait()
        except (WorkerError, SessionError, TimeoutError) as error:
            message = "%s did not confirm the end of session %s: %s"
            _log.warning(message, session.worker, session.id, error, extra=session.about)
        finally:
            told.set()
            self._pool.end(session, SessionState.CANCELLED)

    async def _tell(self, session: Session, told: asyncio.Event) -> None:
        while True:
            try:
                await self._post(session)
                return
            except WorkerError as error:
                broke_off = error.http_status is None and not error.unreachable
                # Where the start has not been confirmed, it may yet arrive after its cancellation.
                may_arrive = not session.is_open and error.http_status in (400, 404)
                if not (broke_off or may_arrive):
                    raise
            told.set()
            await asyncio.sleep(_AGAIN_S)

    def disown(self, session: Session) -> None:
        """Tell the worker that nobody wants a session any more which has ended here."""
        self._background.spawn(self._post(session))

    async def _post(self, session: Session) -> None:
        body = encode({"session_id": session.id})
        call = Call(session.worker.address, "cancel_with_notice", body, timeout_s=_TIMEOUT_S)
        await self._gateway.call(session.worker, call)

    def note(self, session_id: int) -> None:
        """A worker says that a cancelled session has ended there."""
        session = self._pool.sessions.live.get(session_id)
        if session is None:
            return
        if session.released is not None:
            session.released.set()
        else:
            message = f"session {session_id} is lost: {session.worker} has cancelled it"
            self._pool.lose(session, SessionError(message, code=ErrorCode.WORKER_LOST))

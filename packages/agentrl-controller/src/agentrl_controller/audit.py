"""Compares with workers which sessions both know: a worker may have died, or begun anew unnoticed."""

import asyncio
import logging
import time
from typing import Any

from agentrl_controller.background import Background
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.pool import Pool
from agentrl_controller.registry import Worker
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.transports import Call, Gateway, WorkerError
from agentrl_controller.wire import decode
from agentrl_core import ErrorCode, SampleIndex, SessionError, WorkerStatus

_log = logging.getLogger("agentrl_controller")

_TIMEOUT_S = 5.0


class Audit:
    """Asks workers for their sessions; one question at a time to each.

    With `adopts`, sessions that a worker plays when it is first seen and nobody knows are taken up.
    """

    def __init__(
        self,
        pool: Pool,
        gateway: Gateway,
        cancellations: Cancellations,
        background: Background,
        *,
        adopts: bool,
    ) -> None:
        self._pool = pool
        self._gateway = gateway
        self._adopts = adopts
        self._cancellations = cancellations
        self._background = background
        self._running: dict[Worker, asyncio.Task[None]] = {}

    def begin(self, worker: Worker) -> "asyncio.Task[None]":
        """Compare with a worker, unless that is being done already."""
        running = self._running.get(worker)
        if running is None:
            running = self._running[worker] = self._background.spawn(self._compare(worker))
            running.add_done_callback(lambda _: self._running.pop(worker, None))
        return running

    async def all(self) -> None:
        """Compare with every living worker."""
        living = [w for w in self._pool.registry.workers() if w.status is WorkerStatus.ALIVE]
        await asyncio.gather(*(self.begin(worker) for worker in living))

    async def _compare(self, worker: Worker) -> None:
        # Only what was quiet the whole time can be judged by the worker's list.
        before = {session: session.num_exchanges for session in self._idle(worker)}
        is_new, asked = not worker.is_known, time.monotonic()
        try:
            call = Call(worker.address, "get_sessions", timeout_s=_TIMEOUT_S, method="GET")
            theirs = _listed((await self._gateway.call(worker, call)).body)
        except (WorkerError, SessionError, TimeoutError, ValueError) as error:
            # One without sessions may have yet to open its port; a start would find out.
            is_gone = isinstance(error, WorkerError) and error.unreachable and bool(worker.sessions)
            if not (is_gone and self._pool.give_up(worker, str(error), asked=asked)):
                _log.warning("%s did not list its sessions: %s", worker, error, extra=worker.about)
            return
        worker.heard, worker.is_known = time.monotonic(), True
        for session, num_exchanges in before.items():
            is_quiet = session.state is SessionState.IDLE and session.num_exchanges == num_exchanges
            if is_quiet and session.id not in theirs:
                message = f"session {session.id} is lost: {worker} does not know it any more"
                self._pool.lose(session, SessionError(message, code=ErrorCode.WORKER_LOST))
        for session_id, index in theirs.items():
            ended = self._pool.sessions.recall(session_id)
            if ended is not None and ended.state in (SessionState.LOST, SessionState.CANCELLED):
                self._cancellations.disown(ended)
            elif ended is None and is_new and self._adopts and session_id not in self._pool.sessions.live:
                self._pool.adopt(session_id, index, worker)

    def _idle(self, worker: Worker) -> list[Session]:
        held = (self._pool.sessions.live[session_id] for session_id in worker.sessions)
        return [session for session in held if session.state is SessionState.IDLE]


def _listed(body: bytes) -> dict[int, SampleIndex]:
    """Sessions of a `get_sessions` answer, with their samples.

    Raises:
        ValueError: it is none.
    """
    listed: Any = decode(body)
    if not isinstance(listed, dict):
        raise ValueError(f"`get_sessions` must answer an object, got {type(listed).__name__}")
    return {int(session_id): index for session_id, index in listed.items() if session_id.isdecimal()}

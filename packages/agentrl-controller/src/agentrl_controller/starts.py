"""Starts: from the line for a slot to the worker's first answer."""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl_controller.admission import Ticket
from agentrl_controller.answers import answer_of
from agentrl_controller.background import Background
from agentrl_controller.cancellations import Cancellations
from agentrl_controller.config import ControllerConfig
from agentrl_controller.pool import Pool
from agentrl_controller.registry import sample_of
from agentrl_controller.sessions import Session, SessionState
from agentrl_controller.statistics import Statistics
from agentrl_controller.tracing import Tracing
from agentrl_controller.transcripts import Transcripts
from agentrl_controller.transports import Call, Gateway, WorkerError
from agentrl_controller.wire import encode
from agentrl_core import CUSTOM_INDEX, ErrorCode, SampleIndex, SessionError, StartRequest

_MAX_FAILURES = 5
_SLACK_S = 1.0

Started = tuple[int, bytes]
"""A session's id and the body of the first answer."""


class _ElsewhereError(Exception):
    """This worker did not take the session, another one may."""


@dataclass(slots=True, eq=False)
class _Start:
    """A start that is under way or lately done."""

    job: "asyncio.Task[Started] | None"
    session: Session | None = None
    """The session that an earlier life of the controller has begun, whose answer must be asked for again."""
    num_waiting: int = 0
    is_known: bool = False
    """Whether some caller has got the session's id."""
    began: float = field(default_factory=time.monotonic)


class Starts:
    """Opens sessions; a request id opens one, however often it comes."""

    def __init__(
        self,
        config: ControllerConfig,
        pool: Pool,
        gateway: Gateway,
        cancellations: Cancellations,
        background: Background,
        statistics: Statistics,
        transcripts: Transcripts,
        tracing: Tracing,
    ) -> None:
        self._config = config
        self._pool = pool
        self._gateway = gateway
        self._cancellations = cancellations
        self._background = background
        self._statistics = statistics
        self._transcripts = transcripts
        self._tracing = tracing
        self._by_id: OrderedDict[str, _Start] = OrderedDict()

    async def start(
        self,
        request: StartRequest,
        *,
        client: str,
        request_id: str | None,
        deadline_s: float | None,
        trace: str | None,
    ) -> Started:
        """Open a session, waiting in line for a slot.

        A caller that goes away leaves the line, and no session behind; with a request id it has a while to
        ask again.

        Raises:
            SessionError: unknown task or sample, no slot in time, or the worker failed.
        """
        limit_s = self._config.start_timeout_s if deadline_s is None else deadline_s
        begun = self._by_id.get(request_id) if request_id is not None else None
        if begun is None:
            begun = self._begin(Ticket(request, self._check(request), client, request_id, trace), limit_s)
        began = time.monotonic()
        if begun.job is None:
            begun.job = self._background.spawn(self._repeat(begun, limit_s))
        begun.num_waiting += 1
        try:
            # Whoever joined later has a deadline of its own; the first one's ends the job itself.
            async with asyncio.timeout(limit_s + _SLACK_S):
                started = await asyncio.shield(begun.job)
            begun.is_known = True
            self._statistics.start_s.observe(time.monotonic() - began)
            return started
        except TimeoutError as error:
            message = f"the start of `{request.name}` was not done within {limit_s:.1f} s"
            raise SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED) from error
        finally:
            begun.num_waiting -= 1
            self._after_leaving(begun, request_id)

    def forget(self) -> None:
        """Drop what nobody asks for again."""
        limit = time.monotonic() - self._config.keep_finished_s
        while self._by_id:
            request_id, oldest = next(iter(self._by_id.items()))
            is_over = oldest.began < limit or len(self._by_id) > self._config.max_finished
            if not (is_over and (oldest.job is None or oldest.job.done())):
                return
            del self._by_id[request_id]

    def resume(self, session: Session) -> None:
        """Let a start be asked for again that an earlier life of the controller has made.

        One whose session ended early is forgotten, so that asking again opens another.
        """
        is_lost = session.state in (SessionState.LOST, SessionState.CANCELLED)
        if session.start_id is not None and not is_lost:
            self._by_id[session.start_id] = _Start(None, session, is_known=True)

    def went_on(self, session: Session) -> None:
        """A session has got messages, so nobody needs its first answer kept in memory any more."""
        begun = self._by_id.get(session.start_id) if session.start_id is not None else None
        if begun is not None and begun.job is not None and begun.job.done():
            begun.job, begun.session = None, session

    async def _repeat(self, begun: _Start, limit_s: float) -> Started:
        """The first answer of a session; here it is lost, but a native worker gives it again.

        Raises:
            SessionError: the worker does not.
        """
        session = begun.session
        assert session is not None
        if session.state is SessionState.FINISHED and session.answer is not None:
            return session.id, await asyncio.shield(session.answer)
        if session.state.has_ended:
            message = f"session {session.id} has ended meanwhile: {session.reason or session.state}"
            raise SessionError(message, code=ErrorCode.WORKER_LOST)
        request = StartRequest(name=session.task, index=session.index, custom_task=session.custom_task)
        ticket = Ticket(request, session.index, session.client, session.start_id)
        try:
            reply = await self._gateway.call(session.worker, _call(session, ticket, limit_s))
            body, _ = answer_of(reply, session.worker)
        except (WorkerError, TimeoutError) as error:
            begun.job = None  # So that it can be asked for once more.
            message = f"{session.worker} does not repeat how session {session.id} began: {error}"
            raise SessionError(message, code=ErrorCode.WORKER_FAILED) from error
        return session.id, body

    def _begin(self, ticket: Ticket, limit_s: float) -> _Start:
        end = time.monotonic() + limit_s
        job = self._background.spawn(self._open_somewhere(ticket, end))
        begun = _Start(job)
        request_id = ticket.start_id
        if request_id is not None:
            self._by_id[request_id] = begun
            job.add_done_callback(lambda job: self._drop_failed(request_id, job))
            self.forget()
        return begun

    def _drop_failed(self, request_id: str, job: "asyncio.Task[Started]") -> None:
        """A start that opened nothing may be asked for anew."""
        kept = self._by_id.get(request_id)
        if kept is not None and kept.job is job and (job.cancelled() or job.exception() is not None):
            del self._by_id[request_id]

    def _after_leaving(self, begun: _Start, request_id: str | None) -> None:
        if begun.num_waiting or begun.is_known:
            return
        if request_id is None:
            self._give_up(begun)
        else:
            asyncio.get_running_loop().call_later(self._config.reclaim_s, self._give_up, begun)

    def _give_up(self, begun: _Start) -> None:
        """End a start that nobody waits for."""
        if begun.num_waiting or begun.is_known:
            return
        if begun.job is None:
            return
        if not begun.job.done():
            begun.job.cancel()
        elif not begun.job.cancelled() and begun.job.exception() is None:
            session = self._pool.sessions.live.get(begun.job.result()[0])
            if session is not None:
                self._cancellations.begin(session)

    async def _open_somewhere(self, ticket: Ticket, end: float) -> Started:
        again = False
        failures = 0
        while True:
            session = await self._pool.take(ticket, end=end, again=again)
            again = True
            try:
                return await self._open(session, ticket, end)
            except _ElsewhereError:
                ticket = replace(ticket, granted=asyncio.get_running_loop().create_future())
            except SessionError as error:
                failures += 1
                is_lost = session.state is SessionState.LOST and error.code is ErrorCode.WORKER_LOST
                if not is_lost or failures == _MAX_FAILURES:
                    raise
                ticket = replace(ticket, granted=asyncio.get_running_loop().create_future())

    def _check(self, request: StartRequest) -> SampleIndex:
        record = self._pool.registry.task(request.name)
        try:
            encode(request.custom_task)
        except (TypeError, ValueError) as error:
            message = f"`custom_task` is no JSON: {error}"
            raise SessionError(message, code=ErrorCode.BAD_REQUEST) from error
        if request.index == CUSTOM_INDEX:  # Some tasks list it among their samples.
            if request.custom_task is None:
                message = f"index {CUSTOM_INDEX} stands for a custom task, but `custom_task` is missing"
                raise SessionError(message, code=ErrorCode.BAD_REQUEST)
            return CUSTOM_INDEX
        return sample_of(record, request.index, task=request.name)

    async def _open(self, session: Session, ticket: Ticket, end: float) -> Started:
        """Let a worker begin the session; whatever happens, its slot is not lost."""
        left_s = end - time.monotonic()
        session.answer = answer = asyncio.get_running_loop().create_future()
        call = self._background.spawn(self._ask(session, answer, ticket, left_s))
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                opening = await answer
                await self._pool.safe()  # Whoever has the id can rely on it.
                return session.id, opening
        except TimeoutError as error:
            self._cancellations.begin(session)
            message = f"{session.worker} began no session in the {max(0.0, left_s):.1f} s that were left"
            raise SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED) from error
        except asyncio.CancelledError:
            self._cancellations.begin(session)
            raise
        finally:
            call.cancel()

    async def _ask(
        self, session: Session, answer: "asyncio.Future[bytes]", ticket: Ticket, left_s: float
    ) -> None:
        try:
            about = {"task": session.task, "session": str(session.id), "worker": session.worker.address}
            with self._tracing.span("start_sample", ticket.trace, **about) as headers:
                call = replace(_call(session, ticket, left_s), headers=headers)
                reply = await self._gateway.call(session.worker, call)
            body, finished = answer_of(reply, session.worker)
        except WorkerError as error:
            self._refused(session, answer, error)
        except SessionError as error:
            self._pool.end(session, SessionState.LOST, reason=str(error))
            session.fail(error)
        else:
            session.is_open = True
            self._transcripts.add(session.id, "start", body)
            if not answer.done():
                answer.set_result(body)
            self._pool.settle(session, finished=finished)

    def _refused(self, session: Session, answer: "asyncio.Future[bytes]", error: WorkerError) -> None:
        worker, reason = session.worker, f"{session.worker}: {error}"
        if answer.done():
            return  # Cancelled or lost meanwhile; that has been seen to.
        if error.unreachable or error.http_status == 406:
            answer.set_exception(_ElsewhereError())
            # First the worker, so that the slot that comes free is not offered to the next in line.
            asked = session.last_used
            if not (error.unreachable and self._pool.give_up(worker, str(error), asked=asked)):
                self._pool.mark_full(worker)
            self._pool.end(session, SessionState.LOST, reason=reason)
        elif error.http_status in (400, 422):
            self._pool.lose(session, SessionError(reason, code=ErrorCode.BAD_REQUEST))
        elif error.code == ErrorCode.DEADLINE_EXCEEDED:
            self._pool.lose(session, SessionError(reason, code=ErrorCode.DEADLINE_EXCEEDED))
        else:
            # The worker may hold the session all the same.
            code = ErrorCode.WORKER_LOST if error.http_status is None else ErrorCode.WORKER_FAILED
            self._pool.lose(session, SessionError(reason, code=code))
            self._cancellations.disown(session)


def _call(session: Session, ticket: Ticket, left_s: float) -> Call:
    request, native = ticket.request, session.worker.native
    body: dict[str, Any] = {"index": session.index}
    if not native:
        body["session_id"] = session.id
    if request.custom_task is not None:
        body["custom_task"] = request.custom_task
    if request.seed is not None:
        body["seed"] = request.seed
    return Call(
        session.worker.address,
        "start_sample",
        encode(body),
        timeout_s=max(0.0, left_s) + _SLACK_S,
        session_id=session.id if native else None,
        # Another try is another session, so the worker must not take it for a repetition.
        request_id=f"{ticket.start_id or 'start'}/{session.id}",
        deadline_s=left_s,
    )

"""The other replicas: what they tell, who has which session, and who takes over from the dead."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis.exceptions import RedisError

from agentrl_controller.background import Background
from agentrl_controller.pool import Pool
from agentrl_controller.recovery import Recovery
from agentrl_controller.registry import Worker
from agentrl_controller.store import RedisStore, SessionRecord
from agentrl_controller.transports import Call, HttpTransport, WorkerError, WorkerReply
from agentrl_core import ErrorCode, SessionError

_log = logging.getLogger("agentrl_controller")

FORWARDED = "x-agentrl-forwarded"
"""Header of a request that a replica has handed on; it is not handed on again."""

_PASSED = [(name, name.encode()) for name in ("authorization", "x-on-deadline", "x-client-id", "traceparent")]
_ROUND_S = 1.0
_GATHER_S = 0.02
_PAUSE_S = 0.2
_PATIENCE_S = 10.0
_SLACK_S = 5.0
_KEPT_OWNERS = 100_000

Told = Callable[[dict[str, Any]], None]


class Peers:
    """Replicas that share a store.

    Every session belongs to one replica, which alone talks to the worker about it; the others hand requests
    on. The sessions of a replica whose lease runs out are taken over by one of the others.

    Args:
        store: what they share.
        pool: workers and sessions of this one.
        recovery: takes sessions over.
        background: runs what goes on behind.
        told: called with messages that are none of this module's.
    """

    def __init__(
        self, store: RedisStore, pool: Pool, recovery: Recovery, background: Background, told: Told
    ) -> None:
        self._store = store
        self._pool = pool
        self._recovery = recovery
        self._background = background
        self._told = told
        self._http = HttpTransport()
        self._url = ""
        self._replicas: dict[str, tuple[str, bool]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._changed: set[Worker] = set()
        self._owners: OrderedDict[int, str] = OrderedDict()
        pool.changed = self._note
        pool.registry.number = number_of

    async def open(self, url: str) -> None:
        """Join the others.

        Args:
            url: where they reach the API of this one.
        """
        self._url = url
        self._store.listen(self._receive)
        await self._meet(is_new=True)
        self.tell("hello")
        self._background.spawn(self._keep_meeting())

    async def close(self) -> None:
        """Let go of the connections to the others."""
        await self._http.close()

    # What is told.

    def tell(self, kind: str, **content: Any) -> None:
        """Tell the others something."""
        message = msgspec.msgpack.encode({"kind": kind, "from": self._store.replica, **content})
        self._background.spawn(self._publish(message))

    async def _publish(self, message: bytes) -> None:
        try:
            await self._store.publish(message)
        except (RedisError, OSError) as error:
            _log.warning("the other replicas were not told: %s", error)

    def _receive(self, data: bytes) -> None:
        try:
            self._take_in(msgspec.msgpack.decode(data))
        except Exception:  # One message that is none, or says what cannot be, must not end the listening.
            _log.exception("what another replica told could not be taken in")

    def _take_in(self, message: dict[str, Any]) -> None:
        sender = message["from"]
        if sender == self._store.replica:
            return
        if message["kind"] == "used":
            self._used.setdefault(sender, {}).update(message["used"])
            self._count([tuple(key.split(" ", 1)) for key in message["used"]])
        elif message["kind"] == "took":
            self._forget(message["replica"])
        elif message["kind"] == "handed" and message["to"] == self._store.replica:
            self._background.spawn(self._take(sender, message["task"], message["address"]))
        elif message["kind"] == "hello":
            self._changed.update(self._pool.registry.workers())
            self._tell_used()
        else:
            self._told(message)

    def _note(self, worker: Worker) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_later(_GATHER_S, self._tell_used)
        self._changed.add(worker)

    def _tell_used(self) -> None:
        changed, self._changed = self._changed, set()
        if changed:
            self.tell("used", used={f"{w.task} {w.address}": len(w.sessions) for w in changed})

    def _count(self, keys: list[Any]) -> None:
        """Count anew which slots the others have taken."""
        for task, address in keys:
            worker = self._pool.registry.at(task, address)
            if worker is not None:
                key = f"{task} {address}"
                worker.num_elsewhere = sum(used.get(key, 0) for used in self._used.values())
                self._pool.admit(task)

    # Who lives.

    async def _keep_meeting(self) -> None:
        while True:
            await asyncio.sleep(_ROUND_S)
            try:
                await self._meet()
            except (RedisError, OSError) as error:
                _log.error("the store does not answer: %s; trying again", error)
            except Exception:  # The lease must be renewed, whatever a takeover runs into.
                _log.exception("a round of meeting the other replicas failed")

    async def _meet(self, *, is_new: bool = False) -> None:
        had_lease = await self._store.join(self._url)
        if not had_lease and not is_new and await self._store.was_claimed():
            self._begin_anew()
        self._replicas = await self._store.replicas()
        for replica, (url, is_alive) in self._replicas.items():
            if not is_alive and replica != self._store.replica and await self._store.claim(replica):
                await self._take_over(replica, url)

    async def _take_over(self, replica: str, url: str) -> None:
        records = [record for record in await self._store.sessions() if record.owner == replica]
        num_live = self._recovery.sessions(records, others=True)
        _log.warning("replica %s at %s is gone; %d sessions go on here", replica, url, num_live)
        self._forget(replica)
        self.tell("took", replica=replica)
        for worker in list(self._pool.registry.workers()):
            self._note(worker)

    def hand_over(self, worker: Worker) -> None:
        """Give the sessions of a worker to the replica that holds its stream now."""
        if worker.sessions:
            self._background.spawn(self._hand_over(worker))

    async def _hand_over(self, worker: Worker) -> None:
        live = self._pool.sessions.live
        self._pool.abandon([live[session_id] for session_id in worker.sessions])
        await self._store.flush()
        self.tell("handed", to=worker.via, task=worker.task, address=worker.address)

    async def _take(self, sender: str, task: str, address: str) -> None:
        records = [
            record
            for record in await self._store.sessions()
            if (record.owner, record.task, record.worker) == (sender, task, address)
        ]
        self._recovery.sessions(records, others=True)

    def _forget(self, replica: str) -> None:
        used = self._used.pop(replica, {})
        self._count([tuple(key.split(" ", 1)) for key in used])

    def _begin_anew(self) -> None:
        """This replica was thought dead; its sessions belong to another one now."""
        _log.error("this replica's lease ran out and another took its sessions; going on without them")
        self._store.rename()
        self._pool.abandon()

    # Who has a session.

    async def forward(
        self, route: str, session_id: int, body: bytes, headers: Mapping[bytes, bytes], *, limit_s: float
    ) -> WorkerReply | None:
        """Hand a request of a session to the replica that has it; None where that is this one by now.

        Raises:
            SessionError: nobody has it, or its replica has died and nobody has taken over in time.
        """
        unknown = SessionError(f"session {session_id} is unknown", code=ErrorCode.UNKNOWN_SESSION)
        if FORWARDED.encode() in headers:
            raise unknown
        end = time.monotonic() + min(limit_s, _PATIENCE_S)
        while True:
            owner = self._owners.get(session_id) or await self._look_up(session_id)
            if owner is None:
                raise unknown
            if owner == self._store.replica and self._pool.sessions.knows(session_id):
                return None
            reply = await self._try(owner, route, session_id, body, headers, limit_s)
            if reply is not None:
                return reply
            self._owners.pop(session_id, None)
            if time.monotonic() > end:
                raise SessionError(
                    f"the replica that had session {session_id} does not answer; ask again",
                    code=ErrorCode.NO_CAPACITY,
                    retry_after_s=_ROUND_S,
                )
            await asyncio.sleep(_PAUSE_S)

    async def _look_up(self, session_id: int) -> str | None:
        try:
            record = await self._store.session(session_id)
        except (RedisError, OSError) as error:
            raise SessionError(
                f"whose session {session_id} is cannot be looked up: {error}",
                code=ErrorCode.NO_CAPACITY,
                retry_after_s=_ROUND_S,
            ) from error
        if record is None:
            return None
        self._owners[session_id] = record.owner
        if len(self._owners) > _KEPT_OWNERS:
            self._owners.popitem(last=False)
        return record.owner

    async def _try(
        self,
        owner: str,
        route: str,
        session_id: int,
        body: bytes,
        headers: Mapping[bytes, bytes],
        limit_s: float,
    ) -> WorkerReply | None:
        url, _ = self._replicas.get(owner, ("", False))
        if not url or owner == self._store.replica:
            return None
        call = self._call(url, route, body, headers, limit_s, session_id=session_id)
        try:
            reply = await self._send(call)
        except WorkerError as error:
            is_safe = error.unreachable or call.request_id is not None or route != "interact"
            if is_safe:
                return None
            message = f"the replica that has session {session_id} broke off; only a request id makes it safe "
            message += "to ask again"
            raise SessionError(message, code=ErrorCode.WORKER_LOST) from error
        return None if reply.http_status == 400 and b'"unknown_session"' in reply.body else reply

    async def start(
        self, task: str, body: bytes, headers: Mapping[bytes, bytes], *, limit_s: float
    ) -> WorkerReply | None:
        """Hand a start to the replica whose streams reach a free worker; None where that is no help."""
        record = self._pool.registry.tasks.get(task)
        if record is None or FORWARDED.encode() in headers:
            return None
        now = time.monotonic()
        workers = [worker for worker in record.workers.values() if worker.is_alive and not worker.stale]
        if any(worker.slots(now=now).free for worker in workers):
            return None
        free = [worker for worker in workers if worker.via and worker.num_taken < worker.capacity]
        if not free:
            return None
        most = max(free, key=lambda worker: worker.capacity - worker.num_taken)
        url, _ = self._replicas.get(most.via, ("", False))
        if not url:
            return None
        try:
            return await self._send(self._call(url, "start_sample", body, headers, limit_s))
        except WorkerError as error:
            if error.unreachable:
                return None
            raise SessionError(
                f"the replica that begins the session broke off: {error}", code=ErrorCode.WORKER_LOST
            ) from error

    async def _send(self, call: Call) -> WorkerReply:
        """Ask another replica.

        Raises:
            WorkerError: it is unreachable or broke off.
            SessionError: it does not answer in time.
        """
        try:
            return await self._http.send(call)
        except TimeoutError as error:
            message = f"the replica at {call.address} gave no answer within {call.timeout_s:.1f} s"
            raise SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED) from error

    def _call(
        self,
        url: str,
        route: str,
        body: bytes,
        headers: Mapping[bytes, bytes],
        limit_s: float,
        *,
        session_id: int | None = None,
    ) -> Call:
        """A client's request as another replica gets it."""
        request_id = headers.get(b"x-request-id")
        return Call(
            url,
            route,
            body,
            timeout_s=limit_s + _SLACK_S,
            session_id=session_id,
            request_id=request_id.decode("latin-1") if request_id is not None else None,
            deadline_s=limit_s,
            headers=(
                *((name, headers[key].decode("latin-1")) for name, key in _PASSED if key in headers),
                (FORWARDED, self._store.replica),
            ),
        )

    async def others(self) -> list[SessionRecord]:
        """Records of the sessions of the other replicas."""
        return [record for record in await self._store.sessions() if record.owner != self._store.replica]


def number_of(task: str, address: str) -> int:
    """A worker's number, the same on every replica."""
    digest = hashlib.blake2b(f"{task} {address}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1

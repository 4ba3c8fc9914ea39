"""The way to a worker: by the transport of its address, again where that is safe, with refusals as errors."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl_controller.registry import Worker
from agentrl_controller.transports.base import Call, Transport, WorkerError, WorkerReply
from agentrl_controller.wire import decode

_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 0.5
_PATIENCE_S = {"grpc": 10.0}
"""How long to try again; a worker that opens a stream of its own needs a while to do so anew."""
_DEFAULT_PATIENCE_S = 0.5


class Gateway:
    """Calls workers.

    Args:
        transports: by the scheme of the addresses that they serve.
    """

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        self._transports = transports

    def try_call(self, call: Call) -> "asyncio.Future[WorkerReply] | None":
        """Make a call once, if that is possible without waiting; the future holds what came of it."""
        transport = self._transports.get(_scheme(call.address))
        return transport.try_send(call) if transport is not None else None

    async def call(
        self, worker: Worker, call: Call, *, first: "asyncio.Future[WorkerReply] | None" = None
    ) -> WorkerReply:
        """Make a call and return the worker's answer.

        It is made again only where that is safe: nothing was sent, or nothing is changed, or the worker gives
        a repeated request id the same answer.

        Args:
            worker: who is asked.
            call: what for.
            first: what came of `try_call`, if it was tried.

        Raises:
            WorkerError: it is unreachable, refused or broke off.
            SessionError: this machine has no descriptors left.
            TimeoutError: no answer in time.
        """
        try:
            reply = await (self._send(call) if first is None else first)
        except WorkerError as error:
            reply = await self._again(worker, call, error)
        if reply.http_status >= 300:
            raise _refusal(reply, call.address)
        return reply

    async def _send(self, call: Call) -> WorkerReply:
        scheme = _scheme(call.address)
        transport = self._transports.get(scheme)
        if (
            transport is None
        ):  # A store may hold workers of streams before, or without, their port being open.
            raise WorkerError(f"{call.address}: no port for {scheme} is open here", unreachable=True)
        return await transport.send(call)

    async def _again(self, worker: Worker, call: Call, error: WorkerError) -> WorkerReply:
        began = time.monotonic()
        patience_s = _PATIENCE_S.get(_scheme(call.address), _DEFAULT_PATIENCE_S)
        end = began + min(call.timeout_s, patience_s)
        replays = call.method == "GET" or (worker.native and call.request_id is not None)
        pause_s = _PAUSE_S
        while error.unreachable or (replays and error.http_status is None):
            if time.monotonic() + pause_s > end:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            left_s = call.timeout_s - (time.monotonic() - began)
            try:
                return await self._send(replace(call, timeout_s=left_s))
            except WorkerError as newer:
                error = newer
        raise error

    async def close(self) -> None:
        """Let go of every connection."""
        for transport in self._transports.values():
            await transport.close()


def _scheme(address: str) -> str:
    return address.partition(":")[0]


def _refusal(reply: WorkerReply, address: str) -> WorkerError:
    try:
        answer: Any = decode(reply.body)
    except ValueError:
        answer = reply.body[:200].decode(errors="replace")
    fields = answer if isinstance(answer, dict) else {}
    message = fields.get("detail") or fields.get("message") or answer
    return WorkerError(
        f"{address} refused: {message} (HTTP {reply.http_status})",
        http_status=reply.http_status,
        code=fields.get("code"),
    )

"""A worker's connection to its controller: that it lives, and which cancelled sessions have ended."""

import asyncio
import json
import logging
import random
import secrets
import ssl
from collections.abc import Callable
from typing import Protocol

import aiohttp

from agentrl_core import SESSION_HEADER, Heartbeat
from agentrl_env_sdk.worker.runner import Runner, SessionId

_log = logging.getLogger("agentrl_env_sdk")

_TIMEOUT_S = 10.0
_LONGEST_PAUSE_S = 10.0


class Link(Protocol):
    """What a worker needs of its controller."""

    async def run(self) -> None:
        """Keep the controller informed until this is cancelled."""
        ...

    async def notice(self, session_id: SessionId) -> None:
        """Tell that a cancelled session has ended."""
        ...

    async def flush(self) -> None:
        """Deliver what is still to be delivered, within reason, while `run` goes on."""
        ...

    async def close(self) -> None:
        """Let go, after `run` has ended."""
        ...


class Beats:
    """The heartbeats of a worker.

    Args:
        runner: whose episodes it plays.
        address: where the controller reaches it.

    Attributes:
        instance: random identity of this process.
    """

    def __init__(self, runner: Runner, address: str) -> None:
        self._runner = runner
        self._address = address
        self.instance = secrets.token_hex(8)

    @property
    def is_draining(self) -> bool:
        """Whether the worker takes no new episodes."""
        return self._runner.is_draining

    @property
    def optimum(self) -> float | None:
        """The task's."""
        return self._runner.task.optimum

    def beat(self, *, draining: bool) -> Heartbeat:
        """A heartbeat; a worker that drains has no room."""
        splits = self._runner.samples.splits
        return Heartbeat(
            name=self._runner.task.task_name,
            address=self._address,
            concurrency=0 if draining else self._runner.concurrency,
            indices=[index for indices in splits.values() for index in indices],
            splits=splits,
            native=True,
            instance=self.instance,
        )


class HttpLink:
    """A link of single requests; the controller comes to the worker over HTTP, too.

    Args:
        controller: address of the controller's API.
        beats: what it is told.
        token: bearer token that it is given.
        tls: how to trust it; the machine's own roots where it is absent.
        heartbeat_s: seconds between heartbeats.
    """

    def __init__(
        self,
        controller: str,
        beats: Beats,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        heartbeat_s: float = 2.0,
    ) -> None:
        self._controller = controller.rstrip("/")
        self._beats = beats
        self._heartbeat_s = heartbeat_s
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            connector=aiohttp.TCPConnector(ssl=tls or True),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )

    async def run(self) -> None:
        """Tell the controller that this worker lives; one request at a time."""
        pause, log = Pause(self._heartbeat_s, _LONGEST_PAUSE_S), Outage("does not take heartbeats")
        # Encoded once, since a task may have many samples.
        bodies = {draining: self._body(draining) for draining in (False, True)}
        while True:
            reason = await self._post("receive_heartbeat", bodies[self._beats.is_draining])
            log.tell(reason)
            if reason is None:
                pause.reset()
                await asyncio.sleep(self._heartbeat_s)
            else:
                await asyncio.sleep(pause.next_s())

    async def notice(self, session_id: SessionId) -> None:
        """Tell that a cancelled session has ended; where nobody hears it, the controller finds out itself."""
        reason = await self._post("cancel_notice", b"null", **{SESSION_HEADER: str(session_id)})
        if reason is not None:
            _log.warning("the controller does not take cancel notices: %s", reason)

    async def flush(self) -> None:
        """Nothing waits here."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _body(self, draining: bool) -> bytes:
        beat = self._beats.beat(draining=draining).model_dump(mode="json")
        return json.dumps(beat | {"optimum": self._beats.optimum}).encode()

    async def _post(self, route: str, body: bytes, **headers: str) -> str | None:
        """Post to the controller; returns what went wrong."""
        headers["Content-Type"] = "application/json"
        try:
            async with self._http.post(f"{self._controller}/{route}", data=body, headers=headers) as response:
                if response.status == 200:
                    return None
                return f"HTTP {response.status}: {(await response.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or type(error).__name__


class Pause:
    """Growing pauses between tries, uneven so that workers of one controller do not all come back at once.

    Args:
        first_s: the first pause.
        longest_s: what they grow to.
        uniform: a number between two others.
    """

    def __init__(
        self, first_s: float, longest_s: float, *, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first_s = self._pause_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform

    def next_s(self) -> float:
        """The pause before the next try."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        return pause_s * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """A try has succeeded."""
        self._pause_s = self._first_s


class Outage:
    """Logs the beginning and the end of a trouble, and not every try between.

    Args:
        what: what the controller does while it lasts.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_on = False

    def tell(self, reason: str | None) -> None:
        """Report how a try went; None for well."""
        if reason is not None and not self._is_on:
            _log.warning("the controller %s: %s; trying on", self._what, reason)
        elif reason is None and self._is_on:
            _log.info("the controller is back")
        self._is_on = reason is not None

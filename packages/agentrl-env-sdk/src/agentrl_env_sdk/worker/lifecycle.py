"""A worker from its first heartbeat to its last session: registration, serving, and a drain on SIGTERM."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import random
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import uvicorn

from agentrl_core import SESSION_HEADER, ConfigError, Heartbeat
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk.worker.http import create_app
from agentrl_env_sdk.worker.runner import Runner, SessionId

_log = logging.getLogger("agentrl_env_sdk")

_HEARTBEAT_TIMEOUT_S = 10.0
_DRAIN_TIMEOUT_S = 30.0
_CANCEL_TIMEOUT_S = 8.0
_EXPIRY_PERIOD_S = 5.0
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker is reached, and by whom."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    controller: str | None = None
    """Address of the controller's API; without one, agents come directly."""
    advertise: str | None = None
    """Address under which the controller reaches the worker; the own one where it is absent."""
    token: str | None = None
    """Bearer token, asked for and sent to the controller."""
    heartbeat_s: float = 2.0
    """Seconds between heartbeats."""


class _Server(uvicorn.Server):
    """Leaves the signals to the worker: a drain comes first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Worker:
    """Serves a task over HTTP.

    Args:
        runner: plays the episodes.
        config: how it is reached.
        ready: called with the API's address once it listens.
    """

    def __init__(self, runner: Runner, config: WorkerConfig, *, ready: Callable[[str], None]) -> None:
        self._runner = runner
        self._config = config
        self._ready = ready
        self._instance = secrets.token_hex(8)
        self._headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}

    async def serve(self) -> None:
        """Serve until SIGTERM, which lets running episodes end, or SIGINT or a second SIGTERM, which do not.

        Raises:
            ConfigError: the port is in use, the host unknown, or the controller could not reach it.
        """
        config = self._config
        if config.controller is not None and config.advertise is None and _is_wildcard(config.host):
            raise ConfigError(
                f"a controller cannot reach `{config.host}`; name an address of this machine with --advertise"
            )
        listener = listen(config.host, config.port)
        url = url_of(listener, path="/api")
        async with aiohttp.ClientSession(headers=self._headers) as http:
            app = create_app(self._runner, token=config.token, cancelled=self._notice(http))
            server = _Server(
                uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75)
            )
            stop = _Signals()
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            others = [
                asyncio.create_task(self._beat(http, config.advertise or url)),
                asyncio.create_task(self._expire()),
            ]
            self._ready(url)
            await _first(serving, stop.gently.wait())
            await _first(self._drain(), stop.now.wait())
            # Sessions get a moment to be torn down, but a task that hangs does not keep the process.
            await _first(self._runner.cancel_all(), asyncio.sleep(_CANCEL_TIMEOUT_S))
            for other in others:
                other.cancel()
            server.should_exit = True
            server.force_exit = bool(self._runner.sessions)
            await serving

    async def _drain(self) -> None:
        """Take no new episodes, and let those that run end within reason."""
        self._runner.is_draining = True
        if self._runner.sessions:
            _log.info("%d episodes may end first; signal again to stop at once", len(self._runner.sessions))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await self._runner.wait_until_empty()

    async def _expire(self) -> None:
        while True:
            self._runner.expire()
            await asyncio.sleep(_EXPIRY_PERIOD_S)

    async def _beat(self, http: aiohttp.ClientSession, address: str) -> None:
        """Tell the controller again and again that this worker lives; one request at a time."""
        if self._config.controller is None:
            return
        config, pause_s, reason = self._config, self._config.heartbeat_s, None
        beats = {draining: self._heartbeat(address, draining) for draining in (False, True)}
        while True:
            before, reason = (
                reason,
                await self._post(http, "receive_heartbeat", beats[self._runner.is_draining]),
            )
            if reason is not None and before is None:
                _log.warning("the controller does not take heartbeats: %s; trying on", reason)
            pause_s = config.heartbeat_s if reason is None else min(2 * pause_s, _LONGEST_PAUSE_S)
            # Workers that lost the same controller do not all come back in the same instant.
            await asyncio.sleep(pause_s if reason is None else pause_s * random.uniform(0.5, 1.0))

    def _heartbeat(self, address: str, draining: bool) -> bytes:
        """The body, encoded once: a task may have many samples. A worker that drains has no room."""
        runner = self._runner
        splits = runner.samples.splits
        heartbeat = Heartbeat(
            name=runner.task.task_name,
            address=address,
            concurrency=0 if draining else runner.concurrency,
            indices=[index for indices in splits.values() for index in indices],
            splits=splits,
            native=True,
            instance=self._instance,
        )
        return json.dumps(heartbeat.model_dump(mode="json") | {"optimum": runner.task.optimum}).encode()

    def _notice(self, http: aiohttp.ClientSession) -> Callable[[SessionId], Awaitable[None]]:
        async def notice(session_id: SessionId) -> None:
            if self._config.controller is not None:
                reason = await self._post(http, "cancel_notice", b"null", **{SESSION_HEADER: str(session_id)})
                if reason is not None:
                    _log.warning("the controller does not take cancel notices: %s", reason)

        return notice

    async def _post(self, http: aiohttp.ClientSession, route: str, body: bytes, **headers: str) -> str | None:
        """Post to the controller; returns what went wrong."""
        timeout = aiohttp.ClientTimeout(total=_HEARTBEAT_TIMEOUT_S)
        url = f"{str(self._config.controller).rstrip('/')}/{route}"
        try:
            headers["Content-Type"] = "application/json"
            async with http.post(url, data=body, headers=headers, timeout=timeout) as response:
                if response.status == 200:
                    return None
                return f"HTTP {response.status}: {(await response.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or type(error).__name__


class _Signals:
    """What SIGTERM and SIGINT ask for: to stop gently, or now; one more ends the process as it stands."""

    def __init__(self) -> None:
        self.gently = asyncio.Event()
        self.now = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._received, number)

    def _received(self, number: int) -> None:
        if number == signal.SIGINT or self.gently.is_set():
            self.now.set()
            for each in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(each)
        self.gently.set()


async def _first(*works: Awaitable[object]) -> None:
    """Wait for the first of several; coroutines that lose are cancelled, tasks go on."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for work, task in zip(works, tasks, strict=True):
        if task is not work:
            task.cancel()


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False

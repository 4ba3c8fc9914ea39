"""A worker from its first heartbeat to its last session: registration, serving, and a drain on SIGTERM."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import aiohttp
import uvicorn

from agentrl_core import SESSION_HEADER, Heartbeat
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk.worker.http import create_app
from agentrl_env_sdk.worker.runner import Runner, SessionId

_log = logging.getLogger("agentrl_env_sdk")

_HEARTBEAT_TIMEOUT_S = 10.0
_DRAIN_TIMEOUT_S = 30.0
_EXPIRY_PERIOD_S = 5.0


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
        self._headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT; the first lets running episodes end, the second does not.

        Raises:
            ConfigError: the port is in use or the host unknown.
        """
        listener = listen(self._config.host, self._config.port)
        url = url_of(listener, path="/api")
        async with aiohttp.ClientSession(headers=self._headers) as http:
            app = create_app(self._runner, token=self._config.token, cancelled=self._notice(http))
            server = _Server(
                uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75)
            )
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            stop = _signals()
            beating = asyncio.create_task(self._beat(http, self._config.advertise or url))
            expiring = asyncio.create_task(self._expire())
            self._ready(url)
            await asyncio.wait([serving, asyncio.create_task(stop[0].wait())], return_when="FIRST_COMPLETED")
            beating.cancel()
            expiring.cancel()
            await self._drain(stop[1])
            server.should_exit = True
            await serving

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Let running episodes end, within reason."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S if self._config.controller else 0.0):
                while self._runner.sessions and not hurry.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(hurry.wait(), timeout=0.1)
        await self._runner.cancel_all()

    async def _expire(self) -> None:
        while True:
            self._runner.expire()
            await asyncio.sleep(_EXPIRY_PERIOD_S)

    async def _beat(self, http: aiohttp.ClientSession, address: str) -> None:
        """Tell the controller again and again that this worker lives; one request at a time."""
        if self._config.controller is None:
            return
        task = self._runner.task
        splits = self._runner.samples.splits
        heartbeat = Heartbeat(
            name=task.task_name,
            address=address,
            concurrency=self._runner.concurrency,
            indices=[index for indices in splits.values() for index in indices],
            splits=splits,
        ).model_dump(mode="json")
        failing = False
        while True:
            reason = await self._post(http, "receive_heartbeat", heartbeat)
            if reason is not None and not failing:
                _log.warning("the controller does not take heartbeats: %s; trying on", reason)
            failing = reason is not None
            await asyncio.sleep(self._config.heartbeat_s)

    def _notice(self, http: aiohttp.ClientSession) -> Callable[[SessionId], Awaitable[None]]:
        async def notice(session_id: SessionId) -> None:
            if self._config.controller is not None:
                reason = await self._post(http, "cancel_notice", None, **{SESSION_HEADER: str(session_id)})
                if reason is not None:
                    _log.warning("the controller does not take cancel notices: %s", reason)

        return notice

    async def _post(
        self, http: aiohttp.ClientSession, route: str, body: object, **headers: str
    ) -> str | None:
        """Post to the controller; returns what went wrong."""
        timeout = aiohttp.ClientTimeout(total=_HEARTBEAT_TIMEOUT_S)
        url = f"{str(self._config.controller).rstrip('/')}/{route}"
        try:
            async with http.post(url, json=body, headers=headers, timeout=timeout) as response:
                if response.status == 200:
                    return None
                return f"HTTP {response.status}: {(await response.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or type(error).__name__


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events of the first and of the second SIGTERM or SIGINT."""
    first, second = asyncio.Event(), asyncio.Event()

    def received() -> None:
        (second if first.is_set() else first).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    return first, second

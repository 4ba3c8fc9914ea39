"""A worker from its first heartbeat to its last session: registration, serving, and a drain on SIGTERM."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from agentrl_core import ConfigError
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.worker.http import app_of
from agentrl_env_sdk.worker.lag import LoopLag
from agentrl_env_sdk.worker.link import Beats, HttpLink, Link
from agentrl_env_sdk.worker.metrics import Statistics
from agentrl_env_sdk.worker.routes import Routes
from agentrl_env_sdk.worker.runner import Runner, SessionId

_log = logging.getLogger("agentrl_env_sdk")

_DRAIN_TIMEOUT_S = 30.0
_CANCEL_TIMEOUT_S = 8.0
_EXPIRY_PERIOD_S = 5.0
_STREAMS = ("grpc://", "grpcs://")
_SCHEMES = ("http://", "https://", *_STREAMS)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker is reached, and by whom.

    Raises:
        ConfigError: the settings contradict each other.
    """

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int | None = None
    """Port to listen on, 0 for a free one; where it is absent a free one, or none at all where the worker
    opens a stream."""
    controller: str | None = None
    """Address of the controller's API, or `grpc://host:port` to open a stream to it; without one, agents come
    directly."""
    advertise: str | None = None
    """Address under which the controller reaches the worker; the own one where it is absent."""
    token: str | None = None
    """Bearer token, asked for and sent to the controller."""
    heartbeat_s: float = 2.0
    """Seconds between heartbeats."""
    tls_cert: Path | None = None
    """Certificate chain to serve HTTPS with, in PEM."""
    tls_key: Path | None = None
    """Its key."""
    ca: Path | None = None
    """Certificates to trust the controller by, in PEM; the machine's own roots where it is absent."""
    blocked_warning_s: float = 0.2
    """How long the event loop may be blocked before the line of code is named in the log."""

    def __post_init__(self) -> None:
        controller = self.controller
        if controller is not None and not controller.startswith(_SCHEMES):
            rule = f"must begin with one of {', '.join(_SCHEMES)}"
            raise ConfigError(f"the controller's address {rule}, got `{controller}`")
        if self.token is not None and not (
            self.token.isascii() and self.token.isprintable() and self.token.strip()
        ):
            raise ConfigError(
                "the token must be printable ASCII and not empty; leave it away to ask for none"
            )
        if self.advertise is not None and not self.advertise.startswith(("http://", "https://")):
            raise ConfigError(f"--advertise must be the URL of the worker's API, got `{self.advertise}`")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("a certificate needs its key and a key its certificate; give both of them")
        if controller and not self.opens_stream and not self.advertise and _is_wildcard(self.host):
            raise ConfigError(
                f"a controller cannot reach `{self.host}`; name an address of this machine with --advertise"
            )

    @property
    def opens_stream(self) -> bool:
        """Whether the worker connects to its controller, and not the other way."""
        return self.controller is not None and self.controller.startswith(_STREAMS)

    @property
    def listens(self) -> bool:
        """Whether the worker takes connections itself."""
        return self.port is not None or not self.opens_stream


class _Server(uvicorn.Server):
    """Leaves the signals to the worker: a drain comes first.

    Args:
        app: what it serves.
        config: where, and with which certificate.

    Attributes:
        url: the API's address.
    """

    def __init__(self, app: FastAPI, config: WorkerConfig) -> None:
        listener = listen(config.host, config.port or 0)
        self.url = url_of(listener, path="/api")
        tls: dict[str, Any] = {}
        if config.tls_cert is not None and config.tls_key is not None:
            _check_certificate(config.tls_cert, config.tls_key)
            tls = {"ssl_certfile": str(config.tls_cert), "ssl_keyfile": str(config.tls_key)}
            self.url = self.url.replace("http://", "https://", 1)
        super().__init__(
            uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=75, **tls)
        )
        self._listeners = [listener]

    async def run_here(self) -> None:
        """Serve on the listener that is open already."""
        await self.serve(sockets=self._listeners)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Worker:
    """Serves a task to agents, or to a controller.

    Args:
        runner: plays the episodes.
        config: how it is reached.
        ready: called with its address once it is to be reached: `http://host:port/api`, or `grpc://<id>`.
    """

    def __init__(self, runner: Runner, config: WorkerConfig, *, ready: Callable[[str], None]) -> None:
        self._runner = runner
        self._config = config
        self._ready = ready
        self._statistics = Statistics()
        self._lag = LoopLag(runner.task.task_name, limit_s=config.blocked_warning_s)
        self._statistics.watch(runner, self._lag)
        self._routes = Routes(runner, statistics=self._statistics, cancelled=self._notice)
        self._link: Link | None = None
        self._signals: _Signals | None = None

    def stop(self, *, now: bool = False) -> None:
        """End as upon SIGTERM, or as upon SIGINT where episodes are not to end first."""
        if self._signals is not None:
            self._signals.receive(signal.SIGINT if now else signal.SIGTERM)

    async def serve(self) -> None:
        """Serve until SIGTERM, which lets running episodes end, or SIGINT or a second SIGTERM, which do not.

        Raises:
            ConfigError: the port is in use, the host unknown, or a certificate cannot be read.
        """
        try:
            await self._serve()
        finally:
            await self._let_go()

    async def _serve(self) -> None:
        server = self._server() if self._config.listens else None
        address = self._connect("" if server is None else server.url)
        stop = self._signals = _Signals()
        works = [asyncio.create_task(self._expire())]
        if self._link is not None:
            works.append(asyncio.create_task(self._link.run()))
        serving = asyncio.create_task(server.run_here() if server else stop.over.wait())
        self._lag.start()
        self._ready(address)
        await _first(serving, *works, stop.gently.wait())
        await _first(self._drain(), stop.now.wait())
        # Sessions get a moment to be torn down, but a task that hangs does not keep the process.
        await _first(self._runner.cancel_all(), asyncio.sleep(_CANCEL_TIMEOUT_S))
        if self._link is not None:
            await self._link.flush()
        self._lag.stop()
        stop.over.set()
        if server is not None:
            server.should_exit = True
            server.force_exit = bool(self._runner.sessions)
        await serving
        await _end(works)
        if self._link is not None:
            await self._link.close()

    def _server(self) -> _Server:
        if self._config.token is None and not _is_local(self._config.host):
            _log.warning("whoever reaches %s may play; give a --token", self._config.host)
        app = app_of(self._runner, self._routes, self._statistics, token=self._config.token)
        return _Server(app, self._config)

    def _connect(self, url: str) -> str:
        """Make the link to the controller; returns the address under which the worker is to be reached."""
        config, heartbeat_s = self._config, self._config.heartbeat_s
        if config.controller is None:
            return url
        if config.opens_stream:
            from agentrl_env_sdk.worker.grpc import StreamLink  # whose library takes a while to load

            stream = StreamLink(
                *(config.controller, self._runner, self._routes),
                token=config.token,
                ca=config.ca,
                heartbeat_s=heartbeat_s,
            )
            self._link = stream
            return stream.address
        address = config.advertise or url
        self._link = HttpLink(
            *(config.controller, Beats(self._runner, address)),
            token=config.token,
            tls=None if config.ca is None else _trusting(config.ca),
            heartbeat_s=heartbeat_s,
        )
        return address

    async def _let_go(self) -> None:
        """Have the task release what it holds, once no episode needs it; one that hangs is left alone."""
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await call(self._runner.task.close)
        except Exception:
            _log.exception("task `%s` does not let go of what it holds", self._runner.task.task_name)

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

    async def _notice(self, session_id: SessionId) -> None:
        if self._link is not None:
            await self._link.notice(session_id)


class _Signals:
    """What SIGTERM and SIGINT ask for: to stop gently, or now; one more ends the process as it stands.

    Attributes:
        gently: set once no new episodes are to be taken.
        now: set once those that run are to end.
        over: set by the worker once all have ended.
    """

    def __init__(self) -> None:
        self.gently = asyncio.Event()
        self.now = asyncio.Event()
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        """Take a signal."""
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


async def _end(works: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel works; one that had failed before tells why."""
    for work in works:
        work.cancel()
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_certificate(certificate: Path, key: Path) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        message = f"`{certificate}` and `{key}` are no certificate and its key in PEM: {error}"
        raise ConfigError(message) from error


def _trusting(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigError(f"`{ca}` holds no certificates in PEM: {error}") from error

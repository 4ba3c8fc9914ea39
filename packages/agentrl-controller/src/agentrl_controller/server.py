"""Serves a controller until a signal ends it."""

import asyncio
import gc
import logging
import resource
import socket
import ssl
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn

from agentrl_controller.acceptor import Acceptor
from agentrl_controller.api.protocol import FastProtocol, fast_protocol
from agentrl_controller.config import ControllerConfig
from agentrl_controller.controller import Controller
from agentrl_controller.logs import set_up_logging
from agentrl_controller.store import Store
from agentrl_core import ConfigError
from agentrl_core.sockets import listen, url_of

if TYPE_CHECKING:
    import grpc

_log = logging.getLogger("agentrl_controller")

_KEEP_ALIVE_S = 75
_SHUTDOWN_S = 1
_BACKLOG = 4096
_PATIENCE_S = 0.5
_RESERVED_DESCRIPTORS = 200
_GC_THRESHOLD = 50_000
_SWITCH_S = 0.001
"""How long the thread of the store waits for the interpreter at most."""


class Address(NamedTuple):
    """Where a controller is reached."""

    host: str
    """Address to listen on."""
    port: int
    """Port of the API; 0 takes a free one."""
    grpc_port: int | None = None
    """Port for the streams of task workers; 0 takes a free one, None takes no streams."""
    advertise: str | None = None
    """Where other replicas reach this one; the own address where it is absent."""


class _Server(uvicorn.Server):
    """Ends the controller's work first, so that no open request holds up the end of the server."""

    def __init__(self, controller: Controller, config: uvicorn.Config, where: Address) -> None:
        super().__init__(config)
        self._controller = controller
        self._where = where
        self._checked = 0.0
        self._acceptors: list[Acceptor] = []
        self._running = AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        app = self._controller.app
        try:
            # Not by uvicorn's lifespan, which would hide why it fails.
            await self._running.enter_async_context(app.router.lifespan_context(app))
            await super().startup(sockets=[])
            for listener in sockets or ():
                self._acceptors.append(Acceptor(listener, self._protocol, tls=self.config.ssl))
                url = _with_tls(url_of(listener, path="/api"), self._controller.config)
                await self._controller.join(self._where.advertise or url)
                print(f"Serving the controller on {url}", flush=True)  # noqa: T201
            if self._where.grpc_port is not None:
                await self._serve_grpc(self._where.host, self._where.grpc_port)
        except BaseException:
            await self._running.aclose()
            raise
        # What exists now lives as long as the server; sweeps need not look at it. Rare sweeps are short ones.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 20)
        sys.setswitchinterval(_SWITCH_S)

    async def _serve_grpc(self, host: str, port: int) -> None:
        tls = _credentials(self._controller.config)
        port = await self._controller.serve_grpc(host, port, tls=tls)
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving task workers on grpc://{shown}:{port}", flush=True)  # noqa: T201

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if now - self._checked > _PATIENCE_S:
            self._checked = now
            for connection in list(self.server_state.connections):
                if isinstance(connection, FastProtocol):
                    connection.check_patience(now)
        return await super().on_tick(counter)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        await self._controller.stop()
        await super().shutdown(sockets)
        await self._running.aclose()


def serve(config: ControllerConfig, store: Store, where: Address) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: a port is in use, the host unknown, a certificate is none, or the store cannot be used.
    """
    set_up_logging()
    _check_tls(config)
    config = _within_limits(config)
    listener = listen(where.host, where.port)
    listener.listen(_BACKLOG)
    make_server(Controller(config, store=store), where).run(sockets=[listener])


def make_server(controller: Controller, where: Address) -> uvicorn.Server:
    """A server of a controller's app; `serve(sockets=[...])` runs it in an event loop."""
    tls = controller.config.tls
    most = controller.config.max_connections or sys.maxsize
    options = uvicorn.Config(
        controller.app,
        http=fast_protocol(controller.app.state.front, max_connections=most),  # type: ignore[arg-type]
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    return _Server(controller, options, where)


def _with_tls(url: str, config: ControllerConfig) -> str:
    return url.replace("http", "https", 1) if config.tls else url


def _check_tls(config: ControllerConfig) -> None:
    if config.tls is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls.cert, config.tls.key)
    except (OSError, ssl.SSLError) as error:
        message = f"`tls`: {config.tls.cert} and {config.tls.key} are no certificate and its key: {error}"
        raise ConfigError(message) from error


def _credentials(config: ControllerConfig) -> "grpc.ServerCredentials | None":
    if config.tls is None:
        return None
    import grpc

    pair = (config.tls.key.read_bytes(), config.tls.cert.read_bytes())
    return grpc.ssl_server_credentials([pair])


def _within_limits(config: ControllerConfig) -> ControllerConfig:
    """The settings with limits that the machine's descriptors allow: an exchange needs one on each side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    most = (soft - _RESERVED_DESCRIPTORS) // 2
    if most < 1:
        raise ConfigError(f"{soft} file descriptors are too few; raise the limit with `ulimit -n`")
    connections = min(config.max_connections or most, most)
    in_flight = min(config.max_in_flight or most, most)
    _log.info(
        "%d file descriptors: %d connections and %d exchanges at once at most", soft, connections, in_flight
    )
    return config.model_copy(update={"max_connections": connections, "max_in_flight": in_flight})

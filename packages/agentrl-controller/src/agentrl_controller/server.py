"""Serves a controller over HTTP until a signal ends it."""

import logging
import socket

import uvicorn

from agentrl_controller.api import create_app
from agentrl_controller.config import ControllerConfig
from agentrl_controller.controller import Controller
from agentrl_core import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_SHUTDOWN_S = 1


def serve(config: ControllerConfig, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: the port is in use or the host unknown.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    listener = _listen(host, port)
    name = f"[{host}]" if ":" in host else host
    print(f"Serving the controller on http://{name}:{listener.getsockname()[1]}/api", flush=True)  # noqa: T201
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(Controller(config)),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another `--port`, or 0"
        ) from error
    return listener

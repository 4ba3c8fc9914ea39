"""Serves a controller over HTTP until a signal ends it."""

import logging
import socket

import uvicorn

from agentrl_controller.config import ControllerConfig
from agentrl_controller.controller import Controller
from agentrl_core.sockets import listen, url_of

_KEEP_ALIVE_S = 75
_SHUTDOWN_S = 1


class _Server(uvicorn.Server):
    """Ends the sessions first, so that no open request holds up the end of the server."""

    def __init__(self, controller: Controller, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._controller = controller

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._controller.stop()
        await super().shutdown(sockets)


def serve(config: ControllerConfig, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: the port is in use or the host unknown.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    listener = listen(host, port)
    print(f"Serving the controller on {url_of(listener, path='/api')}", flush=True)  # noqa: T201
    controller = Controller(config)
    options = uvicorn.Config(
        controller.app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    _Server(controller, options).run(sockets=[listener])

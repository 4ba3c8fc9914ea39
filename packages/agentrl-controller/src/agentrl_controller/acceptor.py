"""Takes new connections as fast as they come."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

_log = logging.getLogger("agentrl_controller")

_AT_ONCE = 200
_PAUSE_S = 0.1


class Acceptor:
    """Accepts many connections a turn of the event loop.

    uvloop takes one a turn. With a thousand busy connections a turn takes tens of milliseconds, and a
    thousand more would wait for seconds.

    Args:
        listener: a socket that listens.
        make_protocol: makes the protocol of a new connection.
        tls: how to encrypt; plain text without.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._is_open = True
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more connections."""
        self._is_open = False
        self._loop.remove_reader(self._listener.fileno())
        for task in list(self._opening):
            task.cancel()

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # No descriptors or memory are left; what waits is taken when some are.
                _log.error("no connection can be taken: %s; trying again", error)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_PAUSE_S, self._resume)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, accepted, ssl=self._tls)
        except (OSError, ssl.SSLError) as error:
            _log.debug("a connection was not opened: %s", error)
            accepted.close()

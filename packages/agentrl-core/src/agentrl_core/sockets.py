"""Listening sockets, made before a server is, so that a port in use is an error with a way out."""

import errno
import socket

from agentrl_core.errors import ConfigError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Args:
        host: address or name to listen on.
        port: port; 0 takes a free one.

    Raises:
        ConfigError: the port is in use, or the host unknown or not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another port, or 0 for a free one"
        ) from error
    return listener


def url_of(listener: socket.socket, *, path: str = "") -> str:
    """The HTTP address of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"

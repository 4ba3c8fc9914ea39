"""Which addresses a worker may register, so that registration makes the controller no open proxy."""

import fnmatch
import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from agentrl_core import ConfigError, ErrorCode, SessionError

_PLAIN = re.compile(r"[!-~]+")
_MAX_LENGTH = 500

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AllowList:
    """Hosts that workers may be reached at: loopback, the host that a heartbeat comes from, and those listed.

    Args:
        patterns: networks such as `10.0.0.0/8`, and host names in which `*` stands for anything.

    Raises:
        ConfigError: a network is none.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._names: list[str] = []
        for pattern in patterns:
            network = _network(pattern)
            if network is not None:
                self._networks.append(network)
            else:
                self._names.append(pattern.lower())

    def check(self, address: str, *, peer: str | None = None) -> None:
        """Whether a worker may have this address.

        Args:
            address: the worker's API, `http://host:port/api` or `grpc://id`.
            peer: the host that says so; None where it is this program itself.

        Raises:
            SessionError: it may not, or the address is none.
        """
        host = _host(address)
        if host is None or peer is None or self._is_allowed(host, peer):
            return
        raise SessionError(
            f"a worker may not register {address!r} from {peer}: a worker registers its own host, or one "
            "that the controller allows; start the controller with --allow-worker "
            f"{host!r} to allow it",
            code=ErrorCode.UNAUTHORIZED,
        )

    def _is_allowed(self, host: str, peer: str) -> bool:
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            return host == "localhost" or any(fnmatch.fnmatchcase(host, name) for name in self._names)
        own = ip.is_loopback or _same(ip, peer)
        return own or any(ip in network for network in self._networks if ip.version == network.version)


def _network(pattern: str) -> Network | None:
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError as error:
        if "/" in pattern:
            message = f"`allow_workers` holds networks and host names, got {pattern!r}: {error}"
            raise ConfigError(message) from error
        return None


def _same(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, peer: str) -> bool:
    try:
        other = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(other, "ipv4_mapped", None)
    return ip in (other, mapped)


def _host(address: str) -> str | None:
    """The host of a worker's address; None where the worker keeps a stream of its own open.

    Raises:
        SessionError: the address is none.
    """
    if len(address) <= _MAX_LENGTH and _PLAIN.fullmatch(address):
        try:
            parts = urlsplit(address)
            if parts.scheme == "grpc" and parts.netloc:
                return None
            has_extra = parts.query or parts.fragment or parts.username is not None
            if parts.scheme in ("http", "https") and parts.hostname and not has_extra and parts.port != 0:
                return parts.hostname
        except ValueError:
            pass
    message = (
        f"`address` must be http://HOST:PORT/PATH, https://HOST:PORT/PATH or grpc://ID, got {address[:100]!r}"
    )
    raise SessionError(message, code=ErrorCode.BAD_REQUEST)

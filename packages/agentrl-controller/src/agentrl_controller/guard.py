"""Who may do what: bearer tokens with scopes, and no way in for web pages of others."""

import hashlib
import ipaddress
import secrets
from collections.abc import Mapping

from agentrl_controller.config import ControllerConfig, Scope
from agentrl_core import ErrorCode, SessionError

_KNOWN_HOSTS = 1000


class ForbiddenError(SessionError):
    """A request is understood and not allowed."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.UNAUTHORIZED) -> None:
        super().__init__(message, code=code)


class Guard:
    """Decides by a request's headers; names are lower-case bytes."""

    def __init__(self, config: ControllerConfig) -> None:
        # Looked up by a keyed digest, so that timing tells nothing about the tokens.
        self._key = secrets.token_bytes(16)
        self._tokens: dict[bytes, tuple[str, frozenset[Scope]]] = {}
        if config.token is not None:
            self._tokens[self._digest(config.token.encode())] = ("", frozenset(Scope))
        for token in config.tokens:
            self._tokens[self._digest(token.token.encode())] = (token.name, token.scopes)
        self._hosts = frozenset(host.lower().encode() for host in config.hosts)
        self._origins = frozenset(origin.rstrip("/").encode() for origin in config.origins)
        self._good_hosts: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes], scope: Scope) -> str:
        """Whether a request may do something; returns whose token it carries, empty where that has no name.

        Raises:
            SessionError: it may not.
        """
        self.check_page(headers)
        return self.check_token(headers.get(b"authorization", b""), scope)

    def check_token(self, authorization: bytes, scope: Scope) -> str:
        """Whether a token is good for something; returns whose it is, empty where it has no name.

        Raises:
            SessionError: it is not.
        """
        if not self._tokens:
            return ""
        kind, _, given = authorization.partition(b" ")
        owner = self._tokens.get(self._digest(given)) if kind.lower() == b"bearer" else None
        if owner is None:
            raise SessionError("the bearer token is missing or wrong", code=ErrorCode.UNAUTHORIZED)
        name, scopes = owner
        if scope not in scopes and Scope.ADMIN not in scopes:
            raise ForbiddenError(f"the token of `{name}` lacks the scope `{scope}`")
        return name

    def check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Whether a request may come in at all: no web page of others sends it.

        Raises:
            SessionError: it may not.
        """
        host = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != host and origin not in self._origins:
            raise ForbiddenError(
                f"the page {_shown(origin)} is of another origin; add it to `origins` to let it in"
            )
        # A page could give its own name this machine's address, and then be of the same origin.
        if self._tokens or host in self._good_hosts:
            return
        if not self._is_good(host):
            raise ForbiddenError(
                f"the host {_shown(host)} is none of the controller's; add it to `hosts`, or set a token"
            )
        if len(self._good_hosts) < _KNOWN_HOSTS:
            self._good_hosts.add(host)

    def _is_good(self, host: bytes) -> bool:
        name = host.lower().decode("latin-1")
        if not name.endswith("]"):
            name = name.rpartition(":")[0] or name
        name = name.strip("[]")
        if not name or name == "localhost" or not self._hosts.isdisjoint({name.encode(), b"*"}):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _digest(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=16).digest()


def _shown(header: bytes) -> str:
    return repr(header[:100].decode("latin-1"))


def client_of(headers: Mapping[bytes, bytes], *, owner: str, peer: str) -> str:
    """Who asks, for queues and quotas: the token's owner, else what the client says, else its address."""
    return owner or headers.get(b"x-client-id", b"").decode("latin-1")[:100] or peer

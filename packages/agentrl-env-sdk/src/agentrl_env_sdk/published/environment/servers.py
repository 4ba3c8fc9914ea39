"""Database servers as processes in place of containers: an address of their own, the port clients expect."""

import asyncio
import contextlib
import random
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Unable
from agentrl_env_sdk.drivers.services import MariaDb, RedisServer, Server

MARIADB_PORT = 3306
REDIS_PORT = 6379
_TRIES = 64
_CERTIFICATE = "certificate.pem"
_KEY = "key.pem"
_TEXT = ("--character-set-server=utf8mb4",)
"""What the images of MariaDB set; the server's own default holds no Greek."""
_AS_MYSQL = (
    *_TEXT,
    # MySQL 8 compares by rules of Unicode, without padding; every MariaDB that is still around has this one.
    "--collation-server=utf8mb4_unicode_520_nopad_ci",
    # An UPDATE that holds a column of text against a number is an error in MariaDB's strict mode alone.
    # ONLY_FULL_GROUP_BY, for its part, refuses more here than there.
    "--sql-mode=NO_ENGINE_SUBSTITUTION",
    "--group-concat-max-len=1024",
)
"""What makes a statement answer as it does in MySQL 8."""


class ServerEnvironment(Unable):
    """A server of a session's or of several sessions' own.

    Attributes:
        name: unique among all that share the leases.
        host: where it listens; other servers have other addresses, so the port may be the usual one.
        port: its port.
        server: the process.
    """

    _kind = "server"

    def __init__(self, name: str, host: str, port: int, server: Server) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.server = server

    def url(self, port: int | None = None) -> str:
        """Where it answers."""
        return f"{self.host}:{self.port}" if port in (None, self.port) else super().url(port)


class MariaDbServer(MariaDb):
    """A MariaDB that is set up as the images of MySQL and MariaDB are: by variables.

    Args:
        folder: where it keeps its data; removed at its end.
        host: address to listen on.
        port: port to listen on.
        env: `MYSQL_ROOT_PASSWORD`, `MYSQL_DATABASE`, `MYSQL_USER` and `MYSQL_PASSWORD`, or the same with
            `MARIADB_`.
        as_mysql: whether it is to answer as MySQL 8 does, as far as settings go.
    """

    def __init__(
        self, folder: Path, *, host: str, port: int, env: Mapping[str, str], as_mysql: bool = False
    ) -> None:
        super().__init__(folder)
        self._host, self._service_port = host, port
        self._defaults = _AS_MYSQL if as_mysql else _TEXT
        self._env = env
        self.password = self._variable("ROOT_PASSWORD")

    async def _prepare(self) -> None:
        await super()._prepare()
        with (self.folder / "first.sql").open("w") as script:
            script.write(self._setup())
        openssl = shutil.which("openssl")
        if openssl is not None:
            await _certify(openssl, self.folder)

    def _command(self) -> list[str]:
        # Of an option that is given twice the last one counts.
        words = [*super()._command(), f"--port={self._service_port}", f"--bind-address={self._host}"]
        words += self._defaults
        certificate = self.folder / _CERTIFICATE
        if certificate.exists():
            words += [f"--ssl-cert={certificate}", f"--ssl-key={self.folder / _KEY}"]
        return words

    def _setup(self) -> str:
        """What makes the server what its image would: a superuser from anywhere, a database and its user."""
        root = _quoted(self.password)
        lines = [
            "DROP USER IF EXISTS 'root'@'127.0.0.1', 'root'@'::1';",
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY {root};",
            f"CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY {root};",
            "GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;",
        ]
        database, user = self._variable("DATABASE"), self._variable("USER")
        if database:
            lines.append(f"CREATE DATABASE IF NOT EXISTS {_quoted(database, '`')};")
        if user:
            name = f"{_quoted(user)}@'%'"
            lines.append(f"CREATE USER {name} IDENTIFIED BY {_quoted(self._variable('PASSWORD'))};")
            lines.append(f"GRANT ALL ON {_quoted(database, '`') if database else '*'}.* TO {name};")
        return "\n".join([*lines, "FLUSH PRIVILEGES;", ""])

    def _variable(self, name: str) -> str:
        return str(self._env.get(f"MYSQL_{name}") or self._env.get(f"MARIADB_{name}") or "")


class OpenRedisServer(RedisServer):
    """A Redis without a password, as its image is.

    Args:
        folder: where it runs; removed at its end.
        host: address to listen on.
        port: port to listen on.
    """

    def __init__(self, folder: Path, *, host: str, port: int) -> None:
        super().__init__(folder)
        self._host, self._service_port = host, port

    def _command(self) -> list[str]:
        words = [*super()._command(), "--requirepass", "", "--protected-mode", "no"]
        return [*words, "--bind", self._host, "--port", str(self._service_port)]

    async def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(self._host, self._service_port)
            writer.write(b"PING\r\n")
            answer = await reader.readline()
            writer.close()
            return answer.startswith(b"+PONG")
        return False


def free_address(port: int) -> str:
    """An address of loopback on which a port is free.

    Raises:
        EnvironmentFailedError: there is none; systems other than Linux know 127.0.0.1 alone.
    """
    chance = random.SystemRandom()
    tried = [f"127.{chance.randrange(64, 255)}.{chance.randrange(256)}.{chance.randrange(2, 255)}"]
    tried += [f"127.{chance.randrange(64, 255)}.{chance.randrange(256)}.7" for _ in range(_TRIES)]
    for host in [*tried, "127.0.0.1"]:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return host
    raise EnvironmentFailedError(f"port {port} is taken on every address of loopback that was tried")


async def _certify(openssl: str, folder: Path) -> None:
    """A certificate signed by itself, as the image makes one: there are clients that do not do without."""
    words = ["req", "-x509", "-nodes", "-days", "3650", "-subj", "/CN=agentrl"]
    words += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words += ["-keyout", str(folder / _KEY), "-out", str(folder / _CERTIFICATE)]
    nothing = asyncio.subprocess.DEVNULL
    making = await asyncio.create_subprocess_exec(
        openssl, *words, stdin=nothing, stdout=nothing, stderr=nothing
    )
    await making.wait()


def _quoted(text: str, mark: str = "'") -> str:
    escaped = text.replace("\\", "\\\\") if mark == "'" else text
    return f"{mark}{escaped.replace(mark, mark * 2)}{mark}"

"""Databases as environments: a server that runs as a process, and a database of one's own for each lease."""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Subtype, Unable
from agentrl_env_sdk.drivers.leases import is_alive, this_process
from agentrl_env_sdk.processes import kill_tree

_START_S = 90.0
_TRIES = 3
_PAUSE_S = 0.05
_OWNER = "owner"
_SOCKET = "s"
"""Below the directory of the data, where server and client are: a whole path may have 107 characters."""


class ServiceEnvironment(Unable):
    """A database, and the one user who may use it.

    Attributes:
        name: unique among all that share the leases.
        host: where the server listens.
        port: its port.
        user: who may use it.
        password: with what.
        database: its name; a number for Redis.
    """

    _kind = "database"

    def __init__(self, name: str, *, scheme: str, port: int, user: str, password: str, database: str) -> None:
        self.name = name
        self.host = "127.0.0.1"
        self.port = port
        self.user = user
        self.password = password
        self.database = database
        self._scheme = scheme

    def url(self, port: int | None = None) -> str:
        """Where it answers, with user and password."""
        if port not in (None, self.port):
            return super().url(port)
        return f"{self._scheme}://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"


class Server(ABC):
    """A database server as a child process, on a free port of this machine, with a password of its own.

    Args:
        folder: where it keeps its data; removed at its end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.password = secrets.token_urlsafe(18)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            ConfigError: its program is not installed.
            EnvironmentFailedError: it does not come up.
        """
        await self._prepare()
        for _ in range(_TRIES):
            self.port = _free_port()
            with (self.folder / "server.log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *_dies_with_parent(),
                    *self._command(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if await self._comes_up(self._process):
                return
        said = (self.folder / "server.log").read_text(errors="replace")[-2000:]
        raise EnvironmentFailedError(f"{self._command()[0]} does not start:\n{said}")

    async def stop(self) -> None:
        """End it and remove its data."""
        if self._process is not None and self._process.returncode is None:
            kill_tree(self._process.pid)
            await self._process.wait()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def _comes_up(self, process: asyncio.subprocess.Process) -> bool:
        """Whether it answers; False where it has ended, as it does on a port that somebody else took."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while process.returncode is None:
                    if await self._answers():
                        return True
                    await asyncio.sleep(_PAUSE_S)
        return False

    @abstractmethod
    def _command(self) -> list[str]:
        """What is run."""

    async def _prepare(self) -> None:
        """Make ready what it needs before its start."""
        (self.folder / _OWNER).write_text(this_process())

    @abstractmethod
    async def _answers(self) -> bool:
        """Whether it takes requests."""


class MariaDb(Server):
    """A MariaDB (or MySQL) server."""

    async def execute(self, statements: str) -> None:
        """Run statements as the superuser.

        Raises:
            EnvironmentFailedError: the server refuses one.
        """
        client = _program("mariadb", "mysql", package="mariadb-client")
        words = [client, "--no-defaults", "--user=root", f"--socket={_SOCKET}"]
        code, said = await _communicate(words, statements, folder=self._data, MYSQL_PWD=self.password)
        if code != 0:
            raise EnvironmentFailedError(f"the database server refuses: {said[-500:]}")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    async def _prepare(self) -> None:
        await super()._prepare()
        installer = _program("mariadb-install-db", package="mariadb-server")
        self._data.mkdir()
        # From within, since it takes no path with a space in it.
        words = [installer, "--no-defaults", "--datadir=.", *self._user()]
        words += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        code, said = await _communicate(words, "", folder=self._data)
        if code != 0:
            raise EnvironmentFailedError(f"{installer} fails: {said[-2000:]}")
        script = self.folder / "first.sql"
        script.touch(mode=0o600)
        script.write_text(
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{self.password}';\n"
            # The installer has left one there that needs no password.
            f"CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )

    def _command(self) -> list[str]:
        server = _program("mariadbd", "mysqld", package="mariadb-server")
        return [
            *(server, "--no-defaults", f"--datadir={self._data}", f"--socket={_SOCKET}"),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", f"--init-file={self.folder / 'first.sql'}"),
            *(
                f"--pid-file={self.folder / 'pid'}",
                "--skip-name-resolve",
                "--max-connections=500",
                *self._user(),
            ),
            # What is here is thrown away: nothing needs to survive a crash.
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--skip-log-bin"),
            *("--skip-innodb-doublewrite", "--innodb-log-file-size=32M", "--performance-schema=OFF"),
        ]

    def _user(self) -> list[str]:
        return ["--user=root"] if os.getuid() == 0 else []

    async def _answers(self) -> bool:
        try:
            await self.execute("SELECT 1;")
        except EnvironmentFailedError:
            return False
        return True


class RedisServer(Server):
    """A Redis server."""

    def _command(self) -> list[str]:
        program = _program("redis-server", package="redis-server")
        return [
            *(program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", "--requirepass", self.password, "--databases", "10000"),
        ]

    async def execute(self, *words: str) -> bytes:
        """The answer's first line to a command.

        Raises:
            OSError: nobody listens.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for command in (("AUTH", self.password), words):
                parts = [part.encode() for part in command]
                writer.write(
                    b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
                )
            await reader.readline()
            return (await reader.readline()).strip()
        finally:
            writer.close()

    async def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return await self.execute("PING") == b"+PONG"
        return False


class _DatabaseDriver(ABC):
    """Makes a database for each environment, all on one server that starts with the first."""

    kind = "database"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._starting: asyncio.Task[Server] | None = None
        self._names: dict[str, object] = {}

    async def close(self) -> None:
        """End the server with all databases."""
        if self._starting is not None:
            starting, self._starting = self._starting, None
            with contextlib.suppress(Exception):
                await (await starting).stop()

    async def _server(self) -> Server:
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    def _new_folder(self) -> Path:
        """A folder for a server; those of owners that have died are removed on the way."""
        above = Path(self._folder or tempfile.gettempdir())
        try:
            above.mkdir(parents=True, exist_ok=True)
            _sweep(above, f"agentrl-{self.kind}-*")
            return Path(tempfile.mkdtemp(prefix=f"agentrl-{self.kind}-", dir=above))
        except OSError as error:
            told = f"`{above}` cannot hold a server's data: {error.strerror}"
            raise EnvironmentFailedError(told) from error

    async def _start(self) -> Server:
        server = self._make(await asyncio.to_thread(self._new_folder))
        try:
            await server.start()
        except BaseException:
            await server.stop()
            raise
        return server

    @abstractmethod
    def _make(self, folder: Path) -> Server:
        """The server."""


class MariaDbDriver(_DatabaseDriver):
    """Makes a database and its user for each environment; the server ends with its owner.

    Args:
        folder: where the server's directory is made; the temporary directory where it is absent.
    """

    kind = "mariadb"

    def _make(self, folder: Path) -> Server:
        return MariaDb(folder)

    async def create(self, subtype: Subtype, name: str) -> ServiceEnvironment:
        """Make a database."""
        del subtype
        server = await self._server()
        assert isinstance(server, MariaDb)
        database, password = name.replace("-", "_"), secrets.token_urlsafe(18)
        self._names[name] = database
        await server.execute(
            f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4;\n"
            f"CREATE USER '{database}'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON `{database}`.* TO '{database}'@'127.0.0.1';\n"
        )
        return ServiceEnvironment(
            name, scheme="mysql", port=server.port, user=database, password=password, database=database
        )

    async def destroy(self, name: str) -> None:
        """Drop a database; those of a dead owner have ended with its server."""
        database = self._names.pop(name, None)
        if database is None or self._starting is None:
            return
        server = await self._server()
        assert isinstance(server, MariaDb)
        await server.execute(
            f"DROP DATABASE IF EXISTS `{database}`;\nDROP USER IF EXISTS '{database}'@'127.0.0.1';\n"
        )


class RedisDriver(_DatabaseDriver):
    """Makes a numbered database and its user for each environment; the server ends with its owner.

    A user of Redis may be held to commands and keys, not to a database: environments are apart as long as
    nobody means to look.

    Args:
        folder: where the server's directory is made; the temporary directory where it is absent.
    """

    kind = "redis"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._free = list(range(9_999, 0, -1))

    def _make(self, folder: Path) -> Server:
        return RedisServer(folder)

    async def create(self, subtype: Subtype, name: str) -> ServiceEnvironment:
        """Make a database."""
        del subtype
        server = await self._server()
        assert isinstance(server, RedisServer)
        number, password = self._free.pop(), secrets.token_urlsafe(18)
        self._names[name] = number
        await server.execute(
            *(
                "ACL",
                "SETUSER",
                name,
                "on",
                f">{password}",
                "~*",
                "&*",
                "+@all",
                "-@admin",
                "-flushall",
                "-swapdb",
            )
        )
        return ServiceEnvironment(
            name, scheme="redis", port=server.port, user=name, password=password, database=str(number)
        )

    async def destroy(self, name: str) -> None:
        """Empty a database; those of a dead owner have ended with its server."""
        number = self._names.pop(name, None)
        if number is None or self._starting is None:
            return
        server = await self._server()
        assert isinstance(server, RedisServer)
        await server.execute("ACL", "DELUSER", name)
        await server.execute("EVAL", f"redis.call('SELECT', {number}) redis.call('FLUSHDB') return 1", "0")
        self._free.append(int(str(number)))


def _sweep(base: Path, pattern: str) -> None:
    """Remove what servers of dead owners have left; they have died with them."""
    for folder in base.glob(pattern):
        with contextlib.suppress(OSError, ValueError):
            if not is_alive((folder / _OWNER).read_text()):
                shutil.rmtree(folder)


def _program(*names: str, package: str) -> str:
    found = next((path for name in names if (path := shutil.which(name, path=_path()))), None)
    if found is None:
        raise ConfigError(f"`{names[0]}` is not installed; on Debian: apt-get install {package}")
    return found


def _path() -> str:
    # Servers of Debian lie where only the superuser looks.
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


async def _communicate(words: list[str], text: str, *, folder: Path, **env: str) -> tuple[int, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **env},
    )
    try:
        said, _ = await process.communicate(text.encode())
    except asyncio.CancelledError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


def _dies_with_parent() -> list[str]:
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

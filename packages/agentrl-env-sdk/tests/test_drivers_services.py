import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import aiomysql
import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import EnvironmentFailedError, Environments, LocalLeases, Subtype, services
from agentrl_env_sdk.drivers.services import MariaDbDriver, RedisDriver


@pytest.fixture
async def databases(tmp_path):
    leases = LocalLeases(tmp_path / "leases.sqlite")
    folder = tmp_path / ("longer than a socket's path may be " * 4)
    async with Environments(MariaDbDriver(folder), [Subtype("db")], leases=leases) as found:
        yield found


async def connect(db, **other):
    given = {"user": db.user, "password": db.password, "db": db.database} | other
    return await aiomysql.connect(host=db.host, port=db.port, autocommit=True, **given)


async def rows(connection, *statements):
    async with connection.cursor() as cursor:
        for statement in statements:
            await cursor.execute(statement)
        return await cursor.fetchall()


async def test_each_lease_has_a_database_of_its_own(databases):
    async with databases.lease("db") as one, databases.lease("db") as two:
        assert one.port == two.port
        ours, theirs = await connect(one), await connect(two)
        create = "CREATE TABLE t (x TEXT)"
        assert await rows(ours, create, "INSERT INTO t VALUES ('\U0001f600')", "SELECT x FROM t") == (
            ("\U0001f600",),
        )
        with pytest.raises(Exception, match="doesn't exist"):
            await rows(theirs, "SELECT x FROM t")
        with pytest.raises(Exception, match="denied"):
            await rows(theirs, f"SELECT x FROM {one.database}.t")
        with pytest.raises(Exception, match="denied"):
            await connect(one, password="wrong")
        for password in ("", one.password):
            with pytest.raises(Exception, match="denied"):
                await connect(one, user="root", password=password)
        assert one.url() == f"mysql://{one.user}:{one.password}@127.0.0.1:{one.port}/{one.database}"
        with pytest.raises(EnvironmentFailedError, match="no commands"):
            await one.run("true")
        ours.close()
        theirs.close()
        name = one.database
    async with databases.lease("db") as third:
        connection = await connect(third)
        assert name not in {row[0] for row in await rows(connection, "SHOW DATABASES")}
        connection.close()


async def test_a_redis_lease_is_emptied_and_closed_behind_its_user(tmp_path):
    leases = LocalLeases(tmp_path / "leases.sqlite")
    async with Environments(RedisDriver(), [Subtype("kv", concurrency=1)], leases=leases) as environments:
        async with environments.lease("kv") as first:
            redis = Redis.from_url(first.url())
            await redis.set("a", "1")
            with pytest.raises(NoPermissionError):
                await redis.config_get("*")
            await redis.aclose()
        async with environments.lease("kv") as second:
            redis = Redis.from_url(second.url())
            assert await redis.get("a") is None
            await redis.aclose()
            redis = Redis.from_url(first.url())
            with pytest.raises(AuthenticationError):
                await redis.ping()
            await redis.aclose()


async def test_servers_of_a_killed_owner_end_and_their_data_is_swept(tmp_path, monkeypatch):
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from agentrl_env_sdk.drivers import Subtype\n"
        "from agentrl_env_sdk.drivers.services import RedisDriver\n"
        "async def main():\n"
        f"    db = await RedisDriver(Path({str(tmp_path)!r})).create(Subtype('kv'), 'agentrl-kv-1')\n"
        "    print(db.port, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    port = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await asyncio.sleep(0.01)
            except OSError:
                break
    (left,) = tmp_path.iterdir()
    driver = RedisDriver(tmp_path)
    await driver.create(Subtype("kv"), "agentrl-kv-2")
    assert left not in list(tmp_path.iterdir())
    await driver.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("driver", [MariaDbDriver, RedisDriver])
async def test_a_folder_that_cannot_be_made_is_named(tmp_path, driver):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailedError, match=r"`.*file/data` cannot hold a server's data: Not a dir"):
        await driver(tmp_path / "file" / "data").create(Subtype("db"), "agentrl-db-1")


async def test_a_server_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(services, "_path", lambda: "/nowhere")
    before = set(Path(tempfile.gettempdir()).glob("agentrl-*"))
    with pytest.raises(
        ConfigError, match=r"`mariadb-install-db` is not installed; .* install mariadb-server"
    ):
        await MariaDbDriver().create(Subtype("db"), "agentrl-db-1")
    assert set(Path(tempfile.gettempdir()).glob("agentrl-*")) <= before

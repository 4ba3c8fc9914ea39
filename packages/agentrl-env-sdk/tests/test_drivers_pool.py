import asyncio
import contextlib
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import (
    EnvironmentFailedError,
    Environments,
    LocalLeases,
    RedisLeases,
    Subtype,
    reap,
)
from agentrl_env_sdk.drivers.leases import Lease, is_abandoned, this_process
from agentrl_env_sdk.drivers.manual import ManualDriver


class Fake:
    """A driver that counts, and stops where it is told."""

    kind = "fake"

    def __init__(self):
        self.alive = set()
        self.made = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = 0

    async def create(self, subtype, name):
        await asyncio.sleep(0)
        self.alive.add(name)
        self.made += 1
        self.most = max(self.most, len(self.alive))
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise EnvironmentFailedError("no luck")
        return type("Box", (), {"name": name})()

    async def destroy(self, name):
        await asyncio.sleep(0)
        self.alive.discard(name)

    async def close(self):
        pass


@pytest.fixture
def leases(tmp_path):
    return LocalLeases(tmp_path / "leases.sqlite")


async def test_no_more_than_the_limit_and_in_the_order_of_asking(leases):
    driver, order = Fake(), []
    async with Environments(driver, [Subtype("box", concurrency=1)], leases=leases) as environments:

        async def use(number):
            async with environments.lease("box"):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(use(number) for number in range(10)))
        assert order == list(range(10))
        assert (driver.made, driver.most) == (10, 1)
    assert driver.alive == set()


async def test_an_instance_serves_as_many_leases_as_it_may(leases):
    driver = Fake()
    subtype = Subtype("box", concurrency=1, reuse=3)
    async with Environments(driver, [subtype], leases=leases) as environments:
        names = []
        for _ in range(7):
            async with environments.lease("box") as box:
                names.append(box.name)
        assert [names.count(name) for name in dict.fromkeys(names)] == [3, 3, 1]
        assert len(driver.alive) == 1


async def test_leases_may_share_an_instance(leases):
    driver = Fake()
    subtype = Subtype("box", concurrency=2, sharing=3, reuse=100)
    async with (
        Environments(driver, [subtype], leases=leases) as environments,
        contextlib.AsyncExitStack() as stack,
    ):
        names = [(await stack.enter_async_context(environments.lease("box"))).name for _ in range(6)]
        assert sorted(names.count(name) for name in set(names)) == [3, 3]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), environments.lease("box"):
                pass


async def test_an_instance_whose_lifetime_is_over_is_taken_away(leases):
    driver = Fake()
    async with (
        Environments(driver, [Subtype("box", lifetime_s=0.05)], leases=leases) as environments,
        environments.lease("box"),
        asyncio.timeout(5),
    ):
        while driver.alive:
            await asyncio.sleep(0.01)
        assert environments.num_instances == 0


async def test_a_failed_start_gives_its_place_back_and_leaves_nothing(leases):
    driver = Fake()
    driver.fails = 2
    async with Environments(driver, [Subtype("box", concurrency=1)], leases=leases) as environments:
        for _ in range(2):
            with pytest.raises(EnvironmentFailedError, match="no luck"):
                async with environments.lease("box"):
                    pass
        async with environments.lease("box"):
            assert len(driver.alive) == 1
    assert await leases.all() == []


async def test_a_start_that_takes_too_long_is_given_up(leases):
    driver = Fake()
    driver.gate.clear()
    subtype = Subtype("box", start_timeout_s=0.05)
    async with Environments(driver, [subtype], leases=leases) as environments:
        with pytest.raises(EnvironmentFailedError, match="was not there within"):
            async with environments.lease("box"):
                pass
        assert driver.alive == set()


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=12), st.integers(1, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cancel_at_any_point_leaves_nothing_and_keeps_nobody_waiting(tmp_path, users, concurrency):
    async def check():
        driver = Fake()
        subtype = Subtype("box", concurrency=concurrency, reuse=2)
        leases = LocalLeases(tmp_path / "leases.sqlite")
        async with Environments(driver, [subtype], leases=leases) as environments:

            async def use():
                async with environments.lease("box"):
                    await asyncio.sleep(0)

            async def cancelled_after(steps):
                using = asyncio.create_task(use())
                for _ in range(steps):
                    await asyncio.sleep(0)
                using.cancel()
                await asyncio.wait([using])

            async with asyncio.timeout(10):
                await asyncio.gather(
                    *(cancelled_after(steps) if is_cut else use() for steps, is_cut in users)
                )
                await use()
            assert driver.most <= concurrency
        assert driver.alive == set()
        assert await LocalLeases(tmp_path / "leases.sqlite").all() == []

    asyncio.run(check())


class InMemory:
    """Leases whose every call gives way once, so that a cancel can be aimed at each await."""

    def __init__(self):
        self.kept = {}

    async def write(self, leases):
        await asyncio.sleep(0)
        self.kept |= {lease.name: lease for lease in leases}

    async def remove(self, name):
        await asyncio.sleep(0)
        self.kept.pop(name, None)

    async def all(self):
        return list(self.kept.values())

    async def close(self):
        pass


async def test_a_cancel_at_each_await_in_turn_leaves_nothing():
    ends = []
    for steps in range(200):
        driver, leases = Fake(), InMemory()
        async with Environments(driver, [Subtype("box", concurrency=1)], leases=leases) as environments:

            async def use(environments=environments):
                async with environments.lease("box"):
                    await asyncio.sleep(0)

            using = asyncio.create_task(use())
            for _ in range(steps):
                await asyncio.sleep(0)
            using.cancel()
            await asyncio.wait([using])
            async with asyncio.timeout(10):
                await use()  # Its place is free again.
        assert (driver.alive, leases.kept) == (set(), {}), f"after {steps} steps"
        ends.append(using.cancelled())
        if not using.cancelled():
            break
    assert len(ends) > 6
    assert ends == [True] * (len(ends) - 1) + [False]  # Every point up to the end was cut once.


async def test_directories_of_another_machine_are_left_to_it(leases):
    gone = '["elsewhere", 1, "5"]'
    await leases.write([Lease("there", "manual", gone, 0.0)])
    assert await reap(ManualDriver({"web": ["http://one"]}), leases) == []
    assert [lease.name for lease in await leases.all()] == ["there"]


async def test_closing_wakes_those_in_line(leases):
    driver = Fake()
    environments = Environments(driver, [Subtype("box", concurrency=1)], leases=leases)

    async def use():
        async with environments.lease("box"):
            await asyncio.Event().wait()

    first, second = asyncio.create_task(use()), asyncio.create_task(use())
    async with asyncio.timeout(5):
        while environments.num_instances < 1 or not driver.alive:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        await environments.close()
        with pytest.raises(EnvironmentFailedError, match="closed"):
            await second
    first.cancel()
    await asyncio.wait([first])
    assert driver.alive == set()


async def test_given_addresses_are_handed_out_one_lease_each(leases):
    driver = ManualDriver({"web": ["http://one", "http://two"]})
    async with Environments(driver, [Subtype("web", concurrency=2)], leases=leases) as environments:
        async with environments.lease("web") as first, environments.lease("web") as second:
            assert {first.url(), second.url()} == {"http://one", "http://two"}
            with pytest.raises(EnvironmentFailedError, match="a given address has no commands"):
                await first.run("true")
        async with environments.lease("web") as again:
            assert again.url() in {"http://one", "http://two"}
    with pytest.raises(ConfigError, match="no address"):
        ManualDriver({"web": []})


def test_a_lease_is_abandoned_with_its_process_or_in_time():
    assert not is_abandoned(Lease("a", "fake", this_process(), 0.0))
    assert is_abandoned(Lease("a", "fake", this_process().replace(", ", ", 9", 1), time.time() + 60))
    elsewhere = '["elsewhere", 1, "5"]'
    assert is_abandoned(Lease("a", "fake", elsewhere, time.time() - 1))
    assert not is_abandoned(Lease("a", "fake", elsewhere, time.time() + 60))


async def test_only_a_drivers_own_kind_is_reaped(leases):
    gone = '["elsewhere", 1, "5"]'
    await leases.write([Lease("ours", "fake", gone, 0.0), Lease("theirs", "docker", gone, 0.0)])
    driver = Fake()
    driver.alive = {"ours", "theirs"}
    assert await reap(driver, leases) == ["ours"]
    assert driver.alive == {"theirs"}
    assert [lease.name for lease in await leases.all()] == ["theirs"]


async def test_leases_in_redis_are_the_same(redis_url):
    leases = RedisLeases(redis_url)
    lease = Lease("a", "fake", this_process(), 5.0)
    await leases.write([lease])
    assert await leases.all() == [lease]
    await leases.write([])
    await leases.remove("a")
    assert await leases.all() == []
    await leases.close()
    with pytest.raises(ConfigError, match="no address of a Redis"):
        RedisLeases("nonsense")


@pytest.fixture
async def redis_url(tmp_path):
    from agentrl_env_sdk.drivers.services import RedisDriver

    driver = RedisDriver()
    environment = await driver.create(Subtype("kv"), "agentrl-kv-1")
    yield environment.url()
    await driver.close()

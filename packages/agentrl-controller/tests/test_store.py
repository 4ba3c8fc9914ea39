import asyncio
import contextlib
import sqlite3

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_controller.store import (
    MemoryStore,
    SessionRecord,
    SqliteStore,
    TaskRecord,
    WorkerRecord,
    make_store,
)
from agentrl_core import ConfigError


def a_session(number=1, **changes):
    fields = {
        "task": "t",
        "index": 0,
        "worker": "http://w/api",
        "state": "idle",
        "started": 1.5,
        "updated": 2.5,
    }
    return SessionRecord(number, **(fields | changes))


async def reopened(path):
    store = SqliteStore(path)
    kept = await store.open()
    await store.close()
    return kept


def change(path, statement):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


async def test_what_is_flushed_is_there_for_the_next_one(tmp_path):
    store = SqliteStore(tmp_path / "deep" / "store.sqlite")
    assert await store.open() == {"session": {}, "worker": {}, "task": {}}
    records = {
        "session": {"1": a_session(answer=b"{}", custom_task=b"[1]"), "2": a_session(2, index="x")},
        "worker": {"t http://w/api": WorkerRecord(3, "t", "http://w/api", 9, native=True, stale=True)},
        "task": {"t": TaskRecord("t", [0, "a"], {"test": [0]})},
    }
    for kind, rows in records.items():
        for key, record in rows.items():
            store.put(kind, key, record)
    store.put("session", "1", a_session(state="finished"))
    store.put("session", "9", a_session(9))
    store.drop("session", "9")
    await store.flush()
    await store.close()
    records["session"]["1"] = a_session(state="finished")
    assert await reopened(tmp_path / "deep" / "store.sqlite") == records


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.one_of(st.none(), st.text(max_size=5)), st.booleans()), max_size=30
    )
)
@settings(max_examples=25, deadline=None)
def test_a_store_is_a_dictionary_that_lasts(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("store") / "store.sqlite"

    async def play():
        store = SqliteStore(path)
        await store.open()
        expected = {}
        for key, value, flushes in steps:
            if value is None:
                store.drop("session", str(key))
                expected.pop(str(key), None)
            else:
                expected[str(key)] = a_session(key, reason=value)
                store.put("session", str(key), expected[str(key)])
            if flushes:
                await store.flush()
        await store.close()
        assert (await reopened(path))["session"] == expected

    asyncio.run(play())


async def test_a_flush_waits_for_what_was_before_it_and_not_for_ever(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    running = True

    async def keep_writing():
        number = 0
        while running:
            number += 1
            store.put("session", str(number), a_session(number))
            await asyncio.sleep(0)

    writing = asyncio.create_task(keep_writing())
    async with asyncio.timeout(10):
        await store.flush()
        await store.flush()
    running = False
    await writing
    await store.close()


async def test_the_file_does_not_grow_with_what_no_longer_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl_controller.store.sqlite._COMPACT_BYTES", 5_000)
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    await store.open()
    for number in range(200):
        store.put("session", str(number), a_session(number, reason="x" * 200))
        if number >= 3:
            store.drop("session", str(number - 3))
        await store.flush()
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        ((rows, size),) = database.execute("SELECT count(*), sum(length(rows)) FROM log")
    assert rows < 50
    assert size < 10_000
    kept = (await reopened(path))["session"]
    assert kept == {str(n): a_session(n, reason="x" * 200) for n in (197, 198, 199)}


async def test_one_controller_at_a_time(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    with pytest.raises(ConfigError, match="another controller has it"):
        await SqliteStore(tmp_path / "store.sqlite").open()
    await store.close()


async def test_what_is_no_store_is_said_to_be_none(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="cannot be used: file is not a database"):
        await SqliteStore(path).open()
    path.unlink()
    change(path, "PRAGMA user_version=99")
    with pytest.raises(ConfigError, match="is of version 99, not 1"):
        await SqliteStore(path).open()


async def test_a_damaged_record_costs_itself_alone(tmp_path):
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    await store.open()
    store.put("session", "1", a_session())
    await store.close()
    wrong = msgspec.msgpack.encode([("session", "2", b"\xc1"), ("else", "3", b"\x80")])
    change(path, f"INSERT INTO log (rows) VALUES (x'{wrong.hex()}'), (x'c1')")
    assert (await reopened(path))["session"] == {"1": a_session()}


def test_a_store_is_named_by_its_address(tmp_path):
    assert isinstance(make_store("memory"), MemoryStore)
    assert isinstance(make_store(f"sqlite:{tmp_path}/a"), SqliteStore)
    for wrong in ("", "sqlite:", "mysql://x", "memory:"):
        with pytest.raises(ConfigError, match="`store` must be memory, sqlite:PATH or redis://"):
            make_store(wrong)

"""Traces of published tasks and their spans of time."""

import gc
import zipfile
from pathlib import Path

import pytest

from agentrl_env_sdk.published.durations import parse_duration
from agentrl_env_sdk.published.traces import TraceStore

NOON = 1_767_225_600_000  # 2026-01-01 00:00 UTC, eight hours later where the folders count


def test_one_file_is_kept_as_it_is_and_found_both_ways(tmp_path):
    with TraceStore(tmp_path / "traces").new_trace(3, 0x1234, NOON, tag="try") as trace:
        (trace.get_dir() / "log.json").write_text("{}")
    kept = tmp_path / "traces/by-time/26/01/01/08/try-3-4660-1767225600000.json"
    assert (trace.final_path, kept.read_text(), trace.get_dir().exists()) == (kept, "{}", False)
    for link in ("by-session/12/34/session_4660", "by-task/3/12/34/session_4660"):
        path = tmp_path / "traces" / link
        assert (path.is_symlink(), path.resolve(), Path(path.readlink()).is_absolute()) == (True, kept, False)


@pytest.mark.parametrize("whole", [False, True])
async def test_several_files_are_packed_unless_told_otherwise(tmp_path, whole):
    store = TraceStore(tmp_path)
    async with store.new_trace("door", "s-1", NOON, tmp_path / "tmp", disable_compression=whole) as trace:
        (trace.get_dir() / "deep").mkdir()
        (trace.get_dir() / "deep" / "a.txt").write_text("a")
    with store.new_trace("flat", "s-2", NOON) as flat:
        for name in ("a", "b"):
            (flat.get_dir() / name).write_text(name)
    assert zipfile.ZipFile(flat.final_path).namelist() == ["a", "b"]
    assert trace.final_path.name == f"door-s-1-{NOON}" + ("" if whole else ".zip")
    if whole:
        assert (trace.final_path / "deep" / "a.txt").read_text() == "a"
    else:
        assert zipfile.ZipFile(trace.final_path).read("deep/a.txt") == b"a"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_nobody_closes_is_kept_and_nothing_is_not(tmp_path):
    store = TraceStore(tmp_path)
    trace = store.new_trace(0, 1, NOON)
    (trace.get_dir() / "log").write_text("x")
    del trace
    gc.collect()
    assert [path.name for path in store.by_time.rglob("*") if path.is_file()] == [f"0-1-{NOON}.bin"]
    empty = store.new_trace(0, 2)
    assert (empty.close(), empty.close(), empty.final_path) == (None, None, None)


def test_a_later_trace_takes_the_links(tmp_path):
    store = TraceStore(tmp_path)
    for ts in (NOON, NOON + 1):
        with store.new_trace(0, 1, ts) as trace:
            (trace.get_dir() / "log.txt").write_text(str(ts))
    assert (store.by_session / "00/01/session_1").read_text() == str(NOON + 1)


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("5s", 5),
        ("10ms", 0.01),
        ("2us", 2e-6),
        ("2 µs", 2e-6),
        ("1.5h", 5400),
        (12, 12),
        ("3m", 180),
        ("7ns", 7e-9),
    ],
)
def test_a_span_has_a_unit(span, seconds):
    assert parse_duration(span, return_seconds=True) == pytest.approx(seconds)
    assert parse_duration(span) == round(seconds * 1e9)


def test_a_bare_number_has_the_unit_that_is_given():
    assert parse_duration("12", "ms") == 12_000_000


@pytest.mark.parametrize("span", ["", "fast", "-1s", "5 days", "1s 2s"])
def test_what_is_no_span_is_refused(span):
    with pytest.raises(ValueError, match="as in `10ms`"):
        parse_duration(span)

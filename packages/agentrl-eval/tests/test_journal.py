import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentrl_core import ConfigError, Message, Outcome
from agentrl_eval.journal import FileJournal, Record, read_journal
from agentrl_eval.plan import Plan
from agentrl_eval.sampling import Sample


def a_plan(**fields: Any) -> Plan:
    return Plan.model_validate({"tasks": ("count",), "model": "openai:m", **fields})


def a_record(index: int, **fields: Any) -> Record:
    values = {
        "task": "count",
        "repeat": 0,
        "attempt": 1,
        "final": True,
        "outcome": Outcome.COMPLETED,
        **fields,
    }
    return Record(index=index, **values)


async def fill(folder: Path, *records: Record) -> None:
    with FileJournal(folder, a_plan(), resume=False) as journal:
        for record in records:
            await journal.write(record, [Message(role="user", content="hi")])


async def test_what_was_written_is_there_after_resuming(tmp_path: Path):
    records = [a_record(1, score=1.0, metrics={"moves": 3}), a_record(2, attempt=2)]
    await fill(tmp_path, *records)
    with FileJournal(tmp_path, a_plan(), resume=True) as journal:
        assert journal.records == records
        assert journal.finished() == {Sample("count", 1, 0), Sample("count", 2, 0)}


async def test_an_attempt_that_is_tried_again_is_no_result(tmp_path: Path):
    await fill(tmp_path, a_record(1, final=False, outcome=Outcome.INFRASTRUCTURE_ERROR))
    with FileJournal(tmp_path, a_plan(), resume=True) as journal:
        assert journal.finished() == set()
        assert journal.attempts()[Sample("count", 1, 0)] == 1


async def test_a_crash_at_any_byte_costs_at_most_the_last_line(tmp_path: Path):
    await fill(tmp_path, a_record(1), a_record(2))
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with FileJournal(tmp_path, a_plan(), resume=True) as journal:
            kept = [record.index for record in journal.records]
            await journal.write(a_record(3), [])
        assert kept == ([] if size < first else [1])
        assert [record.index for record in read_journal(tmp_path)] == [*kept, 3]


async def test_another_plan_is_refused_naming_what_changed(tmp_path: Path):
    await fill(tmp_path, a_record(1))
    with pytest.raises(ConfigError, match=r"`split` was 'test' and is 'train'; `seed` was 0 and is 5"):
        FileJournal(tmp_path, a_plan(split="train", seed=5), resume=True)
    with FileJournal(tmp_path, a_plan(), resume=True):  # The refusal left the folder free.
        pass


async def test_a_finished_folder_is_not_written_over(tmp_path: Path):
    await fill(tmp_path, a_record(1))
    with pytest.raises(ConfigError, match="--resume"):
        FileJournal(tmp_path, a_plan(), resume=False)


async def test_a_run_that_failed_before_its_first_result_leaves_the_folder_free(tmp_path: Path):
    with FileJournal(tmp_path, a_plan(split="tset"), resume=False):
        pass
    await fill(tmp_path, a_record(1))
    with FileJournal(tmp_path, a_plan(), resume=True) as journal:
        assert len(journal.records) == 1


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match="no evaluation to resume"):
        FileJournal(tmp_path, a_plan(), resume=True)


def test_two_processes_on_one_folder_refuse(tmp_path: Path):
    with (
        FileJournal(tmp_path, a_plan(), resume=False),
        pytest.raises(ConfigError, match="another process"),
    ):
        FileJournal(tmp_path, a_plan(), resume=True)


async def test_a_damaged_line_is_named_and_not_skipped(tmp_path: Path):
    await fill(tmp_path, a_record(1))
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"task": "count"}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .* is no record"):
        FileJournal(tmp_path, a_plan(), resume=True)


async def test_whatever_tasks_report_is_kept_as_strict_json(tmp_path: Path):
    await fill(
        tmp_path, a_record(1, metrics={"nan": float("nan"), "text": "half \ud800 a pair", "l": [1e999]})
    )
    (line,) = (tmp_path / "journal.jsonl").read_text().splitlines()
    metrics = json.loads(line, parse_constant=pytest.fail)["metrics"]
    assert metrics == {"nan": None, "text": "half ? a pair", "l": [None]}
    assert read_journal(tmp_path)[0].metrics == metrics


async def test_attempts_that_end_together_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    with FileJournal(tmp_path, a_plan(), resume=False) as journal:
        await asyncio.gather(*(journal.write(a_record(index), []) for index in range(100)))
    assert sorted(record.index for record in read_journal(tmp_path)) == list(range(100))
    assert len(syncs) < 100  # Two files: one by one they would take 200.


async def test_a_cancelled_write_is_kept_all_the_same(tmp_path: Path):
    with FileJournal(tmp_path, a_plan(), resume=False) as journal:
        task = asyncio.create_task(journal.write(a_record(1), []))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert [record.index for record in read_journal(tmp_path)] == [1]


async def test_a_full_disk_ends_the_run_and_leaves_a_journal_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with FileJournal(tmp_path, a_plan(), resume=False) as journal:
        await journal.write(a_record(1), [])
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"No space left.*--resume"):
            await journal.write(a_record(2), [])
        monkeypatch.undo()
    with FileJournal(tmp_path, a_plan(), resume=True) as journal:
        assert [record.index for record in journal.records] == [1]


def test_a_folder_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to .*--dir"):
        FileJournal(tmp_path / "file" / "x", a_plan(), resume=False)

"""The main job as a person runs it: one command, every part a process of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

COMMAND = str(Path(sys.executable).parent / "agentrl-train")
DEADLINE_S = 600.0

pytestmark = pytest.mark.timeout(900)


class Run:
    """A quickstart in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder.with_suffix(".out")
        self._log = self.output.open("ab")
        self.process = subprocess.Popen(
            [COMMAND, "quickstart", "--dir", str(folder), *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.seen: set[psutil.Process] = set()

    def children(self) -> list[psutil.Process]:
        """The processes that it has started so far and that live."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        return [process for process in self.seen if _lives(process)]

    def wait_until(self, condition: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> None:
        """Watch it until a condition holds."""
        end = time.monotonic() + deadline_s
        while not condition():
            self.children()
            assert self.process.poll() is None, f"it ended early:\n{self.text()}"
            assert time.monotonic() < end, f"not within {deadline_s} s:\n{self.text()}"
            time.sleep(0.1)

    def wait(self, *, deadline_s: float = DEADLINE_S) -> int:
        """Watch it to its end; returns the exit code."""
        end = time.monotonic() + deadline_s
        while self.process.poll() is None:
            self.children()
            assert time.monotonic() < end, f"not within {deadline_s} s:\n{self.text()}"
            time.sleep(0.1)
        return self.process.returncode

    def steps(self) -> list[int]:
        """The steps that are logged."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def text(self) -> str:
        """What it printed."""
        return self.output.read_text(errors="replace")

    def close(self) -> None:
        """End whatever is left."""
        for process in [*self.children()]:
            process.kill()
        self.process.kill()
        self.process.wait()
        self._log.close()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_adds_up(ledger: dict[str, Any], *, steps: int) -> None:
    """Every admitted episode ended once, and a step trained on all of its groups but their stale members."""
    ended = ledger["trained"] + sum(ledger["filtered"].values()) + sum(ledger["failed"].values())
    assert ended + ledger["pending"] == ledger["admitted"]
    assert steps * 128 - sum(ledger["filtered"].values()) <= ledger["trained"] <= steps * 128


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start quickstarts that end with the test."""
    runs: list[Run] = []

    def begin(*options: str, name: str = "run") -> Run:
        runs.append(Run(tmp_path / name, *options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_a_small_agent_learns_both_tasks(start: Callable[..., Run]) -> None:
    run = start("--steps", "30", "--seed", "1")
    assert run.wait() == 0, run.text()

    summary = json.loads((run.folder / "summary.json").read_text())
    for task in ("guess", "trail"):
        before, after = summary["tasks"][task]["before"], summary["tasks"][task]["after"]
        assert before["n"] == after["n"] == 200
        assert after["low"] > before["high"], f"{task}: {before} -> {after}"
    assert summary["steps"] == 30
    assert summary["mode"] == "async"
    assert 0 < summary["peak_rss_mb"] < 6 * 1024

    assert_adds_up(summary["ledger"], steps=30)
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, 31))
    assert max(record["staleness/lag_max"] for record in records) <= 2
    # Before the first update, trainer and engine hold the same weights and must agree.
    assert records[0]["policy/logp_gap_max"] < 1e-3
    assert records[-1]["weights/version"] == 30

    page = (run.folder / "report.html").read_text()
    assert "guess" in page
    assert "trail" in page
    assert not re.search(r'(?:src|href)="https?://', page)
    assert (run.folder / "config.yaml").is_file()
    assert list((run.folder / "tensorboard").iterdir())
    assert (run.folder / "checkpoints" / "step-000030" / "model.safetensors").is_file()
    assert run.children() == []


def test_ctrl_c_stops_everything_and_resume_goes_on(start: Callable[..., Run]) -> None:
    options = ("--quick", "--set", "checkpoint.every=2", "--set", "steps=6")
    run = start(*options)
    run.wait_until(lambda: 3 in run.steps())
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(deadline_s=10.0) == 130, run.text()
    assert run.children() == []

    again = Run(run.folder, "--resume", "--quick")
    try:
        assert again.wait() == 0, again.text()
        assert again.steps() == [1, 2, 3, 4, 5, 6]
        summary = json.loads((run.folder / "summary.json").read_text())
        assert summary["steps"] == 6
        assert_adds_up(summary["ledger"], steps=6)
    finally:
        again.close()


def test_sync_never_trains_on_an_older_version(start: Callable[..., Run]) -> None:
    run = start("--quick", "--sync", "--steps", "3")
    assert run.wait() == 0, run.text()
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["staleness/lag_max"] for record in records] == [0, 0, 0]
    assert json.loads((run.folder / "summary.json").read_text())["mode"] == "sync"


def test_a_killed_task_worker_ends_the_run_with_its_name(start: Callable[..., Run]) -> None:
    run = start("--quick")
    run.wait_until(lambda: 1 in run.steps())
    workers = [process for process in run.children() if "agentrl-env" in " ".join(process.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    assert run.wait(deadline_s=30.0) == 1
    assert re.search(r"error: task-\d ended by itself", run.text()), run.text()
    assert run.children() == []


def test_a_killed_engine_ends_the_run_with_its_pool(start: Callable[..., Run]) -> None:
    run = start("--quick")
    run.wait_until(lambda: 1 in run.steps())
    replicas = [process for process in run.children() if process.name().startswith("ray::_Replica")]
    assert len(replicas) == 3
    for process in replicas:
        process.kill()
    assert run.wait(deadline_s=60.0) == 1
    assert re.search(r"error: (rollout|actor|reference) rank 0 died", run.text()), run.text()
    assert run.children() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "actor.lerning_rate=1"), "did you mean `learning_rate`?"),
        (("--set", "max_lag=-1"), "`max_lag`: Input should be greater than or equal to 0, got -1"),
        (("--resume",), "holds no run to resume"),
    ],
)
def test_a_bad_option_is_one_clear_message(
    start: Callable[..., Run], options: tuple[str, ...], message: str
) -> None:
    run = start(*options)
    assert run.wait(deadline_s=60.0) == 1
    assert message in run.text()
    assert "Traceback" not in run.text()


def test_a_folder_in_use_is_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run = start()
    assert run.wait(deadline_s=60.0) == 1
    assert "is not empty" in run.text()
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"

"""The command as a process of its own, against servers in this one."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl_eval.journal import read_journal

COMMAND = [sys.executable, "-c", "from agentrl_eval.cli import main; main(prog_name='agentrl-eval')"]
DEADLINE_S = 30


async def start(*words: str, **more: Any) -> asyncio.subprocess.Process:
    environment = {**os.environ, "COLUMNS": "200", "TEST_KEY": "secret", **more}
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def words(controller: Any, endpoint: Any, tmp_path: Path) -> list[str]:
    return [
        *("run", "count", "--controller", controller.url, "--model", "openai:m", "--base-url", endpoint.url),
        *("--api-key-env", "TEST_KEY", "--dir", str(tmp_path / "run")),
    ]


async def test_a_run_prints_both_headlines_and_writes_the_results(words: list[str], tmp_path: Path):
    code, out, err = await finish(await start(*words))
    assert (code, err) == (0, "")
    assert "66.7% [39.1%, 86.2%] (n = 12)" in out  # Wilson for 8 of 12, by hand.
    assert "12/12 count 67% of 12" in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    task = results["tasks"]["count"]
    assert (task["n"], task["successes"], task["scored_only"]["n"]) == (12, 8, 12)
    assert (results["model"], results["split"], results["seed"], results["complete"]) == (
        "openai:m",
        "test",
        0,
        True,
    )
    assert "| count | 66.7% [39.1%, 86.2%] (n = 12)" in (tmp_path / "run" / "results.md").read_text()
    conversations = (tmp_path / "run" / "conversations.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["messages"]) for line in conversations] == [4] * 12


async def test_an_agent_that_does_badly_is_still_a_complete_run(words: list[str]):
    code, out, _ = await finish(await start(*words, "--indices", "0,3"))
    assert code == 0
    assert "0.0% [0.0%, 65.8%] (n = 2)" in out


async def test_a_wrong_key_is_one_line_and_shown_nowhere(
    words: list[str], endpoint: Any, refusal: Any, tmp_path: Path
):
    async def refuse(_: Any) -> web.Response:
        return refusal(401, "wrong key")

    endpoint.on_request = refuse
    code, out, err = await finish(await start(*words))
    assert code == 1
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "wrong key" in err
    files = "".join(path.read_text() for path in (tmp_path / "run").iterdir())
    assert "secret" not in out + err + files


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-n", "13"], "has 12 samples"),
        (["--split", "tset"], "it has: test, train"),
        (["--model", "gpt"], "openai:NAME or scripted:FILE"),
        (["--controller", "localhost:5020"], "must start with http://"),
        (["--resume"], "no evaluation to resume"),
    ],
)
async def test_a_wrong_option_is_one_line_and_no_run(words: list[str], more: list[str], message: str):
    code, _, err = await finish(await start(*words, *more))
    assert code == 1
    assert message in err
    assert err.count("\n") == 1


async def test_replies_in_a_file_are_a_baseline(words: list[str], controller: Any, tmp_path: Path):
    call = {"id": "c", "function": {"name": "say", "arguments": '{"number": "4"}'}}
    script = tmp_path / "four.jsonl"
    script.write_text(json.dumps({"role": "assistant", "tool_calls": [call]}) + "\n")
    code, out, _ = await finish(await start(*words, "--model", f"scripted:{script}", "--indices", "4"))
    assert code == 0
    assert "100.0% [20.7%, 100.0%] (n = 1)" in out


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def slow(controller: Any, endpoint: Any) -> Any:
    """A task of 120 samples, answered a few at a time so that a signal lands in the middle."""
    controller.splits = {"count": {"test": list(range(120))}}

    async def wait(_: Any) -> None:
        await asyncio.sleep(0.03)

    endpoint.on_request = wait


async def test_killed_runs_resume_without_a_sample_twice_or_missing(
    slow: Any, words: list[str], controller: Any, tmp_path: Path
):
    folder = tmp_path / "run"
    for resume, enough in (([], 10), (["--resume"], 40)):
        process = await start(*words, "--concurrency", "8", *resume)
        await until(lambda enough=enough: len(read_journal(folder)) >= enough)
        process.kill()
        await finish(process)
        before = Counter(controller.starts)
        kept = {record.index for record in read_journal(folder)}
        assert len(kept) < 120
    code, _, err = await finish(await start(*words, "--concurrency", "64", "--resume"))
    assert (code, err) == (0, "")
    assert Counter(record.index for record in read_journal(folder)) == dict.fromkeys(range(120), 1)
    assert json.loads((folder / "results.json").read_text())["tasks"]["count"]["n"] == 120
    again = controller.starts - before
    assert {index for _, index in again} == set(range(120)) - kept  # What was finished was not played again.


async def test_an_interrupt_drains_writes_results_and_leaves_no_session(
    slow: Any, words: list[str], controller: Any, tmp_path: Path
):
    process = await start(*words, "--concurrency", "8")
    await until(lambda: len(read_journal(tmp_path / "run")) >= 10)
    process.send_signal(signal.SIGINT)
    code, out, err = await finish(process)
    assert (code, err) == (130, "")
    assert controller.live == {}
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert not results["complete"]
    assert 10 <= results["tasks"]["count"]["n"] < 120
    assert results["tasks"]["count"]["outcomes"] == {"completed": results["tasks"]["count"]["n"]}
    assert "not run" in out
    assert "--resume" in out
    code, _, _ = await finish(await start(*words, "--concurrency", "64", "--resume"))
    assert code == 0


async def test_the_first_interrupt_stops_while_the_controller_is_silent(
    words: list[str], controller: Any, forever: asyncio.Event
):
    asked = asyncio.Event()

    async def hang() -> None:
        asked.set()
        await forever.wait()

    controller.on_indices = hang
    process = await start(*words)
    async with asyncio.timeout(DEADLINE_S):
        await asked.wait()
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, err = await finish(process)
    assert (code, err) == (130, "")
    assert time.monotonic() - started < 3


async def test_a_second_interrupt_stops_at_once(
    words: list[str], controller: Any, tmp_path: Path, forever: asyncio.Event
):
    cancelling = asyncio.Event()

    async def hang(_: Any) -> None:
        cancelling.set()
        await forever.wait()

    controller.on_start = hang  # So that the first interrupt has to wait for the session to open.
    process = await start(*words)
    async with asyncio.timeout(DEADLINE_S):
        await cancelling.wait()
    process.send_signal(signal.SIGINT)
    await asyncio.sleep(0.2)  # Two signals at once would reach the process as one.
    assert process.returncode is None
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, err = await finish(process)
    assert (code, err) == (130, "")
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("option", ["--help", "--version"])
async def test_help_imports_nothing_heavy(option: str):
    check = (
        "import sys\nfrom agentrl_eval.cli import main\n"
        f"try:\n    main(['{option}'])\nfinally:\n"
        "    heavy = {'openai', 'scipy', 'numpy', 'aiohttp', 'rich'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", check, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    code, out, err = await finish(process)
    assert (code, err) == (0, "")
    assert out

"""Real packages of other projects, each in an environment of its own, which `nox -s interop` makes."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "adapters"
MODEL = HERE.parents[1] / "packages/agentrl-workers/src/agentrl_workers/presets/quickstart-model"
DEADLINE_S = 200.0


def python_of(name: str) -> str:
    """The interpreter of an environment: `OPENENV`, `VERIFIERS` or `TRAINERS`."""
    found = os.environ.get(f"AGENTRL_INTEROP_{name}", "")
    if not found:
        pytest.skip(f"AGENTRL_INTEROP_{name} names no interpreter; run `nox -s interop`")
    return found


def environment() -> dict[str, str]:
    """What the processes inherit: no proxy for loopback, and no way to a model hub."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {**kept, "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"}


@contextlib.asynccontextmanager
async def started(*words: str, folder: Path, marker: str) -> AsyncIterator[str]:
    """A server process; yields the last word of the line that has the marker."""
    with (folder / f"{Path(words[1]).stem}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *words, stdout=subprocess.PIPE, stderr=log, env=environment(), cwd=folder
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            line = b""
            while marker.encode() not in line:
                line = await process.stdout.readline()
                assert line, Path(log.name).read_text()
        yield line.decode().split()[-1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def result_of(*words: str, folder: Path) -> Any:
    """What a script prints after `RESULT`."""
    return json.loads(output_of(*words, folder=folder).split("RESULT ", 1)[1])


def output_of(*words: str, folder: Path) -> str:
    """What a script prints."""
    run = subprocess.run(
        words, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment(), cwd=folder
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


@pytest.fixture(scope="module")
def guess_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A task worker that serves `guess`."""
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    words = [str(BIN / "agentrl-env"), "serve", "agentrl_env_sdk.tasks.guess:Guess", "--port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http" in line, log.read_text()
        yield line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

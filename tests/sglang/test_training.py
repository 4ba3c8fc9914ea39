"""A run of `agentrl-train` whose episodes are sampled by a real SGLang server."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import yaml

from agentrl_workers.metrics import read_metrics

from .conftest import START_TIMEOUT_S, STANDINS  # isort: skip

BIN = Path(sys.executable).parent
MODEL = Path(__file__).parents[2] / "packages/agentrl-workers/src/agentrl_workers/presets/quickstart-model"


async def test_a_run_trains_on_what_a_server_samples_and_its_weights_arrive_there(
    python: str, tmp_path: Path
):
    words = [str(BIN / "agentrl-env"), "serve", "agentrl_env_sdk.tasks.guess:Guess", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
        assert worker.stdout is not None
        try:
            url = worker.stdout.readline().split()[-1]
            code, said = await asyncio.to_thread(train, config(url, python), tmp_path)
        finally:
            worker.terminate()
    assert code == 0, said
    records = read_metrics(tmp_path / "run")
    assert [record["weights/version"] for record in records] == [1, 2, 3]
    assert [record["staleness/lag_max"] for record in records] == [0, 0, 0]
    # The server's log-probabilities under each version are the trainer's own under the same weights.
    assert max(record["policy/logp_gap_max"] for record in records) < 1e-3
    assert records[-1]["ledger/trained"] == 3 * 4 * 4
    assert "sglang" in (tmp_path / "run" / "logs" / "sglang-0.log").read_text()


def config(url: str, python: str) -> dict:
    environment = {"PYTHONPATH": str(STANDINS), "HF_HUB_OFFLINE": "1"}
    server = {"python": python, "environment": environment, "start_timeout_s": START_TIMEOUT_S}
    return {
        "steps": 3,
        "max_lag": 0,
        "controller": url,
        "tasks": [{"name": "guess"}],
        "model": {"path": str(MODEL)},
        "rollout": {
            "engine": "sglang",
            "sglang": server,
            "num_slots": 32,
            "context_length": 256,
            "concurrency": 16,
            "max_tokens_per_turn": 32,
        },
        "batch": {"groups": 4, "group_size": 4},
        "actor": {"learning_rate": 1e-3},
        "algorithm": {"kl_coefficient": 0.0},
    }


def train(settings: dict, folder: Path) -> tuple[int, str]:
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    words = [str(BIN / "agentrl-train"), "run", str(folder / "run.yaml"), "--dir", str(folder / "run")]
    run = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S + 200,
        check=False,
        env={**os.environ, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
    )
    return run.returncode, f"{run.stdout}\n{run.stderr}"

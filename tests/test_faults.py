"""Bad tasks and bad replies: every episode ends with a class of its own, and training goes on."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core import FunctionCall, Message, Outcome, ToolCall, outcome_of
from agentrl_core.client import Session, SessionClient
from agentrl_workers.quickstart.first_model import shipped_model
from agentrl_workers.services import LocalEnvironments

pytestmark = pytest.mark.timeout(300)

FAULTY = f"{Path(__file__).parent / 'tasks' / 'faulty.py'}:Faulty"
TRAIN = str(Path(sys.executable).parent / "agentrl-train")


def test_training_goes_on_past_failing_samples_and_counts_them(tmp_path: Path) -> None:
    config = {
        "steps": 2,
        "tasks": [{"name": "faulty"}],
        "model": {"path": str(shipped_model())},
        "rollout": {"context_length": 512, "max_tokens_per_turn": 48, "concurrency": 32},
        "batch": {"groups": 3, "group_size": 4},
        "actor": {"learning_rate": 1e-3},
    }

    async def train() -> subprocess.CompletedProcess[str]:
        async with LocalEnvironments([FAULTY], tmp_path / "logs") as environments:
            (tmp_path / "config.yaml").write_text(json.dumps({**config, "controller": environments.url}))
            words = [TRAIN, "run", str(tmp_path / "config.yaml"), "--dir", str(tmp_path / "run")]
            return await asyncio.to_thread(
                subprocess.run, words, capture_output=True, text=True, timeout=240, check=False
            )

    ended = asyncio.run(train())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    outcomes, ledger = summary["outcomes"], summary["ledger"]
    assert outcomes["environment_error"] > 0
    assert ledger["failed"]["environment_error"] == outcomes["environment_error"]
    assert ledger["trained"] == 2 * 3 * 4
    ended_episodes = ledger["trained"] + sum(ledger["filtered"].values()) + sum(ledger["failed"].values())
    assert ended_episodes + ledger["pending"] == ledger["admitted"]
    for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines():
        assert json.loads(line)["trajectory"]["outcome"] in ("completed", "truncated", "agent_error")


def call(name: str, arguments: str) -> Message:
    function = FunctionCall(name=name, arguments=arguments)
    return Message(
        role="assistant", content="", tool_calls=[ToolCall(id="c", type="function", function=function)]
    )


async def play(client: SessionClient, index: int, *replies: Message) -> tuple[Outcome, float]:
    """Play an episode with the given replies, the last one again and again; its outcome and its return."""
    session: Session = await client.start("faulty", index)
    reply, total, turn = session.opening, session.opening.reward, 0
    while not reply.finish:
        reply = await session.interact([replies[min(turn, len(replies) - 1)]])
        total += reply.reward
        turn += 1
    return outcome_of(reply.status), total


async def test_each_way_to_fail_has_its_outcome_and_no_reward(tmp_path: Path) -> None:
    guess = call("guess", '{"number": 1}')
    async with (
        LocalEnvironments([FAULTY], tmp_path / "logs") as environments,
        SessionClient(environments.url) as client,
    ):
        for index in range(4):
            assert await play(client, index, guess) == (Outcome.ENVIRONMENT_ERROR, 0.0)
        assert await play(client, 4, guess) == (Outcome.TRUNCATED, 0.0)
        for bad in (
            Message(role="assistant", content="I think it is 475."),
            call("guess", '{"number": '),
            call("guess", '"{\\"number\\": 1}"'),
            call("gues", '{"number": 1}'),
            call("guess", '{"number": "many"}'),
            Message(role="assistant", content="x " * 10_000),
        ):
            assert await play(client, 5, bad) == (Outcome.AGENT_ERROR, 0.0)
        (worker,) = (await client.tasks())["faulty"].workers.values()
        assert worker.current == 0

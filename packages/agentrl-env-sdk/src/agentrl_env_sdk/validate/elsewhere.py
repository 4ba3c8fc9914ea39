"""Plays episodes in another process, whose hashes are others: what depends on the order of a set shows.

parent --request file--> python -m agentrl_env_sdk.validate.elsewhere --recordings file--> parent
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl_core import Message
from agentrl_env_sdk.recording import Recording, parse
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.validate.subject import Settings, Subject

_LIMIT_S = 120.0
_HASH_SEEDS = ("1", "2")
_PROGRAM = f"from {__name__} import main; main()"


async def play_elsewhere(target: Sequence[str], recordings: Sequence[Recording]) -> list[Recording]:
    """The same actions in the same episodes of a target, in a process of their own.

    Raises:
        RuntimeError: the process fails; with what it said last.
        TimeoutError: it does not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.jsonl")
        _ask(request, target, recordings)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, str(request), str(answer)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        try:
            async with asyncio.timeout(_LIMIT_S):
                _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            raise RuntimeError(said.decode(errors="replace").strip()[-500:])
        return _read(answer)


def _ask(request: Path, target: Sequence[str], recordings: Sequence[Recording]) -> None:
    plays = [
        {
            "index": recording.index,
            "seed": recording.seed,
            "actions": [action.to_wire() for action in recording.actions],
        }
        for recording in recordings
    ]
    request.write_text(json.dumps({"target": list(target), "plays": plays}))


def _read(answer: Path) -> list[Recording]:
    return parse([json.loads(line) for line in answer.read_text().splitlines()])


def _environment() -> dict[str, str]:
    own = os.environ.get("PYTHONHASHSEED")
    other = next(seed for seed in _HASH_SEEDS if seed != own)
    return {
        **os.environ,
        "PYTHONHASHSEED": other,
        "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path),
    }


async def _answer(request: dict[str, Any]) -> list[Recording]:
    from agentrl_env_sdk.target import load_task
    from agentrl_env_sdk.testing.episode import begin

    subject = Subject(load_task(*request["target"]), settings=Settings(num_samples=1))
    found = []
    for wanted in request["plays"]:
        episode = await begin(subject.runner(), wanted["index"], seed=wanted["seed"])
        actions = [Message.model_validate(action) for action in wanted["actions"]]
        found.append((await subject.finish(episode, ScriptedAgent(actions))).recording)
    return found


def main() -> None:
    """Answer the request in one file in another."""
    request, answer = map(Path, sys.argv[1:])
    recordings = asyncio.run(_answer(json.loads(request.read_text())))
    answer.write_text("".join(line for recording in recordings for line in recording.lines()))

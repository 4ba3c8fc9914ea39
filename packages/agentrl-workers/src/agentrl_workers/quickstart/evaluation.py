"""Success on held-out samples, measured by `agentrl-eval` against a served checkpoint."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_workers.services import Service, ServiceError, command

_MODEL_NAME = "policy"


async def evaluate(
    checkpoint: Path,
    tasks: Sequence[str],
    *,
    controller: str,
    folder: Path,
    samples: int,
    max_tokens: int,
    seed: int,
) -> Mapping[str, Any]:
    """Serve a checkpoint, run the evaluation, and return the result of each task.

    Args:
        checkpoint: model folder.
        tasks: task names.
        controller: address of the controller's API.
        folder: where the evaluation writes.
        samples: held-out samples of each task.
        max_tokens: longest reply.
        seed: of the sampling.

    Raises:
        ServiceError: either process failed.
    """
    server = Service(
        "model server",
        [
            command("agentrl-train"),
            "serve",
            str(checkpoint),
            "--port",
            "0",
            "--name",
            _MODEL_NAME,
            "--seed",
            str(seed),
        ],
        folder / "server.log",
    )
    try:
        url = await server.start()
        await _run(
            [
                *(command("agentrl-eval"), "run", *tasks),
                *("--controller", controller, "--model", f"openai:{_MODEL_NAME}", "--base-url", url),
                *("--split", "test", "-n", str(samples), "--max-tokens", str(max_tokens)),
                *("--temperature", "1.0", "--concurrency", "64", "--seed", str(seed), "--dir", str(folder)),
            ],
            folder,
        )
    finally:
        await server.stop()
    results = json.loads((folder / "results.json").read_text())
    return results["tasks"]


async def _run(words: Sequence[str], folder: Path) -> None:
    runner = Service("agentrl-eval", words, folder / "eval.log")
    try:
        code = await runner.run()
    finally:
        await runner.stop()
    if code != 0:
        raise ServiceError(f"agentrl-eval ended with exit code {code}: {runner.words()}")

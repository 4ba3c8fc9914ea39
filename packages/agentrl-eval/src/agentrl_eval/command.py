"""`agentrl-eval run` behind its options."""

import asyncio
import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_eval.journal import Journal, Record
from agentrl_eval.models import Model
from agentrl_eval.models.openai import OpenAIModel
from agentrl_eval.plan import Plan
from agentrl_eval.report import markdown_table, print_table
from agentrl_eval.results import summarise
from agentrl_eval.runner import evaluate

_NO_KEY = "none"
_REPORTS = 20


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the plan is carried out."""

    controller: str
    """The controller's API."""
    controller_token: str | None
    """Its bearer token."""
    base_url: str | None
    """The model's endpoint."""
    api_key_env: str
    """Environment variable that holds its key."""


async def run(plan: Plan, endpoints: Endpoints, folder: Path, *, concurrency: int, resume: bool) -> bool:
    """Evaluate and write the results; returns whether the plan is complete.

    The first SIGINT or SIGTERM ends it in order, the second at once.

    Raises:
        AgentRLError: it cannot go on.
    """
    model = make_model(plan, endpoints)
    console = Console(highlight=False)
    started = time.monotonic()
    stop = _stop_on_signals()
    with Journal(folder, plan, resume=resume) as journal:
        done = len(journal.finished)

        def tell(record: Record, total: int) -> None:
            nonlocal done
            done += 1
            if done % max(1, total // _REPORTS) == 0 or done == total:
                console.print(f"{done}/{total} episodes, last: {record.task} {record.index} {record.outcome}")

        try:
            async with SessionClient(endpoints.controller, token=endpoints.controller_token) as client:
                complete = await evaluate(
                    plan, model, client, journal, concurrency=concurrency, on_record=tell, stop=stop
                )
        finally:
            await model.close()
            results = summarise(journal.records, threshold=plan.success_threshold)
            _write(folder, plan, results, complete=not stop.is_set(), wall_s=time.monotonic() - started)
    print_table(results, console)
    console.print(f"results: {folder / 'results.json'}", soft_wrap=True)
    return complete


def make_model(plan: Plan, endpoints: Endpoints) -> Model:
    """The model that a plan names.

    Raises:
        ConfigError: its kind is unknown.
    """
    kind, _, name = plan.model.partition(":")
    if kind != "openai" or not name:
        raise ConfigError(f"the model must be written `openai:NAME`, got `{plan.model}`")
    return OpenAIModel(
        name,
        base_url=endpoints.base_url,
        api_key=os.environ.get(endpoints.api_key_env) or _NO_KEY,
        temperature=plan.temperature,
        max_tokens=plan.max_tokens,
    )


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def received() -> None:
        if stop.is_set() and main is not None:
            main.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received)
    return stop


def _write(folder: Path, plan: Plan, results: dict[str, Any], *, complete: bool, wall_s: float) -> None:
    content = {
        "tasks": results,
        "model": plan.model,
        "split": plan.split,
        "seed": plan.seed,
        "complete": complete,
        "wall_s": round(wall_s, 3),
    }
    (folder / "results.json").write_text(json.dumps(_finite(content), indent=2) + "\n")
    (folder / "results.md").write_text(markdown_table(results))


def _finite(value: Any) -> Any:
    """The value as strict JSON: what is not a number becomes null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

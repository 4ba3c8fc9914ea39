"""`agentrl-eval run` behind its options."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_eval.journal import FileJournal
from agentrl_eval.models import Model, ScriptedModel
from agentrl_eval.models.openai import OpenAIModel
from agentrl_eval.plan import Plan
from agentrl_eval.report import ProgressLine, print_table, write_results
from agentrl_eval.runner import evaluate

_NO_KEY = "none"
# Of each of an episode's attempts: with a dead controller every one of them takes that long.
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the plan is carried out."""

    controller: str
    """The controller's API."""
    controller_token: str | None
    """Its bearer token."""
    base_url: str | None
    """The model's endpoint; OpenAI's own where it is absent."""
    api_key_env: str
    """Environment variable that holds its key."""


async def run(plan: Plan, endpoints: Endpoints, folder: Path, *, concurrency: int, resume: bool) -> bool:
    """Evaluate and write the results; returns whether the plan is complete.

    The first SIGINT or SIGTERM ends it in order, the second at once.

    Raises:
        AgentRLError: it cannot go on; the journal keeps what it has.
    """
    console = Console(highlight=False)
    stop = _stop_on_signals()
    async with SessionClient(
        endpoints.controller, token=endpoints.controller_token, connect_timeout_s=_CONNECT_TIMEOUT_S
    ) as client:
        model = make_model(plan, endpoints)
        try:
            with (
                FileJournal(folder, plan, resume=resume) as journal,
                ProgressLine(console, threshold=plan.success_threshold) as progress,
            ):
                results = await evaluate(
                    plan,
                    model,
                    client,
                    journal=journal,
                    concurrency=concurrency,
                    on_record=progress.show,
                    stop=stop,
                )
        finally:
            await model.close()
    path = write_results(results, folder)
    print_table(results, console)
    console.print(f"Results: {path}", soft_wrap=True, markup=False)
    if not results.complete:
        console.print(f"Interrupted; go on with the same command and --dir {folder} --resume", soft_wrap=True)
    return results.complete


def make_model(plan: Plan, endpoints: Endpoints) -> Model:
    """The model that a plan names.

    Raises:
        ConfigError: its kind is unknown, or its key or script is missing.
    """
    kind, _, name = plan.model.partition(":")
    if kind == "scripted" and name:
        return ScriptedModel.from_file(Path(name))
    if kind != "openai" or not name:
        raise ConfigError(f"`--model` must be openai:NAME or scripted:FILE, got `{plan.model}`")
    key = os.environ.get(endpoints.api_key_env)
    if key is None and endpoints.base_url is None:
        raise ConfigError(
            f"OpenAI's endpoint needs a key: set {endpoints.api_key_env}, or name another with `--base-url`"
        )
    return OpenAIModel(
        name,
        base_url=endpoints.base_url,
        api_key=key or _NO_KEY,
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

"""`agentrl-eval`: run a model on tasks."""

import asyncio
import datetime
import sys
from importlib.metadata import version
from pathlib import Path

import click

_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-eval"), prog_name="agentrl-eval")
def main() -> None:
    """Compare models on agent tasks, every failure counted."""


@main.command()
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option(
    "--model", required=True, help="openai:NAME as the endpoint knows it, or scripted:FILE of replies."
)
@click.option("--base-url", help="The model's endpoint, such as http://127.0.0.1:8000/v1 [OpenAI's].")
@click.option("--api-key-env", default="OPENAI_API_KEY", show_default=True, help="Variable with its key.")
@click.option("--controller", default="http://127.0.0.1:5020/api", show_default=True, help="Its API.")
@click.option("--controller-token", envvar="AGENTRL_TOKEN", help="The controller's bearer token.")
@click.option("--split", default="test", show_default=True, help="Which samples; `all` for every one.")
@click.option("-n", "--samples", type=click.IntRange(1), help="The first so many of each task [all].")
@click.option("--indices", help="Only these samples, such as 3,5,7.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Episodes a sample.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=1024, show_default=True, help="A reply.")
@click.option("--max-turns", type=click.IntRange(1), default=64, show_default=True, help="An episode.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=32, show_default=True, help="Episodes at once."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of environments and sampling.")
@click.option("--success-threshold", type=float, default=1.0, show_default=True, help="Score of a success.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Where it is written [evals/TIME].")
@click.option("--resume", is_flag=True, help="Go on with the evaluation in --dir.")
def run(
    tasks: tuple[str, ...],
    model: str,
    base_url: str | None,
    api_key_env: str,
    controller: str,
    controller_token: str | None,
    split: str,
    samples: int | None,
    indices: str | None,
    repeats: int,
    temperature: float,
    max_tokens: int,
    max_turns: int,
    concurrency: int,
    seed: int,
    success_threshold: float,
    folder: Path | None,
    resume: bool,
) -> None:
    """Play TASKs with a model and write journal, conversations and results.

    Exits with 0 when every episode has a result, however the agent did; 130 when it was interrupted.
    """
    if resume and folder is None:
        raise click.UsageError("--resume needs --dir, the folder of the evaluation to go on with")
    from agentrl_core import AgentRLError
    from agentrl_eval.command import Endpoints
    from agentrl_eval.command import run as carry_out
    from agentrl_eval.plan import Plan

    endpoints = Endpoints(controller, controller_token, base_url, api_key_env)
    where = folder or Path("evals") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    try:
        plan = Plan(
            tasks=tasks,
            model=model,
            split=None if split == "all" else split,
            samples=samples,
            indices=_indices(indices),
            repeats=repeats,
            temperature=temperature,
            max_tokens=max_tokens,
            max_turns=max_turns,
            seed=seed,
            success_threshold=success_threshold,
        )
        complete = asyncio.run(carry_out(plan, endpoints, where, concurrency=concurrency, resume=resume))
    except AgentRLError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except asyncio.CancelledError:
        sys.exit(_INTERRUPTED)
    if not complete:
        sys.exit(_INTERRUPTED)


def _indices(text: str | None) -> tuple[int | str, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    return tuple(int(word) if word.lstrip("-").isdecimal() else word for word in words)

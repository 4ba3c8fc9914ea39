"""`agentrl-train`: the quickstart, training from a config, and serving what was trained."""

import asyncio
import datetime
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("agentrl-workers"), prog_name="agentrl-train")
def main() -> None:
    """Train language-model agents with asynchronous reinforcement learning."""


@main.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Run folder [runs/quickstart-TIME].")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the whole run.")
@click.option("--steps", type=click.IntRange(1), help="Training steps instead of the preset's 80.")
@click.option("--sync", is_flag=True, help="Train synchronously: a batch is sampled, then trained on.")
@click.option("--quick", is_flag=True, help="30 steps and 60 held-out samples a task: a smoke test.")
@click.option("--from-scratch", is_flag=True, help="Make the warm-started model first (about 10 minutes).")
@click.option("--resume", is_flag=True, help="Go on with the run in --dir from its newest checkpoint.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting, such as actor.ranks=2."
)
def quickstart(
    folder: Path | None,
    seed: int,
    steps: int | None,
    sync: bool,
    quick: bool,
    from_scratch: bool,
    resume: bool,
    overrides: tuple[str, ...],
) -> None:
    """Learn two small multi-turn tasks on this machine, and report.

    Starts a controller, two task workers and Ray, evaluates a small model, trains it for a few minutes,
    evaluates it again, and writes metrics, checkpoints and report.html.
    """
    if resume and folder is None:
        raise click.UsageError("--resume needs --dir, the folder of the run to go on with")
    from agentrl_workers.progress import Progress
    from agentrl_workers.quickstart import Options
    from agentrl_workers.quickstart import quickstart as run

    options = Options(
        run_dir=(folder or _new_folder("quickstart")).absolute(),
        seed=seed,
        steps=steps,
        sync=sync,
        quick=quick,
        from_scratch=from_scratch,
        resume=resume,
        overrides=overrides,
    )
    with Progress() as progress:
        _run(lambda: run(options, progress))


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free one.")
@click.option("--name", help="The model's name in requests [the folder's].")
@click.option("--context-length", type=click.IntRange(16), help="Longest sequence [the model's].")
@click.option("--num-slots", type=click.IntRange(1), default=64, show_default=True, help="Requests at once.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of requests without a seed.")
@click.option("--token", envvar="AGENTRL_TOKEN", help="Bearer token that requests must carry.")
def serve(
    checkpoint: Path,
    host: str,
    port: int,
    name: str | None,
    context_length: int | None,
    num_slots: int,
    dtype: str,
    seed: int,
    token: str | None,
) -> None:
    """Serve a checkpoint as an OpenAI-compatible endpoint."""
    from agentrl_workers.serve import serve as run

    with _clear_errors():
        run(
            checkpoint,
            host=host,
            port=port,
            name=name or checkpoint.absolute().name,
            context_length=context_length,
            num_slots=num_slots,
            dtype=dtype,
            seed=seed,
            token=token,
        )


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of everything.")
@click.option("--steps", type=click.IntRange(1), default=2000, show_default=True, help="Imitation updates.")
@click.option("--demonstrations", type=click.IntRange(1), default=6000, show_default=True, help="A task.")
def warmstart(folder: Path, seed: int, steps: int, demonstrations: int) -> None:
    """Make the quickstart's first model in FOLDER: half-skilled, from seed."""
    from agentrl_workers.quickstart.first_model import make_first_model

    _run(
        lambda: make_first_model(
            folder, seed=seed, steps=steps, demonstrations=demonstrations, say=click.echo
        )
    )


@main.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Run folder [runs/run-TIME].")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in --dir.")
@click.option("--address", default="local", show_default=True, help="Ray cluster; local starts one here.")
def run(config: Path, overrides: tuple[str, ...], folder: Path | None, resume: bool, address: str) -> None:
    """Train from a YAML CONFIG against a running controller."""
    if resume and folder is None:
        raise click.UsageError("--resume needs --dir, the folder of the run to go on with")
    from agentrl_workers.config import load_config
    from agentrl_workers.launch import train
    from agentrl_workers.progress import Progress

    with _clear_errors():
        settings = load_config(config, overrides)
    run_dir = (folder or _new_folder("run")).absolute()
    with Progress() as progress:
        _run(lambda: train(settings, run_dir, progress, resume=resume, address=address))


@main.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--address", default="local", show_default=True, help="Ray cluster; local is this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(config: Path, overrides: tuple[str, ...], address: str, as_json: bool) -> None:
    """Say what `run` would do with CONFIG, without doing it; exit code 1 where it cannot work."""
    from agentrl_workers.config import load_config
    from agentrl_workers.launch import dry_run

    with _clear_errors():
        found = asyncio.run(dry_run(load_config(config, overrides), address=address))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else found.text())
    sys.exit(1 if found.errors else 0)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def report(folder: Path) -> None:
    """Write report.html of the run in FOLDER again."""
    from agentrl_workers.report import write_report

    with _clear_errors():
        click.echo(write_report(folder))


def _new_folder(kind: str) -> Path:
    return Path("runs") / f"{kind}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def _run(job: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run a job until it ends; the first Ctrl-C or SIGTERM stops it in order."""
    with _clear_errors():
        asyncio.run(_interruptible(job()))


async def _interruptible(job: Coroutine[Any, Any, Any]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(job)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await task


class _clear_errors:  # noqa: N801 - reads as what it gives
    """Turn what a person can mend into one message and an exit code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from agentrl_core import AgentRLError

        if isinstance(error, AgentRLError):
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        if isinstance(error, OSError) and error.errno is not None:
            click.echo(f"error: {error.strerror}: {error.filename or ''}".rstrip(": "), err=True)
            sys.exit(1)
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            click.echo("stopped", err=True)
            sys.exit(130)

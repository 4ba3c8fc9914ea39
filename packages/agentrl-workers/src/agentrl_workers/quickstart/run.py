"""The quickstart from start to end."""

import asyncio
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_workers.cluster import connect_ray, disconnect_ray
from agentrl_workers.config import TrainConfig, dump_config
from agentrl_workers.launch import one_error, run_trainer, write_summary
from agentrl_workers.progress import Progress
from agentrl_workers.quickstart.evaluation import evaluate
from agentrl_workers.quickstart.first_model import shipped_model
from agentrl_workers.quickstart.memory import PeakMemory
from agentrl_workers.quickstart.options import OPTIMA, TARGETS, Options, resolve
from agentrl_workers.services import LocalEnvironments
from agentrl_workers.warmstart import WarmstartConfig, make_model

_NEEDED_BYTES = 300 * 2**20
_NUM_CPUS = 4
"""Slots that Ray hands out; the pools take two, whatever the machine has."""

Rates = Mapping[str, Any]


async def quickstart(options: Options, progress: Progress) -> Path:
    """Evaluate, train, evaluate again, and report; returns the report's path.

    Raises:
        AgentRLError: something failed; the message says what.
    """
    prepare_folder(options)
    memory = PeakMemory()
    started = time.monotonic()
    progress.stage("starting the controller and the task workers")
    async with LocalEnvironments(list(TARGETS.values()), options.run_dir / "logs") as environments:
        work = asyncio.create_task(_work(options, progress, environments.url))
        watching = [asyncio.create_task(environments.watch()), asyncio.create_task(memory.watch())]
        try:
            await _first(work, watching)
            summary = work.result()
        finally:
            for task in (work, *watching):
                task.cancel()
            await asyncio.gather(work, *watching, return_exceptions=True)
    summary |= {"wall_s": round(time.monotonic() - started, 1), "peak_rss_mb": round(memory.peak_mb)}
    return await asyncio.to_thread(write_summary, options.run_dir, summary, progress)


async def _first(work: asyncio.Task[Any], watching: list[asyncio.Task[None]]) -> None:
    """Wait for the work, or for a watcher that saw something die."""
    await asyncio.wait([work, *watching], return_when=asyncio.FIRST_COMPLETED)
    for task in (work, *watching):
        if task.done():
            with one_error():
                task.result()


async def _work(options: Options, progress: Progress, url: str) -> dict[str, Any]:
    async with SessionClient(url) as client:
        model = await _first_model(options, progress, client)
        config = resolve(options, controller=url, model=model)
        (options.run_dir / "config.yaml").write_text(dump_config(config))
        progress.stage("evaluating before training, starting Ray")
        try:
            before, _ = await asyncio.gather(
                _before(options, config), connect_ray("local", num_cpus=_num_cpus(config))
            )
            facts, checkpoint = await run_trainer(
                config, options.run_dir, progress, client=client, resume=options.resume
            )
        finally:
            await disconnect_ray()
        progress.stage("evaluating after training")
        after = await _evaluate(options, config, checkpoint.folder, "after")
    tasks = {
        task: {"before": before[task], "after": after[task], "optimum": OPTIMA[task]} for task in TARGETS
    }
    return {"tasks": tasks, **facts}


def _num_cpus(config: TrainConfig) -> int:
    return max(_NUM_CPUS, config.rollout.replicas + config.actor.ranks)


async def _first_model(options: Options, progress: Progress, client: SessionClient) -> Path:
    if not options.from_scratch:
        return shipped_model()
    folder = options.run_dir / "warmstart"
    if not (options.resume and folder.exists()):
        progress.stage("making the first model")
        await make_model(client, folder, WarmstartConfig(seed=options.seed), say=progress.stage)
    return folder


async def _before(options: Options, config: TrainConfig) -> Rates:
    """The first model's success; a resumed run has measured it already."""
    done = options.run_dir / "eval" / "before" / "results.json"
    if options.resume and done.is_file():
        results = json.loads(done.read_text())
        if results["complete"]:
            return results["tasks"]
    return await _evaluate(options, config, Path(config.model.path), "before")


async def _evaluate(options: Options, config: TrainConfig, checkpoint: Path, name: str) -> Rates:
    folder = options.run_dir / "eval" / name
    shutil.rmtree(folder, ignore_errors=True)
    return await evaluate(
        checkpoint,
        [task.name for task in config.tasks],
        controller=config.controller,
        folder=folder,
        samples=options.samples,
        max_tokens=config.rollout.max_tokens_per_turn,
        seed=config.seed,
    )


def prepare_folder(options: Options) -> None:
    """Make the run's folder, or take up the one to resume.

    Raises:
        ConfigError: it holds another run, or none to resume, or the disk is full.
    """
    folder = options.run_dir
    if options.resume and not (folder / "config.yaml").is_file():
        raise ConfigError(f"`{folder}` holds no run to resume; it has no config.yaml")
    if not options.resume and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"`{folder}` is not empty; choose another `--dir`, or go on with `--resume`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run folder `{folder}`: {error.strerror}") from error
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise ConfigError(
            f"`{folder}` has {free / 2**20:.0f} MB free, a run needs {_NEEDED_BYTES / 2**20:.0f} MB; "
            "choose another `--dir`"
        )

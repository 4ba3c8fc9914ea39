"""Runs a trainer on a Ray cluster against a running controller."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_core import AgentRLError
from agentrl_core.client import SessionClient
from agentrl_workers.check import Check, check, nodes_of_ray, this_machine
from agentrl_workers.checkpoint import Checkpoint, Checkpoints
from agentrl_workers.cluster import connect_ray, disconnect_ray
from agentrl_workers.collective import PoolError
from agentrl_workers.config import TrainConfig, dump_config
from agentrl_workers.progress import Progress
from agentrl_workers.report import write_report
from agentrl_workers.trainer import Trainer, TrainError, run_facts


async def train(
    config: TrainConfig, run_dir: Path, progress: Progress, *, resume: bool, address: str
) -> Path:
    """Train and report; returns the report's path.

    Args:
        config: the run.
        run_dir: where it is written.
        progress: shows it.
        resume: go on from the newest checkpoint in `run_dir`.
        address: of a Ray cluster; `local` starts one on this machine.

    Raises:
        AgentRLError: something failed; the message says what.
    """
    started = time.monotonic()
    await asyncio.to_thread(_write_config, config, run_dir)
    progress.stage("starting Ray")
    try:
        await connect_ray(address, num_cpus=config.rollout.replicas + config.actor.ranks)
        async with SessionClient(config.controller) as client:
            facts, _ = await run_trainer(config, run_dir, progress, client=client, resume=resume)
    finally:
        await disconnect_ray()
    facts["wall_s"] = round(time.monotonic() - started, 1)
    return await asyncio.to_thread(write_summary, run_dir, facts, progress)


async def dry_run(config: TrainConfig, *, address: str) -> Check:
    """What a run would do and why it could not; starts nothing, and leaves a cluster as it was.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    if address == "local":
        return check(config, [this_machine(config)])
    try:
        await connect_ray(address, num_cpus=0)
        return check(config, nodes_of_ray())
    finally:
        await disconnect_ray()


async def run_trainer(
    config: TrainConfig, run_dir: Path, progress: Progress, *, client: SessionClient, resume: bool
) -> tuple[dict[str, Any], Checkpoint]:
    """Train on the Ray that is connected; returns facts for the summary, and the last checkpoint.

    After the loss of a worker it goes on from the newest checkpoint, `max_restarts` times at most.

    Raises:
        AgentRLError: something failed; where a checkpoint is there, the message says how to go on.
    """
    restarts = 0
    while True:
        try:
            return await _run_once(config, run_dir, progress, client=client, resume=resume)
        except PoolError as error:
            newest = Checkpoints(run_dir / "checkpoints", keep=config.checkpoint.keep).latest()
            from_step = newest.step if newest else 0
            if restarts == config.max_restarts:
                way_out = f"; go on from step {from_step} with --resume --dir {run_dir}" if newest else ""
                raise TrainError(f"{error}{way_out}") from error
            restarts += 1
            resume = True
            progress.warn(f"{error}; restart {restarts} of {config.max_restarts} from step {from_step}")


async def _run_once(
    config: TrainConfig, run_dir: Path, progress: Progress, *, client: SessionClient, resume: bool
) -> tuple[dict[str, Any], Checkpoint]:
    progress.stage("starting the pools")
    trainer = Trainer(
        config,
        run_dir,
        client=client,
        on_step=lambda metrics: progress.step(metrics, config.steps),
        on_warning=progress.warn,
        resume=resume,
    )
    with one_error():
        async with trainer:
            progress.stage("training")
            await trainer.train()
            checkpoint = trainer.checkpoints.latest()
            assert checkpoint is not None
            return run_facts(trainer), checkpoint


def write_summary(run_dir: Path, summary: dict[str, Any], progress: Progress) -> Path:
    """Write summary.json and report.html, and show the end."""
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    report = write_report(run_dir)
    progress.finish(summary, report)
    return report


def _write_config(config: TrainConfig, run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(dump_config(config))


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """Raise the first error of ours out of a group, which is the cause of the others."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, _ = group.split(AgentRLError)
        error: BaseException = ours or group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group

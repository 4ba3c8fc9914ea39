"""The asynchronous trainer: episodes are played while the actor learns from finished ones.

Mixture -> DistributedTaskManager -> Ledger, Buffer -> Batch -> Reference, Actor -> WeightPublisher
   ^                                                                                     |
   +--------- admissible_groups <---- Buffer.advance(version) <----- version + 1 <-------+
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from agentrl_core import AgentRLError, PolicyVersion
from agentrl_core.client import SessionClient
from agentrl_workers.batch import Batch, batch_metrics, make_batch
from agentrl_workers.buffer import Buffer, Group, admissible_groups
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.checkpoint import Checkpoint, Checkpoints
from agentrl_workers.config import TrainConfig
from agentrl_workers.keeper import EngineKeeper
from agentrl_workers.ledger import Ledger
from agentrl_workers.metrics import Metrics
from agentrl_workers.mixture import Item, Mixture
from agentrl_workers.models import load_tokenizer
from agentrl_workers.pool import EnginePool
from agentrl_workers.pools import Pools
from agentrl_workers.rollout import Rollout
from agentrl_workers.samples import Sample
from agentrl_workers.tasks import BarrenStreak, DistributedTaskManager
from agentrl_workers.transcripts import Transcripts
from agentrl_workers.weights import WeightPublisher

OnStep = Callable[[Mapping[str, float]], None]
OnWarning = Callable[[str], None]

_HOPELESS_BATCHES = 4
"""A run stops after this many steps' worth of groups, in the order of their start, without a usable one."""


class TrainError(AgentRLError):
    """Training cannot go on; the message names the stage and the cause."""


class Trainer:
    """One run: its pools, its data and its loop. Enter it to start the pools.

    Args:
        config: the settings.
        run_dir: metrics, trajectories and checkpoints go below it.
        client: reaches the controller.
        on_step: called with each step's metrics.
        on_warning: told what went wrong and was mended.
        resume: go on from the newest checkpoint below `run_dir`, where there is one.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        *,
        client: SessionClient,
        on_step: OnStep = lambda _: None,
        on_warning: OnWarning = lambda _: None,
        resume: bool = False,
    ) -> None:
        self.config = config
        self.checkpoints = Checkpoints(run_dir / "checkpoints", keep=config.checkpoint.keep)
        self._client = client
        self._run_dir = run_dir
        self._on_step = on_step
        self._on_warning = on_warning
        self._from: Checkpoint | None = self.checkpoints.latest() if resume else None
        self.version: PolicyVersion = self._from.step if self._from else 0
        self.ledger = Ledger()
        self.outcomes: Counter[str] = Counter()
        """Every episode that ended, by class."""
        self._renderer = ChatRenderer(load_tokenizer(config.model.path))
        self._buffer = Buffer(
            groups_per_step=config.batch.groups, max_lag=config.max_lag, learner=self.version
        )
        self._changed = asyncio.Event()
        self._barren = BarrenStreak()
        self._started = time.monotonic()

    async def __aenter__(self) -> Self:
        config = self.config
        self._mixture = await self._load_mixture()
        self._again = self._restore()
        model_path = str(self._from.folder) if self._from else config.model.path
        log_dir = self._run_dir / "logs"
        self._pools = await Pools.start(config, model_path=model_path, version=self.version, log_dir=log_dir)
        try:
            await self._prepare()
        except BaseException:
            self._pools.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._metrics.close()
        self._transcripts.close()
        self._pools.stop()

    async def _prepare(self) -> None:
        config, pools = self.config, self._pools
        if self._from:
            await pools.actor.gather(pools.actor.load(str(self._from.folder)))
        self.num_parameters: int = (await pools.actor.gather(pools.actor.num_parameters()))[0]
        publisher = WeightPublisher(pools.actor, pools.rollout, config.weights, backend=_backend(config))
        await publisher.connect()
        engines = EnginePool(pools.rollout)
        self._keeper = EngineKeeper(pools, engines, publisher, config, self._on_warning)
        rollout = Rollout(self._client, engines, self._renderer, config.rollout)
        self._manager = DistributedTaskManager(
            rollout.play,
            concurrency=config.rollout.concurrency,
            group_size=config.batch.group_size,
            retries=config.rollout.retries,
            seed=config.seed,
        )
        self._metrics = Metrics(self._run_dir, resumed_step=self.version)
        self._transcripts = Transcripts(
            self._run_dir,
            self._renderer,
            per_step=config.logged_trajectories,
            resumed_step=self.version,
        )

    async def _load_mixture(self) -> Mixture:
        tasks = self.config.tasks
        indices = {task.name: await self._client.indices(task.name, split=task.split) for task in tasks}
        return Mixture(indices, {task.name: task.weight for task in tasks}, seed=self.config.seed)

    def _restore(self) -> list[Item]:
        """Take up a checkpoint's account; returns the groups that had not ended."""
        if self._from is None:
            return []
        state = self._from.state()
        self.ledger = Ledger.restore(state["ledger"])
        self.outcomes = Counter(state["outcomes"])
        unfinished = set(state["unfinished"])
        items = [self._mixture.next() for _ in range(state["position"])]
        return [item for item in items if item.position in unfinished]

    async def train(self) -> None:
        """Run the steps that are left.

        Raises:
            TrainError: no usable episodes come.
            PoolError: a worker died.
        """
        async with asyncio.TaskGroup() as background:
            helpers = [
                background.create_task(self._manager.run()),
                background.create_task(self._feed()),
                background.create_task(self._collect()),
                background.create_task(self._keeper.run()),
            ]
            while self.version < self.config.steps:
                await self._step()
            for helper in helpers:
                helper.cancel()

    async def _step(self) -> None:
        began = time.monotonic()
        groups = await self._next_groups()
        waited = time.monotonic()
        batch = make_batch(groups, config=self.config, step=self.version)
        metrics = batch_metrics(batch, learner=self.version)
        metrics |= await self._update(batch)
        trained = time.monotonic()
        self.version += 1
        metrics |= await self._keeper.publish(self.version)
        self.ledger.train(t.trajectory_id for t in batch.trajectories)
        self._buffer.advance(self.version)
        self._drop_stale()
        self.ledger.check()
        self._changed.set()
        self._transcripts.write(batch, step=self.version)
        if self.version % self.config.checkpoint.every == 0 or self.version == self.config.steps:
            await self._save()
        self._report(metrics, batch, began=began, waited=waited, trained=trained)

    async def _next_groups(self) -> list[Group]:
        ready = asyncio.ensure_future(self._buffer.batch())
        try:
            async with asyncio.timeout(self.config.stall_timeout_s):
                while not ready.done():
                    arrival = asyncio.ensure_future(self._keeper.arrival())
                    await asyncio.wait({ready, arrival}, return_when=asyncio.FIRST_COMPLETED)
                    arrival.cancel()
                    if not ready.done():
                        await self._keeper.catch_up(self.version)
                return ready.result()
        except TimeoutError as error:
            raise TrainError(
                f"waiting for finished groups: {len(self._buffer)} of {self.config.batch.groups} after "
                f"{self.config.stall_timeout_s:.0f} s, {self._manager.running} still running"
            ) from error
        finally:
            ready.cancel()

    async def _update(self, batch: Batch) -> dict[str, float]:
        actor, reference = self._pools.actor, self._pools.reference
        references: list[list[np.ndarray]] | None = None
        if reference is not None:
            flat = [sample for samples in batch.updates for sample in samples]
            shares = await reference.gather(reference.logps(flat))
            references = _dealt(_merged(shares, len(flat)), batch.updates)
        results = await actor.gather(actor.step(batch.updates, references))
        return results[0]

    async def _feed(self) -> None:
        """Begin groups as fast as slots and staleness allow."""
        config = self.config
        max_running = 2 * math.ceil(config.rollout.concurrency / config.batch.group_size)
        while True:
            self._changed.clear()
            count = admissible_groups(
                max_running=max_running,
                running=self._manager.running,
                accepted=self._buffer.accepted,
                learner=self.version,
                max_lag=config.max_lag,
                groups_per_step=config.batch.groups,
            )
            # Nothing begins that the last step could not train on.
            wanted = config.steps * config.batch.groups
            left = wanted - self._buffer.accepted - self._manager.running
            for _ in range(min(count, left)):
                item = self._again.pop(0) if self._again else self._mixture.next()
                self.ledger.admit(episode.episode_id for episode in self._manager.submit(item))
            await self._changed.wait()

    async def _collect(self) -> None:
        """Book finished groups and hand the usable ones to the buffer."""
        while True:
            result = await self._manager.next_group()
            self.outcomes.update(str(t.outcome) for t in result.trajectories)
            usable = result.usable
            for trajectory in result.trajectories:
                if trajectory not in usable:
                    self.ledger.fail([trajectory.trajectory_id], reason=str(trajectory.outcome))
            if result.is_usable:
                self._buffer.put(Group(result.item, usable))
            else:
                self.ledger.filter((t.trajectory_id for t in usable), reason="group too small")
            self._barren.add(result, oldest=self._manager.oldest)
            if self._barren.length >= _HOPELESS_BATCHES * self.config.batch.groups:
                raise TrainError(
                    f"{self._barren.length} groups in a row gave nothing to learn from; the last one: "
                    f"{self._barren.reason}"
                )
            self._drop_stale()
            self._changed.set()

    def _drop_stale(self) -> None:
        self.ledger.filter((t.trajectory_id for t in self._buffer.take_stale()), reason="stale")

    async def _save(self) -> None:
        folder = self.checkpoints.begin(self.version)
        await self._pools.actor.gather(self._pools.actor.save(str(folder)))
        self._renderer.tokenizer.save_pretrained(folder)
        unfinished = {int(episode.split("-")[-2]) for episode in self.ledger.pending}
        state = {
            "position": self._mixture.position,
            "unfinished": sorted(unfinished),
            "ledger": self.ledger.state(),
            "outcomes": dict(self.outcomes),
        }
        self.checkpoints.commit(self.version, state)

    def _report(
        self, metrics: dict[str, float], batch: Batch, *, began: float, waited: float, trained: float
    ) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        counts = self.ledger.counts()
        metrics = {
            "step": self.version,
            "wall_s": time.monotonic() - self._started,
            **metrics,
            "staleness/dropped": self.ledger.filtered["stale"],
            "throughput/tokens_per_s": sum(t.num_tokens for t in batch.trajectories) / seconds,
            "throughput/trajectories_per_min": 60.0 * len(batch.trajectories) / seconds,
            "time/wait_s": waited - began,
            "time/train_s": trained - waited,
            "rollout/replaced": self._keeper.num_replaced,
            "ledger/admitted": counts["admitted"],
            "ledger/trained": counts["trained"],
            "ledger/filtered": self.ledger.filtered.total(),
            "ledger/failed": self.ledger.failed.total(),
            "ledger/pending": counts["pending"],
        }
        self._metrics.log(metrics)
        self._on_step(metrics)


def _backend(config: TrainConfig) -> Literal["gloo"] | None:
    """NCCL knows a GPU once: beside a server that has it, weights go through main memory."""
    return "gloo" if config.rollout.engine == "sglang" else None


def _merged(shares: Sequence[Sequence[np.ndarray]], count: int) -> list[np.ndarray]:
    """Results of ranks that each took every n-th sequence, in the order of the sequences."""
    return [shares[n % len(shares)][n // len(shares)] for n in range(count)]


def _dealt(rows: Sequence[np.ndarray], updates: Sequence[Sequence[Sample]]) -> list[list[np.ndarray]]:
    """Rows of all updates one after another, cut into each update's own."""
    dealt, start = [], 0
    for samples in updates:
        dealt.append(list(rows[start : start + len(samples)]))
        start += len(samples)
    return dealt


def run_facts(trainer: Trainer) -> dict[str, Any]:
    """What a summary says of a run."""
    return {
        "seed": trainer.config.seed,
        "steps": trainer.version,
        "mode": "sync" if trainer.config.max_lag == 0 else "async",
        "outcomes": dict(trainer.outcomes),
        "ledger": trainer.ledger.counts(),
        "model": {"parameters": trainer.num_parameters},
    }

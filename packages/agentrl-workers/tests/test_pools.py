"""Everything that needs Ray: placement, collectives, actor, weights, and the trainer from start to end."""

import asyncio
import io
import itertools
import json
import os
import signal

import numpy as np
import pytest
import ray
import torch
from aiohttp import web
from rich.console import Console

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_workers import launch
from agentrl_workers.actor import Actor, ActorSettings
from agentrl_workers.cluster import connect_ray
from agentrl_workers.collective import PoolError, spawn
from agentrl_workers.config import ActorConfig, AlgorithmConfig, ModelConfig, WeightsConfig, make_config
from agentrl_workers.engines import EngineError, SamplingParams
from agentrl_workers.generator import Generator, GeneratorSettings
from agentrl_workers.keeper import EnginesLostError
from agentrl_workers.metrics import read_metrics
from agentrl_workers.models import load_model
from agentrl_workers.placement import Placement, PoolPlan
from agentrl_workers.pool import EnginePool
from agentrl_workers.progress import Progress
from agentrl_workers.reference import Reference, ReferenceSettings
from agentrl_workers.samples import Sample
from agentrl_workers.trainer import Trainer, TrainError
from agentrl_workers.weights import WeightPublisher

pytestmark = pytest.mark.timeout(90)

LEARNING_RATE = 1e-2


@pytest.fixture(scope="module", autouse=True)
def cluster():
    asyncio.run(connect_ray("local", num_cpus=4))
    yield
    ray.shutdown()


@pytest.fixture
async def reserve():
    """Reserve bundles that are given back after the test, whatever runs in them."""
    reserved = []

    async def make(count, *, name="pool"):
        reserved.append(await Placement.reserve(PoolPlan(name, ({"CPU": 1.0},) * count), timeout_s=20.0))
        return reserved[-1]

    yield make
    for placement in reserved:
        placement.release()


# --- placement and collectives


async def test_a_bundle_that_does_not_come_free_ends_the_wait(reserve):
    await reserve(4)
    with pytest.raises(ConfigError, match="`late` did not come free within 1 s; free now"):
        await Placement.reserve(PoolPlan("late", ({"CPU": 1.0},)), timeout_s=0.6)


async def test_a_pool_is_called_together_or_by_rank_and_its_faults_are_named(reserve):
    class Worker:
        def __init__(self, base):
            self.base = base

        def total(self):
            value = torch.tensor([self.base + int(os.environ["RANK"])])
            torch.distributed.all_reduce(value)
            return int(value), int(os.environ["WORLD_SIZE"])

        def rank(self):
            return int(os.environ["RANK"])

        async def fail(self):
            raise KeyError("lost")

    class Plugin:
        def __init__(self, worker, factor):
            self.worker, self.factor = worker, factor

        def scaled(self):
            return self.worker.base * self.factor

    placement = await reserve(2)
    handle = await spawn(Worker, placement, name="workers")(10)
    assert await handle.gather(handle.total()) == [(21, 2), (21, 2)]
    assert await handle.gather(handle.dispatch_rank(1).rank()) == [1]
    await handle.register_plugin("plugin", Plugin, 3)
    assert await handle.gather(handle.plugin("plugin").scaled()) == [30, 30]
    with pytest.raises(PoolError, match=r"workers rank [01]: KeyError: 'lost'"):
        await handle.gather(handle.fail())
    os.kill(handle.pids[1], signal.SIGKILL)
    with pytest.raises(PoolError, match="workers rank 1 died"):
        await asyncio.wait_for(handle.gather(handle.rank()), 30)


# --- the actor against plain torch


def batch(count, *, seed=0):
    chance = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        length = int(chance.integers(6, 20))
        mask = chance.random(length) < 0.5
        mask[:2] = False
        mask[-1] = number % 4 != 3  # Some sequences have little to learn from.
        samples.append(
            Sample(
                ids=chance.integers(5, 300, length),
                mask=mask,
                logp_rollout=np.where(mask, -5.5, 0.0).astype(np.float32),
                advantage=float(chance.normal()),
            )
        )
    return samples


def settings(model_dir, **actor):
    return ActorSettings(
        model=ModelConfig(path=model_dir),
        actor=ActorConfig(**{"learning_rate": LEARNING_RATE, "micro_batch_tokens": 60} | actor),
        algorithm=AlgorithmConfig(kl_coefficient=0.1),
        temperature=0.9,
        num_updates=10,
        seed=0,
    )


def by_hand(model_dir, samples, references):
    """One update in float64, sequence by sequence; returns the loss and the new weights."""
    model = load_model(model_dir, dtype="float32").double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    num_tokens = sum(int(sample.mask.sum()) for sample in samples)
    total = torch.zeros((), dtype=torch.float64)
    for sample, reference in zip(samples, references, strict=True):
        ids = torch.from_numpy(sample.ids)
        logps = torch.log_softmax(model(ids[None]).logits[0].double() / 0.9, dim=-1)
        for place in np.flatnonzero(sample.mask):
            logp = logps[place - 1, ids[place]]
            weight = min(float(torch.exp(logp.detach() + 5.5)), 2.0)
            ratio = torch.exp(logp - logp.detach())
            difference = float(reference[place]) - logp
            kl = torch.exp(difference) - difference - 1.0
            total = total - weight * ratio * sample.advantage + 0.1 * kl
    loss = total / num_tokens
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), float(norm), model.state_dict()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_an_update_equals_plain_torch_in_float64_on_any_number_of_ranks(
    model_dir, ranks, tmp_path, reserve
):
    samples = batch(9)
    placement = await reserve(ranks)
    actor, reference = await asyncio.gather(
        spawn(Actor, placement, name="actor", num_cpus=0.5)(settings(model_dir)),
        spawn(Reference, placement, name="reference", num_cpus=0.5)(
            ReferenceSettings(ModelConfig(path=model_dir), temperature=0.9, micro_batch_tokens=50)
        ),
    )
    shares = await reference.gather(reference.logps(samples))
    references = [shares[n % ranks][n // ranks] for n in range(len(samples))]
    results = await actor.gather(actor.step([samples], [references]))
    loss, norm, expected = by_hand(model_dir, samples, references)
    assert all(result == results[0] for result in results)
    assert results[0]["policy/loss"] == pytest.approx(loss, abs=1e-5)
    assert results[0]["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)

    await actor.gather(actor.save(str(tmp_path)))
    saved = load_model(str(tmp_path), dtype="float32").state_dict()
    assert set(saved) == set(expected)
    for name, tensor in expected.items():
        # AdamW's first step is about the sign of the gradient: where that is tiny, float32 may differ.
        assert torch.isclose(saved[name].double(), tensor, atol=1e-4).float().mean() > 0.995, name

    again = await actor.gather(actor.step([samples], [references]))
    fresh = await spawn(Actor, await reserve(ranks, name="second"), name="second")(settings(model_dir))
    await fresh.gather(fresh.load(str(tmp_path)))
    resumed = await fresh.gather(fresh.step([samples], [references]))
    assert resumed[0] == pytest.approx(again[0], rel=1e-4)


# --- weights


async def test_new_weights_reach_every_engine_and_are_proved(model_dir, tmp_path, reserve):
    train, roll = await reserve(1, name="train"), await reserve(2, name="rollout")
    config = make_config(
        {
            "tasks": [{"name": "t"}],
            "model": {"path": model_dir},
            "rollout": {"context_length": 64, "max_tokens_per_turn": 16},
        }
    )
    actor = await spawn(Actor, train, name="actor")(settings(model_dir))
    generator = GeneratorSettings(config.model, config.rollout, seed=0, version=0, log_dir="")
    rollout = await spawn(Generator, roll, name="rollout", process_group=False)(generator)
    publisher = WeightPublisher(actor, rollout, WeightsConfig(bucket_bytes=3000, timeout_s=60.0))
    await publisher.connect()
    await actor.gather(actor.step([batch(4)], None))
    sent = await publisher.publish(1)
    assert sent["weights/version"] == 1.0
    assert sent["weights/bytes"] > 3000

    manifest_names = {spec.name for spec in publisher._manifest}
    assert manifest_names == set(load_model(model_dir, dtype="float32").state_dict())
    await actor.gather(actor.save(str(tmp_path)))
    model = load_model(str(tmp_path), dtype="float32")
    ids = [7, 8, 9]
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    params = SamplingParams(temperature=0.0, max_tokens=6)
    for reply in await rollout.gather(rollout.generate([7, 8, 9], params)):
        assert list(reply.token_ids) == ids[3:]
        assert [segment.version for segment in reply.segments] == [1]

    with pytest.raises(PoolError, match="version 3 cannot follow version 1"):
        await rollout.gather(rollout.plugin("weights").receive(3, publisher._manifest))
    pool = EnginePool(rollout)
    with pytest.raises(EngineError, match="leave room for a reply"):
        await pool.generate([5] * 64, params, affinity="g")

    # An engine that has stopped says why, gets no more requests, and its process makes room for another.
    await rollout.gather(rollout.dispatch_rank(0).close())
    with pytest.raises(EngineError, match="the engine has stopped: closed"):
        await pool.generate([7, 8, 9], params, affinity="g")
    assert pool.up == [1]
    assert "rollout rank 0 died" in await asyncio.wait_for(rollout.death(0), 30)
    assert (await pool.generate([7, 8, 9], params, affinity="g")).token_ids == reply.token_ids


# --- the trainer


class EasyTask:
    """A session server whose task pays for short replies: there is always something to learn."""

    def __init__(self):
        self.ids = itertools.count(1)
        self.indices = []

    async def start_sample(self, request):
        self.indices.append((await request.json())["index"])
        body = {"messages": [{"role": "user", "content": "find the number"}], "tools": []}
        return web.json_response(body, headers={"session_id": str(next(self.ids))})

    async def interact(self, request):
        (message,) = (await request.json())["messages"]
        reward = float(len(message["content"]) % 2)
        body = {"messages": [], "finish": True, "status": "completed", "reward": reward}
        return web.json_response(body)

    async def cancel(self, request):
        return web.json_response(None)

    async def get_indices(self, request):
        return web.json_response(list(range(50)))


@pytest.fixture
async def easy_task():
    task = EasyTask()
    app = web.Application()
    for route in ("start_sample", "interact", "cancel"):
        app.router.add_post(f"/api/{route}", getattr(task, route))
    app.router.add_get("/api/get_indices", task.get_indices)
    server = web.AppRunner(app, shutdown_timeout=0.01)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    task.url = f"http://127.0.0.1:{server.addresses[0][1]}/api"
    yield task
    await server.cleanup()


def trainer_config(task, model_dir, **changes):
    return make_config(
        {
            "steps": 4,
            "max_lag": 1,
            "controller": task.url,
            "tasks": [{"name": "easy"}],
            "model": {"path": model_dir},
            "rollout": {"context_length": 96, "max_tokens_per_turn": 24, "concurrency": 8},
            "batch": {"groups": 2, "group_size": 3},
            "actor": {"learning_rate": 1e-3, "updates_per_step": 2},
            "checkpoint": {"every": 2, "keep": 1},
            **changes,
        }
    )


async def train(task, model_dir, run_dir, *, resume=False, on_step=lambda *_: None, **changes):
    async with SessionClient(task.url) as client:
        config = trainer_config(task, model_dir, **changes)
        warnings = []
        trainer = Trainer(
            config,
            run_dir,
            client=client,
            resume=resume,
            on_step=lambda metrics: on_step(trainer, metrics),
            on_warning=warnings.append,
        )
        trainer.warnings = warnings
        async with trainer:
            await trainer.train()
            return trainer


async def test_a_run_trains_accounts_and_goes_on_from_its_checkpoint(easy_task, model_dir, tmp_path):
    trainer = await train(easy_task, model_dir, tmp_path)
    trainer.ledger.check()
    assert 4 * 2 * 2 <= trainer.ledger.trained <= 4 * 2 * 3  # a member of a group may have grown stale
    records = read_metrics(tmp_path)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert max(record["staleness/lag_max"] for record in records) <= 1
    assert records[-1]["weights/version"] == 4
    assert max(record["policy/logp_gap_max"] for record in records[:1]) < 1e-3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000004"]
    state = json.loads((tmp_path / "checkpoints" / "step-000004" / "trainer.json").read_text())
    played = set(range(state["position"]))
    assert set(state["unfinished"]) <= played
    logged = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert {line["step"] for line in logged} == {1, 2, 3, 4}

    resumed = await train(easy_task, model_dir, tmp_path, resume=True, steps=6)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert trainer.ledger.trained + 2 * 2 * 2 <= resumed.ledger.trained <= 6 * 2 * 3
    resumed.ledger.check()
    assert resumed.version == 6


async def test_without_lag_every_token_is_sampled_by_the_weights_that_learn_from_it(
    easy_task, model_dir, tmp_path
):
    changes = {"max_lag": 0, "steps": 3, "algorithm": {"kl_coefficient": 0.0}}
    trainer = await train(easy_task, model_dir, tmp_path, **changes)
    records = read_metrics(tmp_path)
    assert [record["staleness/lag_max"] for record in records] == [0, 0, 0]
    assert max(record["policy/logp_gap_max"] for record in records) < 1e-3
    assert trainer.ledger.counts()["admitted"] == 3 * 2 * 3


async def test_engines_that_die_are_replaced_until_too_many_have(easy_task, model_dir, tmp_path):
    """Both engines die after the first step, and training goes on; the next death is one too many."""
    killed, trainers = [], set()

    def kill(trainer, metrics):
        trainers.add(trainer)
        pids = trainer._pools.rollout.pids
        for rank in {1: [0, 1], 4: [0]}.get(metrics["step"], []):
            killed.append(pids[rank])
            os.kill(pids[rank], signal.SIGKILL)

    rollout = {"context_length": 96, "max_tokens_per_turn": 24, "concurrency": 8, "replicas": 2}
    changes = {"steps": 1000, "max_lag": 0, "algorithm": {"kl_coefficient": 0.0}}
    with pytest.raises(ExceptionGroup) as caught:
        await train(
            easy_task,
            model_dir,
            tmp_path,
            on_step=kill,
            rollout={**rollout, "max_replacements": 2},
            **changes,
        )
    allowed = r"rollout rank 0 died: .*; `rollout.max_replacements` \(2\) allows no other"
    assert caught.group_contains(EnginesLostError, match=allowed, depth=2)
    (trainer,) = trainers
    assert len(set(killed)) == 3
    assert sum("a successor starts" in text for text in trainer.warnings) == 2
    assert sum("has started again" in text for text in trainer.warnings) == 2
    trainer.ledger.check()
    assert trainer.ledger.trained >= 4 * 2 * 3
    records = read_metrics(tmp_path)
    assert {record["staleness/lag_max"] for record in records} == {0}
    assert records[3]["rollout/replaced"] == 2
    # What a successor samples has the log-probabilities of the weights that it says it has.
    assert max(record["policy/logp_gap_max"] for record in records) < 1e-3


async def test_a_lost_actor_is_made_again_from_the_newest_checkpoint_as_often_as_allowed(
    easy_task, model_dir, tmp_path, monkeypatch
):
    trainers, told = [], []

    class Seen(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            trainers.append(self)

    class Killer(Progress):
        def step(self, metrics, total):
            if metrics["step"] == 3:
                os.kill(trainers[-1]._pools.actor.pids[0], signal.SIGKILL)

        def warn(self, text):
            told.append(text)

    monkeypatch.setattr(launch, "Trainer", Seen)
    config = trainer_config(easy_task, model_dir, steps=1000, max_restarts=1)
    progress = Killer(Console(file=io.StringIO()))
    # It dies after step 3, and what went on from the checkpoint of step 2 dies after step 3 again.
    with pytest.raises(TrainError, match=r"actor rank 0 .*; go on from step 2 with --resume --dir"):
        async with SessionClient(easy_task.url) as client:
            await launch.run_trainer(config, tmp_path, progress, client=client, resume=False)
    assert len(trainers) == 2
    assert len(told) == 1
    assert "restart 1 of 1 from step 2" in told[0]
    assert trainers[1].version == 3
    trainers[1].ledger.check()
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]

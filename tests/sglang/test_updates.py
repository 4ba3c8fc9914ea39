"""New weights for the real server while it samples: every pause, every path, and what goes wrong."""

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator

import pytest
import torch
import torch.distributed as dist

from agentrl_workers.engines import EngineError, Generation, SamplingParams
from agentrl_workers.engines.sglang import SGLangEngine
from agentrl_workers.engines.sglang.server import free_port
from agentrl_workers.engines.sglang.transfer import aligned
from agentrl_workers.weights.buckets import checksum, pack, plan_buckets, spec_of
from agentrl_workers.weights.group import join_group

from .conftest import full_logps, until  # isort: skip

PROMPT = [5, 6, 7, 8]
CANARY = [9, *range(40, 60)]
MODES = ("retract", "in_place", "abort")


@pytest.fixture
def attached(engine, start, models):
    """Attaches as the settings say and gives the server its first weights back in the end."""

    @contextlib.asynccontextmanager
    async def attach(**settings) -> AsyncIterator[SGLangEngine]:
        own = await start(url=engine.url, **settings)
        try:
            yield own
        finally:
            await own.close()
            healer = await start(url=engine.url)
            await healer.load_weights(models[0].state_dict(), version=0)
            assert list(await engine.canary(CANARY)) == pytest.approx(canary_of(models[0]), abs=1e-4)
            await healer.close()

    return attach


def canary_of(model) -> list[float]:
    return full_logps(model, CANARY[:1], CANARY[1:])


async def sample_through(engine: SGLangEngine, load, *, count: int = 4) -> list[Generation]:
    """Replies that sample before and after a load, which starts once each has some tokens."""
    progress = [0] * count

    def counts(number):
        def on_token(*_) -> None:
            progress[number] += 1

        return on_token

    calls = [
        asyncio.create_task(
            engine.generate(
                [*PROMPT, number],
                SamplingParams(max_tokens=150),
                on_token=counts(number) if number % 2 else None,
            )
        )
        for number in range(count)
    ]

    async def all_have_begun() -> bool:
        return min(progress[1::2]) >= 10

    await until(all_have_begun, "all replies have begun")
    await load()
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("mode", MODES)
async def test_weights_change_within_replies(attached, models, mode):
    async with attached(pause=mode) as engine:
        blocked = []

        async def load() -> None:
            blocked.append(await engine.load_weights(models[1].state_dict(), version=1))

        replies = await sample_through(engine, load)
        assert 0 < blocked[0] < 60
        assert engine.version == 1
        for number, reply in enumerate(replies):
            assert [segment.version for segment in reply.segments] == [0, 1]
            assert (len(reply.token_ids), reply.finish_reason) == (150, "length")
            for segment in reply.segments if mode != "in_place" else reply.segments[:1]:
                expected = full_logps(models[segment.version], [*PROMPT, number], reply.token_ids)
                part = slice(segment.start, segment.end)
                assert list(reply.logps)[part] == pytest.approx(expected[part], abs=1e-4)
        assert list(await engine.canary(CANARY)) == pytest.approx(canary_of(models[1]), abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
async def test_no_prefix_of_older_weights_is_reused(attached, models, mode):
    prompt = [13, *range(60, 100)]
    async with attached(pause=mode) as engine:
        await engine.generate(prompt, SamplingParams(max_tokens=4))
        assert (await engine.generate(prompt, SamplingParams(max_tokens=4))).cached_tokens == len(prompt) - 1
        await engine.load_weights(models[1].state_dict(), version=1)
        first, second = [await engine.generate(prompt, SamplingParams(max_tokens=4)) for _ in range(2)]
        assert (first.cached_tokens, second.cached_tokens) == (0, len(prompt) - 1)
        for reply in (first, second):
            expected = full_logps(models[1], prompt, reply.token_ids)
            assert list(reply.logps) == pytest.approx(expected, abs=1e-4)


async def test_a_call_that_arrives_within_an_update_samples_under_the_new_weights(attached, models):
    async with attached() as engine:
        await engine.begin_update()
        call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=8)))
        await send(engine, models[1].state_dict())
        assert not call.done()
        await engine.finish_update(1)
        assert [segment.version for segment in (await call).segments] == [1]


async def test_files_take_the_weights_where_no_group_can(attached, models, tmp_path):
    async with attached(transfer="disk", transfer_folder=str(tmp_path)) as engine:

        async def load() -> None:
            await engine.load_weights(models[1].state_dict(), version=1)

        replies = await sample_through(engine, load, count=2)
        assert [segment.version for segment in replies[0].segments] == [0, 1]
        assert list(await engine.canary(CANARY)) == pytest.approx(canary_of(models[1]), abs=1e-4)
        assert list(tmp_path.iterdir()) == []


async def test_small_buckets_mixed_types_and_empty_tensors_arrive(attached, models):
    weights = {name: tensor.clone() for name, tensor in models[1].state_dict().items()}
    halved = {name for number, name in enumerate(weights) if number % 3 == 0}
    for name in halved:
        weights[name] = weights[name].bfloat16()
    async with attached(bucket_bytes=10_000) as engine:
        await engine.load_weights(weights, version=1)
        model = type(models[1])(models[1].config).eval()
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        assert list(await engine.canary(CANARY)) == pytest.approx(canary_of(model), abs=1e-4)


async def test_the_servers_checksums_are_those_of_what_was_sent(attached, models):
    async with attached() as engine:
        await engine.load_weights(models[1].state_dict(), version=1)
        (held,) = await engine.checksums()
        state = models[1].state_dict()
        layer = "model.layers.1."
        expected = {
            "model.norm.weight": state["model.norm.weight"],
            "lm_head.weight": state["lm_head.weight"],
            f"{layer}mlp.down_proj.weight": state[f"{layer}mlp.down_proj.weight"],
            f"{layer}self_attn.qkv_proj.weight": torch.cat(
                [state[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv"]
            ),
        }
        for name, tensor in expected.items():
            # On a CPU the server hashes the bytes in this way.
            digest = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            assert held[name] == digest[:16]


async def test_the_same_weights_again_and_one_changed_tensor_pass_the_witness(attached, models):
    state = {name: tensor.clone() for name, tensor in models[1].state_dict().items()}
    async with attached() as engine:
        for version in (1, 2):
            await engine.load_weights(state, version=version)
        before = (await engine.checksums())[0]
        state["model.layers.0.self_attn.k_proj.weight"][0, 0] += 1.0
        await engine.load_weights(state, version=3)
        after = (await engine.checksums())[0]
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"model.layers.0.self_attn.qkv_proj.weight"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update({"model.layers.7.norm.weight": torch.ones(64)}), "no place for `model.layers.7"),
        (lambda w: w.pop("model.norm.weight"), "nothing was sent for the server's `model.norm.weight`"),
        (lambda w: w.update({"model.norm.weight": torch.ones(63)}), "receiving .*: the server answered 400"),
    ],
    ids=["unknown", "missing", "shape"],
)
async def test_weights_that_do_not_fit_are_refused_and_what_runs_fails_until_a_load_succeeds(
    attached, models, change, message
):
    wrong = dict(models[1].state_dict())
    change(wrong)
    async with attached() as engine:
        call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(max_tokens=180)))

        async def it_runs() -> bool:
            return await engine.num_running() == 1

        await until(it_runs, "the request runs")
        with pytest.raises(EngineError, match=message):
            await engine.load_weights(wrong, version=1)
        for failing in (call, engine.generate(PROMPT, SamplingParams())):
            with pytest.raises(EngineError, match="weights are of no version since an update failed"):
                await failing
        assert not engine.alive()
        await engine.load_weights(models[1].state_dict(), version=1)
        assert engine.alive()
        reply = await engine.generate(PROMPT, SamplingParams(max_tokens=8))
        assert list(reply.logps) == pytest.approx(full_logps(models[1], PROMPT, reply.token_ids), abs=1e-4)


async def test_a_bucket_that_the_server_refuses_does_not_leave_us_broadcasting(attached, models, monkeypatch):
    # More than the sockets hold, so that the broadcast cannot end by itself.
    large = {"model.norm.weight": torch.zeros(2**26)}
    async with attached(bucket_bytes=2**29) as engine, attached() as other:
        await engine.load_weights(models[1].state_dict(), version=1)
        begin = engine._updates.begin

        async def begin_and_lose_the_session() -> None:
            await begin()
            await other._updates._ask("/end_weight_update", {}, stage="a session that somebody else ends")

        monkeypatch.setattr(engine._updates, "begin", begin_and_lose_the_session)
        with pytest.raises(EngineError, match="must run between begin_weight_update"):
            async with asyncio.timeout(60):
                await engine.load_weights(large, version=2)
        monkeypatch.undo()
        await engine.load_weights(models[1].state_dict(), version=2)
        assert engine.alive()


async def test_a_publisher_broadcasts_straight_to_the_server(attached, models):
    """What a publisher does: it hosts the group, and the engine only tells the server to take part."""
    async with attached() as engine:

        async def load() -> None:
            await engine.begin_update()
            sums = await send(engine, models[1].state_dict())
            await engine.finish_update(1, sums=sums)

        replies = await sample_through(engine, load, count=2)
        assert [segment.version for segment in replies[0].segments] == [0, 1]
        assert list(await engine.canary(CANARY)) == pytest.approx(canary_of(models[1]), abs=1e-4)


async def test_a_second_update_waits_for_none_but_is_refused(attached):
    async with attached() as engine:
        await engine.begin_update()
        with pytest.raises(EngineError, match="an update of this server's weights is open"):
            await engine.begin_update()
        await engine.abandon_update("a change of mind")
        with pytest.raises(EngineError, match="a change of mind"):
            await engine.generate(PROMPT, SamplingParams())


async def test_a_server_that_a_dead_trainer_left_paused_within_an_update_is_taken_over(attached, models):
    async with attached() as dead:
        await dead.begin_update()
        async with attached(pause="in_place") as successor:
            async with asyncio.timeout(60):
                await successor.generate(PROMPT, SamplingParams(max_tokens=4))
            await successor.load_weights(models[1].state_dict(), version=1)
            assert list(await successor.canary(CANARY)) == pytest.approx(canary_of(models[1]), abs=1e-4)


async def test_leaving_a_group_that_is_not_there_is_an_error(attached):
    async with attached() as engine:
        with pytest.raises(EngineError, match="leaving `nothing`: the server answered 400"):
            await engine.leave_weights_group("nothing")


async def send(engine: SGLangEngine, weights: dict[str, torch.Tensor]) -> dict[str, int]:
    name, port = f"publisher-{uuid.uuid4().hex[:8]}", free_port()
    ours, _ = await asyncio.gather(
        asyncio.to_thread(
            join_group,
            name=name,
            address="127.0.0.1",
            port=port,
            rank=0,
            world_size=1 + engine.world_size,
            backend="gloo",
            timeout_s=60.0,
        ),
        engine.join_weights_group(
            "127.0.0.1", port, rank_offset=1, world_size=1 + engine.world_size, name=name, backend="gloo"
        ),
    )
    specs = aligned(spec_of(name, tensor) for name, tensor in weights.items())
    for bucket in plan_buckets(specs, bucket_bytes=2**16):
        data = pack(weights[spec.name] for spec in bucket)
        await asyncio.gather(
            engine.receive_bucket(bucket, group=name),
            asyncio.to_thread(dist.broadcast, data, group_src=0, group=ours),
        )
    await engine.leave_weights_group(name)
    dist.destroy_process_group(ours)
    return {name: checksum(tensor) for name, tensor in weights.items()}

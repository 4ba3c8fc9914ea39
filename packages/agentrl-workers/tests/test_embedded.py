import asyncio
import random

import pytest
import torch

from agentrl_workers.engines import EngineError, SamplingParams
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.engines.sampler import sample
from agentrl_workers.warmstart.imitation import new_model

CONTEXT = 96


@pytest.fixture
async def engine(renderer):
    running = EmbeddedEngine(
        new_model(renderer.tokenizer, hidden_size=32, seed=0), num_slots=4, context_length=CONTEXT, seed=1
    )
    yield running
    await running.close()


def prompts(count, *, longest=40, seed=0):
    chance = random.Random(seed)
    return [[chance.randrange(5, 300) for _ in range(chance.randrange(1, longest))] for _ in range(count)]


def greedy(model, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def full_logps(model, prompt, token_ids, *, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0].double() / temperature
    logps = torch.log_softmax(logits, dim=-1)
    return [logps[len(prompt) + n - 1, token].item() for n, token in enumerate(token_ids)]


async def test_greedy_replies_equal_a_full_forward_pass_whatever_else_runs(engine, model):
    params = SamplingParams(temperature=0.0, max_tokens=12)
    asked = prompts(11)
    replies = await asyncio.gather(*(engine.generate(prompt, params) for prompt in asked))
    for prompt, reply in zip(asked, replies, strict=True):
        assert list(reply.token_ids) == greedy(model, prompt, 12)
        assert reply.finish_reason == "length"


async def test_log_probabilities_equal_a_full_forward_pass_also_after_a_cached_prefix(engine, model):
    params = SamplingParams(temperature=0.8, max_tokens=10)
    (prompt,) = prompts(1)
    first = await engine.generate(prompt, params)
    longer = [*prompt, *first.token_ids, 7, 8, 9]
    second = await engine.generate(longer, params)
    assert first.cached_tokens == 0
    # All but the last sampled token, which never went through the model, and what follows it.
    assert second.cached_tokens == len(prompt) + 9
    for asked, reply in ((prompt, first), (longer, second)):
        expected = full_logps(model, asked, reply.token_ids, temperature=0.8)
        assert list(reply.logps) == pytest.approx(expected, abs=1e-4)


async def test_a_stop_token_ends_a_reply_and_belongs_to_it(engine, model):
    (prompt,) = prompts(1)
    third = greedy(model, prompt, 3)[-1]
    reply = await engine.generate(
        prompt, SamplingParams(temperature=0.0, max_tokens=50, stop_token_ids=(third,))
    )
    assert reply.finish_reason == "stop"
    assert reply.token_ids[-1] == third
    assert third not in reply.token_ids[:-1]


async def test_the_context_ends_a_reply(engine):
    prompt = [5] * (CONTEXT - 3)
    reply = await engine.generate(prompt, SamplingParams(max_tokens=50))
    assert (len(reply.token_ids), reply.finish_reason) == (3, "length")


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 5])
async def test_a_prompt_that_leaves_no_room_is_refused(engine, length):
    with pytest.raises(
        EngineError, match=f"needs 1 to {CONTEXT - 1} tokens to leave room for a reply, got {length}"
    ):
        await engine.generate([5] * length, SamplingParams())


async def test_a_seed_repeats_its_reply_whatever_else_runs(engine):
    params = SamplingParams(max_tokens=15, seed=42)
    (prompt,) = prompts(1)
    alone = await engine.generate(prompt, params)
    others = [engine.generate(other, SamplingParams(max_tokens=9)) for other in prompts(6, seed=3)]
    together = await asyncio.gather(engine.generate(prompt, params), *others)
    assert together[0].token_ids == alone.token_ids
    another = await engine.generate(prompt, SamplingParams(max_tokens=15, seed=43))
    assert another.token_ids != alone.token_ids


async def test_a_cancelled_request_frees_its_slot(engine):
    endless = [
        asyncio.create_task(engine.generate(prompt, SamplingParams(max_tokens=10_000)))
        for prompt in prompts(4)
    ]
    waiting = asyncio.create_task(engine.generate([5, 6], SamplingParams(max_tokens=2)))
    await asyncio.sleep(0)
    for task in endless:
        task.cancel()
    assert len((await asyncio.wait_for(waiting, 10)).token_ids) == 2


async def test_new_weights_take_over_between_two_tokens_and_each_token_says_which(engine, renderer):
    other = new_model(renderer.tokenizer, hidden_size=32, seed=9).eval()
    (prompt,) = prompts(1, longest=20)
    seen = asyncio.Event()
    running = asyncio.create_task(
        engine.generate(
            prompt,
            SamplingParams(temperature=0.0, max_tokens=CONTEXT - len(prompt)),
            on_token=lambda *_: seen.set(),
        )
    )
    await seen.wait()
    await engine.load_weights(other.state_dict(), version=1)
    reply = await running
    assert engine.version == 1
    assert [segment.version for segment in reply.segments] == [0, 1]
    assert reply.segments[0].end == reply.segments[1].start
    assert reply.segments[1].end == len(reply.token_ids)
    fresh = await engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=8))
    assert fresh.cached_tokens == 0  # What old weights computed is not reused.
    assert list(fresh.token_ids) == greedy(other, prompt, 8)
    assert [segment.version for segment in fresh.segments] == [1]


async def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(engine, model):
    good = dict(model.state_dict())
    name = next(iter(good))
    for weights, message in (
        ({key: value for key, value in good.items() if key != name}, f"lack `{name}`"),
        (good | {"extra": torch.zeros(1)}, r"unknown tensors: \['extra'\]"),
        (good | {name: torch.zeros(3)}, f"`{name}` has shape"),
    ):
        with pytest.raises(EngineError, match=message):
            await engine.load_weights(weights, version=1)
    assert engine.version == 0
    reply = await engine.generate([5, 6, 7], SamplingParams(temperature=0.0, max_tokens=5))
    assert list(reply.token_ids) == greedy(model, [5, 6, 7], 5)


async def test_an_engine_that_fails_tells_everybody(engine, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine, "_logits", broken)
    results = await asyncio.gather(
        *(engine.generate(prompt, SamplingParams()) for prompt in prompts(6)), return_exceptions=True
    )
    assert all(isinstance(result, EngineError) for result in results)
    with pytest.raises(EngineError, match="the engine has stopped: out of memory"):
        await engine.generate([5], SamplingParams())


def drawn(params, *, rows=4000):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(rows, 1)
    generator = torch.Generator().manual_seed(0)
    tokens, logps = sample(logits, [params] * rows, [None] * rows, generator=generator)
    return torch.bincount(tokens, minlength=4) / rows, tokens, logps


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(), [0, 1, 2, 3]),
        (SamplingParams(top_k=2), [0, 1]),
        (SamplingParams(top_p=0.7), [0, 1]),  # 0.644 alone is not enough.
        (SamplingParams(top_p=0.6), [0]),
        (SamplingParams(min_p=0.3), [0, 1]),  # A third of the likeliest is 0.237; 0.087 is less.
        (SamplingParams(temperature=0.0), [0]),
    ],
)
def test_draws_follow_the_filtered_distribution_and_report_the_unfiltered_one(params, kept):
    full = torch.softmax(torch.tensor([2.0, 1.0, 0.0, -1.0]), dim=-1)
    expected = torch.zeros(4)
    expected[kept] = full[kept] / full[kept].sum()
    shares, tokens, logps = drawn(params)
    torch.testing.assert_close(shares, expected, atol=0.03, rtol=0.0)
    torch.testing.assert_close(logps, full.log()[tokens])

"""What the real server samples, against `transformers`."""

import asyncio
import random
import time

import pytest

from agentrl_workers.engines import EngineError, SamplingParams

from .conftest import CONTEXT, VOCABULARY, full_logps, greedy, until  # isort: skip


def prompts(count: int, *, longest: int = 60, seed: int = 0) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [chance.randrange(5, VOCABULARY) for _ in range(chance.randrange(2, longest))] for _ in range(count)
    ]


async def test_greedy_replies_equal_transformers_token_for_token(engine, models):
    sampling = SamplingParams(temperature=0.0, max_tokens=16)
    asked = prompts(6)
    replies = await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in asked))
    for prompt, reply in zip(asked, replies, strict=True):
        assert list(reply.token_ids) == greedy(models[0], prompt, 16)
        assert list(reply.logps) == pytest.approx(full_logps(models[0], prompt, reply.token_ids), abs=1e-4)
        assert reply.finish_reason == "length"
        assert [(s.version, s.start, s.end) for s in reply.segments] == [(0, 0, 16)]


@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.1}], ids=lambda f: "-".join(f) or "plain"
)
async def test_sampled_log_probabilities_equal_a_full_forward_pass_before_any_filter(engine, models, filters):
    sampling = SamplingParams(temperature=0.7, max_tokens=24, **filters)
    for prompt in prompts(2, seed=1):
        reply = await engine.generate(prompt, sampling)
        expected = full_logps(models[0], prompt, reply.token_ids, temperature=0.7)
        assert list(reply.logps) == pytest.approx(expected, abs=1e-4)


async def test_a_stop_token_ends_a_reply_and_belongs_to_it(engine, models):
    (prompt,) = prompts(1, seed=2)
    fourth = greedy(models[0], prompt, 4)[-1]
    sampling = SamplingParams(temperature=0.0, max_tokens=50, stop_token_ids=(fourth,))
    reply = await engine.generate(prompt, sampling)
    assert reply.finish_reason == "stop"
    assert reply.token_ids[-1] == fourth
    assert fourth not in reply.token_ids[:-1]


async def test_the_context_ends_a_reply(engine):
    reply = await engine.generate([5] * (CONTEXT - 3), SamplingParams(max_tokens=50))
    assert (len(reply.token_ids), reply.finish_reason) == (3, "length")


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 5])
async def test_a_prompt_that_leaves_no_room_is_refused(engine, length):
    with pytest.raises(EngineError, match=f"needs 1 to {CONTEXT - 1} tokens .* got {length}"):
        await engine.generate([5] * length, SamplingParams())


async def test_a_token_that_the_model_does_not_have_is_refused_before_it_kills_the_server(engine):
    with pytest.raises(EngineError, match=f"token id {VOCABULARY} is not in the model's vocabulary of 320"):
        await engine.generate([5, VOCABULARY], SamplingParams())
    assert engine.alive()


async def test_members_of_a_group_and_later_turns_hit_the_prefix_cache(engine):
    prompt = [7, *prompts(1, longest=61, seed=3)[0], *range(10, 50)]
    sampling = SamplingParams(max_tokens=8)
    first = await engine.generate(prompt, sampling)
    others = await asyncio.gather(*(engine.generate(prompt, sampling) for _ in range(3)))
    turn = await engine.generate([*prompt, *first.token_ids, 7, 8, 9], sampling)
    assert first.cached_tokens == 0
    # One token is always computed anew: its logits draw the first of the reply.
    assert [reply.cached_tokens for reply in others] == [len(prompt) - 1] * 3
    assert turn.cached_tokens >= len(prompt) + 7


async def test_tokens_are_told_as_they_come_and_can_end_the_reply(engine, models):
    (prompt,) = prompts(1, seed=4)
    told: list[tuple[int, float]] = []

    def on_token(token_id: int, logp: float) -> bool:
        told.append((token_id, logp))
        return len(told) == 5

    reply = await engine.generate(prompt, SamplingParams(max_tokens=120), on_token=on_token)
    assert len(told) == 5
    assert reply.finish_reason == "abort"
    assert 5 <= len(reply.token_ids) < 120
    assert list(zip(reply.token_ids, reply.logps, strict=True))[:5] == told
    assert list(reply.logps) == pytest.approx(full_logps(models[0], prompt, reply.token_ids), abs=1e-4)


async def test_a_streamed_reply_is_the_whole_reply(engine, models):
    (prompt,) = prompts(1, seed=5)
    told: list[int] = []
    sampling = SamplingParams(temperature=0.0, max_tokens=20)
    reply = await engine.generate(prompt, sampling, on_token=lambda token_id, _: told.append(token_id))
    assert told == list(reply.token_ids) == greedy(models[0], prompt, 20)
    assert [(s.version, s.start, s.end) for s in reply.segments] == [(0, 0, 20)]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_cancelled_call_leaves_nothing_running_on_the_server(engine, streams):
    on_token = (lambda *_: None) if streams else None
    calls = [
        asyncio.create_task(
            engine.generate([9, 8, 7, number], SamplingParams(max_tokens=180), on_token=on_token)
        )
        for number in range(5, 13)
    ]

    async def all_run() -> bool:
        return await engine.num_running() == len(calls)

    async def none_runs() -> bool:
        return await engine.num_running() == 0

    await until(all_run, "all requests run")
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await until(none_runs, "no request runs")


async def test_an_error_in_on_token_ends_the_request_and_reaches_the_caller(engine):
    def fail(*_: object) -> None:
        raise LookupError("no such token")

    async def none_runs() -> bool:
        return await engine.num_running() == 0

    with pytest.raises(LookupError, match="no such token"):
        await engine.generate([5, 6, 7], SamplingParams(max_tokens=180), on_token=fail)
    await until(none_runs, "no request runs")


async def test_sixty_four_requests_at_once(engine, models):
    asked = prompts(64, seed=6)
    started = time.perf_counter()
    alone = await engine.generate(asked[0], SamplingParams(max_tokens=64))
    print(f"\none request: {len(alone.token_ids) / (time.perf_counter() - started):.0f} tokens/s")
    started = time.perf_counter()
    replies = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=16 + number))
            for number, prompt in enumerate(asked)
        )
    )
    seconds = time.perf_counter() - started
    print(f"\n64 requests: {sum(len(reply.token_ids) for reply in replies) / seconds:.0f} tokens/s")
    assert [len(reply.token_ids) for reply in replies] == [16 + number for number in range(64)]
    for prompt, reply in list(zip(asked, replies, strict=True))[::16]:
        assert list(reply.logps) == pytest.approx(full_logps(models[0], prompt, reply.token_ids), abs=1e-4)


async def test_a_prompt_can_be_scored_as_a_canary(engine, models):
    (prompt,) = prompts(1, seed=7)
    assert list(await engine.canary(prompt)) == pytest.approx(
        full_logps(models[0], prompt[:1], prompt[1:]), abs=1e-4
    )


async def test_a_server_that_samples_is_healthy(engine):
    await engine.check_health()
    assert engine.alive()


async def test_attaching_with_another_key_is_refused(engine, start):
    with pytest.raises(EngineError, match="asking for the server's settings: the server answered 401"):
        await start(url=engine.url, api_key="another")


async def test_attaching_for_more_context_than_the_server_has_is_refused(engine, start, monkeypatch):
    monkeypatch.setattr("agentrl_workers.engines.sglang.engine.SPARE_TOKENS", 8)
    monkeypatch.setattr("agentrl_workers.engines.sglang.facts.SPARE_TOKENS", 9)
    with pytest.raises(EngineError, match="has a context of 200 tokens, of which it keeps 9: less than"):
        await start(url=engine.url)


async def test_two_engines_share_one_server_but_not_its_cache(engine, start):
    prompt = [11, *range(100, 140)]
    await engine.generate(prompt, SamplingParams(max_tokens=4))
    other = await start(url=f"{engine.url}/")
    reply = await other.generate(prompt, SamplingParams(max_tokens=4))
    assert (other.version, other.world_size, other.pid) == (0, 1, None)
    assert reply.cached_tokens == 0
    await other.close()
    assert not other.alive()
    with pytest.raises(EngineError, match="has stopped: closed"):
        await other.generate(prompt, SamplingParams())
    assert (await engine.generate(prompt, SamplingParams(max_tokens=4))).cached_tokens == len(prompt) - 1

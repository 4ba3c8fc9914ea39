import asyncio
import time
from typing import Any

import openai.types.chat
import pytest
from aiohttp import web

from agentrl_core import Message, Tool
from agentrl_eval.models import ContextLimitError, ModelUnavailableError, ModelUnusableError
from agentrl_eval.models.openai import OpenAIModel

ASK = [Message(role="user", content="say 4")]


async def ask(model: OpenAIModel, *, seed: int = 3) -> Message:
    return (await model.reply(ASK, tools=None, seed=seed)).message


async def test_a_request_carries_conversation_tools_and_settings(model: Any, endpoint: Any):
    tools = [Tool.model_validate({"function": {"name": "say"}})]
    reply = await model.reply(ASK, tools=tools, seed=3)
    (request,) = endpoint.requests
    assert request["messages"] == [{"role": "user", "content": "say 4"}]
    assert request["tools"][0]["function"]["name"] == "say"
    assert {name: request[name] for name in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "m",
        "temperature": 0.5,
        "max_tokens": 64,
        "seed": 3,
    }
    assert reply.message.tool_calls[0].function.arguments == '{"number": "4"}'
    assert (reply.prompt_tokens, reply.completion_tokens, reply.truncated) == (11, 7, False)


async def test_without_tools_none_are_sent(model: Any, endpoint: Any):
    await ask(model)
    assert "tools" not in endpoint.requests[0]


async def test_what_is_sent_back_is_an_assistant_message_of_the_api(
    model: Any, endpoint: Any, completion: Any
):
    endpoint.faults = [
        completion({"content": "hm", "tool_calls": [], "reasoning_content": "x", "audio": None})
    ]
    wire = (await ask(model)).to_wire()
    assert wire == {"role": "assistant", "content": "hm", "reasoning_content": "x"}
    openai.types.chat.ChatCompletionMessage.model_validate(wire)


async def test_a_reply_at_its_limit_says_so(model: Any, endpoint: Any, completion: Any):
    endpoint.faults = [completion({"role": "assistant", "content": "and"}, finish_reason="length")]
    assert (await model.reply(ASK, tools=None, seed=0)).truncated


async def test_an_overloaded_endpoint_is_asked_again_after_the_time_it_names(
    model: Any, endpoint: Any, refusal: Any
):
    endpoint.faults = [refusal(429, "slow down", headers={"Retry-After": "0.3"})]
    started = time.monotonic()
    await ask(model)
    assert time.monotonic() - started >= 0.3
    assert len(endpoint.requests) == 2


async def test_a_retry_date_in_the_past_means_at_once(model: Any, endpoint: Any, refusal: Any):
    endpoint.faults = [refusal(503, "later", headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})]
    await ask(model)
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("retry_after", ["61", "9" * 400, "Fri, 21 Oct 2095 07:28:00 GMT"])
async def test_an_endpoint_that_asks_for_a_long_wait_fails_the_attempt(
    model: Any, endpoint: Any, refusal: Any, retry_after: str
):
    endpoint.faults = [refusal(429, "come tomorrow", headers={"Retry-After": retry_after})]
    async with asyncio.timeout(5):
        with pytest.raises(ModelUnavailableError, match=r"Retry-After.* 60 s at most.*come tomorrow"):
            await ask(model)
    assert len(endpoint.requests) == 1


async def test_a_fault_that_passes_is_not_noticed(model: Any, endpoint: Any, refusal: Any):
    endpoint.faults = [refusal(500, "oops"), refusal(502, "oops"), refusal(529, "oops"), refusal(408, "oops")]
    await ask(model)
    assert len(endpoint.requests) == 5


async def test_a_fault_that_stays_is_reported_after_five_tries(model: Any, endpoint: Any, refusal: Any):
    await ask(model)
    endpoint.faults = [refusal(500, "oops") for _ in range(5)]
    with pytest.raises(ModelUnavailableError, match="HTTP 500"):
        await ask(model)
    assert len(endpoint.requests) == 6


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_of_everything_is_for_good(model: Any, endpoint: Any, refusal: Any, status: int):
    await ask(model)
    endpoint.faults = [refusal(status, "no such model `m`")]
    with pytest.raises(ModelUnusableError, match=f"HTTP {status}.*no such model"):
        await ask(model)
    assert len(endpoint.requests) == 2


async def test_a_spent_quota_is_not_waited_for(model: Any, endpoint: Any, refusal: Any):
    endpoint.faults = [refusal(429, "pay", code="insufficient_quota")]
    with pytest.raises(ModelUnusableError, match="pay"):
        await ask(model)


async def test_a_bad_request_is_the_conversations_fault_once_others_were_answered(
    model: Any, endpoint: Any, refusal: Any
):
    await ask(model)
    endpoint.faults = [refusal(400, "arguments are no JSON") for _ in range(5)]
    for seed in range(5):
        with pytest.raises(ModelUnavailableError, match="no JSON"):
            await ask(model, seed=seed)


async def test_a_bad_request_is_the_models_fault_once_three_episodes_got_nothing_else(
    model: Any, endpoint: Any, refusal: Any
):
    endpoint.faults = [refusal(400, "unknown parameter `seed`") for _ in range(5)]
    for seed in (1, 1, 1, 2):  # Attempts of one episode say no more than one of them.
        with pytest.raises(ModelUnavailableError, match="unknown parameter"):
            await ask(model, seed=seed)
    with pytest.raises(ModelUnusableError, match=r"never answered.*seed"):
        await ask(model, seed=3)


@pytest.mark.parametrize(
    "fields", [{"code": "context_length_exceeded"}, {"code": "400"}], ids=["by code", "by words"]
)
async def test_a_conversation_too_long_is_known_as_such(
    model: Any, endpoint: Any, refusal: Any, fields: dict[str, str]
):
    endpoint.faults = [refusal(400, "This model's maximum context length is 4096 tokens", **fields)]
    with pytest.raises(ContextLimitError, match="4096"):
        await ask(model)


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[]",
        "{}",
        '{"choices": []}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"tool_calls": "x"}}]}',
        '{"choices": [{"message": {"content": "\xff',
    ],
)
async def test_an_answer_in_another_shape_is_no_reply(model: Any, endpoint: Any, body: str):
    endpoint.faults = [web.Response(body=body.encode("latin-1"), content_type="application/json")]
    with pytest.raises(ModelUnavailableError, match="no chat completion"):
        await ask(model)


async def test_an_endpoint_that_stays_silent_is_given_up(endpoint: Any, forever: asyncio.Event):
    async def hang(_: Any) -> None:
        await forever.wait()

    endpoint.on_request = hang
    model = OpenAIModel("m", base_url=endpoint.url, api_key="k", temperature=1, max_tokens=8, timeout_s=0.1)
    with pytest.raises(ModelUnavailableError, match=r"(?i)time"):
        await ask(model)
    assert len(endpoint.requests) == 1
    await model.close()


async def test_an_endpoint_where_nothing_listens_is_named(unused_tcp_port: int):
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    model = OpenAIModel("m", base_url=url, api_key="k", temperature=1, max_tokens=8, first_pause_s=0.001)
    with pytest.raises(ModelUnusableError, match=url):
        await ask(model)
    await model.close()

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import pytest
import torch
import uvicorn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl_core import Message, PolicyVersion, Segment
from agentrl_core.sockets import listen, url_of
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines import Engine, EngineError, FinishReason, Generation, OnToken, SamplingParams
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.serve import create_app
from agentrl_workers.warmstart.tokenizer import train_tokenizer

CONTEXT = 256
DEADLINE_S = 20.0
HELLO = [{"role": "user", "content": "find the number"}]
GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "guess it",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["find the number from 1 to 9", "the price of the drum"], vocabulary=300)


@pytest.fixture(scope="module")
def renderer(tokenizer: PreTrainedTokenizerFast) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: Any = tokenizer(text)["input_ids"]
    return ids


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Any:
    torch.manual_seed(0)
    end, padding = ids_of(tokenizer, "<|im_end|><|endoftext|>")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Qwen3ForCausalLM(config).eval()


class Script:
    """An engine that says given tokens, one each time the loop comes round, and can fail or halt."""

    version: PolicyVersion = 3
    context_length = CONTEXT

    def __init__(self, token_ids: Sequence[int], *, fails: bool = False) -> None:
        self.token_ids = list(token_ids)
        self.fails = fails
        self.num_told = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
    ) -> Generation:
        said: list[int] = []
        reason: FinishReason = "stop"
        for token_id in self.token_ids[: sampling.max_tokens]:
            said.append(token_id)
            self.num_told += 1
            if on_token is not None and on_token(token_id, -0.5):
                reason = "abort"
                break
            await asyncio.sleep(0)
        if self.fails:
            raise EngineError("the engine has stopped: out of memory")
        return Generation(
            token_ids=tuple(said),
            logps=(-0.5,) * len(said),
            segments=(Segment(version=3, start=0, end=len(said)),),
            finish_reason="length" if len(said) < len(self.token_ids) and reason == "stop" else reason,
            cached_tokens=7,
        )

    async def load_weights(self, weights: Mapping[str, torch.Tensor], *, version: PolicyVersion) -> float:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Client:
    """Speaks raw HTTP to a server under test."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def post(self, body: Any, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + "/v1/chat/completions", data=data, headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, **fields: Any) -> dict[str, Any]:
        status, answer = await self.post({"model": "m", "messages": HELLO, **fields})
        assert status == 200, answer
        return answer

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        body = {"model": "m", "messages": HELLO, "stream": True, **fields}
        async with self.http.post(self.url + "/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            events = (await response.text()).split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@asynccontextmanager
async def serving(
    engine: Engine, renderer: ChatRenderer, *, token: str | None = None
) -> AsyncIterator[Client]:
    listener = listen("127.0.0.1", 0)
    app = create_app(engine, renderer, name="m", token=token)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(DEADLINE_S):
            yield Client(http, url_of(listener))
    finally:
        server.should_exit = True
        await task


Serve = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def serve_model(tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer) -> Serve:
    def start(*, num_slots: int = 4, token: str | None = None) -> AbstractAsyncContextManager[Client]:
        engine = EmbeddedEngine(tiny_model(tokenizer), num_slots=num_slots, context_length=CONTEXT)
        return serving(engine, renderer, token=token)

    return start


@pytest.fixture
def serve_text(tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer) -> Serve:
    def start(text: str, **options: Any) -> AbstractAsyncContextManager[Client]:
        return serving(Script(ids_of(tokenizer, text + "<|im_end|>"), **options), renderer)

    return start


def content_of(events: Sequence[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_greedy_text_is_what_transformers_generates(
    serve_model: Serve, tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer
) -> None:
    prompt = renderer.prompt([Message(role="user", content="find the number")])
    output = tiny_model(tokenizer).generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=tokenizer.eos_token_id
    )
    expected = str(tokenizer.decode(output[0, len(prompt) :].tolist())).removesuffix("<|im_end|>")
    async with serve_model() as client:
        answer = await client.chat(temperature=0, max_tokens=40)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == output.shape[1] - len(prompt)


async def test_a_seed_repeats_and_replies_of_one_request_differ(serve_model: Serve) -> None:
    async with serve_model() as client:
        first, second, other = [
            [choice["message"]["content"] for choice in answer["choices"]]
            for answer in [await client.chat(seed=seed, n=3, max_tokens=30) for seed in (5, 5, 50)]
        ]
    assert first == second
    assert first != other
    assert len(set(first)) == 3


async def test_logprobs_are_those_of_a_full_forward_pass(
    serve_model: Serve, tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer
) -> None:
    async with serve_model() as client:
        answer = await client.chat(seed=1, max_tokens=30, logprobs=True, top_logprobs=0, temperature=0.7)
    told = answer["choices"][0]["logprobs"]["content"]
    prompt = renderer.prompt([Message(role="user", content="find the number")])
    by_bytes = {tuple(bytes_of(tokenizer, token_id)): token_id for token_id in range(len(tokenizer))}
    ids = [by_bytes[tuple(token["bytes"])] for token in told]
    logits = tiny_model(tokenizer)(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(
        torch.tensor([token["logprob"] for token in told]), expected, atol=1e-4, rtol=0
    )
    assert len(told) == answer["usage"]["completion_tokens"]


def bytes_of(tokenizer: PreTrainedTokenizerFast, token_id: int) -> bytes:
    """What a token says, found by decoding it between tokens that complete a character."""
    text = str(tokenizer.decode([token_id]))
    if "\ufffd" not in text:
        return text.encode()
    alphabet = {bytes([byte]).decode("latin-1"): byte for byte in range(256)}
    piece = str(tokenizer.convert_ids_to_tokens(token_id))
    shifted = [byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174)]
    return bytes(alphabet[char] if ord(char) < 256 else shifted[ord(char) - 256] for char in piece)


@pytest.mark.parametrize("fields", [{}, {"tools": [GUESS]}, {"stop": ["e", "th"]}, {"n": 3}])
async def test_a_stream_says_what_the_whole_answer_says(serve_model: Serve, fields: dict[str, Any]) -> None:
    settings = {"seed": 4, "max_tokens": 60, "logprobs": True, **fields}
    async with serve_model() as client:
        whole = await client.chat(**settings)
        events = await client.stream(**settings, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        own = [c for event in events for c in event["choices"] if c["index"] == choice["index"]]
        assert content_of(events, choice["index"]) == choice["message"]["content"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [choice["finish_reason"]]
        told = [token for c in own if c["logprobs"] for token in c["logprobs"]["content"]]
        expected = choice["logprobs"]["content"]
        assert [token["bytes"] for token in told] == [token["bytes"] for token in expected]
        assert [token["logprob"] for token in told] == pytest.approx(
            [token["logprob"] for token in expected], abs=1e-4
        )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all("usage" not in event for event in events[:-1])


async def test_a_stream_arrives_while_it_is_sampled(
    tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer
) -> None:
    goes_on = asyncio.Event()

    class Halting(Script):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
        ) -> Generation:
            assert on_token is not None
            on_token(self.token_ids[0], -0.5)
            await goes_on.wait()
            return await super().generate(prompt_ids, sampling)

    async with serving(Halting(ids_of(tokenizer, "abc")), renderer) as client:
        body = {"model": "m", "messages": HELLO, "stream": True}
        async with client.http.post(client.url + "/v1/chat/completions", json=body) as response:
            while '"a"' not in (await response.content.readuntil(b"\n\n")).decode():
                pass
            goes_on.set()
            assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_characters_of_many_tokens_stream_whole(serve_text: Serve) -> None:
    text = "price 💰 für ☕, ok"
    async with serve_text(text) as client:
        events = await client.stream()
    assert content_of(events) == text
    assert not any("\ufffd" in json.dumps(event, ensure_ascii=False) for event in events)


async def test_a_stop_text_ends_the_reply_before_it(
    tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer
) -> None:
    engine = Script(ids_of(tokenizer, "the drum and then the price, and more " * 4))
    async with serving(engine, renderer) as client:
        answer = await client.chat(stop=["zebra", "en the pri"])
        assert engine.num_told < len(engine.token_ids) / 3
        events = await client.stream(stop="en the pri", stream_options={"include_usage": True})
    assert answer["choices"][0]["message"]["content"] == "the drum and th" == content_of(events)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert events[-1]["usage"] == answer["usage"]


CALLS = (
    'let me see\n<tool_call>\n{"name": "guess", "arguments": {"number": 4}}\n</tool_call>\n'
    '<tool_call>\n{"name": "guess", "arguments": {"number": 5}}\n</tool_call>'
)


async def test_tool_calls_come_parsed_whole_and_at_the_end_of_a_stream(serve_text: Serve) -> None:
    async with serve_text(CALLS) as client:
        choice = (await client.chat(tools=[GUESS]))["choices"][0]
        events = await client.stream(tools=[GUESS])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "let me see" == content_of(events)
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "guess", "arguments": '{"number": 4}'},
        {"name": "guess", "arguments": '{"number": 5}'},
    ]
    assert len({call["id"] for call in calls}) == 2
    deltas = [event["choices"][0]["delta"] for event in events]
    (streamed,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [(call["index"], call["type"], call["function"]) for call in streamed] == [
        (0, "function", calls[0]["function"]),
        (1, "function", calls[1]["function"]),
    ]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


CALL = '<tool_call>\n{"name": "guess", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, None),
        (f"\n\n{CALL}", None),
        (f"\n so: \n{CALL}", "\n so:"),
        (f"so {CALL} then", "so  then"),
        ("so <tool_", "so <tool_"),
        ("so <tool_call>nameless", "so <tool_call>nameless"),
        (" plain \n", " plain \n"),
    ],
)
async def test_text_around_calls_is_the_same_whole_and_streamed(
    serve_text: Serve, text: str, content: str | None
) -> None:
    async with serve_text(text) as client:
        choice = (await client.chat(tools=[GUESS]))["choices"][0]
        events = await client.stream(tools=[GUESS])
    assert choice["message"]["content"] == content
    assert content_of(events) == (content or "")
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [GUESS], "tool_choice": "none"}])
async def test_without_tools_a_call_stays_text(serve_text: Serve, fields: dict[str, Any]) -> None:
    async with serve_text(CALLS) as client:
        choice = (await client.chat(**fields))["choices"][0]
    assert choice["message"]["content"] == CALLS
    assert choice["finish_reason"] == "stop"


async def test_a_conversation_with_calls_and_results_is_taken_back(
    serve_text: Serve, renderer: ChatRenderer
) -> None:
    async with serve_text(CALLS) as client:
        message = (await client.chat(tools=[GUESS]))["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "lower"}
        system = {"role": "system", "content": "be brief"}
        parts = {"role": "user", "content": [{"type": "text", "text": "go"}]}
        messages = [system, *HELLO, message, result, parts]
        answer = await client.chat(messages=messages, tools=[GUESS])
    rendered = renderer.prompt([Message.model_validate(m) for m in messages])
    assert answer["usage"]["prompt_tokens"] > len(rendered)


async def test_a_reply_cut_by_its_length_says_so(serve_text: Serve) -> None:
    async with serve_text("the drum") as client:
        for name in ("max_tokens", "max_completion_tokens"):
            answer = await client.chat(**{name: 1})
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "words"),
    [
        ({"model": "x"}, 404, "model_not_found", "model", "`x` is not served here; `m` is"),
        ({"messages": []}, 400, None, "messages", "at least 1 item"),
        ({"messages": [{"content": "x"}]}, 400, None, "messages.0.role", "required"),
        ({"messages": "hello"}, 400, None, "messages", "got 'hello'"),
        (
            {"messages": [{"role": "user", "content": "7 " * 300}]},
            400,
            "context_length_exceeded",
            "messages",
            "256",
        ),
        ({"temperature": "warm"}, 400, None, "temperature", "got 'warm'"),
        ({"temperature": -1}, 400, None, "temperature", "got -1"),
        ({"temperature": float("nan")}, 400, None, "temperature", "finite"),
        ({"top_p": 0}, 400, None, "top_p", "got 0"),
        ({"max_tokens": 0}, 400, None, "max_tokens", "got 0"),
        ({"n": 9}, 400, None, "n", "got 9"),
        ({"tool_choice": "required"}, 400, None, "tool_choice", "`auto` or `none`, got 'required'"),
        ({"tool_choice": {"type": "function"}}, 400, None, "tool_choice", "`auto` or `none`"),
        ({"tools": [{"type": "function"}]}, 400, None, "tools.0.function", "required"),
        ({"logprobs": True, "top_logprobs": 5}, 400, None, "top_logprobs", "must be 0, got 5"),
    ],
)
async def test_bad_fields_are_answered_in_the_shape_of_openai(
    serve_text: Serve, fields: dict[str, Any], status: int, code: str | None, param: str, words: str
) -> None:
    async with serve_text("a") as client:
        got, answer = await client.post({"model": "m", "messages": HELLO, **fields})
    error = answer["error"]
    assert (got, error["code"], error["param"]) == (status, code, param)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b" " * (16 * 2**20 + 1), 413),
    ],
)
async def test_bodies_that_are_no_request_are_answered_in_shape(
    serve_text: Serve, body: bytes, status: int
) -> None:
    async with serve_text("a") as client:
        got, answer = await client.post(body)
    assert got == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_unknown_fields_and_nulls_are_passed_over(serve_text: Serve) -> None:
    nulls = dict.fromkeys(["temperature", "top_p", "stop", "tools", "tool_choice", "n", "stream_options"])
    async with serve_text("the drum") as client:
        answer = await client.chat(user="me", frequency_penalty=0.1, store=False, **nulls)
    assert answer["choices"][0]["message"]["content"] == "the drum"


async def test_a_temperature_next_to_zero_is_greedy(serve_model: Serve) -> None:
    async with serve_model() as client:
        cold, greedy = [await client.chat(temperature=t, max_tokens=20, logprobs=True) for t in (1e-40, 0)]
    assert cold["choices"][0]["message"] == greedy["choices"][0]["message"]


async def test_an_engine_that_fails_is_a_server_error(serve_text: Serve) -> None:
    async with serve_text("a", fails=True) as client:
        status, answer = await client.post({"model": "m", "messages": HELLO, "n": 2})
        events = await client.stream()
    assert status == 503
    assert answer["error"]["type"] == "server_error"
    assert events[-1] == {"error": {**answer["error"]}}
    assert "out of memory" in answer["error"]["message"]


async def test_other_routes_tell_of_the_model_and_errors_keep_the_shape(serve_text: Serve) -> None:
    async with serve_text("the drum") as client:
        assert await client.get("/health") == (200, {"status": "ok", "version": 3})
        status, models = await client.get("/v1/models")
        assert (status, [model["id"] for model in models["data"]]) == (200, ["m"])
        answer = await client.chat()
        _, metrics = await client.get("/metrics")
        status, missing = await client.get("/v1/nothing")
    values = dict(line.split() for line in metrics.splitlines() if not line.startswith("#"))
    assert values["agentrl_serve_requests_running"] == "0"
    assert values["agentrl_serve_policy_version"] == "3"
    assert values["agentrl_serve_prompt_tokens_total"] == str(answer["usage"]["prompt_tokens"])
    assert values["agentrl_serve_sampled_tokens_total"] == str(answer["usage"]["completion_tokens"])
    assert status == 404
    assert missing["error"]["message"] == "GET /v1/nothing: Not Found"


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "sécret"}])
async def test_a_wrong_token_is_refused(serve_model: Serve, given: dict[str, str]) -> None:
    async with serve_model(token="sécret") as client:
        status, answer = await client.post({"model": "m", "messages": HELLO}, **given)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get("/v1/models", **given))[0] == 401
        assert (await client.get("/v1/models", Authorization="Bearer sécret"))[0] == 200
        assert (await client.get("/health"))[0] == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_its_slot(
    tokenizer: PreTrainedTokenizerFast, renderer: ChatRenderer, stream: bool
) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    class Endless(Script):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: SamplingParams, *, on_token: OnToken | None = None
        ) -> Generation:
            entered.set()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                left.set()

    async with serving(Endless([]), renderer) as client:
        body = {"model": "m", "messages": HELLO, "stream": stream}
        task = asyncio.ensure_future(client.http.post(client.url + "/v1/chat/completions", json=body))
        await entered.wait()
        if stream:
            (await task).close()
        else:
            task.cancel()
        await left.wait()


async def test_the_engine_goes_on_to_the_next_request_after_a_hang_up(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    engine = EmbeddedEngine(tiny_model(tokenizer), num_slots=1, context_length=200_000)
    begun = asyncio.Event()
    endless = SamplingParams(max_tokens=199_000)
    task = asyncio.ensure_future(engine.generate([5], endless, on_token=lambda *_: begun.set()))
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        task.cancel()
        generation = await engine.generate([5], SamplingParams(max_tokens=3))
    assert len(generation.token_ids) == 3
    await engine.close()


async def test_on_token_hears_every_token_and_can_end_the_reply(tokenizer: PreTrainedTokenizerFast) -> None:
    engine = EmbeddedEngine(tiny_model(tokenizer), num_slots=2, context_length=CONTEXT)
    heard: list[tuple[int, float]] = []
    sampling = SamplingParams(max_tokens=30, seed=3)
    whole = await engine.generate([5, 6], sampling, on_token=lambda *token: heard.append(token))
    assert heard == list(zip(whole.token_ids, whole.logps, strict=True))
    heard.clear()

    def enough(token_id: int, logp: float) -> bool:
        heard.append((token_id, logp))
        return len(heard) >= 4

    cut = await engine.generate([5, 6], SamplingParams(max_tokens=250, seed=3), on_token=enough)
    assert cut.finish_reason in ("abort", "stop")
    assert cut.token_ids[:4] == whole.token_ids[:4]
    await engine.close()

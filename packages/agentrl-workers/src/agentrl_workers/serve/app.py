"""The OpenAI-compatible API over an engine."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from agentrl_workers.chat import ChatRenderer, parse_reply
from agentrl_workers.engines import Engine, EngineError, Generation
from agentrl_workers.serve.replies import Reply, sample_reply
from agentrl_workers.serve.requests import ChatRequest, RequestError


def create_app(engine: Engine, renderer: ChatRenderer, *, name: str, token: str | None = None) -> FastAPI:
    """The API for one model.

    Args:
        engine: samples.
        renderer: turns messages into tokens.
        name: the model's name in requests.
        token: bearer token that requests must carry.
    """
    app = FastAPI(title=f"AgentRL model server: {name}")
    routes = _Routes(engine, renderer, name)
    app.add_api_route("/v1/models", routes.models, methods=["GET"])
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(ValidationError, _malformed)
    app.add_exception_handler(EngineError, _failed)
    if token is not None:
        app.middleware("http")(_require(token))
    return app


class _Routes:
    def __init__(self, engine: Engine, renderer: ChatRenderer, name: str) -> None:
        self._engine = engine
        self._renderer = renderer
        self._name = name

    async def health(self) -> dict[str, Any]:
        return {"status": "ok", "version": self._engine.version}

    async def models(self) -> dict[str, Any]:
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "agentrl"}
        return {"object": "list", "data": [model]}

    async def chat(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except ValueError as error:
            raise RequestError(f"the body is no JSON: {error}") from error
        chat = ChatRequest.model_validate(body)
        chat.check(name=self._name)
        prompt_ids = self._renderer.prompt(chat.messages, chat.offered_tools)
        room = self._engine.context_length - len(prompt_ids)
        if room <= 0:
            raise RequestError(
                f"the prompt has {len(prompt_ids)} tokens, the context {self._engine.context_length}",
                code="context_length_exceeded",
                param="messages",
            )
        answer = _Answer(self._engine, self._renderer, chat, prompt_ids, room)
        if chat.stream:
            return StreamingResponse(answer.stream(), media_type="text/event-stream")
        return JSONResponse(await _unless_gone(request, answer.whole()))


class _Answer:
    """The answer to one request, whole or streamed."""

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, chat: ChatRequest, prompt_ids: list[int], room: int
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._chat = chat
        self._prompt_ids = prompt_ids
        self._room = room
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        results = await asyncio.gather(*(self._reply(number) for number in range(self._chat.n)))
        choices = [
            {
                "index": number,
                "message": message,
                "finish_reason": reason,
                "logprobs": reply.logprobs() if self._chat.logprobs else None,
            }
            for number, (reply, message, reason, _) in enumerate(results)
        ]
        usage = self._usage([reply for reply, *_ in results], results[0][3])
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    async def stream(self) -> AsyncIterator[str]:
        for number in range(self._chat.n):
            async for chunk in self._stream_reply(number):
                yield chunk
        yield "data: [DONE]\n\n"

    async def _reply(self, number: int) -> tuple[Reply, dict[str, Any], str, int]:
        reply, generation = self._begin(), None
        async for state in self._sample(reply, number):
            generation = state or generation
        message, reason = self._end(reply, generation)
        return reply, message, reason, generation.cached_tokens if generation else 0

    async def _stream_reply(self, number: int) -> AsyncIterator[str]:
        reply, generation, shown, told = self._begin(), None, 0, 0
        with_tools = self._chat.offered_tools is not None
        yield self._chunk(number, {"role": "assistant", "content": ""})
        async for state in self._sample(reply, number):
            generation = state or generation
            certain = len(reply.text) if state and not with_tools else reply.certain(with_tools=with_tools)
            if certain > shown:
                logprobs = _cut(reply.logprobs(), told) if self._chat.logprobs else None
                told = len(reply.token_ids)
                yield self._chunk(number, {"content": reply.text[shown:certain]}, logprobs=logprobs)
                shown = certain
        message, reason = self._end(reply, generation)
        calls = message.get("tool_calls")
        if calls:
            deltas = [{"index": n, **call} for n, call in enumerate(calls)]
            yield self._chunk(number, {"tool_calls": deltas})
        elif len(reply.text) > shown:
            yield self._chunk(number, {"content": reply.text[shown:]})
        yield self._chunk(number, {}, reason=reason)
        if self._chat.stream_options.include_usage and number == self._chat.n - 1:
            usage = self._usage([reply], generation.cached_tokens if generation else 0)
            last = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}
            yield f"data: {json.dumps(last)}\n\n"

    def _begin(self) -> Reply:
        return Reply(self._renderer, self._chat.stop_texts)

    def _sample(self, reply: Reply, number: int) -> AsyncIterator[Generation | None]:
        sampling = self._chat.sampling(
            room=self._room, stop_token_ids=self._renderer.stop_token_ids, number=number
        )
        return sample_reply(self._engine, self._prompt_ids, sampling, reply)

    def _end(self, reply: Reply, generation: Generation | None) -> tuple[dict[str, Any], str]:
        """The message and OpenAI's finish reason."""
        reason = "stop" if generation is None or generation.finish_reason == "stop" else "length"
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if self._chat.offered_tools is not None:
            parsed = parse_reply(reply.text, call_prefix=f"call_{uuid.uuid4().hex[:12]}_")
            if parsed.tool_calls:
                message["content"] = parsed.content or None
                message["tool_calls"] = [call.to_wire() for call in parsed.tool_calls]
                reason = "tool_calls" if reason == "stop" else reason
        return message, reason

    def _usage(self, replies: list[Reply], cached: int) -> dict[str, Any]:
        completion = sum(len(reply.token_ids) for reply in replies)
        prompt = len(self._prompt_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._chat.model}

    def _chunk(
        self, number: int, delta: dict[str, Any], *, reason: str | None = None, logprobs: Any = None
    ) -> str:
        choice = {"index": number, "delta": delta, "finish_reason": reason, "logprobs": logprobs}
        return f"data: {json.dumps({**self._head('chat.completion.chunk'), 'choices': [choice]})}\n\n"


def _cut(logprobs: dict[str, Any], start: int) -> dict[str, Any]:
    return {**logprobs, "content": logprobs["content"][start:]}


async def _unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """The answer; a client that hangs up takes its request out of the batch."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            raise RequestError("the client has gone", http_status=499)
        return work.result()
    finally:
        gone.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error(str(error), http_status=error.http_status, code=error.code, param=error.param)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    fault = error.errors()[0]
    param = ".".join(map(str, fault["loc"]))
    return _error(f"`{param}`: {fault['msg']}", http_status=400, param=param)


async def _failed(_: Request, error: Exception) -> Response:
    return _error(str(error), http_status=503, kind="server_error")


def _error(
    message: str,
    *,
    http_status: int,
    code: str | None = None,
    param: str | None = None,
    kind: str = "invalid_request_error",
) -> Response:
    content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(content, status_code=http_status)


def _require(token: str) -> Callable[..., Awaitable[Any]]:
    expected = f"Bearer {token}".encode()

    async def check(request: Request, proceed: Callable[[Request], Awaitable[Any]]) -> Any:
        given = request.headers.get("Authorization", "").encode()
        if request.url.path.startswith("/v1/") and not secrets.compare_digest(given, expected):
            return _error("the bearer token is missing or wrong", http_status=401, code="invalid_api_key")
        return await proceed(request)

    return check

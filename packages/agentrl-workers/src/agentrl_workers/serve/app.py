"""The OpenAI-compatible API over an engine."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from jinja2 import TemplateError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines import Engine, EngineError
from agentrl_workers.serve.answers import Answer
from agentrl_workers.serve.requests import ChatRequest, RequestError

_MAX_BODY_BYTES = 16 * 2**20
_CLIENT_GONE = 499


def create_app(engine: Engine, renderer: ChatRenderer, *, name: str, token: str | None = None) -> FastAPI:
    """The API for one model; it closes the engine when it shuts down.

    Args:
        engine: samples.
        renderer: turns messages into tokens.
        name: the model's name in requests.
        token: bearer token that requests to `/v1` must carry; None asks for none.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.close()

    app = FastAPI(title=f"AgentRL model server: {name}", lifespan=lifespan)
    routes = _Routes(engine, renderer, name)
    guard = [Depends(_require(token))] if token is not None else []
    app.add_api_route("/v1/models", routes.models, methods=["GET"], dependencies=guard)
    app.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"], dependencies=guard)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"], response_class=PlainTextResponse)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(ValidationError, _malformed)
    app.add_exception_handler(EngineError, _failed)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _broken)
    return app


class _Routes:
    """What each route does, and the counts that `/metrics` shows."""

    def __init__(self, engine: Engine, renderer: ChatRenderer, name: str) -> None:
        self._engine = engine
        self._renderer = renderer
        self._name = name
        self._num_running = 0
        self._num_prompt_tokens = 0
        self._num_sampled_tokens = 0

    async def health(self) -> dict[str, Any]:
        """Whether the server lives, and the version of the weights."""
        return {"status": "ok", "version": self._engine.version}

    async def models(self) -> dict[str, Any]:
        """The one model."""
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "agentrl"}
        return {"object": "list", "data": [model]}

    async def metrics(self) -> str:
        """Counts in Prometheus's text format."""
        rows = [
            ("requests_running", "gauge", "Chat requests in flight.", self._num_running),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", self._num_prompt_tokens),
            ("sampled_tokens_total", "counter", "Tokens sampled in replies.", self._num_sampled_tokens),
            ("policy_version", "gauge", "Version of the weights.", self._engine.version),
        ]
        lines = []
        for suffix, kind, text, value in rows:
            name = f"agentrl_serve_{suffix}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return "\n".join([*lines, ""])

    async def chat(self, request: Request) -> Response:
        """A chat completion in OpenAI's format."""
        chat = ChatRequest.model_validate(_parse(await _read(request)))
        chat.check(name=self._name)
        answer = Answer(self._engine, self._renderer, chat, self._prompt(chat))
        if chat.stream:
            return StreamingResponse(self._streamed(answer), media_type="text/event-stream")
        with self._counted(answer):
            return JSONResponse(await _unless_gone(request, answer.whole()))

    def _prompt(self, chat: ChatRequest) -> list[int]:
        try:
            prompt_ids = self._renderer.prompt(chat.messages, chat.offered_tools)
        except (TemplateError, TypeError, ValueError) as error:
            message = f"the model's chat template cannot render these messages and tools: {error}"
            raise RequestError(message, param="messages") from error
        if len(prompt_ids) >= self._engine.context_length:
            raise RequestError(
                f"the prompt has {len(prompt_ids)} tokens and the context {self._engine.context_length}; "
                "at least one must be left for the reply",
                code="context_length_exceeded",
                param="messages",
            )
        return prompt_ids

    async def _streamed(self, answer: Answer) -> AsyncIterator[str]:
        with self._counted(answer):
            async for event in answer.stream():
                yield event

    @contextmanager
    def _counted(self, answer: Answer) -> Iterator[None]:
        self._num_running += 1
        self._num_prompt_tokens += answer.num_prompt_tokens
        try:
            yield
        finally:
            self._num_running -= 1
            self._num_sampled_tokens += answer.num_sampled_tokens


async def _read(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > _MAX_BODY_BYTES:
            message = f"the body exceeds {_MAX_BODY_BYTES} bytes; send fewer messages"
            raise RequestError(message, http_status=413)
    return b"".join(parts)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}") from error


async def _unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
    """The answer; a client that hangs up takes its request out of the batch."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise RequestError("the client has gone", http_status=_CLIENT_GONE)
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _require(token: str) -> Callable[[Request], Awaitable[None]]:
    expected = f"Bearer {token}".encode()

    async def check(request: Request) -> None:
        given = request.headers.get("Authorization", "").encode("latin-1")
        if not secrets.compare_digest(given, expected):
            message = "the bearer token is missing or wrong; send the server's as `Authorization: Bearer ...`"
            raise RequestError(message, http_status=401, code="invalid_api_key")

    return check


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error(str(error), http_status=error.http_status, code=error.code, param=error.param)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    fault = error.errors(include_url=False)[0]
    param = ".".join(map(str, fault["loc"])) or None
    given = "" if fault["type"] == "missing" else f", got {fault['input']!r:.80}"
    return _error(f"`{param or 'the body'}`: {fault['msg']}{given}", http_status=400, param=param)


async def _failed(_: Request, error: Exception) -> Response:
    return _error(str(error), http_status=503, kind="server_error")


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _error(message, http_status=error.status_code)


async def _gone(_: Request, __: Exception) -> Response:
    return _error("the client has gone", http_status=_CLIENT_GONE)


async def _broken(_: Request, __: Exception) -> Response:
    return _error("the server failed; its log says why", http_status=500, kind="server_error")


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

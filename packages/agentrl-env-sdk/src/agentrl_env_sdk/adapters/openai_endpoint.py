"""An endpoint of OpenAI's chat completions on this machine whose model is the agent of one session.

any OpenAI client -- POST /v1/chat/completions --> Endpoint -- Asked --> the task -- session.action --> agent
"""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from agentrl_core import ConfigError, Message, Tool
from agentrl_core.sockets import url_of
from agentrl_env_sdk.adapters.chat_wire import completion, events

MODEL = "agent"
"""What the model is called where an agent asks which there are; a request may name any."""

_LONGEST_BODY = 256 * 2**20
_SHUTDOWN_S = 1.0
_TOOLS = TypeAdapter(list[Tool])
_MESSAGES = TypeAdapter(list[Message])
_RETRIES = "x-stainless-retry-count"

REFUSED: Mapping[str, str] = {
    "n": "a session has one reply to each request",
    "response_format": "replies are not held to a format",
    "tool_choice": "which tool is called is the agent's choice",
    "logprobs": "the probabilities of tokens are not told",
    "top_logprobs": "the probabilities of tokens are not told",
    "functions": "use `tools`",
    "function_call": "use `tools`",
    "audio": "replies are text",
    "web_search_options": "there is no search",
}
"""Parameters whose promise is not kept here, and why; their values that promise nothing are fine."""

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "functions": ([],),
    "function_call": ("auto", "none"),
}


def refused(*, ignored: Iterable[str]) -> dict[str, str]:
    """What is refused where some of it is ignored: let through, without effect.

    Raises:
        ConfigError: a parameter that is to be ignored would not be refused.
    """
    if unknown := sorted(set(ignored) - set(REFUSED)):
        raise ConfigError(f"`ignored` names {unknown}; only {sorted(REFUSED)} are refused")
    return {name: why for name, why in REFUSED.items() if name not in ignored}


class Asked:
    """A request for a completion.

    Attributes:
        body: the request.
        messages: its messages as they came.
        tools: its tools.
        answer: the assistant message that it is answered with.
    """

    def __init__(
        self, body: Mapping[str, Any], messages: Sequence[dict[str, Any]], tools: list[Tool]
    ) -> None:
        self.body = body
        self.messages = messages
        self.tools = tools
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()


class _RefusedError(Exception):
    """A request that is not answered; told in OpenAI's form."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def response(self) -> web.Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": None}
        return web.json_response({"error": error}, status=self.status)


class Endpoint:
    """One session's endpoint; open for as long as its `async with` block.

    Args:
        refused: parameters that are not answered, and why; see `refused`.

    Attributes:
        base_url: where it is, as clients want it; set once it is open.
        token: who does not show it as API key is turned away.
        asked: requests, in their order.
    """

    def __init__(self, refused: Mapping[str, str] = REFUSED) -> None:
        self.base_url = ""
        self.token = secrets.token_urlsafe(24)
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._refused = refused
        self._last: Asked | None = None
        self._open: set[Asked] = set()
        self._is_over = False
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_LONGEST_BODY)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_route("*", "/{path:.*}", self._elsewhere)
        listener = socket.create_server(("127.0.0.1", 0))
        runner = self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        try:
            await runner.setup()
            await web.SockSite(runner, listener).start()
        except BaseException:
            await runner.cleanup()
            listener.close()  # The site lets go of it only once it has started.
            raise
        self.base_url = url_of(listener, path="/v1")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        for asked in self._open:
            if not asked.answer.done():
                asked.answer.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            asked = await self._read(request)
            message = await self._answered(asked)
        except _RefusedError as refused:
            return refused.response()
        if not asked.body.get("stream"):
            return web.json_response(completion(message, asked.body))
        return web.Response(text=events(message, asked.body), content_type="text/event-stream")

    async def _answered(self, asked: Asked) -> dict[str, Any]:
        self._open.add(asked)
        try:
            # Who asks again after a lost answer waits for the same one.
            return await asyncio.shield(asked.answer)
        except asyncio.CancelledError:
            if not asked.answer.cancelled():
                raise
            raise _RefusedError("the session has ended", status=503) from None
        finally:
            self._open.discard(asked)

    async def _read(self, request: web.Request) -> Asked:
        self._admit(request)
        body = await _json(request)
        for name, why in self._refused.items():
            if body.get(name) not in (None, *_HARMLESS.get(name, ())):
                raise _RefusedError(f"`{name}` = {body[name]!r} cannot be had: {why}", param=name)
        asked = Asked(body, _messages(body), _tools(body))
        last = self._last
        if last is not None and _is_retry(request) and last.messages == asked.messages:
            return last
        self._last = asked
        self.asked.put_nowait(asked)
        return asked

    def _admit(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            raise _RefusedError("the API key is not the session's", status=401)
        if self._is_over:
            raise _RefusedError("the session has ended", status=503)

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._admit(request)
        except _RefusedError as refused:
            return refused.response()
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "agentrl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _elsewhere(self, request: web.Request) -> web.Response:
        what = f"{request.method} {request.path}"
        told = f"{what} is not answered here; a session's endpoint has POST /v1/chat/completions"
        return _RefusedError(told, status=404).response()


def _is_retry(request: web.Request) -> bool:
    return request.headers.get(_RETRIES, "0") != "0"


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise _RefusedError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _RefusedError(f"the body must be an object, got {type(body).__name__}")
    return body


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise _RefusedError("`messages` must be a list of at least one message", param="messages")
    try:
        _MESSAGES.validate_python(given)
    except ValidationError as error:
        raise _RefusedError(f"`messages` cannot be read: {_first(error)}", param="messages") from error
    return given


def _tools(body: Mapping[str, Any]) -> list[Tool]:
    if body.get("tool_choice") == "none":
        return []
    try:
        return _TOOLS.validate_python(body.get("tools") or [])
    except ValidationError as error:
        told = f"`tools` must be functions: {_first(error)}"
        raise _RefusedError(told, param="tools") from error


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"

"""Asynchronous client for sessions: one deadline a call, request ids, retries by class of failure.

Needs the extra `client` (aiohttp).
"""

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import aiohttp
from pydantic import TypeAdapter, ValidationError

from agentrl_core.errors import ConfigError, ErrorCode, SessionError
from agentrl_core.messages import Message
from agentrl_core.sessions import (
    CUSTOM_INDEX,
    DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    Reply,
    SampleIndex,
    StartRequest,
    TaskInfo,
)

_T = TypeVar("_T")

_CODE_OF_HTTP_STATUS = {
    400: ErrorCode.BAD_REQUEST,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.UNAUTHORIZED,
    404: ErrorCode.UNKNOWN_SESSION,
    409: ErrorCode.SESSION_BUSY,
    422: ErrorCode.BAD_REQUEST,
    503: ErrorCode.NO_CAPACITY,
    504: ErrorCode.DEADLINE_EXCEEDED,
}
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_INDICES = TypeAdapter(list[SampleIndex])
_TASKS = TypeAdapter(dict[str, TaskInfo])
_REPLY = TypeAdapter(Reply)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# A connection that drops sooner says nothing for the server: proxies accept on behalf of dead ones.
_CONTACT_S = 1.0


class SessionClient:
    """Opens sessions on a controller, or on a task worker that runs without one.

    Args:
        url: the API's address with its prefix, such as `http://127.0.0.1:5020/api`.
        token: sent as a bearer token where given.
        start_timeout_s: default deadline of a start, waiting for capacity included.
        interact_timeout_s: default deadline of an exchange.
        connect_timeout_s: how long an unreachable server is tried again, within the deadline; a full one
            is waited for until the deadline itself.

    Raises:
        ConfigError: the address is none that HTTP can reach, or the limit of connecting is not positive.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        start_timeout_s: float = 600.0,
        interact_timeout_s: float = 240.0,
        connect_timeout_s: float = 30.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"`url` must start with http:// or https://, got {url!r}; "
                "a controller on this machine is http://127.0.0.1:5020/api"
            )
        if not connect_timeout_s > 0:
            raise ConfigError(
                f"`connect_timeout_s` must be > 0, got {connect_timeout_s}; use 0.1 to give up almost at once"
            )
        self.url = url.rstrip("/")
        self.start_timeout_s = start_timeout_s
        self.interact_timeout_s = interact_timeout_s
        self.connect_timeout_s = connect_timeout_s
        self._token = token
        self._http: aiohttp.ClientSession | None = None
        self._server_replays = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; sessions on the server live on until they expire."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def start(
        self,
        task: str,
        index: SampleIndex = CUSTOM_INDEX,
        *,
        custom_task: Any = None,
        seed: int | None = None,
        group_id: str | None = None,
        deadline_s: float | None = None,
    ) -> "Session":
        """Open a session, waiting for a free slot until the deadline.

        Raises:
            SessionError: refused, unreachable, or no slot came free in time.
        """
        request = StartRequest(name=task, index=index, custom_task=custom_task, seed=seed, group_id=group_id)
        body, headers = await self.request(
            "POST",
            "start_sample",
            body=request.model_dump(exclude_none=True),
            deadline_s=self.start_timeout_s if deadline_s is None else deadline_s,
        )
        session_id = headers.get(SESSION_HEADER)
        if session_id is None:
            raise SessionError(
                f"{self.url} answered start_sample without a `{SESSION_HEADER}` header; "
                "a proxy may drop headers with an underscore (nginx: `underscores_in_headers on`)",
                code=ErrorCode.WORKER_FAILED,
            )
        return Session(self, session_id, task=task, index=index, opening=_parse(_REPLY, body))

    async def indices(self, task: str, *, split: str | None = None) -> list[SampleIndex]:
        """Sample indices of a task, or of one of its splits.

        Raises:
            SessionError: the task or the split is unknown, or the server is unreachable.
        """
        params = {"name": task} | ({"split": split} if split is not None else {})
        body, _ = await self.request("GET", "get_indices", params=params, deadline_s=self.interact_timeout_s)
        return _parse(_INDICES, body)

    async def tasks(self) -> dict[str, TaskInfo]:
        """Tasks with their workers, by name."""
        body, _ = await self.request("GET", "list_workers", deadline_s=self.interact_timeout_s)
        return _parse(_TASKS, body)

    async def request(
        self,
        method: str,
        route: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        deadline_s: float,
    ) -> tuple[Any, Mapping[str, str]]:
        """Call a route until it answers, is refused for good, stays unreachable, or the deadline passes.

        A request that may have reached the server is sent again only to one that replays answers
        by request id, so no action happens twice.

        Returns:
            The parsed JSON body and the response headers.

        Raises:
            SessionError: with the class of the last failure.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        away_since: float | None = None
        request_id = uuid.uuid4().hex
        pause_s = _FIRST_PAUSE_S
        while True:
            began = loop.time()
            left_s = end - began
            away_since = began if away_since is None else away_since
            connect_s = max(_FIRST_PAUSE_S, away_since + self.connect_timeout_s - began)
            sent = {
                **(headers or {}),
                REQUEST_ID_HEADER: request_id,
                DEADLINE_HEADER: str(max(1, int(left_s * 1000))),
            }
            try:
                return await self._attempt(
                    method,
                    route,
                    body=body,
                    params=params,
                    headers=sent,
                    timeout=aiohttp.ClientTimeout(total=left_s, connect=connect_s),
                )
            except SessionError as error:
                now = loop.time()
                last_try = min(end, away_since + self.connect_timeout_s)
                if _made_contact(error, lasted_s=now - began):
                    away_since, last_try = None, end
                wait_s = max(error.retry_after_s or 0.0, pause_s * random.uniform(0.5, 1.0))
                if not self._may_retry(error) or now + wait_s >= last_try:
                    raise
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _may_retry(self, error: SessionError) -> bool:
        if error.code is ErrorCode.NO_CAPACITY:
            return True
        if error.code is not ErrorCode.UNREACHABLE:
            return False
        cause = error.__cause__
        if isinstance(cause, aiohttp.ClientSSLError):
            return False
        return self._server_replays or isinstance(cause, _NOT_CONNECTED)

    async def _attempt(
        self,
        method: str,
        route: str,
        *,
        body: Any,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> tuple[Any, Mapping[str, str]]:
        http = self._connect()
        timeout_s = timeout.total or 0.0
        try:
            if timeout_s <= 0:  # which aiohttp would take for "no limit"
                raise TimeoutError
            async with http.request(
                method,
                f"{self.url}/{route}",
                json=body,
                params=params,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,  # a redirected POST would turn into a GET
            ) as response:
                self._server_replays = self._server_replays or REQUEST_ID_HEADER in response.headers
                if response.status >= 300:
                    raise await _error_of(response, route)
                return await response.json(content_type=None), response.headers
        except aiohttp.ConnectionTimeoutError as error:
            message = f"{route}: {self.url} is unreachable: no connection within {timeout.connect:.1f} s"
            raise SessionError(message, code=ErrorCode.UNREACHABLE) from error
        except TimeoutError as error:
            message = f"{route}: no answer from {self.url} within {timeout_s:.1f} s"
            raise SessionError(message, code=ErrorCode.DEADLINE_EXCEEDED) from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise SessionError(
                f"{route}: {self.url} is unreachable: {error}", code=ErrorCode.UNREACHABLE
            ) from error
        except (aiohttp.ClientResponseError, ValueError) as error:
            message = f"{route}: {self.url} answered what is no HTTP or no JSON: {error}"
            raise SessionError(message, code=ErrorCode.WORKER_FAILED) from error

    def _connect(self) -> aiohttp.ClientSession:
        if self._http is None:
            # Each session waits on a connection of its own; the default limit of 100 would queue the rest.
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            )
        return self._http


class Session:
    """One live episode.

    Attributes:
        id: the session's identity on the server.
        task: task name.
        index: sample of the task.
        opening: the reply that opened it: first messages, tools, and status.
        finished: whether a reply has ended it or it was cancelled.
    """

    def __init__(
        self, client: SessionClient, session_id: str, *, task: str, index: SampleIndex, opening: Reply
    ) -> None:
        self.id = session_id
        self.task = task
        self.index = index
        self.opening = opening
        self.finished = opening.finish
        self._client = client

    async def interact(self, messages: Sequence[Message], *, deadline_s: float | None = None) -> Reply:
        """Send the agent's messages and return what the environment answers.

        Raises:
            SessionError: the session is lost, busy or finished, or the deadline passed.
        """
        body, _ = await self._client.request(
            "POST",
            "interact",
            body={"messages": [message.to_wire() for message in messages]},
            headers={SESSION_HEADER: self.id},
            deadline_s=self._client.interact_timeout_s if deadline_s is None else deadline_s,
        )
        reply = _parse(_REPLY, body)
        self.finished = reply.finish
        return reply

    async def cancel(self, *, deadline_s: float = 10.0) -> None:
        """End the session early; does nothing for one that has ended.

        Raises:
            SessionError: the server is unreachable; it ends the session itself once it is idle.
        """
        if self.finished:
            return
        try:
            await self._client.request(
                "POST", "cancel", headers={SESSION_HEADER: self.id}, deadline_s=deadline_s
            )
        except SessionError as error:
            if error.code not in (
                ErrorCode.UNKNOWN_SESSION,
                ErrorCode.SESSION_FINISHED,
                ErrorCode.BAD_REQUEST,
            ):
                raise
        self.finished = True


def _made_contact(error: SessionError, *, lasted_s: float) -> bool:
    """Whether a failed attempt shows that the server is there."""
    if error.code is not ErrorCode.UNREACHABLE:
        return True
    return lasted_s >= _CONTACT_S and not isinstance(error.__cause__, _NOT_CONNECTED)


def _parse(shape: TypeAdapter[_T], body: Any) -> _T:
    try:
        return shape.validate_python(body)
    except ValidationError as error:
        raise SessionError(
            f"the server's reply is malformed: {error}", code=ErrorCode.WORKER_FAILED
        ) from error


async def _error_of(response: aiohttp.ClientResponse, route: str) -> SessionError:
    try:
        body = await response.json(content_type=None)
    except ValueError:
        body = None
    fields = body if isinstance(body, dict) else {}
    message = fields.get("message") or fields.get("detail") or response.reason or "no reason given"
    default = _CODE_OF_HTTP_STATUS.get(response.status, ErrorCode.WORKER_FAILED)
    code = fields.get("code")
    retry_after = response.headers.get("Retry-After", "")
    return SessionError(
        f"{route}: {message} (HTTP {response.status})",
        # A list of strings, since a foreign code may be unhashable.
        code=ErrorCode(code) if code in list(ErrorCode) else default,
        retry_after_s=float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else None,
    )

"""The routes that agents call all the time: start, interact, cancel."""

import asyncio
from typing import NamedTuple

from agentrl_controller.admission import RETRY_AFTER_S
from agentrl_controller.api.errors import Answer
from agentrl_controller.api.requests import (
    Headers,
    cancels,
    deadline_s_of,
    parsed,
    request_id_of,
    session_id_of,
    trace_of,
)
from agentrl_controller.config import Scope
from agentrl_controller.controller import Controller
from agentrl_controller.guard import Guard, client_of
from agentrl_controller.transports import WorkerReply
from agentrl_core import SESSION_HEADER, SESSION_HEADER_ALIAS, ErrorCode, SessionError, StartRequest


class Exchange(NamedTuple):
    """An exchange under way, as its caller waits for it."""

    answer: "asyncio.Future[bytes]"
    """The body of the answer; not the caller's to cancel."""
    session_id: int
    """Its session."""
    limit_s: float
    """How long the caller waits."""
    cancels: bool
    """Whether the session ends after that."""


class SessionRoutes:
    """Handlers of the session routes, by a request's headers and body."""

    def __init__(self, controller: Controller, guard: Guard) -> None:
        self._controller = controller
        self._guard = guard

    async def start_sample(self, headers: Headers, body: bytes, peer: str) -> Answer:
        """Open a session, waiting for a slot; the answer's header `session_id` names it."""
        owner = self._guard.check(headers, Scope.CLIENT)
        request = StartRequest.model_validate(parsed(body))
        deadline_s = deadline_s_of(headers)
        peers = self._controller.peers
        if peers is not None:
            limit_s = self._controller.config.start_timeout_s if deadline_s is None else deadline_s
            reply = await peers.start(request.name, body, headers, limit_s=limit_s)
            if reply is not None:
                return _handed_back(reply)
        session_id, opening = await self._controller.start(
            request,
            client=client_of(headers, owner=owner, peer=peer),
            request_id=request_id_of(headers),
            deadline_s=deadline_s,
            trace=trace_of(headers),
        )
        return Answer(opening, headers=_named(session_id))

    def begin_interact(self, headers: Headers, body: bytes) -> Exchange:
        """Send messages to a session; a repeated `X-Request-Id` acts once.

        Raises:
            SessionError: the session cannot take them.
        """
        self._guard.check(headers, Scope.CLIENT)
        deadline_s = deadline_s_of(headers)
        ends = cancels(headers)
        session_id = session_id_of(headers)
        answer, limit_s = self._controller.begin_interact(
            session_id,
            body,
            request_id=request_id_of(headers),
            deadline_s=deadline_s,
            trace=trace_of(headers),
        )
        return Exchange(answer, session_id, limit_s, ends)

    async def interact(self, headers: Headers, body: bytes, peer: str) -> Answer:
        """Send messages to a session and wait for the answer."""
        del peer
        try:
            exchange = self.begin_interact(headers, body)
        except SessionError as error:
            elsewhere = await self.elsewhere("interact", headers, body, error)
            if elsewhere is not None:
                return elsewhere
            exchange = self.begin_interact(headers, body)
        try:
            async with asyncio.timeout(exchange.limit_s):
                return Answer(await asyncio.shield(exchange.answer))
        except TimeoutError:
            raise self._controller.expire(
                exchange.session_id, exchange.limit_s, cancels=exchange.cancels
            ) from None

    async def cancel(self, headers: Headers, body: bytes, peer: str) -> Answer:
        """End the session that the header `session_id` names; nothing happens to one that has ended."""
        del peer
        self._guard.check(headers, Scope.CLIENT)
        session_id = session_id_of(headers)
        try:
            await self._controller.cancel(session_id)
        except SessionError as error:
            elsewhere = await self.elsewhere("cancel", headers, body, error)
            if elsewhere is not None:
                return elsewhere
            await self._controller.cancel(session_id)
        return Answer(b"null")

    def may_be_elsewhere(self, error: SessionError) -> bool:
        """Whether another replica may have the session that a request was refused for."""
        return self._controller.peers is not None and error.code is ErrorCode.UNKNOWN_SESSION

    async def elsewhere(
        self, route: str, headers: Headers, body: bytes, error: SessionError
    ) -> Answer | None:
        """The answer of the replica that has a session; None where that is this one by now.

        Raises:
            SessionError: no replica has it.
        """
        peers = self._controller.peers
        if peers is None or not self.may_be_elsewhere(error):
            raise error
        limit_s = deadline_s_of(headers) or self._controller.config.interact_timeout_s
        reply = await peers.forward(route, session_id_of(headers), body, headers, limit_s=limit_s)
        return None if reply is None else _handed_back(reply)


def _named(session_id: int) -> dict[str, str]:
    return {SESSION_HEADER: str(session_id), SESSION_HEADER_ALIAS: str(session_id)}


def _handed_back(reply: WorkerReply) -> Answer:
    headers = {} if reply.session_id is None else _named(reply.session_id)
    if reply.http_status == 503:
        headers["Retry-After"] = f"{RETRY_AFTER_S:g}"
    return Answer(reply.body, reply.http_status, headers)

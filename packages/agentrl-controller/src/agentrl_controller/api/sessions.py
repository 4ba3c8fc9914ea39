"""The routes that agents call all the time: start, interact, cancel."""

import asyncio
from typing import NamedTuple

from agentrl_controller.api.errors import Answer
from agentrl_controller.api.requests import (
    Headers,
    cancels,
    deadline_s_of,
    parsed,
    request_id_of,
    session_id_of,
)
from agentrl_controller.config import Scope
from agentrl_controller.controller import Controller
from agentrl_controller.guard import Guard, client_of
from agentrl_core import SESSION_HEADER, SESSION_HEADER_ALIAS, StartRequest


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
        session_id, opening = await self._controller.start(
            StartRequest.model_validate(parsed(body)),
            client=client_of(headers, owner=owner, peer=peer),
            request_id=request_id_of(headers),
            deadline_s=deadline_s_of(headers),
        )
        return Answer(
            opening, headers={SESSION_HEADER: str(session_id), SESSION_HEADER_ALIAS: str(session_id)}
        )

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
            session_id, body, request_id=request_id_of(headers), deadline_s=deadline_s
        )
        return Exchange(answer, session_id, limit_s, ends)

    async def interact(self, headers: Headers, body: bytes, peer: str) -> Answer:
        """Send messages to a session and wait for the answer."""
        del peer
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
        del body, peer
        self._guard.check(headers, Scope.CLIENT)
        await self._controller.cancel(session_id_of(headers))
        return Answer(b"null")

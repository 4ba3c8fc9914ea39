"""The routes that agents call all the time: start, interact, cancel."""

from fastapi import Request, Response

from agentrl_controller.api.errors import answer
from agentrl_controller.api.requests import deadline_s_of, json_of, session_id_of, while_connected
from agentrl_controller.controller import Controller
from agentrl_core import (
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    ErrorCode,
    SessionError,
    StartRequest,
)


class SessionRoutes:
    """Handlers of the session routes."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._max_bytes = controller.config.max_body_bytes

    async def start_sample(self, request: Request) -> Response:
        """Open a session, waiting for a slot; the answer's header `session_id` names it."""
        body = StartRequest.model_validate(await json_of(request, max_bytes=self._max_bytes))
        work = self._controller.start(
            body, request_id=request.headers.get(REQUEST_ID_HEADER), deadline_s=deadline_s_of(request)
        )
        session_id, opening = await while_connected(request, work)
        headers = {SESSION_HEADER: str(session_id), SESSION_HEADER_ALIAS: str(session_id)}
        return answer(request, opening, headers=headers)

    async def interact(self, request: Request) -> Response:
        """Send messages to a session; a repeated `X-Request-Id` acts once."""
        body = await json_of(request, max_bytes=self._max_bytes)
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise SessionError("`messages` must be a list of messages", code=ErrorCode.BAD_REQUEST)
        reply = await self._controller.interact(
            session_id_of(request),
            body,
            request_id=request.headers.get(REQUEST_ID_HEADER),
            deadline_s=deadline_s_of(request),
        )
        return answer(request, reply)

    async def cancel(self, request: Request) -> Response:
        """End the session that the header `session_id` names; nothing happens to one that has ended."""
        await self._controller.cancel(session_id_of(request))
        return answer(request, b"null")

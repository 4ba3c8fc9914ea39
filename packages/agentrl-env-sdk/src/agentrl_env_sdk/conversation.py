"""An episode as a conversation of tool calls: what is usable runs, what is not is explained to the model."""

from agentrl_core import Message, SampleStatus, ToolCall
from agentrl_env_sdk.content import content_of
from agentrl_env_sdk.session import AgentReply, Session
from agentrl_env_sdk.tools import BadCallError, known_tools, resolve_call


async def converse(session: Session, opening: list[Message], *, max_invalid: int) -> None:
    """Answer the agent's tool calls until the episode is over.

    A reply without a usable call gets a message that says what was wrong; the task never sees it.
    """
    messages = opening
    while True:
        reply = await session.action(messages)
        messages, fault = await _answer(session, reply)
        session.invalid_actions += fault
        if session.invalid_actions > max_invalid:
            session.finish(status=SampleStatus.AGENT_INVALID_ACTION)


async def _answer(session: Session, reply: AgentReply) -> tuple[list[Message], int]:
    """The messages that answer a reply, and whether the reply was at fault (1) or not (0)."""
    calls = [call for message in reply.messages for call in message.tool_calls or []]
    if not calls:
        return [Message(role="user", content=f"call a tool; {known_tools(session.tools)}")], 1
    messages: list[Message] = []
    fault = 0
    for tool_call in calls:
        if session.finished:
            messages.append(_tool_message(tool_call, "the episode has ended"))
            continue
        try:
            found, arguments = resolve_call(tool_call, session.tools)
        except BadCallError as error:
            messages.append(_tool_message(tool_call, f"error: {error}"))
            fault = 1
            continue
        result = await found.call(session, arguments)
        if result is None and not session.finished:
            raise TypeError(f"tool `{found.name}` returned nothing; return what the agent should read")
        messages.append(_tool_message(tool_call, "" if result is None else result))
    return messages, fault


def _tool_message(tool_call: ToolCall, result: object) -> Message:
    return Message(role="tool", content=content_of(result), tool_call_id=tool_call.id)

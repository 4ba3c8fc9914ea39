"""OpenAI's function calling, both ways: a model behind an OpenAI-compatible endpoint plays our sessions, and
an agent that is written against the `openai` client is a task.

    Session or Episode -- OpenAIAgent -- openai client --> any endpoint
    our agent -- session -- OpenAIAgentTask -- Endpoint <-- openai client -- your agent, its tools, its loop
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core import Message, Reply, RewardItem, Tool
from agentrl_env_sdk.adapters.chat_turns import message_of, new_messages
from agentrl_env_sdk.adapters.openai_endpoint import Asked, Endpoint, refused
from agentrl_env_sdk.extras import extra
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import call

if TYPE_CHECKING:
    from agentrl_core.client import Session as RemoteSession
    from agentrl_env_sdk.oracle import Observation
    from agentrl_env_sdk.testing import Episode

__all__ = ["OpenAIAgent", "OpenAIAgentTask"]

Client = Any
"""An `openai.AsyncOpenAI` or `openai.OpenAI`."""
AgentLoop = Callable[[Client, Any], Any]
"""Takes a client and a sample, and returns the reward; sync or async."""

_GRACE_S = 3.0


class OpenAIAgent:
    """A model behind an OpenAI-compatible endpoint as an agent of sessions, over chat completions.

    Args:
        client: an `openai.AsyncOpenAI`, or an `openai.OpenAI`, which is called on threads.
        model: its name at the endpoint.
        sampling: further arguments of each request, such as `temperature` and `max_tokens`.
    """

    def __init__(self, client: Client, model: str, **sampling: Any) -> None:
        create = client.chat.completions.create
        self._create = create
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(create))
        self._model = model
        self._sampling = sampling

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """The model's reply to a conversation.

        A refusal is its text; a reply that was cut short stays as it is, and is for the environment to judge.

        Raises:
            openai.OpenAIError: the endpoint fails.
            RuntimeError: it answers without a choice.
        """
        request: dict[str, Any] = {
            "model": self._model,
            "messages": wire_messages(messages),
            **self._sampling,
        }
        if tools:
            request["tools"] = [tool.model_dump(mode="json") for tool in tools]
        answer = await (self._create(**request) if self._is_async else call(self._create, **request))
        if not answer.choices:
            raise RuntimeError(f"model `{self._model}` answered without a choice: {answer}")
        return _reply_of(answer.choices[0].message)

    async def __call__(self, episode: "Episode", seen: "Observation") -> Message:  # noqa: ARG002
        """What to do in an episode in memory: `await episode.play(agent)`."""
        return await self.reply(episode.transcript, episode.tools)

    async def play(self, session: "RemoteSession") -> list[Reply]:
        """Play a session of a controller or a worker to its end; it is cancelled where that is not reached.

        Returns:
            All replies of the environment, the opening first; the last one has the status.

        Raises:
            SessionError: the session is lost.
            openai.OpenAIError: the endpoint fails.
        """
        replies = [session.opening]
        messages = list(session.opening.messages)
        tools: Sequence[Tool] = session.opening.tools or ()
        try:
            while not session.finished:
                said = await self.reply(messages, tools)
                replies.append(await session.interact([said]))
                messages += [said, *replies[-1].messages]
                tools = tools if replies[-1].tools is None else replies[-1].tools
        finally:
            if not session.finished:
                await session.cancel()
        return replies


class OpenAIAgentTask(Task):
    """An agent that is written against the `openai` client as a task: its tools, loop and prompts stay.

    Each completion that it asks for is a turn of the session, answered by whoever plays that. It gets a
    client whose `base_url` and `api_key` lead to the session, and returns the reward: a number, or a
    `RewardItem`.
    An async function gets an `openai.AsyncOpenAI`, any other an `openai.OpenAI`, on the session's thread.

    A conversation must only go on: an agent that rewrites what was said, or has several conversations, fails
    as `task error`, and so does one that raises. How to sample is the trainer's to say: temperatures and the
    like are ignored.

    Args:
        agent: called with the client and the sample.
        name: the task's name.
        splits: samples.
        max_turns: completions that it may ask for.
        turn_timeout_s: seconds that it may take from a completion to the next.
        ignored: parameters that are let through without effect rather than refused, such as
            `response_format`; see `openai_endpoint.REFUSED`.

    Raises:
        ConfigError: a parameter that is to be ignored is not refused.
    """

    def __init__(
        self,
        agent: AgentLoop,
        *,
        name: str = "openai-agent",
        splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]] | None = None,
        max_turns: int = 32,
        turn_timeout_s: float = 300.0,
        ignored: Sequence[str] = (),
    ) -> None:
        self._agent = agent
        self._name = name
        self._refused = refused(ignored=ignored)
        self.splits = {"train": 1} if splits is None else splits
        self.max_turns = max_turns
        self.turn_timeout_s = turn_timeout_s

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self._name

    async def run(self, session: Session) -> None:
        """Let the agent run, and hand what it asks to whoever plays."""
        async with Endpoint(self._refused) as endpoint:
            playing = asyncio.create_task(_play(self._agent, endpoint, session.sample))
            playing.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                await _answer(session, endpoint, playing)
            finally:
                playing.cancel()
                await asyncio.wait([playing], timeout=_GRACE_S)
        _finish(session, playing.result())


async def _answer(session: Session, endpoint: Endpoint, playing: "asyncio.Task[Any]") -> None:
    """Answer requests until the agent is done."""
    seen: list[dict[str, Any]] = []
    tools: list[Tool] | None = None
    while (asked := await _next(endpoint, playing)) is not None:
        added = new_messages(seen, asked.messages)
        if asked.tools != tools:
            tools = asked.tools
            session.set_tools(tools)
        message = message_of(await session.action(added))
        seen = [*asked.messages, message]
        if not asked.answer.done():
            asked.answer.set_result(message)


async def _next(endpoint: Endpoint, playing: "asyncio.Task[Any]") -> Asked | None:
    """The next request; None where the agent is done."""
    getting = asyncio.create_task(endpoint.asked.get())
    try:
        await asyncio.wait([getting, playing], return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


async def _play(agent: AgentLoop, endpoint: Endpoint, sample: Any) -> Any:
    """Run the agent with a client of its own."""
    with extra("openai"):
        import openai
    options = {"base_url": endpoint.base_url, "api_key": endpoint.token, "timeout": None, "max_retries": 0}
    # What this machine's variables say of proxies is not meant for an address on it.
    transport = {"trust_env": False, "timeout": None}
    if inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__):
        async with openai.AsyncOpenAI(
            **options, http_client=openai.DefaultAsyncHttpxClient(**transport)
        ) as client:
            return await agent(client, sample)
    with openai.OpenAI(**options, http_client=openai.DefaultHttpxClient(**transport)) as client:
        return await call(agent, client, sample)


def _finish(session: Session, result: Any) -> None:
    """Count what an agent returned."""
    if isinstance(result, RewardItem):
        session.reward(result.reward, score=result.score, **result.metrics)
    elif isinstance(result, int | float):
        session.reward(float(result))
    else:
        raise TypeError(f"the agent must return its reward, a number or a `RewardItem`, got {result!r}")
    session.finish()


def wire_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat completions take them.

    Tool messages may hold only text there, so their images follow in a message of the user.
    """
    wire: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for message in messages:
        if shown and message.role != "tool":
            wire.append({"role": "user", "content": shown})
            shown = []
        told = _wire(message)
        if message.role == "tool" and isinstance(told["content"], list):
            others = [part for part in told["content"] if part.get("type") != "text"]
            shown = [*shown, *others]
            told["content"] = message.text or "shown below"
        wire.append(told)
    return [*wire, {"role": "user", "content": shown}] if shown else wire


_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")


def _wire(message: Message) -> dict[str, Any]:
    told = {key: value for key, value in message.to_wire().items() if key in _FIELDS and value is not None}
    told.setdefault("content", None if told.get("tool_calls") else "")
    for made in told.get("tool_calls", ()):
        made["type"] = "function"
        arguments = made["function"]["arguments"]
        made["function"]["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return told


def _reply_of(said: Any) -> Message:
    """The reply of a completion."""
    calls = [
        {
            "id": made.id,
            "type": "function",
            "function": made.function.model_dump(include={"name", "arguments"}),
        }
        for made in said.tool_calls or ()
        if made.type == "function"
    ]
    content = said.content or getattr(said, "refusal", None) or ""
    return Message.model_validate(
        {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    )

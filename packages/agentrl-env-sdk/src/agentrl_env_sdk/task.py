"""What a task author writes: samples, how an episode begins, and the tools."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl_core import ConfigError, Message, SampleIndex, SampleStatus, ToolCall
from agentrl_env_sdk.session import AgentReply, Said, Session, as_messages
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.tools import BadCallError, BoundTool, content_of, known_tools, resolve_call, tools_of


class Task:
    """A task: samples in splits, played one episode at a time.

    Either write `setup` and `@tool` methods, and the episode runs as a conversation of tool calls; or
    override `run` and talk to the agent with `await session.action(...)`.
    """

    name: ClassVar[str] = ""
    """Name on the wire; the class's name in kebab-case where it is empty."""
    splits: Mapping[str, int | Sequence[Any]] = {"train": 1}
    """Samples by split: how many, or their data. Indices count over the splits in order."""
    system_prompt: str | None = None
    """A system message before the first one."""
    optimum: float | None = None
    """Best mean success that any agent can reach."""
    concurrency: int = 64
    """Episodes that a worker plays at the same time."""
    max_turns: int = 32
    """Replies of the agent before the episode ends as `task limit reached`."""
    max_invalid_actions: int = 3
    """Unusable replies that an episode survives; one more ends it as `agent invalid action`."""
    turn_timeout_s: float = 60.0
    """Seconds that the task may take for one answer."""

    def setup(self, session: Session) -> Said:
        """Prepare an episode and return its first messages; sync or async."""
        raise NotImplementedError(f"`{type(self).__name__}` needs a `setup` method or a `run` method")

    def teardown(self, session: Session) -> None:
        """Release what the episode holds; always called at its end; sync or async."""

    async def run(self, session: Session) -> None:
        """Play an episode: by default a conversation of tool calls after `setup`."""
        said = await call(self.setup, session)
        if not said and not session.finished:
            raise TypeError(f"`{type(self).__name__}.setup` returned nothing; return the first message")
        if self.system_prompt is not None:
            session.say(Message(role="system", content=self.system_prompt))
        await converse(
            session, self.bound_tools, as_messages(said or ()), max_invalid=self.max_invalid_actions
        )

    def calculate_overall(self, results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A summary of many results; for evaluations that ask the worker for one."""
        return {"total": len(results)}

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def bound_tools(self) -> dict[str, BoundTool]:
        """The tools by name."""
        if "_bound_tools" not in self.__dict__:
            self.__dict__["_bound_tools"] = tools_of(self, session_type=Session)
        return self.__dict__["_bound_tools"]


class Samples:
    """The samples of a task by index.

    Raises:
        ConfigError: a split is neither a count nor a list, or there is no sample.
    """

    def __init__(self, task: Task) -> None:
        self._starts: dict[str, int] = {}
        self._data: dict[str, range | Sequence[Any]] = {}
        total = 0
        for split, given in task.splits.items():
            if not _is_split(given):
                raise ConfigError(
                    f"split `{split}` of `{task.task_name}` must be a count or a list, got {given!r}"
                )
            data = range(given) if isinstance(given, int) else given
            self._starts[split], self._data[split] = total, data
            total += len(data)
        if total == 0:
            raise ConfigError(f"task `{task.task_name}` has no samples; set `splits`")
        self.count = total

    @property
    def splits(self) -> dict[str, list[SampleIndex]]:
        """Indices of each split."""
        return {
            split: list(range(start, start + len(self._data[split]))) for split, start in self._starts.items()
        }

    def find(self, index: SampleIndex) -> tuple[str, Any] | None:
        """Split and data of a sample; None for an unknown index."""
        if not isinstance(index, int):
            return None
        for split, start in self._starts.items():
            if start <= index < start + len(self._data[split]):
                return split, self._data[split][index - start]
        return None


def _is_split(given: Any) -> bool:
    if isinstance(given, int):
        return given >= 0 and not isinstance(given, bool)
    # Data sets of other libraries are sequences without being called so.
    return (
        hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, str | Mapping)
    )


async def converse(
    session: Session, tools: Mapping[str, BoundTool], opening: list[Message], *, max_invalid: int
) -> None:
    """Answer the agent's tool calls until the episode is over.

    A reply without a usable call gets a message that says what was wrong; the task never sees it.
    """
    messages, invalid = opening, 0
    while True:
        reply = await session.action(messages)
        messages, fault = await _answer(session, tools, reply)
        invalid += fault
        if invalid > max_invalid:
            session.finish(status=SampleStatus.AGENT_INVALID_ACTION)


async def _answer(
    session: Session, tools: Mapping[str, BoundTool], reply: AgentReply
) -> tuple[list[Message], int]:
    """The messages that answer a reply, and whether the reply was at fault (1) or not (0)."""
    calls = [call for message in reply.messages for call in message.tool_calls or []]
    if not calls:
        return [Message(role="user", content=f"call a tool; {known_tools(tools)}")], 1
    messages: list[Message] = []
    fault = 0
    for tool_call in calls:
        if session.finished:
            messages.append(_tool_message(tool_call, "the episode has ended"))
            continue
        try:
            found, arguments = resolve_call(tool_call, tools)
        except BadCallError as error:
            messages.append(_tool_message(tool_call, f"error: {error}"))
            fault = 1
            continue
        result = await found.call(session, arguments)
        if result is None and not session.finished:
            raise TypeError(f"tool `{found.name}` returned nothing; return what the agent should read")
        messages.append(_tool_message(tool_call, "" if result is None else result))
    return messages, fault


def _tool_message(tool_call: ToolCall, result: Any) -> Message:
    return Message(role="tool", content=content_of(result), tool_call_id=tool_call.id)

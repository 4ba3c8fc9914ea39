"""What a task author writes: samples, how an episode begins, and the tools."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from agentrl_core import ConfigError, Message
from agentrl_env_sdk.conversation import converse
from agentrl_env_sdk.session import Said, Session, as_messages
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.tools import BoundTool, bind, tools_of


class Task:
    """A task: samples in splits, played one episode at a time.

    Either write `setup` and `@tool` methods, and the episode runs as a conversation of tool calls; or
    override `run` and talk to the agent with `await session.action(...)`.
    """

    name: str = ""
    """Name on the wire; the class's name in kebab-case where it is empty."""
    splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]] = {"train": 1}
    """Samples by split: how many, their data, or their data by name (or by number). Indices are the names, or
    count over the splits in order."""
    tools: Sequence[Callable[..., Any] | BoundTool] = ()
    """Functions that the agent may call, beside the `@tool` methods."""
    system_prompt: str | None = None
    """A system message before the first one."""
    optimum: float | None = None
    """Best mean success that any agent can reach."""
    reward_range: tuple[float, float] = (-1.0, 1.0)
    """Least and greatest return of an episode, for `agentrl-env validate`."""
    answer_is_shown: bool = False
    """Whether the right answer stands in the prompt by design, as where a word is to be copied."""
    concurrency: int = 64
    """Episodes that a worker plays at the same time."""
    max_turns: int = 32
    """Replies of the agent before the episode ends as `task limit reached`."""
    max_invalid_actions: int = 3
    """Unusable replies that an episode survives; one more ends it as `agent invalid action`."""
    turn_timeout_s: float = 60.0
    """Seconds that the task may take for one answer."""
    episode_timeout_s: float | None = None
    """Seconds from an episode's start until it ends as `task limit reached`."""
    isolation: Literal["thread", "process"] = "thread"
    """Where sync methods run; `process` gives each episode a process that dies with its children."""

    def setup(self, session: Session) -> Said:
        """Prepare an episode and return its first messages; sync or async."""
        raise NotImplementedError(f"`{type(self).__name__}` needs a `setup` method or a `run` method")

    def teardown(self, session: Session) -> None:
        """Release what the episode holds; always called at its end; sync or async."""

    def close(self) -> Any:
        """Release what the task holds for all episodes; called once, when its worker stops; sync or async."""

    async def run(self, session: Session) -> None:
        """Play an episode: by default a conversation of tool calls after `setup`."""
        said = await call(self.setup, session)
        if not said and not session.finished:
            raise TypeError(f"`{type(self).__name__}.setup` returned nothing; return the first message")
        if self.system_prompt is not None:
            session.say(Message(role="system", content=self.system_prompt))
        await converse(session, as_messages(said or ()), max_invalid=self.max_invalid_actions)

    def snapshot(self, session: Session) -> Any:
        """What `restore` needs to go on from here in another session; sync or async.

        Overriding it makes episodes of the task forkable: in the debugger, and over the wire. What it
        returns must not change with the session later.
        """
        raise NotImplementedError(f"`{type(self).__name__}` cannot be forked; it has no `snapshot`")

    def restore(self, session: Session, snapshot: Any) -> None:
        """Take a session to where a snapshot was made; sync or async."""
        session.state = snapshot

    async def resume(self, session: Session, snapshot: Any) -> None:
        """Play on from a snapshot: by default the conversation of tool calls, the agent to speak next."""
        await call(self.restore, session, snapshot)
        await converse(session, [], max_invalid=self.max_invalid_actions)

    def calculate_overall(self, results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """A summary of many results; for evaluations that ask the worker for one."""
        return {"total": len(results)}

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def can_snapshot(self) -> bool:
        """Whether its episodes can be forked."""
        own = type(self)
        resumes = own.run is Task.run or own.resume is not Task.resume
        return own.snapshot is not Task.snapshot and resumes

    @cached_property
    def bound_tools(self) -> dict[str, BoundTool]:
        """The tools by name.

        Raises:
            ConfigError: a function cannot be described to a model, two have the same name, or one hides
                what every task has.
        """
        found = tools_of(self, session_type=Session)
        for name in found:
            if hasattr(Task, name):
                raise ConfigError(
                    f"the tool `{name}` of `{type(self).__name__}` hides `Task.{name}`; "
                    "write it as a function and name that in `tools`"
                )
        for given in self.tools:
            bound = given if isinstance(given, BoundTool) else bind(given, session_type=Session)
            if bound.name in found:
                raise ConfigError(f"`{type(self).__name__}` has two tools called `{bound.name}`; rename one")
            found[bound.name] = bound
        return found

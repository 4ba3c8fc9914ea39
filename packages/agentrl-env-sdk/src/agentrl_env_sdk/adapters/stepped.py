"""Environments that are stepped, as tasks: one for each session, an action a turn, checked before it arrives.

agent -- call or text --> Action.read --action--> Play.step --> the environment
                              |                       |
                "error: ..." (an invalid action)    observation, reward, end
"""

import copy
import functools
import json
import random
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from agentrl_core import ConfigError, Message, SampleStatus, Tool, ToolFunction
from agentrl_env_sdk.content import Part, text_part
from agentrl_env_sdk.schemas import ArgumentsSchema
from agentrl_env_sdk.session import EpisodeOver, Session, TaskFailedError, as_messages
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.threads import call
from agentrl_env_sdk.tools import BoundTool

if TYPE_CHECKING:
    from agentrl_env_sdk.adapters.spaces import Action, Names

Content = str | list[Part]
"""What an agent sees: text, or text and pictures."""

_HELD = "environment"
_SETTINGS = (
    "concurrency",
    "isolation",
    "max_turns",
    "max_invalid_actions",
    "turn_timeout_s",
    "episode_timeout_s",
    "optimum",
    "reward_range",
    "system_prompt",
)


@dataclass(frozen=True, slots=True)
class View:
    """What there is to be shown to an agent at its turn."""

    observation: Any
    """The environment's observation, without its action mask."""
    info: Mapping[str, Any]
    """What the environment tells beside it."""
    environment: Any
    """The environment."""
    agent: Any = None
    """Whose turn it is, where several play."""


class Settings(TypedDict, total=False):
    """How an environment becomes a task; see `SteppedTask`."""

    name: str
    splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]]
    instructions: "str | Callable[[Session], str]"
    mode: Literal["tools", "text"]
    parse: Callable[[str], Any]
    names: "Names"
    observe: Callable[[View], Content]
    show: Literal["observation", "render", "both"]
    digits: int
    tool: str
    tool_description: str
    metrics: Sequence[str]
    score_range: tuple[float, float]
    masks: bool
    can_fork: bool
    concurrency: int
    isolation: Literal["thread", "process"]
    max_turns: int
    max_invalid_actions: int
    turn_timeout_s: float
    episode_timeout_s: float
    optimum: float
    reward_range: tuple[float, float]
    system_prompt: str


@dataclass
class Manner:
    """How observations and actions are written; the same for all episodes of a task."""

    parse: Callable[[str], Any] | None
    names: Any
    observe: Callable[[View], Content] | None
    show: str | None
    digits: int
    metrics: Sequence[str] | None
    masks: bool

    def seen(self, view: View) -> Content:
        """What an agent gets to see."""
        from agentrl_env_sdk.adapters import observations

        if self.observe is not None:
            return self.observe(view)
        show = self.show or self._usual(view.environment)
        observed = "" if show == "render" else observations.shown(view.observation, digits=self.digits)
        return joined(observed, "" if show == "observation" else _rendered(view.environment))

    def metrics_of(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers of an `info` that are reported, as `info/<name>`."""
        wanted = info if self.metrics is None else {name: info.get(name) for name in self.metrics}
        numbers = {f"info/{name}": _number_of(value) for name, value in wanted.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def _usual(self, environment: Any) -> str:
        mode = getattr(environment, "render_mode", None)
        return "render" if mode in ("ansi", "rgb_array") else "observation"


class Play(ABC):
    """One episode of an environment; belongs to the session's thread.

    Attributes:
        environment: the environment, which the episode closes.
        actions: what may be sent, by the name of the tool that sends it.
    """

    environment: Any
    actions: "dict[str, Action]"

    @abstractmethod
    def begin(self, session: Session) -> Content:
        """Reset the environment and return what the agent sees first."""

    @abstractmethod
    def refusal(self, tool: str, action: Any) -> str | None:
        """Why an action of the space may not be taken now; None where it may."""

    @abstractmethod
    def step(self, session: Session, action: Any) -> Content:
        """Take an action, count what it earned, and return what the agent sees next."""

    @property
    def tool(self) -> str:
        """The tool that acts next."""
        return next(iter(self.actions))


class SteppedTask(Task):
    """An environment as a task.

    Args:
        name: the task's name.
        splits: samples. A count gives each sample a seed of its own; an integer in a list is the
            environment's seed, and a mapping may have a `seed`, `options` for `reset`, and `make` options.
        instructions: said before the first observation, or a function of the session that says it.
        mode: whether the agent acts with a tool, or by what it says.
        parse: the action's JSON in what the agent said, `mode="text"`; raises `ValueError` where there is
            none. By default the text is JSON, or ends with an action's name or number.
        names: what to call the actions of a `Discrete` space.
        observe: what the agent sees of a `View`, instead of `show`.
        show: the observation, what `render` returns, or both; what it renders where the environment was
            made with `render_mode` `ansi` or `rgb_array`.
        digits: significant digits of floats in observations.
        tool: name of the tool that acts.
        tool_description: what the model reads of it.
        metrics: names in `info` that become metrics `info/<name>`; all its numbers where it is absent.
        score_range: the return scaled from here to [0, 1] is the score; the return, clipped, otherwise.
        masks: whether actions that an action mask excludes are refused.
        can_fork: whether the environment can be copied with `copy.deepcopy`, and so its episodes forked.
        settings: `concurrency`, `isolation`, limits and other attributes of `Task`.

    Raises:
        ConfigError: an argument is wrong, or the package of the environment is not installed.
    """

    splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]] = {"train": 100}

    def __init__(
        self,
        *,
        name: str | None = None,
        splits: Mapping[str, int | Sequence[Any] | Mapping[Any, Any]] | None = None,
        instructions: str | Callable[[Session], str] | None = None,
        mode: Literal["tools", "text"] = "tools",
        parse: Callable[[str], Any] | None = None,
        names: "Names | None" = None,
        observe: Callable[[View], Content] | None = None,
        show: Literal["observation", "render", "both"] | None = None,
        digits: int = 4,
        tool: str = "step",
        tool_description: str = "Take an action in the environment.",
        metrics: Sequence[str] | None = None,
        score_range: tuple[float, float] | None = None,
        masks: bool = True,
        can_fork: bool = False,
        **settings: Any,
    ) -> None:
        from agentrl_env_sdk.adapters import spaces  # noqa: F401 - says which extra is missing

        _one_of("mode", mode, ("tools", "text"))
        _one_of("show", show, ("observation", "render", "both", None))
        if parse is not None and mode == "tools":
            raise ConfigError('`parse` reads what the agent says; it needs `mode="text"`')
        if score_range is not None and not score_range[0] < score_range[1]:
            raise ConfigError(f"`score_range` must be (low, high) with low < high, got {score_range}")
        unknown = sorted(set(settings) - set(_SETTINGS))
        if unknown:
            raise ConfigError(f"`{unknown[0]}` is no setting; environments are made with `make={{...}}`")
        for setting, value in settings.items():
            setattr(self, setting, value)
        if name is not None:
            self.name = name
        if splits is not None:
            self.splits = splits
        self.manner = Manner(parse, names, observe, show, digits, metrics, masks)
        self.tool_name = tool
        self._instructions = instructions
        self._mode = mode
        self._tool_description = tool_description
        self._score_range = score_range
        self._can_fork = can_fork

    def open(self, session: Session) -> Play:
        """Make a session's environment; sync, on the session's thread."""
        raise NotImplementedError

    def environment(self, session: Session) -> Any:
        """The environment of a session, for oracles, rewards and metrics."""
        return self._play(session).environment

    def seed_of(self, session: Session) -> int:
        """The seed that a session's environment is reset with.

        It is the sample's own where the sample is an integer of a list or has a `seed`; otherwise it
        depends on the task, the sample and the session's seed.
        """
        sample = session.sample
        if isinstance(sample, Mapping) and sample.get("seed") is not None:
            return int(sample["seed"])
        is_counted = session.split is not None and isinstance(self.splits.get(session.split), int)
        if isinstance(sample, int) and not isinstance(sample, bool) and not is_counted:
            return sample
        chance = random.Random(f"{session.task}/{session.index}/{session.seed}/environment")
        return chance.getrandbits(31)

    def setup(self, session: Session) -> list[Message]:
        """Make the environment, reset it, and show the first observation."""
        held = session.state[_HELD] = _Held()
        with held.used():
            play = held.play = self.open(session)
            self._count(session)
            seen = play.begin(session)
            self._equip(session, play)
            text = self._opening(session, play)
            return _said(joined(text, seen))

    def teardown(self, session: Session) -> None:
        """Close the environment."""
        held: _Held | None = session.state.get(_HELD)
        if held is not None:
            held.end()

    async def run(self, session: Session) -> None:
        """Play an episode: by tool calls, or by what the agent says."""
        if self._mode == "tools":
            await super().run(session)
            return
        said = await call(self.setup, session)
        if self.system_prompt is not None:
            session.say(Message(role="system", content=self.system_prompt))
        await self._talk(session, said)

    def snapshot(self, session: Session) -> Play:
        """A copy of the environment and all that belongs to the episode.

        Raises:
            TaskFailedError: the environment cannot be copied.
        """
        with session.state[_HELD].used():
            try:
                shared = {id(self): self, id(self.manner): self.manner}
                return copy.deepcopy(self._play(session), shared)
            except Exception as error:  # whatever the environment's own code raises
                raise TaskFailedError(
                    f"the environment cannot be copied: {error}; unset `can_fork`"
                ) from error

    def restore(self, session: Session, snapshot: Play) -> None:
        """Go on in the copy."""
        held = session.state[_HELD] = _Held()
        held.play = snapshot
        self._equip(session, snapshot)

    async def resume(self, session: Session, snapshot: Play) -> None:
        """Play on from a copy, the agent to speak next."""
        if self._mode == "tools":
            await super().resume(session, snapshot)
            return
        await call(self.restore, session, snapshot)
        await self._talk(session, [])

    @property
    def can_snapshot(self) -> bool:
        """Whether its episodes can be forked."""
        return self._can_fork

    def act(self, session: Session, action: Any) -> Content:
        """Take a checked action in a session's environment."""
        with session.state[_HELD].used():
            play = self._play(session)
            known = set(play.actions)
            seen = play.step(session, action)
            self._count(session)
            if set(play.actions) != known and not session.finished:
                self._equip(session, play)
            return seen

    def _play(self, session: Session) -> Play:
        held: _Held = session.state[_HELD]
        if held.play is None:
            raise TaskFailedError("the session has no environment any more; it has ended")
        return held.play

    def _count(self, session: Session) -> None:
        """Report the score that the return stands for."""
        if self._score_range is not None:
            low, high = self._score_range
            session.reward(0.0, score=min(1.0, max(0.0, (session.earned - low) / (high - low))))

    def _opening(self, session: Session, play: Play) -> str:
        if callable(self._instructions):
            return self._instructions(session)
        if self._instructions is not None:
            return self._instructions
        if self._mode == "tools":
            return f"You act in {self.task_name}. Call `{self.tool_name}` once for each action."
        form = play.actions[play.tool].form
        return (
            f"You act in {self.task_name}. Reply with your next action and nothing else: {form.description}."
        )

    def _equip(self, session: Session, play: Play) -> None:
        """Give the session the tools of its environment."""
        if self._mode == "text":
            return
        acting = [self._tool(play, name, action) for name, action in play.actions.items()]
        session.set_tools([*self.bound_tools.values(), *acting])

    def _tool(self, play: Play, name: str, action: "Action") -> BoundTool:
        spec = ToolFunction(name=name, description=self._tool_description, parameters=action.schema)
        arguments = _Arguments(action.schema, functools.partial(_read, play, name))
        return BoundTool(Tool(function=spec), self.act, arguments, "session")

    async def _talk(self, session: Session, messages: list[Message]) -> None:
        """Answer what the agent says until the episode is over."""
        while True:
            reply = await session.action(messages)
            messages = await call(self._answer, session, reply.text)
            if session.invalid_actions > self.max_invalid_actions:
                session.finish(status=SampleStatus.AGENT_INVALID_ACTION)

    def _answer(self, session: Session, text: str) -> list[Message]:
        play = self._play(session)
        action = play.actions[play.tool]
        schema = ArgumentsSchema(action.schema)
        try:
            value = _jsonable(self.manner.parse(text) if self.manner.parse else parsed(text, action))
            arguments, faults = schema.check(action.arguments(value))
            if faults:
                raise ValueError("; ".join(faults))
            taken = _read(play, play.tool, arguments)
        except ValueError as error:
            session.invalid_actions += 1
            rule = f"reply with {action.form.description}; example: {json.dumps(action.form.example)}"
            return as_messages(f"error: {error}; {rule}")
        return _said(self.act(session, taken))


class _Arguments(ArgumentsSchema):
    """Arguments that are an action: what the schema cannot say is checked by the space and the mask."""

    def __init__(self, schema: dict[str, Any], read: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(schema)
        self._read = read

    def check(self, value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The action, or what is wrong with it."""
        arguments, faults = super().check(value)
        if faults:
            return {}, faults
        try:
            return {"action": self._read(arguments)}, []
        except ValueError as error:
            return {}, [str(error)]


@dataclass
class _Held:
    """An episode whose environment is closed once, by whoever leaves it last.

    A cancelled session leaves its call behind on the thread; the environment must not be closed under it,
    and one that is made only then must be closed all the same.
    """

    play: Play | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_used: bool = False
    _is_over: bool = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """While something is done with the environment."""
        with self._lock:
            if self._is_over:
                raise EpisodeOver
            self._is_used = True
        try:
            yield
        finally:
            with self._lock:
                self._is_used = False
                is_over = self._is_over
            if is_over:
                self._close()

    def end(self) -> None:
        """Close the environment now, or when it is no longer used."""
        with self._lock:
            self._is_over = True
            is_used = self._is_used
        if not is_used:
            self._close()

    def _close(self) -> None:
        play, self.play = self.play, None
        if play is not None:
            play.environment.close()


def joined(first: Content, second: Content) -> Content:
    """One content after another."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}" if first and second else first or second
    parts: list[Part] = []
    for content in (first, second):
        parts += [text_part(content)] if isinstance(content, str) and content else []
        parts += content if isinstance(content, list) else []
    return parts


def parsed(text: str, action: "Action") -> Any:
    """The action in a text: its JSON, or the last word that is an action's name or number.

    Raises:
        ValueError: there is none.
    """
    said = text.strip()
    schema = action.form.schema
    words: list[str] = schema.get("enum", [])
    if schema.get("type") == "string" and not words:
        return said
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        pass
    if words:
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)"
        found = re.findall(pattern, said, re.IGNORECASE)
        known = {word.casefold(): word for word in words}
        if found and found[-1].casefold() in known:
            return found[-1] if found[-1] in words else known[found[-1].casefold()]
    elif schema.get("type") == "integer" and (numbers := re.findall(r"-?\d+", said)):
        return int(numbers[-1][:20])
    raise ValueError("there is no action in the reply")


def _read(play: Play, tool: str, arguments: Mapping[str, Any]) -> Any:
    """The action that arguments stand for.

    Raises:
        ValueError: there is none, or it may not be taken now.
    """
    action = play.actions[tool].read(arguments)
    refused = play.refusal(tool, action)
    if refused is not None:
        raise ValueError(refused)
    return action


def _rendered(environment: Any) -> Content:
    from agentrl_env_sdk.adapters import observations

    picture = environment.render()
    if isinstance(picture, str):
        return observations.uncoloured(picture).strip("\n")
    return "" if picture is None else observations.shown(picture)


def _said(content: Content) -> list[Message]:
    return as_messages(content) if isinstance(content, str) else [Message(role="user", content=content)]


def _jsonable(value: Any) -> Any:
    """What a parser returned, numpy's values as plain ones."""
    if callable(listed := getattr(value, "tolist", None)):
        return listed()
    return list(value) if isinstance(value, tuple) else value


def _number_of(value: Any) -> int | float | bool | None:
    """A finite number as metrics can hold it; None for all else."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    is_finite = isinstance(value, int) or (isinstance(value, float) and value - value == 0)
    return value if is_finite else None


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ConfigError(f"`{name}` must be one of {[one for one in known if one]}, got {value!r}")

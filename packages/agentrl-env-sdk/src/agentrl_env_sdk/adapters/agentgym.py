"""AgentGym's environment servers as tasks, over their HTTP routes.

    POST /create -> id    POST /reset {id, sample}    POST /step {id, action}    POST /close {id}

The servers agree on the routes, not on the names of the fields; a `Wire` says them, and `WIRES` has those of
the servers that AgentGym publishes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from agentrl_core import ConfigError
from agentrl_env_sdk.session import Said, Session, TaskFailedError
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.tools import tool

__all__ = ["WIRES", "AgentGymTask", "Wire"]

_EPISODE = "agentgym"
_MISSING = (404, 405)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a server names what it takes and gives."""

    id_key: str = "id"
    """The environment's number, in requests and in the answer to `/create`."""
    index_key: str = "data_idx"
    """Which sample, in `/reset`."""
    observation_key: str = "observation"
    """The text in the answer to `/step`."""
    reward_key: str = "reward"
    """The number that says how well it goes."""
    is_total: bool = False
    """Whether that number is the whole return so far, rather than what the step earned."""
    scale: float = 1.0
    """What it is multiplied with."""
    intro_key: str = "task_description"
    """A text beside the first observation, where the answer to `/reset` has one."""
    create: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Body of `/create`."""


WIRES: Mapping[str, Wire] = {
    "textcraft": Wire(),
    "babyai": Wire(reward_key="score", is_total=True),
    "sciworld": Wire(reward_key="score", is_total=True, scale=0.01),
    "webshop": Wire(id_key="env_idx", index_key="session_id", observation_key="state"),
}
"""The servers in AgentGym's repository by their names."""


class AgentGymTask(Task):
    """An AgentGym environment server as a task; the agent acts with one tool that takes a text.

    Args:
        url: the server's address, such as `http://127.0.0.1:36001`.
        wire: names of the fields, or a key of `WIRES`.
        name: the task's name.
        splits: samples by split; a sample that is a number is the server's own one, otherwise the index is.
        instructions: said before the first observation; what actions there are is known to nobody else.
        concurrency: environments at the same time.
        max_turns: replies of the agent.

    Raises:
        ConfigError: the address is none that HTTP can reach, or the wire is unknown.
    """

    def __init__(
        self,
        url: str,
        *,
        wire: Wire | str = "textcraft",
        name: str = "agentgym",
        splits: Mapping[str, int | Sequence[Any]] | None = None,
        instructions: str = "",
        concurrency: int = 16,
        max_turns: int = 32,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"`url` must start with http:// or https://, got {url!r}")
        if isinstance(wire, str) and wire not in WIRES:
            raise ConfigError(f"`wire` must be a `Wire` or one of {', '.join(WIRES)}, got {wire!r}")
        self.url = url.rstrip("/")
        self.wire = WIRES[wire] if isinstance(wire, str) else wire
        self.splits = {"train": 1} if splits is None else splits
        self.concurrency = concurrency
        self.max_turns = max_turns
        self._name = name
        self._instructions = instructions

    @property
    def task_name(self) -> str:
        """The name on the wire."""
        return self._name

    async def setup(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, session: Session
    ) -> Said:
        """Create an environment, reset it to the sample, and show the first observation."""
        environment = _Environment(self.url, self.wire)
        session.state[_EPISODE] = environment
        await environment.create()
        sample = session.sample if isinstance(session.sample, int) else session.index
        intro, observation = await environment.reset(sample)
        return "\n\n".join(text for text in (self._instructions, intro, observation) if text)

    async def teardown(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, session: Session
    ) -> None:
        """Close the environment."""
        environment: _Environment | None = session.state.get(_EPISODE)
        if environment is not None:
            await environment.close()

    @tool
    async def act(self, session: Session, action: str) -> str:
        """do something in the environment

        Args:
            action: what to do, in the environment's own words
        """
        environment: _Environment = session.state[_EPISODE]
        answer = await environment.ask("step", action=action)
        value = self._value(answer)
        if self.wire.is_total:
            value -= session.earned
        session.reward(value)
        if answer.get("done"):
            session.finish()
        return str(answer.get(self.wire.observation_key, ""))

    def _value(self, answer: Mapping[str, Any]) -> float:
        """What an answer to a step says of how well it goes; a null is nothing."""
        key = self.wire.reward_key
        told = answer.get(key, math.nan)
        value = 0.0 if told is None else float(told) * self.wire.scale
        if not math.isfinite(value):
            raise TaskFailedError(f"{self.url}/step must give a number as `{key}`, got {dict(answer)!r:.200}")
        return value


class _Environment:
    """One environment on the server."""

    def __init__(self, url: str, wire: Wire) -> None:
        self._url = url
        self._wire = wire
        self._http = aiohttp.ClientSession()
        self._id: Any = None

    async def create(self) -> None:
        """Make it."""
        made = await self._request("POST", "create", json=dict(self._wire.create))
        found = made.get(self._wire.id_key) if isinstance(made, Mapping) else made
        if found is None:
            raise TaskFailedError(f"{self._url}/create told no `{self._wire.id_key}`: {made!r:.200}")
        self._id = found

    async def reset(self, sample: Any) -> tuple[str, str]:
        """Begin with a sample; returns the text beside the observation, and the observation."""
        body = {self._wire.id_key: self._id, self._wire.index_key: sample}
        answer = await self._request("POST", "reset", json=body)
        if isinstance(answer, Mapping) and "observation" in answer:
            return str(answer.get(self._wire.intro_key) or ""), str(answer["observation"])
        observation = await self._request("GET", "observation", params={self._wire.id_key: str(self._id)})
        return "", str(observation)

    async def ask(self, route: str, **body: Any) -> Mapping[str, Any]:
        """What a route answers about this environment."""
        answer = await self._request("POST", route, json={self._wire.id_key: self._id, **body})
        if not isinstance(answer, Mapping):
            raise TaskFailedError(f"{self._url}/{route} answered no object: {answer!r:.200}")
        return answer

    async def close(self) -> None:
        """Release it, on a server that can."""
        try:
            if self._id is not None:
                await self._request("POST", "close", json={self._wire.id_key: self._id}, may_be_missing=True)
        finally:
            await self._http.close()

    async def _request(self, method: str, route: str, *, may_be_missing: bool = False, **options: Any) -> Any:
        """The answer's JSON.

        Raises:
            TaskFailedError: the server failed, which some tell with a status of 200.
        """
        try:
            async with self._http.request(method, f"{self._url}/{route}", **options) as response:
                if may_be_missing and response.status in _MISSING:
                    return None
                text = await response.text()
                if response.status != 200:
                    raise TaskFailedError(f"{self._url}/{route}: HTTP {response.status}: {text[:200]}")
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TaskFailedError(f"{self._url}/{route}: {error}") from error
        if isinstance(answer, Mapping) and "error" in answer:
            raise TaskFailedError(f"{self._url}/{route}: {answer['error']}")
        return answer

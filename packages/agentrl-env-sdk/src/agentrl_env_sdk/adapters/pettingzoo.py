"""PettingZoo environments as tasks: agents take turns; a session plays one of them, or all.

    agent -- session -- PettingZooTask -- step(action) --> an AEC environment of the session's own
                              |              ^
                              +-- policies --+  for the agents that the session does not play

Needs the extra `pettingzoo`.
"""

import copy
import functools
import importlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.stepped import Content, Play, Settings, SteppedTask, View, joined
from agentrl_env_sdk.extras import extra
from agentrl_env_sdk.session import Session, TaskFailedError

__all__ = ["PettingZooTask", "Policy", "View"]

Policy = Callable[[Any, Any, random.Random], Any]
"""Takes an observation, its action mask (None where there is none) and chance, and returns an action."""

_ANY, _ALL, _PLAYED = "any", "all", "played"
_ID = re.compile(r"[^:]*/[^:]*|[^:./]+-v\d+")
_OVER = "The game is over."
_MAX_OTHERS = 100_000
"""Actions of others before the session has a turn; a game in which it never has one must end."""
_TOOL_NAME_LENGTH = 64


class PettingZooTask(SteppedTask):
    """A PettingZoo environment as a task; each session has one of its own, which is always closed.

    What an agent has earned since its last action is the reward of the turn that it sees it in. The episode
    ends with the agents that the session plays: as `task limit reached` where one of them was truncated
    without being terminated, else as completed. `metrics["reward/<agent>"]` is what each agent has earned.

    Args:
        env: id of a registered environment (`classic/tictactoe-v3`), a module with `env` or `parallel_env`
            (`pettingzoo.classic.tictactoe_v3`), one of its functions (`module:function`), or a function that
            makes an AEC or a parallel environment.
        make: options of the function, such as `render_mode`.
        plays: the agent that the session plays; `any`, which the episode's seed chooses, unless the sample
            is a mapping that has `plays`; or `all`: every agent in turn.
        opponents: policy of the other agents, or one for each by name; legal actions by chance otherwise.
        counts: whose earnings are the return: those of all agents that the session plays, or those of the
            agent of this name; in a game that one wins and one loses, the sum for `plays="all"` is 0.
        settings: how it becomes a task, as `SteppedTask` takes them.

    Raises:
        ConfigError: PettingZoo is not installed, the module has no environment, or a setting is wrong.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        make: Mapping[str, Any] | None = None,
        plays: str = _ANY,
        opponents: Policy | Mapping[str, Policy] | None = None,
        counts: str = _PLAYED,
        **settings: Unpack[Settings],
    ) -> None:
        with extra("pettingzoo"):
            importlib.import_module("pettingzoo")
        super().__init__(**settings)
        self._make = _maker(env) if isinstance(env, str) else env
        if not self.name and isinstance(env, str):
            self.name = re.split(r"[./]", env.partition(":")[0])[-1]
        self._make_options = dict(make or {})
        self._plays = plays
        self._opponents = opponents
        self.counts = counts

    def open(self, session: Session) -> Play:
        """Make a session's environment."""
        sample = session.sample if isinstance(session.sample, Mapping) else {}
        plays = sample.get("plays") or self._plays
        return _Episode(self, self._made(sample), plays, seed=self.seed_of(session))

    def policy_of(self, agent: str) -> Policy | None:
        """Who plays an agent that the session does not play; None for chance."""
        if isinstance(self._opponents, Mapping):
            return self._opponents.get(agent)
        return self._opponents

    def _made(self, sample: Mapping[str, Any]) -> Any:
        """The environment, its agents in turn.

        Raises:
            TaskFailedError: it cannot be made with its options.
        """
        from pettingzoo.utils import ParallelEnv, parallel_to_aec

        options = {**self._make_options, **(sample.get("make") or {})}
        try:
            made = self._make(**options)
        except Exception as error:  # whatever the environment's own code raises
            told = f"{type(error).__name__}: {error}"
            raise TaskFailedError(f"the environment cannot be made with {options}: {told}") from error
        return parallel_to_aec(made) if isinstance(made, ParallelEnv) else made


class _Episode(Play):
    """One episode."""

    def __init__(self, task: PettingZooTask, environment: Any, plays: str, *, seed: int) -> None:
        self.environment = environment
        self.actions = {}
        self._task = task
        self._manner = task.manner
        self._plays = plays
        self._seed = seed
        self._chance = random.Random(f"{seed}/opponents")
        self._seat: Any = None
        self._tools: dict[Any, str] = {}
        self._agent: Any = None
        self._mask: Any = None
        self._earned: dict[Any, float] = {}
        self._is_truncated = False
        self._last: View | None = None
        self._spaces: dict[Any, Any] = {}

    @property
    def tool(self) -> str:
        """The tool of the agent whose turn it is."""
        return self._tools.get(self._agent) or next(iter(self.actions))

    def begin(self, session: Session) -> Content:
        """Reset with the episode's seed, and let others play until it is the session's turn.

        Raises:
            TaskFailedError: the environment has no agent of a name that was given.
        """
        options = session.sample.get("options") if isinstance(session.sample, Mapping) else None
        self.environment.reset(seed=self._seed, options=options)
        agents = list(self.environment.agents)
        self._seat = None if self._plays == _ALL else self._seat_of(agents)
        if self._task.counts != _PLAYED:
            _find(agents, self._task.counts, "counts")
        for agent in self.environment.agents:
            self._know(agent)
        told = "" if self._seat is None else f"You are {self._seat}."
        return joined(told, self._go_on(session))

    def refusal(self, tool: str, action: Any) -> str | None:
        """Why it is not this tool's turn, or the mask excludes an action."""
        from agentrl_env_sdk.adapters import spaces

        if tool != self.tool:
            return f"it is the turn of {self._agent}; call `{self.tool}`"
        return spaces.refusal(self.actions[tool].form, self._mask, action)

    def step(self, session: Session, action: Any) -> Content:
        """Act for the agent whose turn it is, and let others play until it is the session's turn again."""
        self.environment.step(action)
        return self._go_on(session)

    def _seat_of(self, agents: list[Any]) -> Any:
        """The agent that the session plays."""
        if self._plays == _ANY:
            return random.Random(f"{self._seed}/seat").choice(agents)
        return _find(agents, self._plays, "plays")

    def _is_ours(self, agent: Any) -> bool:
        return self._seat is None or agent == self._seat

    def _has_left(self) -> bool:
        return self._seat is not None and self._seat not in self.environment.agents

    def _know(self, agent: Any) -> None:
        """Give an agent a tool: the one that others with the same action space have, if any."""
        from agentrl_env_sdk.adapters import spaces

        if agent in self._tools or not self._is_ours(agent):
            return
        space = self.environment.action_space(agent)
        for name, action in self.actions.items():
            if action.form.space == space:
                self._tools[agent] = name
                return
        tool = self._task.tool_name
        # The first tool has the plain name; what comes later is told apart by its first agent.
        name = f"{tool}_{agent}"[:_TOOL_NAME_LENGTH] if self.actions else tool
        form = spaces.form_of(space, names=self._manner.names)
        self._tools[agent] = name
        self.actions = {**self.actions, name: spaces.Action(form)}

    def _go_on(self, session: Session) -> Content:
        """Let others play until it is the session's turn or its agents are out; returns what is seen.

        Raises:
            TaskFailedError: the others play for ever, or a policy chose what is not legal.
        """
        environment = self.environment
        for _ in range(_MAX_OTHERS):
            if not environment.agents:
                return self._end(session)
            agent = environment.agent_selection
            observation, reward, terminated, truncated, info = environment.last()
            observation, mask = _apart(observation, info)
            view = View(observation, info, environment, agent)
            if (
                not (terminated or truncated)
                and self._seat is not None
                and self._seat not in environment.agents
            ):
                return self._end(session)  # How the others go on is no business of this session.
            self._earn(session, agent, float(reward))
            if terminated or truncated:
                self._leave(view, terminated=bool(terminated))
            elif self._is_ours(agent):
                return self._see(session, view, mask)
            else:
                environment.step(self._chosen(agent, observation, mask))
        raise TaskFailedError(f"the others have acted {_MAX_OTHERS} times without a turn of {self._seat}")

    def _earn(self, session: Session, agent: Any, reward: float) -> None:
        """Count what an agent has earned since its last action."""
        self._earned[agent] = self._earned.get(agent, 0.0) + reward
        session.metrics[f"reward/{agent}"] = self._earned[agent]
        counts = self._task.counts
        if self._is_ours(agent) if counts == _PLAYED else str(agent) == counts:
            session.reward(reward)

    def _leave(self, view: View, *, terminated: bool) -> None:
        """Take an agent that is out from the environment."""
        if self._is_ours(view.agent):
            self._is_truncated |= not terminated
            self._last = view
        self.environment.step(None)

    def _see(self, session: Session, view: View, mask: Any) -> Content:
        """What the agent whose turn it is gets to see."""
        from agentrl_env_sdk.adapters import spaces

        self._know(view.agent)
        self._agent, self._mask = view.agent, mask if self._manner.masks else None
        session.metrics.update(self._manner.metrics_of(view.info))
        seen = joined(self._announced(), self._manner.seen(view))
        allowed = spaces.legal(self.actions[self.tool].form, self._mask)
        return seen if allowed is None else joined(seen, spaces.legal_text(allowed))

    def _announced(self) -> str:
        """Whose turn it is, where the session plays several."""
        if self._seat is not None:
            return ""
        how = f"; call `{self.tool}`" if len(self.actions) > 1 else ""
        return f"It is the turn of {self._agent}{how}."

    def _end(self, session: Session) -> Content:
        """End the episode and show how it stands."""
        if self._is_truncated:
            session.truncate("environment")
        session.finish()
        return _OVER if self._last is None else joined(_OVER, self._manner.seen(self._last))

    def _chosen(self, agent: Any, observation: Any, mask: Any) -> Any:
        """The action of an agent that the session does not play.

        Raises:
            TaskFailedError: it is not legal.
        """
        from agentrl_env_sdk.adapters import spaces

        if agent not in self._spaces:  # A copy: the environment may draw from its own.
            self._spaces[agent] = copy.deepcopy(self.environment.action_space(agent))
        space = self._spaces[agent]
        policy = self._task.policy_of(str(agent))
        if policy is None:
            return spaces.drawn(space, mask, seed=self._chance.getrandbits(31))
        action = policy(observation, mask, self._chance)
        fault = spaces.misfit(space, mask, action)
        if fault is not None:
            raise TaskFailedError(f"the policy of {agent} chose {action!r}: {fault}")
        return action


def _apart(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    """An observation and its action mask, which stands in it or in `info`."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation, info.get("action_mask")
    rest = {key: value for key, value in observation.items() if key != "action_mask"}
    return rest["observation"] if list(rest) == ["observation"] else rest, observation["action_mask"]


def _find(agents: list[Any], name: str, setting: str) -> Any:
    for agent in agents:
        if str(agent) == name:
            return agent
    raise TaskFailedError(f"`{setting}` is {name!r}, which is none of the agents {agents}")


def _maker(target: str) -> Callable[..., Any]:
    """The function that makes an environment.

    Raises:
        ConfigError: there is none.
    """
    if _ID.fullmatch(target):
        return _registered(target)
    where, _, name = target.partition(":")
    try:
        module = importlib.import_module(where)
    except ImportError as error:
        raise ConfigError(
            f"`{where}` cannot be imported: {error}; PettingZoo's own environments need its extras, such as "
            "`pettingzoo[classic]`"
        ) from error
    for each in [name] if name else ["env", "parallel_env"]:
        if callable(made := getattr(module, each, None)):
            return made
    raise ConfigError(f"`{where}` has no `{name or 'env'}`; name a function as `{where}:function`")


def _registered(name: str) -> Callable[..., Any]:
    """What makes a registered environment.

    Raises:
        ConfigError: there is none.
    """
    import pettingzoo

    make: Callable[..., Any] | None = getattr(pettingzoo, "make", None)
    if make is None:
        raise ConfigError(f"`{name}` is an id, which needs PettingZoo 1.27; name a module instead")
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError

    for kind in ("aec", "parallel"):
        try:
            pettingzoo.spec(kind, name)
        except PettingZooRegistryError:
            continue
        return functools.partial(make, kind, name)
    raise ConfigError(f"there is no environment `{name}`; `pettingzoo.pprint_registry()` lists what there is")

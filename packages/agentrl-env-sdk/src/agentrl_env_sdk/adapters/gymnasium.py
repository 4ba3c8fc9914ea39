"""Gymnasium environments as tasks: actions are calls of a tool, or what the agent says.

agent -- session -- GymnasiumTask -- reset(seed), step(action) --> an environment of the session's own

Needs the extra `gymnasium`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.stepped import Content, Manner, Play, Settings, SteppedTask, View, joined
from agentrl_env_sdk.session import Session, TaskFailedError

__all__ = ["GymnasiumTask", "View"]


class GymnasiumTask(SteppedTask):
    """A Gymnasium environment as a task; each session has one of its own, which is always closed.

    The reward of a step is that of the turn. `terminated` ends the episode as completed; `truncated` alone
    ends it as `task limit reached`, with `metrics["truncated"]`.

    Args:
        env: id of a registered environment (`module:id` imports the module first), or a function that makes
            one.
        make: options of `gymnasium.make` or of the function, such as `render_mode`.
        settings: how it becomes a task, as `SteppedTask` takes them. Where `max_turns` is absent, it leaves
            room for the environment's own limit of steps, if it has one.

    Raises:
        ConfigError: Gymnasium is not installed, no such environment is registered, or a setting is wrong.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        make: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(**settings)
        self._env = env
        self._make_options = dict(make or {})
        if isinstance(env, str):
            self._adopt(_spec(env), has_turns="max_turns" in settings)

    def open(self, session: Session) -> Play:
        """Make a session's environment."""
        return _Episode(self._made(session), self.manner, self.tool_name, seed=self.seed_of(session))

    def _adopt(self, spec: Any, *, has_turns: bool) -> None:
        """Take a name and limits from a registered environment."""
        if not self.name:
            self.name = spec.id.rsplit("/", 1)[-1].lower()
        limit = self._make_options.get("max_episode_steps", spec.max_episode_steps)
        is_own = type(self).max_turns != SteppedTask.max_turns
        if limit is not None and limit > 0 and not has_turns and not is_own:
            # The environment's own limit comes first, however many replies were unusable.
            self.max_turns = limit + self.max_invalid_actions + 1

    def _made(self, session: Session) -> Any:
        """The environment.

        Raises:
            TaskFailedError: it cannot be made with its options.
        """
        given = session.sample.get("make") if isinstance(session.sample, Mapping) else None
        options = {**self._make_options, **(given or {})}
        try:
            if callable(self._env):
                return self._env(**options)
            import gymnasium

            return gymnasium.make(self._env, **options)
        except Exception as error:  # whatever the environment's own code raises
            raise TaskFailedError(
                f"environment {self._env!r} cannot be made with {options}: {type(error).__name__}: {error}"
            ) from error


class _Episode(Play):
    """One episode."""

    def __init__(self, environment: Any, manner: Manner, tool: str, *, seed: int) -> None:
        from agentrl_env_sdk.adapters import spaces

        self.environment = environment
        self._manner = manner
        self._seed = seed
        self._mask: Any = None
        try:
            self._form = spaces.form_of(environment.action_space, names=manner.names)
        except BaseException:
            environment.close()
            raise
        self.actions = {tool: spaces.Action(self._form)}

    def begin(self, session: Session) -> Content:
        """Reset with the episode's seed and the sample's options."""
        options = session.sample.get("options") if isinstance(session.sample, Mapping) else None
        observation, info = self.environment.reset(seed=self._seed, options=options)
        session.metrics.update(self._manner.metrics_of(info))
        return self._see(observation, info)

    def refusal(self, tool: str, action: Any) -> str | None:  # noqa: ARG002 - there is one tool
        """Why the mask excludes an action."""
        from agentrl_env_sdk.adapters import spaces

        return spaces.refusal(self._form, self._mask, action)

    def step(self, session: Session, action: Any) -> Content:
        """One step of the environment."""
        observation, reward, terminated, truncated, info = self.environment.step(action)
        session.reward(float(reward), **self._manner.metrics_of(info))
        if terminated:
            session.finish()
        elif truncated:
            session.truncate("environment")
        return self._see(observation, info, is_over=bool(terminated or truncated))

    def _see(self, observation: Any, info: Mapping[str, Any], *, is_over: bool = False) -> Content:
        from agentrl_env_sdk.adapters import spaces

        self._mask = info.get("action_mask") if self._manner.masks else None
        seen = self._manner.seen(View(observation, info, self.environment))
        allowed = None if is_over else spaces.legal(self._form, self._mask)
        return seen if allowed is None else joined(seen, spaces.legal_text(allowed))


def _spec(name: str) -> Any:
    """What is registered under an id.

    Raises:
        ConfigError: nothing is.
    """
    import gymnasium

    module, _, plain = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(plain)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(
            f"there is no environment `{name}`: {error}; `gymnasium.pprint_registry()` lists what there is"
        ) from error

"""A game of two as a task: Nim, on PettingZoo's interface, against an opponent who plays by chance.

agentrl-env play examples/adapters/pettingzoo_task.py
agentrl-env validate examples/adapters/pettingzoo_task.py

PettingZoo's own games need more packages. With `pip install "pettingzoo[classic]"`, this is all of one:

    PettingZooTask("classic/tictactoe-v3", plays="player_2")
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector

from agentrl_env_sdk import Session
from agentrl_env_sdk.adapters.pettingzoo import PettingZooTask
from agentrl_env_sdk.oracle import Action, act

MOST = 3
LARGEST = 21


class Nim(AECEnv):
    """Players take one to three stones in turn; who takes the last one wins."""

    metadata = {"name": "nim_v0", "render_modes": ["ansi"]}

    def __init__(self, render_mode: str | None = "ansi") -> None:
        super().__init__()
        self.render_mode = render_mode
        self.possible_agents = ["first", "second"]
        self.stones = 0

    def action_space(self, agent: str) -> spaces.Space:  # noqa: ARG002 - the same for both
        return spaces.Discrete(MOST, start=1)

    def observation_space(self, agent: str) -> spaces.Space:  # noqa: ARG002
        mask = spaces.MultiBinary(MOST)
        return spaces.Dict({"observation": spaces.Discrete(LARGEST + 1), "action_mask": mask})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        given = (options or {}).get("stones")
        # A player who begins with a multiple of four loses against one who knows the game.
        heaps = [count for count in range(5, LARGEST + 1) if count % (MOST + 1)]
        self.stones = int(given or np.random.default_rng(seed).choice(heaps))
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._turns = AgentSelector(self.agents)
        self.agent_selection = self._turns.reset()

    def observe(self, agent: str) -> dict[str, Any]:  # noqa: ARG002
        allowed = [count <= self.stones for count in range(1, MOST + 1)]
        return {"observation": self.stones, "action_mask": np.array(allowed, np.int8)}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert action is not None
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.stones -= int(action)
        if self.stones == 0:
            self.rewards = {each: 1.0 if each == agent else -1.0 for each in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = self._turns.next()

    def render(self) -> str:
        return f"{self.stones} stones: {'o' * self.stones}"


class NimTask(PettingZooTask):
    """The player who begins, and who can always win."""

    optimum = 1.0

    def __init__(self) -> None:
        super().__init__(
            Nim,
            name="nim",
            plays="first",
            splits={"train": 200, "test": 20},
            instructions=f"Take 1 to {MOST} stones in turn. Who takes the last stone wins.",
            can_fork=True,
        )

    def oracle(self, session: Session) -> Iterator[Action]:
        """Leave a multiple of four."""
        game = self.environment(session)
        while not session.finished:
            yield act("step", action=game.stones % (MOST + 1) or 1)

"""Games on PettingZoo's interface as tasks: its own examples, and games whose every reward is known."""

import importlib.util
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.test.example_envs import generated_agents_env_action_mask_info_v0 as generated_info
from pettingzoo.test.example_envs import generated_agents_env_action_mask_obs_v0 as generated_observation
from pettingzoo.test.example_envs import generated_agents_parallel_v0 as generated_parallel
from pettingzoo.utils import AgentSelector, parallel_to_aec

from agentrl_core import ConfigError, SampleStatus
from agentrl_env_sdk import testing
from agentrl_env_sdk.adapters import spaces as spaces_of
from agentrl_env_sdk.adapters.pettingzoo import PettingZooTask
from agentrl_env_sdk.testing.episode import EpisodeError


class Race(AECEnv):
    """Players add 1 to 3 in turn; each gets what it added, and takes a tenth of that from all others.

    Who reaches the goal ends it for all; `limit` rounds truncate it. `leaves` is out at its second turn.
    """

    metadata = {"name": "race_v0", "render_modes": ["ansi"]}
    made: list["Race"] = []

    def __init__(
        self,
        players: int = 2,
        goal: int = 10,
        limit: int = 100,
        leaves: str | None = None,
        widths: tuple[int, ...] = (3, 3, 3),
    ) -> None:
        super().__init__()
        self.possible_agents = [f"player_{place}" for place in range(players)]
        self.render_mode = None
        self.taken: list[tuple[str, int]] = []
        self.num_closed = 0
        self._goal, self._limit, self._leaves = goal, limit, leaves
        self._spaces = {
            agent: spaces.Discrete(width, start=1)
            for agent, width in zip(self.possible_agents, widths, strict=False)
        }
        self.made.append(self)

    def action_space(self, agent: str) -> Any:
        return self._spaces[agent]

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"observation": spaces.Discrete(100), "action_mask": spaces.MultiBinary(3)})

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.seed = seed
        self.total = (options or {}).get("total", 0)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"total": self.total} for agent in self.agents}
        self._turns = AgentSelector(self.agents)
        self.agent_selection = self._turns.reset()

    def observe(self, agent: str) -> Any:
        allowed = [self.total + count <= self._goal for count in range(1, int(self._spaces[agent].n) + 1)]
        return {"observation": self.total, "action_mask": np.array(allowed, np.int8)}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert self.observe(agent)["action_mask"][action - 1], "an illegal move arrived"
        self._cumulative_rewards[agent] = 0.0
        self.taken.append((agent, int(action)))
        self.total += int(action)
        self.rewards = {each: float(action) if each == agent else -action / 10 for each in self.agents}
        self._accumulate_rewards()
        if self.total >= self._goal:
            self.terminations = dict.fromkeys(self.agents, True)
        elif len(self.taken) >= self._limit:
            self.truncations = dict.fromkeys(self.agents, True)
        elif agent == self._leaves:
            self.terminations[agent] = True
        self.agent_selection = self._turns.next()
        self._deads_step_first()

    def render(self) -> str:
        return f"{self.total} of {self._goal}"

    def close(self) -> None:
        self.num_closed += 1


class Match(ParallelEnv):
    """Both name a number at once; who names the greater gets the difference, and the other loses it."""

    metadata = {"name": "match_v0"}

    def __init__(self, rounds: int = 2) -> None:
        self.possible_agents = ["a", "b"]
        self.render_mode = None
        self._rounds = rounds

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(10)

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(10)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        self._left = self._rounds
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self._left -= 1
        ahead = float(actions["a"]) - float(actions["b"])
        agents, is_over = self.agents, self._left == 0
        self.agents = [] if is_over else agents
        return (
            {"a": int(actions["b"]), "b": int(actions["a"])},
            {"a": ahead, "b": -ahead},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            {agent: {} for agent in agents},
        )


@pytest.fixture(autouse=True)
def races() -> list[Race]:
    Race.made.clear()
    return Race.made


def always(number: int) -> Any:
    return lambda observation, mask, chance: number


def test_a_turn_earns_all_that_came_since_the_last_one(races: list[Race]):
    task = PettingZooTask(Race, name="race", plays="player_0", opponents=always(2))
    with testing.play_sync(task) as episode:
        assert episode.opening.text.endswith("You are player_0.\n\n0")
        seen = episode.call("step", action=3)
        assert seen.text == "5"
        assert seen.reward == pytest.approx(3 - 0.2)
        assert episode.call("step", action=1).reward == pytest.approx(1 - 0.2)
        assert episode.metrics["reward/player_1"] == pytest.approx(-0.3 + 2 - 0.1)
        refused = episode.call("step", action=3)
        assert "3 is not legal now; legal actions: 1, 2" in refused.text
        last = episode.call("step", action=2)
        assert (last.reward, last.finish) == (2.0, True)
        assert episode.status is SampleStatus.COMPLETED
        assert last.text == "The game is over.\n\n10"
        assert episode.reward == pytest.approx(5.6)
        # The other got 2 twice, and lost a tenth of 3, 1 and 2.
        assert episode.metrics["reward/player_0"] == pytest.approx(5.6)
        assert episode.metrics["reward/player_1"] == pytest.approx(4 - 0.6)
        assert episode.metrics["info/total"] == 0
    assert races[0].num_closed == 1
    assert [agent for agent, _ in races[0].taken] == ["player_0", "player_1"] * 2 + ["player_0"]


def test_others_may_begin_and_may_end_it():
    task = PettingZooTask(Race, name="race", plays="player_1", opponents={"player_0": always(3)})
    with testing.play_sync(task, sample={"options": {"total": 4}}) as episode:
        assert episode.opening.text.endswith("You are player_1.\n\n7")
        assert episode.opening.reward == pytest.approx(-0.3)
        episode.call("step", action=3)
        assert episode.status is SampleStatus.COMPLETED
        assert episode.reward == pytest.approx(3 - 0.3)


def test_a_policy_that_breaks_the_rules_is_the_tasks_fault(races: list[Race]):
    task = PettingZooTask(Race, name="race", plays="player_1", opponents=always(3))
    with testing.play_sync(task, sample={"options": {"total": 4}}) as episode:
        seen = episode.call("step", action=1)  # makes 8 of 10
        assert seen.status is SampleStatus.TASK_ERROR
        assert "the policy of player_0 chose 3: argument `action`: 3 is not legal" in episode.metrics["error"]
    assert races[0].taken == [("player_0", 3), ("player_1", 1)]


def test_a_game_that_is_over_before_the_first_turn_ends_at_once():
    task = PettingZooTask(Race, name="race", plays="player_1", opponents=always(3))
    with testing.play_sync(task, sample={"options": {"total": 7}}) as episode:
        assert episode.finished
        assert episode.status is SampleStatus.COMPLETED
        assert episode.opening.reward == pytest.approx(-0.3)
        assert "The game is over." in episode.opening.text


def test_one_model_may_play_all(races: list[Race]):
    task = PettingZooTask(Race, name="race", plays="all", make={"goal": 6})
    with testing.play_sync(task) as episode:
        assert episode.opening.text.endswith("It is the turn of player_0.\n\n0")
        assert episode.call("step", action=3).text == "It is the turn of player_1.\n\n3"
        last = episode.call("step", action=3)
        assert last.finish
        assert episode.metrics["reward/player_0"] == pytest.approx(3 - 0.3)
        assert episode.metrics["reward/player_1"] == pytest.approx(3 - 0.3)
        assert episode.reward == pytest.approx(2 * 2.7)
    with testing.play_sync(PettingZooTask(Race, name="race", plays="all", counts="player_1")) as episode:
        episode.call("step", action=3)
        episode.call("step", action=1)
        episode.call("step", action=1)
        assert episode.reward == pytest.approx(-0.3 + 1 - 0.1)


def test_truncation_is_kept_apart():
    for plays in ("player_0", "all"):
        task = PettingZooTask(Race, name="race", plays=plays, make={"limit": 2}, opponents=always(1))
        with testing.play_sync(task) as episode:
            while not episode.finished:
                episode.call("step", action=1)
            assert episode.status is SampleStatus.TASK_LIMIT_REACHED
            assert episode.metrics["truncated"] == "environment"


def test_an_agent_that_is_out_ends_the_session_though_others_go_on(races: list[Race]):
    make = {"players": 3, "leaves": "player_0"}
    task = PettingZooTask(Race, name="race", plays="player_0", make=make, opponents=always(1))
    with testing.play_sync(task) as episode:
        last = episode.call("step", action=2)
        assert last.finish
        assert last.reward == 2.0
        assert episode.status is SampleStatus.COMPLETED
    assert races[0].taken == [("player_0", 2)]


def test_one_that_plays_all_goes_on_without_who_is_out(races: list[Race]):
    make = {"players": 3, "leaves": "player_1", "goal": 5}
    with testing.play_sync(PettingZooTask(Race, name="race", plays="all", make=make)) as episode:
        for _ in range(5):
            episode.call("step", action=1)
        assert episode.status is SampleStatus.COMPLETED
    assert [agent[-1] for agent, _ in races[0].taken] == list("01202")


def test_agents_with_spaces_of_their_own_have_tools_of_their_own(races: list[Race]):
    task = PettingZooTask(Race, name="race", plays="all", make={"widths": (3, 2)})
    with testing.play_sync(task) as episode:
        assert [tool.function.name for tool in episode.tools] == ["step", "step_player_1"]
        assert "It is the turn of player_0; call `step`." in episode.opening.text
        assert "it is the turn of player_0; call `step`" in episode.call("step_player_1", action=1).text
        seen = episode.call("step", action=3)
        assert "It is the turn of player_1; call `step_player_1`." in seen.text
        episode.call("step_player_1", action=2)
    assert races[0].taken == [("player_0", 3), ("player_1", 2)]


def test_an_agent_may_say_its_move():
    task = PettingZooTask(Race, name="race", plays="all", mode="text", names=["one", "two", "three"])
    with testing.play_sync(task) as episode:
        assert "It is the turn of player_1." in episode.say("I take three.").text
        assert episode.say("none").text.startswith("error: there is no action in the reply")
        assert "5" in episode.say("two").text


def test_the_seed_chooses_the_seat_and_the_others_moves(races: list[Race]):
    task = PettingZooTask(
        Race, name="race", splits={"train": 12, "given": [{"plays": "player_1", "seed": 5}]}
    )

    def play(index: int, seed: int) -> list[str]:
        with testing.play_sync(task, index, seed=seed) as episode:
            while not episode.finished:
                episode.call("step", action=1)
            return [seen.text for seen in episode.observations]

    first = [play(index, 1) for index in range(12)]
    assert [play(index, 1) for index in range(12)] == first
    assert [play(index, 2) for index in range(12)] != first
    assert {
        text for texts in first for text in ("player_0", "player_1") if f"You are {text}." in texts[0]
    } == {
        "player_0",
        "player_1",
    }
    assert "You are player_1." in play(12, 1)[0]
    assert races[-1].seed == 5


def test_both_act_on_what_they_knew_in_a_parallel_game():
    task = PettingZooTask(Match, name="match", plays="b", opponents=lambda seen, mask, chance: seen)
    with testing.play_sync(task) as episode:
        assert episode.opening.text.endswith("You are b.\n\n0")
        first = episode.call("step", action=4)  # a said 0, and says 4 next
        assert (first.text, first.reward) == ("0", 4.0)
        last = episode.call("step", action=1)
        assert (last.reward, last.status) == (-3.0, SampleStatus.TASK_LIMIT_REACHED)
        assert episode.metrics["reward/a"] == -1.0
    with testing.play_sync(PettingZooTask(Match, name="match", plays="all", counts="a")) as episode:
        for action in (9, 2, 0, 3):
            episode.call("step", action=action)
        assert episode.reward == 7.0 - 3.0
        assert episode.metrics["reward/b"] == -4.0


def test_a_policy_sees_the_observation_its_mask_and_seeded_chance():
    seen: list[Any] = []

    def policy(observation: Any, mask: Any, chance: random.Random) -> int:
        seen.append((observation, mask.tolist(), chance.random()))
        return 1

    for _ in range(2):
        with testing.play_sync(
            PettingZooTask(Race, name="race", plays="player_0", opponents=policy)
        ) as episode:
            episode.call("step", action=2)
    assert seen[0] == seen[1]
    assert seen[0][:2] == (2, [1, 1, 1])


def test_an_episode_can_be_forked(races: list[Race]):
    task = PettingZooTask(Race, name="race", plays="player_0", can_fork=True)
    with testing.play_sync(task) as episode:
        episode.call("step", action=1)
        twin = episode.fork()
        assert twin.call("step", action=2).text == episode.call("step", action=2).text
        twin.cancel()
        assert not episode.finished


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("module", [generated_info, generated_observation, generated_parallel])
def test_pettingzoos_own_games_are_those_of_a_plain_loop(module: Any, seed: int):
    """Agents of several kinds, each with actions and so a tool of its own, come and go in these."""
    maker = "parallel_env" if module is generated_parallel else "raw_env"
    make = {"max_cycles": 0 if module is generated_parallel else 6}  # It counts no cycles, and never ends.
    has_chance_masks = module is generated_observation  # Another one each time that one looks.
    task = PettingZooTask(
        f"{module.__name__}:{maker}", make=make, plays="all", max_turns=1000, masks=not has_chance_masks
    )
    with testing.play_sync(task, seed=seed) as episode:
        game = getattr(module, maker)(**make)
        total, num_turns = plain_loop(game, task.seed_of(episode.session))
        turns = 0
        while not episode.finished:
            play = episode.session.state["environment"].play
            allowed = spaces_of.legal(play.actions[play.tool].form, play._mask)
            episode.call(play.tool, action=allowed[0] if allowed else 0)
            turns += 1
        assert episode.session.invalid_actions == 0
        assert turns == num_turns >= 5
        assert episode.reward == pytest.approx(total)
        earned = [value for name, value in episode.metrics.items() if name.startswith("reward/")]
        assert sum(earned) == pytest.approx(total)
        assert episode.status is SampleStatus.TASK_LIMIT_REACHED


def plain_loop(game: Any, seed: int) -> tuple[float, int]:
    """All that the agents earn when each takes its first legal action, and how often one acts."""
    game = parallel_to_aec(game) if isinstance(game, ParallelEnv) else game
    game.reset(seed=seed)
    total, num_turns = 0.0, 0
    for _ in game.agent_iter():
        _, reward, terminated, truncated, info = game.last()
        total += reward
        if terminated or truncated:
            game.step(None)
            continue
        mask = info.get("action_mask")
        game.step(0 if mask is None else int(np.flatnonzero(mask)[0]))
        num_turns += 1
    return total, num_turns


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("module", [generated_info, generated_parallel])
def test_one_seat_of_pettingzoos_own_games_is_played_among_others_by_chance(module: Any, seed: int):
    maker = "parallel_env" if module is generated_parallel else "raw_env"
    task = PettingZooTask(f"{module.__name__}:{maker}", make={"max_cycles": 6}, masks=False)
    with testing.play_sync(task, seed=seed) as episode:
        while not episode.finished:
            episode.call("step", action=0)
        assert "error" not in episode.metrics
        assert len(episode.tools) == 1


def test_a_registered_environment_has_an_id():
    pettingzoo.register("parallel", id="agentrl/match-v0", entry_point=Match)
    task = PettingZooTask("agentrl/match-v0", make={"rounds": 1}, plays="b", opponents=always(1))
    assert task.task_name == "match-v0"
    with testing.play_sync(task) as episode:
        assert episode.call("step", action=3).reward == 2.0


@pytest.mark.skipif(importlib.util.find_spec("pygame") is None, reason="PettingZoo's games need pygame")
def test_tic_tac_toe_is_won():
    def first_legal(observation: Any, mask: Any, chance: random.Random) -> int:
        return int(np.flatnonzero(mask)[0])

    for player, reward in (("player_1", 1.0), ("player_2", -1.0)):
        task = PettingZooTask("classic/tictactoe-v3", plays=player, opponents=first_legal)
        with testing.play_sync(task) as episode:
            # The other takes 0, 1, 2, which wins where it begins.
            for action in (3, 4, 5):
                if not episode.finished:
                    episode.call("step", action=action)
            assert episode.reward == reward
            assert episode.status is SampleStatus.COMPLETED
            other = {"player_1": "player_2", "player_2": "player_1"}[player]
            assert episode.metrics[f"reward/{other}"] == -reward


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("no_such_module", "`no_such_module` cannot be imported"),
        ("json", "`json` has no `env`; name a function as `json:function`"),
        ("json:nothing", "`json` has no `nothing`"),
        ("classic/no_such-v0", "there is no environment `classic/no_such-v0`"),
        ("no_such-v0", "there is no environment `no_such-v0`"),
    ],
)
def test_modules_without_an_environment_are_refused(env: str, told: str):
    with pytest.raises(ConfigError, match=told):
        PettingZooTask(env)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"plays": "nobody"}, "`plays` is 'nobody', which is none of the agents"),
        ({"counts": "nobody"}, "`counts` is 'nobody', which is none of the agents"),
        ({"make": {"nonsense": 1}}, "cannot be made with {'nonsense': 1}: TypeError"),
    ],
)
def test_what_does_not_fit_the_game_fails_at_the_start(settings: Any, told: str, races: list[Race]):
    with (
        pytest.raises(EpisodeError, match=told),
        testing.play_sync(PettingZooTask(Race, name="race", **settings)),
    ):
        pass
    assert all(race.num_closed == 1 for race in races)


def test_without_the_package_it_can_be_imported_but_not_used():
    program = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "from agentrl_env_sdk.adapters.pettingzoo import PettingZooTask\n"
        "assert 'numpy' not in sys.modules\n"
        "PettingZooTask('some.module')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "agentrl-env-sdk[pettingzoo]" in run.stderr.splitlines()[-1]

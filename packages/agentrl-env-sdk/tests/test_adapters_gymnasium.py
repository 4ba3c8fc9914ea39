"""Gymnasium's own environments as tasks, against plain loops over the same ones."""

import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from agentrl_core import ConfigError, SampleStatus
from agentrl_env_sdk import Session, testing
from agentrl_env_sdk.adapters.gymnasium import GymnasiumTask
from agentrl_env_sdk.adapters.spaces import form_of
from agentrl_env_sdk.adapters.stepped import View
from agentrl_env_sdk.isolation import IsolatedTask
from agentrl_env_sdk.testing.episode import EpisodeError
from agentrl_env_sdk.tools import tool
from agentrl_env_sdk.worker.runner import Runner

DEADLINE_S = 20.0


class Probe(gymnasium.Env):
    """Counts to `length`; tells what it was given, and when it was closed."""

    metadata = {"render_modes": ["rgb_array", "ansi"]}
    made: list["Probe"] = []

    def __init__(
        self,
        action_space: Any = None,
        *,
        length: int = 2,
        render_mode: str | None = None,
        reward: float = 0.25,
        truncates: bool = False,
        mask: Any = None,
    ) -> None:
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.observation_space = spaces.Discrete(100)
        self.render_mode = render_mode
        self.actions: list[Any] = []
        self.resets: list[Any] = []
        self.num_closed = 0
        self._length, self._reward, self._truncates, self._mask = length, reward, truncates, mask
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets.append((seed, options))
        return 0, self._info()

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        is_over = len(self.actions) >= self._length
        ends = (False, is_over) if self._truncates else (is_over, False)
        return len(self.actions), self._reward, *ends, self._info()

    def _info(self) -> dict[str, Any]:
        info = {"steps": np.int64(len(self.actions)), "ratio": np.float32(0.5), "nan": np.nan, "words": "x"}
        return info if self._mask is None else {**info, "action_mask": np.array(self._mask, np.int8)}

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"\x1b[31m{len(self.actions)}\x1b[0m of {self._length}\n"
        return np.full((16, 16, 3), len(self.actions), np.uint8)

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture(autouse=True)
def probes() -> list[Probe]:
    Probe.made.clear()
    return Probe.made


def wait_for(happened: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "env",
    [
        "Blackjack-v1",
        "FrozenLake-v1",
        "Taxi-v4",
        "CliffWalking-v1",
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
    ],
)
def test_an_episode_is_that_of_a_plain_loop(env: str, seed: int):
    task = GymnasiumTask(env, make={"max_episode_steps": 12}, masks=False)
    plain = gymnasium.make(env, max_episode_steps=12)
    form = form_of(plain.action_space)
    plain.action_space.seed(seed)
    with testing.play_sync(task, 5, seed=seed) as episode:
        _, _ = plain.reset(seed=task.seed_of(episode.session))
        while True:
            action = plain.action_space.sample()
            _, reward, terminated, truncated, _ = plain.step(action)
            seen = episode.call("step", action=form.encode(action))
            assert seen.reward == float(reward)
            assert seen.finish == (terminated or truncated)
            if seen.finish:
                break
        ended = SampleStatus.COMPLETED if terminated else SampleStatus.TASK_LIMIT_REACHED
        assert episode.status == ended
        assert episode.metrics.get("truncated") == (None if terminated else "environment")
    plain.close()


def test_a_frozen_lake_is_crossed():
    task = GymnasiumTask(
        "FrozenLake-v1",
        make={"render_mode": "ansi", "is_slippery": False},
        names=["left", "down", "right", "up"],
        instructions="Reach G.",
    )
    assert task.max_turns == 104  # 100 steps of its own, and the replies that are none
    with testing.play_sync(task) as episode:
        assert episode.opening.text == "Reach G.\n\n<red>S</red>FFF\nFHFH\nFFFH\nHFFG"
        (tool_spec,) = episode.tools
        assert tool_spec.function.parameters["properties"]["action"]["enum"] == [
            "left",
            "down",
            "right",
            "up",
        ]
        bad = episode.call("step", action="jump")
        assert "'jump' is not one of ['left', 'down', 'right', 'up']" in bad.text
        assert 'example: {"action": "left"}' in bad.text
        for action in ("down", "down", "right", "right", "down", "right"):
            last = episode.call("step", action=action)
        assert last.text.endswith("HFF<red>G</red>")
        assert (episode.reward, episode.score, episode.status) == (1.0, 1.0, SampleStatus.COMPLETED)


def test_samples_choose_seeds_and_options(probes: list[Probe]):
    samples = [7, {"seed": 8, "options": {"level": 3}, "make": {"length": 5}}, {"data": "only"}]
    task = GymnasiumTask(Probe, name="probe", splits={"train": 3, "given": samples})
    for index in range(6):
        for _ in range(2):
            with testing.play_sync(task, index, seed=1):
                pass
    seeds = [probe.resets[0][0] for probe in probes]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 6
    assert seeds[6:10] == [7, 7, 8, 8]
    assert probes[8].resets == [(8, {"level": 3})]
    assert probes[8]._length == 5
    with testing.play_sync(task, 0, seed=2):
        pass
    assert probes[-1].resets[0][0] not in seeds
    assert all(probe.num_closed == 1 for probe in probes)


@pytest.mark.parametrize(
    ("space", "sent", "taken"),
    [
        (spaces.Discrete(3, start=2), 4, np.int64(4)),
        (spaces.Box(-1, 1, (2,)), [0.1, 1], np.array([0.1, 1], np.float32)),
        (spaces.Box(0, 9, (), np.int32), 3, np.array(3, np.int32)),
        (spaces.MultiDiscrete([2, 3]), [1, 2], np.array([1, 2])),
        (spaces.MultiBinary(2), [0, 1], np.array([0, 1], np.int8)),
        (spaces.Text(5), "hello", "hello"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(2)]), {"0": 1, "1": "a"}, (np.int64(1), "a")),
    ],
)
def test_actions_arrive_as_the_space_has_them(probes: list[Probe], space: Any, sent: Any, taken: Any):
    task = GymnasiumTask(Probe, make={"action_space": space}, name="probe")
    with testing.play_sync(task) as episode:
        episode.call("step", action=sent)
        (got,) = probes[0].actions
        assert type(got) is type(taken)
        assert np.asarray(got).dtype == np.asarray(taken).dtype
        assert np.array_equal(got, taken)


def test_a_dictionary_has_arguments_of_its_own(probes: list[Probe]):
    space = spaces.Dict({"move": spaces.Discrete(2), "power": spaces.Box(0, 1, (1,))})
    task = GymnasiumTask(Probe, make={"action_space": space}, name="probe", names={"move": ["left", "right"]})
    with testing.play_sync(task) as episode:
        episode.call("step", move="right", power=[0.5])
        assert probes[0].actions == [{"move": 1, "power": np.array([0.5], np.float32)}]
        assert "argument `power` is missing" in episode.call("step", move="left").text


def test_bad_actions_are_told_and_never_arrive(probes: list[Probe]):
    low, high = np.array([-1, 0], np.float32), np.array([1, 5], np.float32)
    task = GymnasiumTask(Probe, make={"action_space": spaces.Box(low, high)}, name="probe")
    with testing.play_sync(task) as episode:
        # The schema knows one range for all; the space knows each.
        assert "`action[0]` must be from -1.0 to 1.0, got 4" in episode.call("step", action=[4, 4]).text
        assert "[1] is too short" in episode.call("step", action=[1]).text
        assert "'x' is not of type 'number'" in episode.call("step", action=["x", 1]).text
        assert episode.call("step").finish
        assert episode.status is SampleStatus.AGENT_INVALID_ACTION
    assert probes[0].actions == []
    assert probes[0].num_closed == 1


def test_what_a_mask_excludes_is_refused(probes: list[Probe]):
    task = GymnasiumTask(Probe, make={"mask": [0, 1, 1]}, name="probe", names=["a", "b", "c"])
    with testing.play_sync(task) as episode:
        assert episode.opening.text.endswith("0\n\nlegal actions: b, c")
        refused = episode.call("step", action="a").text
        assert "argument `action`: a is not legal now; legal actions: b, c" in refused
        assert episode.session.invalid_actions == 1
        episode.call("step", action="b")
    assert probes[0].actions == [1]
    with testing.play_sync(GymnasiumTask(Probe, make={"mask": [0, 1, 1]}, name="p", masks=False)) as episode:
        episode.call("step", action=0)
    assert probes[1].actions == [0]


def test_truncation_and_termination_are_kept_apart():
    with testing.play_sync(GymnasiumTask(Probe, make={"truncates": True}, name="probe")) as episode:
        episode.call("step", action=0)
        episode.call("step", action=0)
        assert episode.status is SampleStatus.TASK_LIMIT_REACHED
        assert episode.metrics["truncated"] == "environment"
        assert episode.reward == 0.5
    with testing.play_sync(GymnasiumTask(Probe, name="probe")) as episode:
        episode.call("step", action=0)
        assert not episode.finished
        episode.call("step", action=0)
        assert episode.status is SampleStatus.COMPLETED
        assert "truncated" not in episode.metrics


def test_numbers_of_info_are_metrics():
    with testing.play_sync(GymnasiumTask(Probe, name="probe")) as episode:
        episode.call("step", action=0)
        assert episode.metrics == {"info/steps": 1, "info/ratio": 0.5}
    with testing.play_sync(GymnasiumTask(Probe, name="probe", metrics=["steps", "absent"])) as episode:
        episode.call("step", action=0)
        assert episode.metrics == {"info/steps": 1}


def test_the_score_is_the_return_on_a_scale():
    task = GymnasiumTask(Probe, make={"reward": -25.0}, name="probe", score_range=(-100.0, 0.0))
    with testing.play_sync(task) as episode:
        episode.call("step", action=0)
        assert episode.score == 0.75
        episode.call("step", action=0)
        assert (episode.reward, episode.score) == (-50.0, 0.5)


def test_a_reward_that_is_no_number_is_the_tasks_fault():
    with testing.play_sync(GymnasiumTask(Probe, make={"reward": np.nan}, name="probe")) as episode:
        episode.call("step", action=0)
        assert episode.status is SampleStatus.TASK_ERROR
        assert "`reward` must be finite, got nan" in episode.metrics["error"]


def test_pictures_are_parts():
    with testing.play_sync(GymnasiumTask(Probe, make={"render_mode": "rgb_array"}, name="probe")) as episode:
        text, picture = episode.opening.messages[0].content or []
        assert text["type"] == "text"
        assert picture["image_url"]["url"].startswith("data:image/png;base64,")
        seen = episode.call("step", action=0).messages[0].content
        assert isinstance(seen, list)
        assert seen != [picture]


def test_what_is_shown_can_be_chosen():
    def observe(view: View) -> str:
        return f"{view.observation} after {view.info['steps']}"

    make = {"render_mode": "ansi"}
    for more, told in (
        ({}, "<red>0</red> of 2"),
        ({"show": "observation"}, "0"),
        ({"show": "both"}, "0\n\n<red>0</red> of 2"),
        ({"observe": observe}, "0 after 0"),
    ):
        task = GymnasiumTask(Probe, make=make, name="probe", instructions="", **more)
        with testing.play_sync(task) as episode:
            assert episode.opening.text == told


def test_an_agent_may_say_what_it_does(probes: list[Probe]):
    task = GymnasiumTask(
        Probe, name="probe", mode="text", names=["left", "stay", "right"], make={"length": 4}
    )
    with testing.play_sync(task) as episode:
        assert not episode.tools
        assert (
            "Reply with your next action and nothing else: one of left, stay, right." in episode.opening.text
        )
        for said in ("right", '"stay"', "Not left, I go Right."):
            episode.say(said)
        assert probes[0].actions == [2, 1, 2]
        told = episode.say("hm").text
        assert (
            told
            == 'error: there is no action in the reply; reply with one of left, stay, right; example: "left"'
        )
        for _ in range(3):
            episode.say("hm")
        assert episode.status is SampleStatus.AGENT_INVALID_ACTION


def test_a_function_may_read_what_is_said(probes: list[Probe]):
    def parse(text: str) -> Any:
        if "<" not in text:
            raise ValueError("write the numbers in <>")
        return np.array([float(word) for word in text.strip("<>").split()])

    space = spaces.Box(-1, 1, (2,))
    task = GymnasiumTask(Probe, name="probe", mode="text", parse=parse, make={"action_space": space})
    with testing.play_sync(task) as episode:
        assert episode.say("1 2").text.startswith("error: write the numbers in <>; reply with 2 numbers")
        assert "2.0 is greater than the maximum of 1.0" in episode.say("<2 0>").text
        episode.say("<0.5 0>")
    assert probes[0].actions[0].tolist() == [0.5, 0.0]


def test_numbers_and_texts_are_read_without_a_function(probes: list[Probe]):
    with testing.play_sync(GymnasiumTask(Probe, name="probe", mode="text")) as episode:
        episode.say("First 0, but then I take 2")
        assert probes[0].actions == [2]
    make = {"action_space": spaces.Text(9)}
    with testing.play_sync(GymnasiumTask(Probe, name="probe", mode="text", make=make)) as episode:
        episode.say("42")
        assert probes[1].actions == ["42"]


@pytest.mark.parametrize("mode", ["tools", "text"])
def test_an_episode_can_be_forked(mode: Any):
    def step(episode: Any, action: int) -> Any:
        return episode.call("step", action=action) if mode == "tools" else episode.say(str(action))

    task = GymnasiumTask("CartPole-v1", mode=mode, can_fork=True)
    with testing.play_sync(task, seed=3) as episode:
        step(episode, 1)
        twin = episode.fork()
        assert step(twin, 0).text == step(episode, 0).text
        assert step(twin, 0).text != step(episode, 1).text
        twin.cancel()
        assert not step(episode, 1).finish


def test_forks_are_closed_each(probes: list[Probe]):
    with testing.play_sync(GymnasiumTask(Probe, name="probe", can_fork=True)) as episode:
        twin = episode.fork()
        copy = twin.session.state["environment"].play.environment
        assert copy is not probes[0]
        twin.call("step", action=1)
        assert (copy.actions, probes[0].actions) == ([1], [])
        twin.cancel()
        assert (copy.num_closed, probes[0].num_closed) == (1, 0)
    assert probes[0].num_closed == 1
    assert not GymnasiumTask(Probe, name="probe").can_snapshot


def test_tools_of_a_subclass_stay():
    class Looking(GymnasiumTask):
        @tool
        def look(self, session: Session) -> str:
            """Look around."""
            return f"{self.environment(session).action_space}"

    with testing.play_sync(Looking(Probe, name="probe")) as episode:
        assert [each.function.name for each in episode.tools] == ["look", "step"]
        assert episode.call("look").text == "Discrete(3)"


async def test_an_environment_that_is_made_too_late_is_closed(probes: list[Probe]):
    entered, go_on = threading.Event(), threading.Event()

    def make() -> Probe:
        entered.set()
        assert go_on.wait(DEADLINE_S)
        return Probe()

    runner = Runner(GymnasiumTask(make, name="slow"))
    with pytest.raises(TimeoutError):
        await runner.start(0, session_id="s", deadline_s=0.05)
    await runner.cancel_all()
    assert entered.is_set()
    assert not probes
    go_on.set()
    wait_for(lambda: probes and probes[0].num_closed == 1)


async def test_an_environment_is_not_closed_under_a_step(call: Any, probes: list[Probe]):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Probe):
        def step(self, action: Any) -> Any:
            entered.set()
            assert go_on.wait(DEADLINE_S)
            assert self.num_closed == 0
            self.has_stepped = True
            return super().step(action)

    runner = Runner(GymnasiumTask(Slow, name="slow"))
    session_id, _ = await runner.start(0)
    with pytest.raises(TimeoutError):
        await runner.interact(session_id, [call("step", action=0)], deadline_s=0.05)
    assert entered.is_set()
    await runner.cancel(session_id)
    (slow,) = probes
    assert slow.num_closed == 0
    go_on.set()
    wait_for(lambda: slow.num_closed == 1)
    assert slow.actions == [0]


async def test_episodes_may_have_processes_of_their_own(call: Any):
    task = GymnasiumTask("Taxi-v4", make={"render_mode": "ansi"}, isolation="process")
    assert task.isolation == "process"
    isolated = IsolatedTask(task)
    runner = Runner(isolated)
    session_id, opening = await runner.start(3, seed=1)
    with testing.play_sync(GymnasiumTask("Taxi-v4", make={"render_mode": "ansi"}), 3, seed=1) as episode:
        assert opening.messages[0].text == episode.opening.text
    assert opening.tools is not None
    bad = await runner.interact(session_id, [call("step", action=17)])
    assert "17 is greater than the maximum of 5" in bad.messages[0].text
    await runner.cancel(session_id)
    isolated.close()


@pytest.mark.parametrize(
    ("env", "settings", "told"),
    [
        ("NoSuch-v0", {}, "there is no environment `NoSuch-v0`"),
        ("no_such_module:Env-v0", {}, "No module named 'no_such_module'"),
        (Probe, {"mode": "talk"}, r"`mode` must be one of \['tools', 'text'\], got 'talk'"),
        (Probe, {"show": "all"}, "`show` must be one of"),
        (Probe, {"parse": int}, '`parse` reads what the agent says; it needs `mode="text"`'),
        (Probe, {"score_range": (1, 0)}, r"`score_range` must be .* got \(1, 0\)"),
        (Probe, {"render_mode": "ansi"}, "`render_mode` is no setting; environments are made with `make="),
    ],
)
def test_wrong_settings_are_refused(env: Any, settings: Any, told: str):
    with pytest.raises(ConfigError, match=told):
        GymnasiumTask(env, **settings)


@pytest.mark.parametrize(
    ("make", "names", "told"),
    [
        ({"nonsense": 1}, None, "cannot be made with {'nonsense': 1}: TypeError"),
        ({}, ["a"], "`names` for Discrete.3. must be 3 different names"),
        ({"action_space": spaces.Graph(spaces.Discrete(2), None)}, None, "`Graph` has no JSON form"),
    ],
)
def test_environments_that_do_not_fit_fail_at_the_start(
    make: Any, names: Any, told: str, probes: list[Probe]
):
    task = GymnasiumTask(Probe, name="probe", make=make, names=names)
    with pytest.raises(EpisodeError, match=told), testing.play_sync(task):
        pass
    assert all(probe.num_closed == 1 for probe in probes)


def test_without_the_package_it_can_be_imported_but_not_used():
    program = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from agentrl_env_sdk.adapters.gymnasium import GymnasiumTask\n"
        "assert 'numpy' not in sys.modules\n"
        "GymnasiumTask('Taxi-v4')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "agentrl-env-sdk[gymnasium]" in run.stderr.splitlines()[-1]
    assert "ConfigError" in run.stderr.splitlines()[-1]

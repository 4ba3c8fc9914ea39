import copy
import json

import pytest
from agentrl_task_household import Household, make_chore, next_action, plan
from agentrl_task_household.actions import ACTIONS, held_thing, look, things_at
from agentrl_task_household.goals import LEVELS, collect, is_done, is_placed, steps_of, told, wanted, worth_of
from agentrl_task_household.house import EXAMINABLE, HANDS, TREATABLE, is_hidden
from agentrl_task_household.planner import reach
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core import ConfigError
from agentrl_env_sdk.testing import DoNothingAgent, OracleAgent, RandomAgent, act

EVERY = [f"train/{number}" for number in range(1000)] + [f"test/{number}" for number in range(200)]


def do(house, action):
    """Do an action; returns what is said and what it earns."""
    name, arguments = action
    return ACTIONS[name](house, **arguments), collect(house)


def a_house(**goal):
    """The first house of the samples whose goal is such."""
    houses = (make_chore(difficulty, name) for difficulty in LEVELS for name in EVERY[:300])
    return next(house for house in houses if goal.items() <= house["goal"].items())


@pytest.mark.parametrize("difficulty", LEVELS)
def test_every_chore_can_be_done_and_is_not_done_yet(difficulty):
    for name in EVERY:
        house = make_chore(difficulty, name)
        assert collect(house) == 0.0
        assert not any(is_placed(house, thing) for thing in wanted(house))
        assert len(plan(house)) <= {"easy": 8, "medium": 13, "hard": 30}[difficulty]
        if difficulty == "easy":
            assert not any(is_hidden(house, house["things"][thing]["at"]) for thing in wanted(house))


@pytest.mark.parametrize("difficulty", LEVELS)
def test_every_kind_of_chore_comes_up_and_stays_the_same(difficulty):
    goals = [make_chore(difficulty, name)["goal"] for name in EVERY[:100]]
    found = {goal["treatment"] or goal["verb"] for goal in goals}
    assert found == set(LEVELS[difficulty])
    assert {goal["count"] for goal in goals} == ({2} if difficulty == "hard" else {1})
    for goal in goals:
        assert goal["thing"] in (EXAMINABLE if goal["verb"] == "examine" else {goal["thing"]})
        assert goal["thing"] in TREATABLE.get(goal["treatment"], {goal["thing"]})
    assert make_chore(difficulty, "7") == make_chore(difficulty, "7")


def test_the_state_is_plain_data():
    house = make_chore("hard", "test/0")
    assert json.loads(json.dumps(house)) == house


@pytest.mark.parametrize("difficulty", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_best_play_wins_everywhere(play, difficulty, split):
    task = Household(difficulty)
    start = 0 if split == "train" else 1000
    for index in range(start, start + 12):
        episode = play(task, index=index)
        episode.play(OracleAgent(task.oracle))
        assert (episode.score, episode.metrics["success"]) == (1.0, 1.0)
        assert episode.reward == pytest.approx(1.0)


def search_everywhere(session):
    """What one can do without knowing where things are: look at place after place, then do the chore."""
    house, seen = session.state, set()
    while not session.finished:
        if house["at"] and not is_hidden(house, house["at"]):
            seen.add(house["at"])
        known = copy.deepcopy(house)
        for name, thing in house["things"].items():
            if thing["at"] not in (HANDS, *seen):
                del known["things"][name]
        action = None
        if not held_thing(house) and all(is_placed(known, name) for name in wanted(known)):
            here = [name for name, place in house["places"].items() if place["room"] == house["room"]]
            unseen = [name for name in (*here, *house["places"]) if name not in seen]
            action = reach(house, unseen[0])
        name, arguments = action or next_action(known)
        yield act(name, **arguments)


@pytest.mark.parametrize("difficulty", LEVELS)
def test_searching_everywhere_is_in_time(play, difficulty):
    task = Household(difficulty)
    for index in range(1000, 1012):
        episode = play(task, index=index)
        episode.play(OracleAgent(search_everywhere))
        assert episode.metrics["success"] == 1.0, episode.opening.text


def wander(session):
    """Do by chance what can be done."""
    house, chance = session.state, session.random
    while not session.finished:
        at, held = house["at"], held_thing(house)
        here = [name for name, place in house["places"].items() if place["room"] == house["room"]]
        can = [("go", {"place": chance.choice([*here, *house["doors"][house["room"]]])})]
        if at and is_hidden(house, at):
            can.append(("open", {"place": at}))
        elif at and held:
            can.append(("put", {"thing": held, "place": at}))
        elif at and (there := things_at(house, at)):
            can.append(("take", {"thing": chance.choice(there)}))
        if held:
            can.append((chance.choice(["clean", "heat", "cool"]), {"thing": held}))
        if at and house["places"][at]["lamp"]:
            can.append(("use", {"lamp": house["places"][at]["lamp"]}))
        name, arguments = chance.choice(can)
        yield act(name, **arguments)


@pytest.mark.parametrize("difficulty", LEVELS)
def test_nothing_comes_of_nothing_and_little_of_chance(play, difficulty):
    task, scores = Household(difficulty), []
    for index in range(1000, 1006):
        for agent in (DoNothingAgent(), RandomAgent(index), OracleAgent(wander)):
            episode = play(task, index=index)
            episode.play(agent)
            scores.append(episode.score)
            if isinstance(agent, DoNothingAgent):
                assert episode.reward == 0.0
    assert sum(scores) / len(scores) < 0.4


@pytest.mark.parametrize(
    ("goal", "worth"),
    [
        ({"verb": "put", "treatment": "", "count": 1}, [0.4, 0.6]),
        ({"verb": "examine"}, [0.4, 0.6]),
        ({"treatment": "heat", "count": 1}, [0.2, 0.2, 0.6]),
        ({"treatment": "", "count": 2}, [0.4 / 3] * 3 + [0.6]),
        ({"treatment": "cool", "count": 2}, [0.08] * 5 + [0.6]),
    ],
)
def test_steps_are_paid_one_by_one(goal, worth):
    house = a_house(**goal)
    assert list(worth_of(house["goal"]).values()) == pytest.approx(worth)
    earned = [each for action in plan(house) if (each := do(house, action)[1])]
    assert earned == pytest.approx(worth)
    assert house["paid"] == steps_of(house["goal"])


def test_a_step_is_paid_once(play):
    index = next(n for n, name in enumerate(EVERY) if make_chore("easy", name)["goal"]["verb"] == "put")
    task = Household()
    episode = play(task, index=index)
    for name, arguments in plan(make_chore("easy", EVERY[index])):
        episode.call(name, **arguments)
        if name == "take":
            break
    thing, at = held_thing(episode.session.state), episode.session.state["at"]
    assert (episode.reward, episode.score) == (0.4, 0.0)
    episode.call("put", thing=thing, place=at)
    episode.call("take", thing=thing)
    assert episode.reward == 0.4
    episode.play(OracleAgent(task.oracle))
    assert (episode.reward, episode.score) == (1.0, 1.0)


def test_a_hot_thing_that_was_cooled_is_not_hot():
    house = a_house(treatment="heat", count=1)
    actions = plan(house)
    for action in actions[:-1]:
        do(house, action)
    thing = held_thing(house)
    house["things"][thing]["temperature"] = "cold"
    assert do(house, actions[-1])[1] == 0.0
    assert not is_done(house)
    for action in plan(house):
        do(house, action)
    assert (is_done(house), sum(worth_of(house["goal"]).values())) == (True, 1.0)


@pytest.mark.parametrize("where", ["middle", "late"])
def test_a_fork_goes_on_apart(play, where):
    task = Household("hard")
    episode = play(task, index=1000)
    actions = plan(make_chore("hard", "test/0"))
    for name, arguments in actions[: len(actions) // 2 if where == "middle" else -1]:
        episode.call(name, **arguments)
    before, earned = copy.deepcopy(episode.session.state), episode.reward
    assert task.can_snapshot
    twin = episode.fork()
    twin.play(OracleAgent(task.oracle))
    assert (twin.score, twin.reward) == (1.0, pytest.approx(1.0))
    assert (episode.session.state, episode.reward, episode.finished) == (before, earned, False)
    episode.play(OracleAgent(task.oracle))
    assert (episode.score, episode.reward) == (1.0, pytest.approx(1.0))


def test_messages_teach():
    house = a_house(treatment="heat", count=1)
    house.update(room="kitchen", at="")
    house["things"] = {
        "mug 1": {"kind": "mug", "at": "fridge 1", "is_clean": False, "temperature": ""},
        "book 1": {"kind": "book", "at": "counter 1", "is_clean": False, "temperature": ""},
        "pen 1": {"kind": "pen", "at": "counter 1", "is_clean": False, "temperature": ""},
        "pen 2": {"kind": "pen", "at": "counter 1", "is_clean": False, "temperature": ""},
    }

    def said(name, **arguments):
        return ACTIONS[name](house, **arguments)

    assert said("inventory") == "your hands are empty"
    assert said("take", thing="mug 1") == "you are in the middle of the room; go to a place first"
    assert said("open", place="fridge") == "you are not at fridge 1; go there first"
    assert said("go", place="attic").startswith(
        "there is no attic here, or several; the kitchen has: fridge 1"
    )
    assert said("go", place="The Fridge") == "you are at fridge 1 in the kitchen; fridge 1 is closed"
    assert said("take", thing="mug 1") == "fridge 1 is closed; open it first"
    assert said("close", place="fridge 1") == "fridge 1 is closed already"
    assert said("open", place="fridge 1") == "you open fridge 1; in it: mug 1"
    assert said("open", place="fridge 1") == "fridge 1 is open already"
    assert said("take", thing="cup") == "in fridge 1 there is no cup, or several; there is: mug 1"
    assert said("take", thing="mug") == "you take mug 1 from fridge 1"
    assert said("close", place="it").startswith("there is no it here, or several; you are at fridge 1")
    assert said("close", place="fridge 1") == "you close fridge 1"
    assert said("put", thing="mug 1", place="fridge 1") == "fridge 1 is closed; open it first"
    assert said("heat", thing="mug 1") == "you can heat things at a microwave only; go there first"
    assert said("cool", thing="mug 1") == "you have cooled mug 1 with fridge 1; you hold mug 1 (cold)"
    assert said("go", place="counter 1").endswith("on it: book 1, pen 1, pen 2")
    assert said("take", thing="book 1") == "your hands are full with mug 1; put it down first"
    assert said("put", thing="book 1", place="counter 1") == "you do not hold book 1; you hold mug 1 (cold)"
    assert said("open", place="counter 1") == "counter 1 cannot be opened; what is there lies open"
    assert said("close", place="counter 1") == "counter 1 cannot be closed"
    assert said("put", thing="mug 1", place="counter 1") == "you put mug 1 on counter 1"
    assert said("take", thing="pen").startswith("on counter 1 there is no pen, or several;")
    said("take", thing="book 1")
    said("go", place="sink 1")
    assert said("clean", thing="book 1") == "a book is nothing to clean; it stays as it is"
    assert said("use", lamp="lamp 1") == "there is no lamp 1 to use here; no lamp stands here"
    house.update(room="bedroom", at="desk 1")
    assert said("use", lamp="lamp") == "lamp 1 is on; you hold book 1"
    assert look(house).endswith("lamp 1 stands here, it is on")
    assert said("use", lamp="lamp 1") == "lamp 1 is off; you hold book 1"


def test_goals_read_well():
    goal = {"verb": "put", "treatment": "cool", "thing": "potato", "place": "shelf", "count": 2}
    assert told(goal) == "Put two cold potatoes on shelves, the same one or not."
    assert (
        told(goal | {"count": 1, "treatment": "clean", "place": "drawer"})
        == "Put a clean potato in a drawer."
    )
    assert told(goal | {"count": 1, "treatment": "", "thing": "apple"}) == "Put an apple on a shelf."
    assert told(goal | {"verb": "examine", "thing": "key"}).startswith("Examine a key under a lamp")


@given(st.sampled_from(sorted(LEVELS)), st.integers(0, 199), st.data())
def test_whatever_is_done_the_house_holds_together(difficulty, number, data):
    house = make_chore(difficulty, f"test/{number}")
    names = [*house["places"], *house["things"], *house["doors"], "lamp 1", "nonsense", ""]
    before, earned = set(house["things"]), 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        name = data.draw(st.sampled_from(sorted(ACTIONS)))
        likely = [*things_at(house, HANDS), *things_at(house, house["at"]), house["at"]]
        takes = {"look": (), "inventory": (), "put": ("thing", "place"), "use": ("lamp",)}.get(
            name, ("place",) if name in ("go", "open", "close") else ("thing",)
        )
        arguments = {each: data.draw(st.sampled_from([*likely, *names])) for each in takes}
        visible = things_at(house, HANDS)
        if house["at"] and not is_hidden(house, house["at"]):
            visible += things_at(house, house["at"])
        text, worth = do(house, (name, arguments))
        if house["at"] and not is_hidden(house, house["at"]):
            visible += things_at(house, house["at"])
        earned += worth
        assert text == text.strip() != ""
        mentioned = {thing for thing in before if thing in text.replace(";", ",").split(", ")}
        assert mentioned <= {*visible, *arguments.values()}
        if is_done(house):
            break
    assert set(house["things"]) == before
    assert {thing["at"] for thing in house["things"].values()} <= {HANDS, *house["places"]}
    assert len(things_at(house, HANDS)) <= 1
    assert earned == pytest.approx(sum(worth_of(house["goal"])[step] for step in house["paid"]))
    if is_done(house):
        assert earned == pytest.approx(1.0)
    else:
        assert plan(house)  # Nothing that was done keeps the chore from being done.


def test_an_unknown_difficulty_is_named():
    with pytest.raises(ConfigError, match="got 'tiny'"):
        Household("tiny")


def test_the_task_keeps_the_rules(validate_task):
    report = validate_task(Household("medium"))
    assert report.ok, report.table()

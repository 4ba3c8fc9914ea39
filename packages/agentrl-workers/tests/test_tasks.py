import asyncio

import pytest

from agentrl_core import Outcome, Segment, Trajectory, Turn
from agentrl_workers.mixture import Item
from agentrl_workers.tasks import BarrenStreak, DistributedTaskManager, GroupResult, episodes_of

ITEMS = [Item(position=n, task="t", index=n) for n in range(3)]
TURN = Turn(context_ids=(1,), token_ids=(2,), logps=(-0.1,), segments=(Segment(version=0, start=0, end=1),))


def ended(episode, outcome=Outcome.COMPLETED, turns=(TURN,)):
    return Trajectory(
        trajectory_id=episode.episode_id,
        task=episode.task,
        index=episode.index,
        group_id=episode.group_id,
        turns=turns,
        outcome=outcome,
    )


def manager(play, **options):
    settings = {"concurrency": 4, "group_size": 2, "retries": 1, "seed": 0} | options
    return DistributedTaskManager(play, **settings)


async def groups(running, count):
    async with asyncio.timeout(5):
        return [await running.next_group() for _ in range(count)]


def test_members_of_a_group_share_sample_and_seed_and_groups_do_not():
    one, two = (episodes_of(item, group_size=3, seed=1) for item in ITEMS[:2])
    assert len({episode.episode_id for episode in one + two}) == 6
    assert len({(e.index, e.seed, e.group_id) for e in one}) == 1
    assert one[0].seed != two[0].seed
    assert [e.seed for e in one] == [e.seed for e in episodes_of(ITEMS[0], group_size=3, seed=1)]


async def test_groups_are_released_when_they_are_complete_whatever_the_order():
    gates = {}

    async def play(episode):
        gates[episode.episode_id] = asyncio.Event()
        await gates[episode.episode_id].wait()
        return ended(episode)

    running = manager(play)
    work = asyncio.create_task(running.run())
    for item in ITEMS[:2]:
        running.submit(item)
    while len(gates) < 4:
        await asyncio.sleep(0)
    for name in ("t-0-1", "t-1-0", "t-1-1"):
        gates[name].set()
    (first,) = await groups(running, 1)
    assert (first.item.position, running.running, running.oldest) == (1, 1, 0)
    gates["t-0-0"].set()
    (second,) = await groups(running, 1)
    assert sorted(t.trajectory_id for t in second.trajectories) == ["t-0-0", "t-0-1"]
    work.cancel()


async def test_no_more_episodes_run_than_allowed():
    running_now, most = 0, 0

    async def play(episode):
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0)
        running_now -= 1
        return ended(episode)

    running = manager(play, concurrency=3, group_size=5)
    work = asyncio.create_task(running.run())
    for item in ITEMS:
        running.submit(item)
    await groups(running, 3)
    assert most == 3
    work.cancel()


async def test_a_failed_member_is_tried_again_then_left_out_and_its_group_goes_on():
    tries = {}

    async def play(episode):
        tries[episode.episode_id] = tries.get(episode.episode_id, 0) + 1
        if episode.episode_id == "t-0-0" or (episode.episode_id == "t-0-1" and tries["t-0-1"] == 1):
            return ended(episode, Outcome.INFRASTRUCTURE_ERROR, turns=())
        if episode.episode_id == "t-0-2":
            return ended(episode, Outcome.ENVIRONMENT_ERROR)
        return ended(episode)

    running = manager(play, group_size=4)
    work = asyncio.create_task(running.run())
    running.submit(ITEMS[0])
    (group,) = await groups(running, 1)
    assert tries == {"t-0-0": 2, "t-0-1": 2, "t-0-2": 1, "t-0-3": 1}
    assert len(group.trajectories) == 4
    assert sorted(t.trajectory_id for t in group.usable) == ["t-0-1", "t-0-3"]
    work.cancel()


async def test_an_episode_without_a_token_is_not_usable():
    async def play(episode):
        return ended(episode, Outcome.TRUNCATED, turns=())

    running = manager(play)
    work = asyncio.create_task(running.run())
    running.submit(ITEMS[0])
    assert (await groups(running, 1))[0].usable == ()
    work.cancel()


async def test_a_fault_of_the_program_ends_the_run():
    async def play(episode):
        raise ZeroDivisionError(episode.episode_id)

    running = manager(play)
    running.submit(ITEMS[0])
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(running.run(), 5)
    assert caught.group_contains(ZeroDivisionError)


def test_barren_groups_count_in_the_order_of_their_start():
    def group(position, outcome):
        episodes = episodes_of(Item(position, "t", position), group_size=2, seed=0)
        return GroupResult(
            Item(position, "t", position), tuple(ended(episode, outcome) for episode in episodes)
        )

    bad, good = Outcome.ENVIRONMENT_ERROR, Outcome.COMPLETED
    streak = BarrenStreak()
    lengths = []
    # Groups 1, 2, 4 and 5 fail at once while 0 and 3 still play; then 0 ends well, then 3 badly.
    for position, outcome, oldest in (
        (1, bad, 0),
        (2, bad, 0),
        (4, bad, 0),
        (5, bad, 0),
        (0, good, 3),
        (3, bad, None),
    ):
        streak.add(group(position, outcome), oldest=oldest)
        lengths.append(streak.length)
    assert lengths == [0, 0, 0, 0, 2, 5]
    assert streak.reason == "t: environment_error: "
    streak.add(group(6, good), oldest=None)
    assert (streak.length, streak.reason) == (0, "")

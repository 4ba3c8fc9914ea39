"""What happens in one episode shows in no other that is played at the same time."""

import asyncio

from agentrl_env_sdk.recording import first_difference
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.testing.episode import Episode, begin
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import SEED, Play, Subject, judged, skipped

_MAX_EPISODES = 16


async def no_leaks(subject: Subject) -> Finding:
    """Play episodes one after another, then the same ones at the same time, and compare."""
    wanted = [(index, seed) for seed in (SEED, SEED + 1) for index in subject.samples][:_MAX_EPISODES]
    wanted.append(wanted[0])  # The same episode twice at once is what groups of a trainer are.
    agent = subject.agents[0]
    alone = [await subject.play(agent, index, seed=seed) for index, seed in wanted]
    again = await subject.play(agent, wanted[0][0], seed=wanted[0][1])
    parted = first_difference(alone[0].recording, again.recording)
    if parted is not None:
        return skipped("no-leaks", f"alone, too, the same episode is another one each time: {parted:.120}")
    problems = []
    for way, together in (("in turn", _in_turn), ("at once", _at_once)):
        for (index, seed), before, after in zip(
            wanted, alone, await together(subject, wanted, alone), strict=True
        ):
            parted = first_difference(before.recording, after.recording)
            if parted is not None:
                problems.append(
                    f"sample {index!r} with seed {seed} played {way} with {len(wanted) - 1} others differs "
                    f"from the same alone: {parted}; keep an episode's data in `session.state`, not on the "
                    "task, its class or the module"
                )
    did = f"played {len(wanted)} episodes of {subject.where} alone, in turn and at once ({agent})"
    return judged("no-leaks", did, problems)


async def _in_turn(subject: Subject, wanted: list[tuple], alone: list[Play]) -> list[Play]:
    """All begin, then each has a turn, then the next: the order in which shared state shows."""
    runner = subject.runner(subject.variant())
    episodes = [await begin(runner, index, seed=seed) for index, seed in wanted]
    for turn in range(max(len(play.actions) for play in alone)):
        for episode, play in zip(episodes, alone, strict=True):
            if turn < len(play.actions) and not episode.finished:
                await episode.act(play.actions[turn])
    return [await subject.finish(episode, ScriptedAgent([])) for episode in episodes]


async def _at_once(subject: Subject, wanted: list[tuple], alone: list[Play]) -> list[Play]:
    """All at the same time, threads included."""
    runner = subject.runner(subject.variant())
    starts = (begin(runner, index, seed=seed) for index, seed in wanted)
    episodes: list[Episode] = await asyncio.gather(*starts)
    plays = zip(episodes, alone, strict=True)
    return await asyncio.gather(
        *(subject.finish(episode, ScriptedAgent(play.actions)) for episode, play in plays)
    )

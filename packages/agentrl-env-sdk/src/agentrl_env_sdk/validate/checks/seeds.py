"""The same seed gives the same episode, another seed or sample another one."""

from agentrl_env_sdk.recording import Recording, first_difference
from agentrl_env_sdk.validate.elsewhere import play_elsewhere
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import SEED, Subject, judged

_SEEDS = 4
_ELSEWHERE = 4


async def same_seed(subject: Subject) -> Finding:
    """Play each sample twice with one seed and compare what is seen, turn by turn."""
    problems = []
    agents = [agent for agent in subject.agents if agent != "do-nothing"]
    for agent in agents:
        for index, before in zip(subject.samples, await subject.plays(agent), strict=True):
            again = await subject.play(agent, index)
            parted = first_difference(before.recording, again.recording)
            if parted is not None:
                problems.append(
                    f"sample {index!r} with seed {SEED} is another one the second time: {parted}; draw "
                    "chance from `session.random` alone, keep nothing on the task, sort what has no order"
                )
    notes = await _elsewhere(subject, problems) if subject.source and not problems else []
    where = f"{subject.where} twice with seed {SEED} ({', '.join(agents)})"
    once_more = ", and some in another process" if subject.source else ""
    return judged("same-seed", f"played {where}{once_more}", problems, notes=notes)


async def _elsewhere(subject: Subject, problems: list[str]) -> list[str]:
    """Look at some samples in another process; returns notes."""
    before = [play.recording for play in (await subject.plays(subject.agents[0]))[:_ELSEWHERE]]
    try:
        after = await play_elsewhere(subject.source, before)
    except (RuntimeError, TimeoutError) as error:
        return [f"another process could not play it: {error}"]
    for one, other in zip(before, after, strict=True):
        parted = first_difference(one, other)
        if parted is not None:
            problems.append(
                f"sample {one.index!r} with seed {SEED} is another one in another process: {parted}; sort "
                "what comes from a set, and use neither `hash` nor `id`"
            )
    return []


async def different_seeds(subject: Subject) -> Finding:
    """Play one sample with several seeds; where nothing differs, different samples must."""
    agent, first = subject.agents[0], subject.samples[0]
    plays = [await subject.play(agent, first, seed=seed) for seed in range(SEED, SEED + _SEEDS)]
    num_different = _distinct([play.recording for play in plays])
    if num_different > 1:
        did = f"{num_different} of {_SEEDS} seeds give sample {first!r} an episode of its own"
        return judged("different-seeds", did, [])
    recordings = [play.recording for play in await subject.plays(agent)]
    num_different = _distinct(recordings)
    if num_different > 1:
        did = f"the seed changes nothing, the sample does: {num_different} of {len(recordings)} differ"
        return judged("different-seeds", did, [])
    problem = (
        f"{_SEEDS} seeds of sample {first!r} and {len(recordings)} samples all give the same episode; "
        "use `session.random` or `session.sample` in `setup`"
    )
    return judged("different-seeds", f"played {_SEEDS} seeds and {subject.where} ({agent})", [problem])


def _distinct(recordings: list[Recording]) -> int:
    """How many are not the same as one before."""
    found: list[Recording] = []
    for recording in recordings:
        if all(_differ(recording, other) for other in found):
            found.append(recording)
    return len(found)


def _differ(one: Recording, other: Recording) -> bool:
    acted = [message.to_wire() for message in one.actions] != [message.to_wire() for message in other.actions]
    return acted or first_difference(one, other) is not None

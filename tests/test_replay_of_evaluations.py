"""What an evaluation writes down, `agentrl-env replay` plays again: the same folder, the same seeds."""

from agentrl_core import Message, Outcome
from agentrl_env_sdk import Session, Task, testing, tool
from agentrl_env_sdk.replay import read, replay
from agentrl_eval.journal import FileJournal, Record
from agentrl_eval.plan import Plan
from agentrl_eval.sampling import Sample


class Dice(Task):
    """The seed shows in every answer."""

    splits = {"train": 3}

    def setup(self, session: Session) -> str:
        return "roll"

    @tool
    def roll(self, session: Session) -> int:
        """Roll."""
        return session.random.randrange(10**9)


async def conversation(sample: Sample, *, seed: int) -> list[Message]:
    async with testing.play(Dice, sample.index, seed=sample.seed(seed)) as episode:
        await episode.call("roll")
        await episode.call("roll")
        return episode.transcript


async def written(folder, *, seed: int) -> None:
    """A journal as the evaluation writes it, of episodes that were played with the seeds of its plan."""
    plan = Plan(tasks=("dice",), model="m", seed=seed)
    with FileJournal(folder, plan, resume=False) as journal:
        for sample in (Sample("dice", 0, 0), Sample("dice", 2, 1)):
            record = Record(
                task="dice",
                index=sample.index,
                repeat=sample.repeat,
                attempt=1,
                final=True,
                outcome=Outcome.TRUNCATED,
            )
            await journal.write(record, await conversation(sample, seed=seed))


async def test_an_evaluation_s_conversations_are_the_same_again(tmp_path):
    await written(tmp_path, seed=7)
    replays = await replay(Dice(), read(tmp_path / "conversations.jsonl"))
    assert [(len(each.after.actions), each.difference) for each in replays] == [(2, None), (2, None)]


async def test_another_plan_s_seed_shows(tmp_path):
    await written(tmp_path, seed=7)
    plan = tmp_path / "plan.json"
    plan.write_text(plan.read_text().replace('"seed": 7', '"seed": 8'))
    replays = await replay(Dice(), read(tmp_path / "conversations.jsonl"))
    assert all((each.difference or "").startswith("turn 1, message 1") for each in replays)

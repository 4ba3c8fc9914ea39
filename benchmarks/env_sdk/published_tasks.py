"""The talk of `our_tasks.py`, written for the published SDK."""

from agentrl.worker.task import Session, Task
from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult


class Talk(Task):
    """Ten replies, each answered at once."""

    def get_indices(self) -> list[int]:
        return list(range(20_000))

    async def start_sample(self, _index: int, session: Session) -> TaskSampleExecutionResult:
        for turn in range(10):
            await session.action({"role": "user", "content": f"turn {turn}: " + "x" * 200})
        session.inject(RewardHistoryItem(reward=1.0, score=1.0))
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)

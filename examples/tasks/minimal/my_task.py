"""Guess a number between 1 and 10."""

from agentrl_env_sdk import Session, Task, tool


class MyTask(Task):
    splits = {"train": 80, "test": 20}
    max_turns = 5

    def setup(self, session: Session) -> str:
        session.state["number"] = session.random.randint(1, 10)
        return "Guess my number between 1 and 10."

    @tool
    def guess(self, session: Session, number: int) -> str:
        """Guess the number."""
        if number == session.state["number"]:
            session.finish(reward=1.0)
            return "correct"
        return "higher" if number < session.state["number"] else "lower"

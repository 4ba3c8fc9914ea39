"""`guess` on a bad day: most samples fail, each in a way of its own."""

import asyncio

from agentrl_env_sdk import Session, tool
from agentrl_env_sdk.tasks.guess import Guess


class Faulty(Guess):
    name = "faulty"
    turn_timeout_s = 0.5

    def setup(self, session: Session) -> str:
        match session.index % 6:
            case 0:
                raise RuntimeError("no database")
            case 1:
                return None  # type: ignore[return-value]
        return super().setup(session)

    @tool
    async def guess(self, session: Session, number: int) -> str:
        """guess the number

        Args:
            number: your guess
        """
        match session.index % 6:
            case 2:
                raise ValueError("lost the number")
            case 3:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return "answered after the cancel"
        return Guess.guess(self, session, number)

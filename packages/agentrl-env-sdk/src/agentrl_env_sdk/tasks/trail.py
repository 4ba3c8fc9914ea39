"""Follow a trail of keys through a small store to the number at its end.

Each key holds another key or a number of one digit. A trail has two or three keys and five turns are
allowed: reading each key and giving the number takes at most four, so the optimum is 1.0.
"""

import random

from agentrl_env_sdk.oracle import Plan, act
from agentrl_env_sdk.session import Session
from agentrl_env_sdk.task import Task
from agentrl_env_sdk.tools import tool

KEYS = [
    "gem",
    "drum",
    "lamp",
    "rope",
    "coin",
    "bell",
    "fork",
    "sail",
    "tent",
    "book",
    "door",
    "harp",
    "kite",
    "leaf",
    "moon",
    "nest",
    "oven",
    "pipe",
    "ring",
    "seed",
    "tower",
    "vase",
    "well",
    "yarn",
    "axe",
    "box",
    "cup",
    "fan",
    "hat",
    "ink",
    "jar",
    "map",
    "log",
    "net",
    "owl",
    "pan",
    "rug",
    "saw",
    "tin",
    "bag",
]
"""What keys are called."""

_PARTIAL = 0.3


class Trail(Task):
    """`trail`: 1 for the right number, else up to 0.3 for the keys read in order."""

    name = "trail"
    splits = {"train": 800, "test": 200}
    optimum = 1.0
    max_turns = 5

    def setup(self, session: Session) -> str:
        """Lay the trail."""
        chance = random.Random(f"trail/{session.index}")
        keys = chance.sample(KEYS, chance.choice((2, 3)))
        number = str(chance.randrange(10))
        session.state.update(
            keys=keys, number=number, store=dict(zip(keys, [*keys[1:], number], strict=True))
        )
        session.state["followed"] = 0
        return f"follow {keys[0]} to its number"

    @tool
    def read(self, session: Session, key: str) -> str:
        """read what a key holds

        Args:
            key: a key of the store
        """
        keys, followed = session.state["keys"], session.state["followed"]
        if followed < len(keys) and key == keys[followed]:
            session.state["followed"] += 1
            session.reward(_PARTIAL / len(keys), score=0.0)
        return session.state["store"].get(key, "no such key")

    @tool
    def answer(self, session: Session, number: int) -> str:
        """give the number

        Args:
            number: the number at the end of the trail
        """
        if str(number) == session.state["number"]:
            session.finish(reward=1.0 - session.earned, score=1.0)
            return "right"
        session.finish(score=0.0)
        return "wrong"

    def oracle(self, session: Session) -> Plan:
        """Read key after key, then give the number."""
        for key in session.state["keys"]:
            yield act("read", key=key)
        yield act("answer", number=int(session.state["number"]))

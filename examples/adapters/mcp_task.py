"""Questions that an MCP server's tools answer.

agentrl-env validate examples/adapters/mcp_task.py

The server is `mcp_server.py` beside this file; it keeps nothing between calls, so one serves all sessions.
"""

import sys
from pathlib import Path

from mcp_server import ITEMS, stock

from agentrl_env_sdk import Session
from agentrl_env_sdk.adapters.mcp import McpServer, McpTask
from agentrl_env_sdk.oracle import Plan, act


class Store(McpTask):
    """How many of an item there are in all."""

    name = "store"
    servers = (McpServer.stdio(sys.executable, Path(__file__).with_name("mcp_server.py")),)
    shared = True
    splits = {"train": ITEMS[:4], "test": ITEMS[4:]}
    submit_text = "Say how many there are; ends the task."
    optimum = 1.0
    max_turns = 16

    def setup(self, session: Session) -> str:
        """Ask."""
        return f"How many {session.sample} are there on all shelves together? Submit the number."

    def grade(self, session: Session, answer: str) -> float:
        """1 for the right number."""
        right = sum(shelf.get(session.sample, 0) for shelf in stock().values())
        return float(answer.strip() == str(right))

    def oracle(self, session: Session) -> Plan:
        """Ask where the item is, count it there, and add."""
        seen = yield act("shelves_with", item=session.sample)
        total = 0
        for shelf in seen.text.split():
            seen = yield act("count", shelf=shelf, item=session.sample)
            total += int(seen.text)
        yield act("submit", answer=str(total))

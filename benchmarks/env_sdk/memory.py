"""Resident memory of a session that waits for its agent.

python benchmarks/env_sdk/memory.py
"""

import asyncio

from load import Agent, Cost, our_worker


async def open_sessions(url: str, numbers: range) -> None:
    async with Agent(url) as agent:
        for number in numbers:
            await agent.ask_well("start_sample", {"session_id": number, "index": number})


async def main(warm: int = 500, sessions: int = 10_000) -> None:
    for task in ("Idle", "Tools"):
        with our_worker(task) as (url, pid):
            await open_sessions(url, range(1, warm + 1))
            before = Cost(pid).memory_kib
            await open_sessions(url, range(warm + 1, warm + sessions + 1))
            grown = Cost(pid).memory_kib - before
            print(f"{task:6} {grown / sessions:6.1f} KiB a session, of {sessions:,}")


if __name__ == "__main__":
    asyncio.run(main())

"""Sync sessions that sleep a second a step: wall time against the ideal, all at once.

python benchmarks/env_sdk/sleepers.py
"""

import asyncio
import time

from load import Agent, calls, our_worker

SESSIONS, STEPS = 64, 5


async def play(url: str, number: int) -> None:
    async with Agent(url) as agent:
        await agent.ask_well("start_sample", {"session_id": number, "index": number})
        for _ in range(STEPS):
            await agent.ask_well("interact", {"session_id": number, "messages": calls("step")})
        await agent.ask_well("cancel", {"session_id": number})


async def main() -> None:
    with our_worker("Sleep") as (url, _):
        began = time.monotonic()
        await asyncio.gather(*(play(url, number) for number in range(SESSIONS)))
        took = time.monotonic() - began
    print(f"{SESSIONS} sessions of {STEPS} steps of 1 s: {took:.2f} s, {took / STEPS:.3f} x the ideal")


if __name__ == "__main__":
    asyncio.run(main())

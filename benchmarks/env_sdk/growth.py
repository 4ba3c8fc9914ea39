"""Threads, descriptors and memory over 20,000 sessions: ended, cancelled, and left by their agents.

python benchmarks/env_sdk/growth.py
"""

import asyncio
import itertools

from load import Agent, Cost, calls, our_worker


async def play(url: str, numbers: "itertools.count[int]", until: int) -> None:
    async with Agent(url) as agent:
        while (number := next(numbers)) < until:
            body = {"session_id": number, "index": number % 20_000}
            await agent.ask_well("start_sample", body)
            for step in range(1, 4 if number % 3 else 2):
                await agent.ask_well(
                    "interact", {"session_id": number, "messages": calls("step", number=step)}
                )
            if number % 3 == 0:
                await agent.ask_well("cancel", {"session_id": number})


async def main(sessions: int = 20_000, agents: int = 50) -> None:
    with our_worker("Tools") as (url, pid):
        numbers, cost = itertools.count(1), Cost(pid)
        for until in range(sessions // 5, sessions + 1, sessions // 5):
            await asyncio.gather(*(play(url, numbers, until) for _ in range(agents)))
            sizes = f"{cost.num_threads} threads, {cost.num_descriptors} descriptors"
            print(f"{until:7,} sessions: {sizes}, {cost.memory_kib / 1024:.0f} MiB")


if __name__ == "__main__":
    asyncio.run(main())

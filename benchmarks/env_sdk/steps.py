"""Steps a CPU second of one worker process: ours beside the published one, on the same wire.

    python benchmarks/env_sdk/steps.py --published-python ENV/bin/python

ENV holds `agentrl-worker==0.4.0` and `grpcio>=1.76`; `nox -s published` makes one in `.nox/published`.
"""

import argparse
import asyncio
import statistics
import time

from load import Agent, Cost, controller, our_worker, published_worker, says

STEPS = 10


async def play(url: str, number: int, gate: asyncio.Event) -> None:
    async with Agent(url) as agent:
        await agent.ask_well("start_sample", {"session_id": number, "index": number})
        await gate.wait()
        for _ in range(STEPS):
            answer = await agent.ask_well("interact", {"session_id": number, "messages": says("y" * 50)})
        if b'"completed"' not in answer:
            raise RuntimeError(f"session {number} did not end: {answer[:300]!r}")


async def measure(url: str, pid: int, sessions: int, first: int) -> tuple[float, float]:
    """Steps a CPU second and steps a second."""
    gate = asyncio.Event()
    playing = [asyncio.create_task(play(url, first + number, gate)) for number in range(sessions)]
    await asyncio.sleep(1.0)
    cost = Cost(pid)
    cpu_s, began = cost.cpu_s, time.monotonic()
    gate.set()
    await asyncio.gather(*playing)
    steps = sessions * STEPS
    return steps / (cost.cpu_s - cpu_s), steps / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published-python", required=True)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "published": []}
    with (
        controller() as address,
        our_worker("Talk", "--controller", address) as ours,
        published_worker(options.published_python, address) as published,
    ):
        for turn in range(options.rounds):
            for name, (url, pid) in (("ours", ours), ("published", published)):
                measured = asyncio.run(measure(url, pid, options.sessions, 1 + turn * options.sessions))
                found[name].append(measured)
                print(f"{name:10} {measured[0]:9,.0f} steps a CPU second {measured[1]:9,.0f} steps a second")
    medians = {name: statistics.median(cpu for cpu, _ in each) for name, each in found.items()}
    print(f"ours / published: {medians['ours'] / medians['published']:.2f} x steps a CPU second (median)")


if __name__ == "__main__":
    main()

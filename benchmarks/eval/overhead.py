"""What the evaluator itself costs: CPU a turn, wall time against the ideal, and peak memory.

    uv run python benchmarks/eval/overhead.py [--episodes 256] [--turns 20] [--concurrency 64]
                                                [--latency-ms 200] [--message-chars 400]

Model endpoint and controller are processes of their own, so their CPU is not in the figures; they share the
machine's cores all the same. The endpoint answers each request after the latency, the controller at once.
The ideal is the latency of each turn, with as many episodes at once as allowed, and nothing else.
"""

import argparse
import asyncio
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import web

from agentrl_core import SESSION_HEADER
from agentrl_core.client import SessionClient
from agentrl_eval import Plan
from agentrl_eval.journal import FileJournal
from agentrl_eval.models.openai import OpenAIModel
from agentrl_eval.results import Results
from agentrl_eval.runner import evaluate

_TASK = "echo"
_START_TIMEOUT_S = 60.0
_MIB = 2**20
# Linux counts in KiB, macOS in bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def main() -> None:
    """Measure once and print."""
    arguments = _parse()
    latency_s = arguments.latency_ms / 1000
    with (
        _served(_endpoint, latency_s, arguments.message_chars) as endpoint,
        _served(_controller, arguments.episodes, arguments.turns, arguments.message_chars) as controller,
    ):
        results, cpu_s = asyncio.run(_measure(arguments, f"{endpoint}/v1", f"{controller}/api"))
    outcomes = results.tasks[_TASK].outcomes
    if outcomes != {"completed": arguments.episodes}:
        raise SystemExit(f"not every episode completed, so the figures mean nothing: {outcomes}")
    turns = arguments.episodes * arguments.turns
    ideal_s = math.ceil(arguments.episodes / arguments.concurrency) * arguments.turns * latency_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / _MIB
    print(f"{arguments.episodes} episodes of {arguments.turns} turns, {arguments.concurrency} at once")
    print(f"CPU: {1000 * cpu_s / turns:.2f} ms a turn")
    print(f"wall: {results.wall_s:.1f} s, ideal {ideal_s:.1f} s ({results.wall_s / ideal_s:.2f} times)")
    print(f"peak memory: {peak_mib:.0f} MiB")


async def _measure(arguments: argparse.Namespace, endpoint: str, controller: str) -> tuple[Results, float]:
    plan = Plan(tasks=(_TASK,), model="openai:m", split=None, max_turns=arguments.turns)
    model = OpenAIModel("m", base_url=endpoint, api_key="none", temperature=1.0, max_tokens=64)
    with tempfile.TemporaryDirectory() as folder:
        async with SessionClient(controller) as client:
            with FileJournal(Path(folder), plan, resume=False) as journal:
                before_s = time.process_time()
                results = await evaluate(
                    plan, model, client, journal=journal, concurrency=arguments.concurrency
                )
                cpu_s = time.process_time() - before_s
        await model.close()
    return results, cpu_s


def _endpoint(latency_s: float, message_chars: int) -> web.Application:
    call = {"id": "c", "type": "function", "function": {"name": "say", "arguments": '{"number": 1}'}}
    message = {"role": "assistant", "content": "x" * message_chars, "tool_calls": [call]}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(latency_s)
        return web.json_response(answer)

    app = web.Application(client_max_size=64 * _MIB)
    app.router.add_post("/v1/chat/completions", complete)
    return app


def _controller(episodes: int, turns: int, message_chars: int) -> web.Application:
    left: dict[str, int] = {}
    tool = {"type": "function", "function": {"name": "say", "parameters": {"type": "object"}}}
    text = "y" * message_chars

    async def indices(_: web.Request) -> web.Response:
        return web.json_response(list(range(episodes)))

    async def start(request: web.Request) -> web.Response:
        session = str((await request.json())["index"])
        left[session] = turns
        opening = {"messages": [{"role": "user", "content": text}], "tools": [tool]}
        return web.json_response(opening, headers={SESSION_HEADER: session})

    async def interact(request: web.Request) -> web.Response:
        session = request.headers[SESSION_HEADER]
        await request.read()
        left[session] -= 1
        if left[session] == 0:
            return web.json_response({"messages": [], "finish": True, "status": "completed", "reward": 1.0})
        answer = {"role": "tool", "tool_call_id": "c", "content": text}
        return web.json_response({"messages": [answer], "finish": False, "status": "running", "reward": 0.0})

    app = web.Application()
    app.router.add_get("/api/get_indices", indices)
    app.router.add_post("/api/start_sample", start)
    app.router.add_post("/api/interact", interact)
    return app


@contextmanager
def _served(make: Callable[..., web.Application], *settings: float) -> Iterator[str]:
    """The address of an application that a process of its own serves meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_serve, args=(theirs, make, *settings), daemon=True)
    process.start()
    theirs.close()  # So that a process that dies ends the wait.
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise SystemExit(f"a server did not start within {_START_TIMEOUT_S:.0f} s")
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(told: Connection, make: Callable[..., web.Application], *settings: float) -> None:
    async def serve() -> None:
        runner = web.AppRunner(make(*settings), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        host, port = runner.addresses[0][:2]
        told.send(f"http://{host}:{port}")
        await asyncio.Event().wait()

    asyncio.run(serve())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=_positive, default=256)
    parser.add_argument("--turns", type=_positive, default=20)
    parser.add_argument("--concurrency", type=_positive, default=64)
    parser.add_argument("--latency-ms", type=_positive, default=200)
    parser.add_argument("--message-chars", type=_positive, default=400, help="length of each message")
    return parser.parse_args()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    main()

"""A soak: workers crash, clients hang up, the controller is killed; the books must be right in the end.

    uv run python benchmarks/controller/soak.py [--requests 200000] [--agents 200] [--seconds 600]

Agents play sessions of five turns on twenty workers. At one request in a hundred the worker that has it
crashes and comes back empty a moment later; at one in a hundred the client hangs up and asks again. Halfway
the controller is ended by SIGKILL and started again on its store. Checked: each session ends exactly once,
finished after its five turns in order or lost with a worker that did crash; no slot is taken in the end, on
either side; the controller's memory is near what it was soon after the restart.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
from aiohttp import web
from processes import COMMAND, free_port, rss_bytes, wait_for

TURNS, NUM_WORKERS, CAPACITY = 5, 20, 12
CRASH_SHARE = HANGUP_SHARE = 0.01


class Worker:
    """A native task worker in this process."""

    def __init__(self, controller: str, book: "Book") -> None:
        self.controller, self.book = controller, book
        self.life = 0
        self.is_down = False
        self.turns: dict[str, int] = {}
        self.known: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.port = free_port()

    async def open(self) -> None:
        app = web.Application()
        app.router.add_post("/api/{route}", self.handle)
        app.router.add_get("/api/get_sessions", self.list)
        self.runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self.runner.setup()
        await self.listen()

    async def listen(self) -> None:
        self.site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await self.site.start()

    async def beat(self, http: aiohttp.ClientSession) -> None:
        while True:
            body = {
                "name": "soak",
                "address": f"http://127.0.0.1:{self.port}/api",
                "concurrency": CAPACITY,
                "indices": [0],
                "native": True,
                "instance": f"{self.port}-{self.life}",
            }
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=2)
                async with http.post(f"{self.controller}/receive_heartbeat", json=body, timeout=timeout):
                    pass
            await asyncio.sleep(1.0)

    async def crash(self) -> None:
        """Drop every connection and session; come back a moment later."""
        if self.is_down:
            return
        self.is_down = True
        # Those whose last answer was on its way are gone, too.
        self.book.crashed.update(self.turns, (session_id for session_id, _ in self.known))
        self.book.num_crashes += 1
        self.life += 1
        self.turns.clear()
        self.known.clear()
        await self.site.stop()
        for connection in list(self.runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0.3)
        await self.listen()
        self.is_down = False

    async def list(self, _: web.Request) -> web.Response:
        return web.json_response(dict.fromkeys(self.turns, 0))

    async def handle(self, request: web.Request) -> web.Response:
        route, body = request.match_info["route"], await request.read()
        if route == "cancel_with_notice":
            session_id = str(json.loads(body)["session_id"])
            if self.turns.pop(session_id, None) is None:
                return web.json_response({"detail": "unknown session"}, status=400)
            self.book.released.add(session_id)
            self.book.notices.put_nowait(session_id)
            return web.json_response(None)
        session_id, request_id = request.headers["session_id"], request.headers["x-request-id"]
        life = self.life
        if random.random() < CRASH_SHARE and self.book.may_crash:
            self.book.spawn(self.crash())
            await asyncio.sleep(1)
        await asyncio.sleep(random.random() * 0.02)
        if life != self.life:
            raise web.HTTPServiceUnavailable
        kept = self.known.get((session_id, request_id))
        if kept is None:
            if route == "start_sample":
                if len(self.turns) >= CAPACITY:
                    return web.json_response({"detail": "full"}, status=406)
                self.turns[session_id] = 0
            elif session_id not in self.turns:
                return web.json_response({"detail": "unknown session"}, status=400)
            else:
                self.turns[session_id] += 1
            turn = self.turns[session_id]
            done = turn == TURNS
            if done:
                del self.turns[session_id]
            answer = {"messages": [], "turn": turn, "finish": done}
            kept = self.known[session_id, request_id] = (json.dumps(answer).encode(), "1" if done else "0")
        headers = {"X-Session-Finish": kept[1]}
        return web.Response(body=kept[0], content_type="application/json", headers=headers)


class Book:
    """What happened, as clients and workers saw it."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.wrong: list[str] = []
        self.crashed: set[str] = set()
        self.released: set[str] = set()
        self.notices: asyncio.Queue[str] = asyncio.Queue()
        self.num_requests = self.num_crashes = self.num_hangups = self.num_retries = 0
        self.may_crash = True
        self.refused = ""
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def tell(self, http: aiohttp.ClientSession, controller: str) -> None:
        """Tell the controller of cancelled sessions."""
        while True:
            session_id = await self.notices.get()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.post(f"{controller}/cancel_notice", headers={"session_id": session_id}):
                    pass


class Agent:
    """Plays session after session and asks again until it knows how each request ended."""

    def __init__(self, number: int, http: aiohttp.ClientSession, controller: str, book: Book) -> None:
        self.number, self.http, self.controller, self.book = number, http, controller, book
        self.count = 0

    async def ask(self, route: str, body: object, **headers: str) -> tuple[int, dict, str]:
        self.count += 1
        headers["X-Request-Id"] = f"a{self.number}-{self.count}"
        while True:
            self.book.num_requests += 1
            hangs_up = random.random() < HANGUP_SHARE
            try:
                timeout = aiohttp.ClientTimeout(total=0.005 if hangs_up else 60)
                url = f"{self.controller}/{route}"
                async with self.http.post(url, json=body, headers=headers, timeout=timeout) as answer:
                    content = await answer.json(content_type=None)
                    if answer.status != 503:
                        return answer.status, content, answer.headers.get("session_id", "")
            except TimeoutError:
                self.book.num_hangups += 1
                continue
            except aiohttp.ClientError:
                pass
            self.book.num_retries += 1
            await asyncio.sleep(0.2)

    async def play(self, limit: int) -> None:
        while self.book.num_requests < limit:
            status, content, session_id = await self.ask("start_sample", {"name": "soak", "index": 0})
            if status != 200:
                self.book.ends[f"start: {content.get('code')}"] += 1
                self.book.refused = content.get("message", "")
                continue
            if session_id in self.book.seen:
                self.book.wrong.append(f"session {session_id} was given twice")
            self.book.seen.add(session_id)
            self.book.ends[await self.turns(session_id)] += 1

    async def turns(self, session_id: str) -> str:
        said = {"messages": [{"role": "assistant", "content": "x" * 500}]}
        for turn in range(1, TURNS + 1):
            status, content, _ = await self.ask("interact", said, session_id=session_id)
            if status != 200:
                code = content.get("code")
                if code != "worker_lost" or session_id not in self.book.crashed:
                    self.book.wrong.append(f"session {session_id}: {content}")
                return f"{code}"
            if content["turn"] != turn or content["finish"] != (turn == TURNS):
                self.book.wrong.append(f"session {session_id}: turn {turn} got {content}")
        return "finished"


def serve(port: int, store: Path) -> subprocess.Popen[bytes]:
    """Start the controller."""
    command = [COMMAND, "serve", "--port", str(port), "--no-grpc", "--store", f"sqlite:{store}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(port, process)
    return process


async def soak(options: argparse.Namespace, folder: Path) -> bool:
    """Run it; returns whether everything was right."""
    port, book = free_port(), Book()
    controller = f"http://127.0.0.1:{port}/api"
    process = serve(port, folder / "store.sqlite")
    began = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        workers = [Worker(controller, book) for _ in range(NUM_WORKERS)]
        for worker in workers:
            await worker.open()
            book.spawn(worker.beat(http))
        book.spawn(book.tell(http, controller))
        agents = [Agent(number, http, controller, book) for number in range(options.agents)]
        playing = [asyncio.ensure_future(agent.play(options.requests)) for agent in agents]
        early = killed = False
        rss = 0
        while not all(task.done() for task in playing):
            await asyncio.sleep(0.5)
            share = book.num_requests / options.requests
            if share > 0.6 and killed and not early:
                early, rss = True, rss_bytes(process.pid)
            if share > 0.5 and not killed:
                killed = True
                process.kill()
                process.wait()
                await asyncio.sleep(1.0)
                process = await asyncio.to_thread(serve, port, folder / "store.sqlite")
                print(f"{time.monotonic() - began:.0f} s: the controller was killed and is back", flush=True)
            if time.monotonic() - began > options.seconds:
                options.requests = book.num_requests
                for agent_task in playing:
                    if agent_task.done():
                        agent_task.result()
        for task in playing:
            task.result()
        book.may_crash = False
        slots = await settle(http, controller, workers)
        report(book, began, rss, rss_bytes(process.pid), slots)
        for task in list(book.tasks):
            task.cancel()
        process.terminate()
        process.wait()
        return not book.wrong and not any(slots) and killed


async def settle(http: aiohttp.ClientSession, controller: str, workers: list[Worker]) -> tuple[int, int]:
    """Slots that are taken once it is quiet: at the controller, at the workers."""
    for _ in range(60):
        async with http.get(f"{controller}/list_workers") as answer:
            tasks = await answer.json()
        taken = sum(worker["current"] for worker in tasks["soak"]["workers"].values())
        held = sum(len(worker.turns) for worker in workers)
        if taken == held == 0:
            break
        await asyncio.sleep(1.0)
    return taken, held


def report(book: Book, began: float, rss: int, rss_end: int, slots: tuple[int, int]) -> None:
    """Print what happened."""
    wall = time.monotonic() - began
    print(f"{book.num_requests} requests in {wall:.0f} s, {len(book.seen)} sessions: {dict(book.ends)}")
    print(
        f"{book.num_crashes} crashes, {book.num_hangups} hang-ups, {book.num_retries} retries; "
        f"slots taken in the end: {slots[0]} at the controller, {slots[1]} at workers; "
        f"memory {rss / 2**20:.0f} MiB soon after the restart, {rss_end / 2**20:.0f} MiB in the end"
    )
    print(f"the last start that failed: {book.refused or 'none'}")
    print(f"wrong: {len(book.wrong)}", *book.wrong[:10], sep="\n  ")


def main() -> None:
    """Run it and say whether it was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1200.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        right = asyncio.run(soak(options, Path(folder)))
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()

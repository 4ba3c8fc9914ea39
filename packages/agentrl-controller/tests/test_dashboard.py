import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from typing import Any

import httpx
import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.api import dashboard
from agentrl_controller.history import History
from agentrl_controller.sessions import Session, SessionState
from agentrl_core import Heartbeat


@pytest.fixture
async def http(controller: Controller) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(controller.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, controller: Controller) -> Iterator[None]:
    """Streams look often, and the controller's end takes leave of nobody."""
    monkeypatch.setattr(dashboard, "TICK_S", 0.02)
    yield
    controller.sessions.live.clear()


def add_sessions(controller: Controller, count: int, *, task: str = "task") -> list[Session]:
    beat = Heartbeat(name=task, address="http://127.0.0.1:1/api", concurrency=count, indices=[0])
    worker = controller.registry.heartbeat(beat, now=time.monotonic())
    added = []
    for n in range(count):
        session = Session(
            controller.sessions.new_id(),
            task,
            0,
            custom_task=None,
            worker=worker,
            started=1_000.0 + n,
            last_used=time.monotonic(),
            state=SessionState.IDLE,
        )
        controller.sessions.add(session)
        added.append(session)
    return added


class Stream:
    """A reader of server-sent events that goes away when it is left."""

    def __init__(self, app: Any, query: str) -> None:
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.headers: dict[str, str] = {}
        self.http_status = 0
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/dashboard/events",
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
        }
        self._running = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.http_status = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        elif message.get("body"):
            self._chunks.put_nowait(message["body"])

    async def block(self) -> bytes:
        """The next event or comment, as it came."""
        async with asyncio.timeout(5):
            return await self._chunks.get()

    async def event(self) -> Any:
        """The next event."""
        while not (block := await self.block()).startswith(b"data: "):
            pass
        assert block.endswith(b"\n\n")
        return json.loads(block.removeprefix(b"data: "))

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(5):
            await self._running

    async def leave(self) -> None:
        self._gone.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self.ended()


@pytest.fixture
async def follow(controller: Controller) -> AsyncIterator[Any]:
    streams: list[Stream] = []

    def begin(query: str) -> Stream:
        streams.append(Stream(controller.app, query))
        return streams[-1]

    yield begin
    for stream in streams:
        await stream.leave()


# --- the page and its files


async def test_the_page_and_its_files_are_guarded(http):
    names = [file.name for file in (files("agentrl_controller") / "dashboard").iterdir()]
    assert {"index.html", "app.js", "base.css"} <= set(names)
    for path in ["/", *(f"/dashboard/{name}" for name in names)]:
        answer = await http.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.content


async def test_files_say_what_they_are(http):
    types = {
        name: (await http.get(path)).headers["Content-Type"].partition(";")[0]
        for name, path in {"html": "/", "js": "/dashboard/app.js", "css": "/dashboard/base.css"}.items()
    }
    assert types == {"html": "text/html", "js": "text/javascript", "css": "text/css"}


async def test_a_file_that_has_not_changed_is_not_sent_again(http):
    etag = (await http.get("/dashboard/app.js")).headers["ETag"]
    again = await http.get("/dashboard/app.js", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fviews.py", "%2e%2e%2fcli.py", "__init__.py"])
async def test_nothing_but_the_files_of_the_page_is_served(http, name):
    assert (await http.get(f"/dashboard/{name}")).status_code == 404


def test_the_page_needs_nothing_from_elsewhere_and_no_inline_code():
    folder = files("agentrl_controller") / "dashboard"
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    for name, text in texts.items():
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", texts["index.html"])
    imported = {n for text in texts.values() for n in re.findall(r'from "\./([\w.]+)"', text)}
    linked = set(re.findall(r'"dashboard/([\w.]+)"', texts["index.html"]))
    assert imported | linked | {"index.html"} == set(texts)


# --- views as JSON


async def test_the_overview_tells_load_and_tasks(http, controller):
    add_sessions(controller, 3)
    view = (await http.get("/api/dashboard/overview")).json()
    assert (view["live"], view["tasks"]["task"]["used"], view["states"]) == (3, 3, {"idle": 3})


async def test_ten_thousand_sessions_come_in_pages(http, controller):
    sessions = add_sessions(controller, 10_000)
    seen: list[str] = []
    cursor: Any = ""
    while cursor is not None:
        query = {"limit": "200"} | ({"cursor": cursor} if cursor else {})
        answer = await http.get("/api/dashboard/sessions", params=query)
        assert len(answer.content) < 60_000
        page = answer.json()
        seen += page["order"]
        cursor = page["next"]
    assert seen == [str(session.id) for session in reversed(sessions)]


async def test_sessions_are_filtered_by_the_query(http, controller):
    add_sessions(controller, 4, task="shop")
    sessions = add_sessions(controller, 5, task="maze")
    sessions[0].move(SessionState.BUSY)

    async def found(**query: Any) -> int:
        return (await http.get("/api/dashboard/sessions", params=query)).json()["found"]

    worker = sessions[0].worker.id
    assert await found() == 9
    assert await found(task="shop") == 4
    assert await found(state="busy") == 1
    assert await found(worker=worker) == 5
    assert await found(search=sessions[3].id) == 1
    assert await found(task="shop", worker=worker) == 0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("sessions?state=odd", "state"),
        ("sessions?limit=0", "limit"),
        ("sessions?limit=100000", "limit"),
        ("sessions?limit=x", "limit"),
        ("sessions?cursor=x", "cursor"),
        ("sessions/x", "id"),
        ("sessions/1", "unknown"),
        ("sessions/1?first=-1", "first"),
        ("events?view=odd", "view"),
        ("events?view=session&id=1", "unknown"),
        ("events?view=sessions&state=odd", "state"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_the_rule(http, path, reason):
    answer = await http.get(f"/api/dashboard/{path}")
    assert answer.status_code == 400
    assert reason in answer.json()["message"]


async def test_a_session_is_told_with_its_conversation(http, controller, make_worker, agent):
    await make_worker()
    session_id, _ = await agent.start()
    await agent.interact(session_id)
    view = (await http.get(f"/api/dashboard/sessions/{session_id}")).json()
    assert [entry["kind"] for entry in view["entries"].values()] == ["start", "agent", "environment"]
    assert view["entries"]["1"]["messages"] == agent.SAID
    assert (view["reward"], view["rewards"], view["state"], view["is_whole"]) == (0.5, [0.5], "idle", True)
    rest = (await http.get(f"/api/dashboard/sessions/{session_id}?first=2")).json()
    assert (list(rest["entries"]), rest["reward"]) == (["2"], 0.5)


# --- the stream


async def test_a_stream_brings_the_view_and_then_changes_only(controller, follow):
    sessions = add_sessions(controller, 1_000)
    stream = follow("view=sessions&limit=50")
    first = await stream.event()
    assert len(first["rows"]["sessions"]) == 50
    assert first["set"]["found"] == 1_000
    sessions[-1].move(SessionState.BUSY)
    second = await stream.event()
    assert set(second) == {"now", "rows"}
    assert list(second["rows"]["sessions"]) == [str(sessions[-1].id)]


async def test_a_stream_without_changes_says_only_that_it_lives(controller, follow):
    add_sessions(controller, 5)
    stream = follow("view=sessions")
    await stream.event()
    assert await stream.block() == b": all quiet\n\n"
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"


async def test_a_session_that_ends_leaves_the_page(controller, follow):
    sessions = add_sessions(controller, 3)
    stream = follow("view=sessions")
    await stream.event()
    controller.sessions.end(sessions[0], SessionState.LOST)
    told = await stream.event()
    assert told["gone"] == {"sessions": [str(sessions[0].id)]}
    assert told["set"]["found"] == 2


async def test_a_conversation_grows_by_what_was_said(controller, follow, make_worker, agent):
    await make_worker()
    session_id, _ = await agent.start()
    stream = follow(f"view=session&id={session_id}")
    assert list((await stream.event())["rows"]["entries"]) == ["0"]
    await agent.interact(session_id)
    told: dict[str, Any] = {}
    while "2" not in told:
        told |= (await stream.event()).get("rows", {}).get("entries", {})
    assert list(told) == ["1", "2"]


async def test_workers_change_by_the_worker_that_moved(controller, follow):
    worker = add_sessions(controller, 1)[0].worker
    stream = follow("view=workers")
    await stream.event()
    controller.mark_stale(worker, stale=True)
    told = await stream.event()
    assert told["rows"]["workers"][f"task/{worker.id}"]["draining"] is True
    assert "set" not in told


async def test_a_session_that_is_forgotten_ends_its_stream_with_the_reason(controller, follow):
    (session,) = add_sessions(controller, 1)
    stream = follow(f"view=session&id={session.id}")
    await stream.event()
    controller.sessions.end(session, SessionState.LOST)
    controller.sessions.forget(older_than_s=-1.0)
    while "error" not in (told := await stream.event()):
        pass
    assert told["code"] == "unknown_session"
    await stream.ended()


async def test_streams_end_with_the_controller(controller, follow):
    stream = follow("view=overview")
    await stream.event()
    await controller.stop()
    await stream.ended()


async def test_the_charts_fill_second_by_second(controller, follow):
    stream = follow("view=overview")
    first = await stream.event()
    while "points" not in first["rows"] or not first["rows"]["points"]:
        first = await stream.event()
    (point,) = list(first["rows"]["points"].values())[-1:]
    assert {"at", "live", "waiting"} <= set(point)


async def test_the_charts_fill_without_a_visitor(until, monkeypatch):
    taken: list[float] = []
    monkeypatch.setattr(History, "sample", lambda self, at, *rest, **more: taken.append(at))
    app = Controller(ControllerConfig()).app
    async with app.router.lifespan_context(app):
        await until(lambda: len(taken) >= 3)
    assert taken == sorted(taken)

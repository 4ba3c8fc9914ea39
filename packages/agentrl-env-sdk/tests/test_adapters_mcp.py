"""Tools of servers made with the real `mcp` package, in this process over HTTP or as processes over stdio."""

import asyncio
import base64
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from agentrl_core import ConfigError, SampleStatus
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk import Session, Task, testing, tool
from agentrl_env_sdk.adapters.mcp import McpServer, McpTask, McpTools
from agentrl_env_sdk.adapters.mcp_names import shown_names
from agentrl_env_sdk.worker.runner import Runner

mcp = pytest.importorskip("mcp")

from mcp import types  # noqa: E402
from mcp.server import Server  # noqa: E402
from mcp.server.mcpserver import Context, MCPServer  # noqa: E402

DEADLINE_S = 20.0
PIXEL = base64.b64encode(b"\x89PNG").decode()

STDIO = """
import os, subprocess, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("store", log_level="ERROR")

@server.tool()
def pid() -> int:
    return os.getpid()

@server.tool()
def variables() -> list[str]:
    return sorted(os.environ)

@server.tool()
def daemon() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

@server.tool()
def die(code: int) -> str:
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(code)

server.run("stdio")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(STDIO)
    return path


@asynccontextmanager
async def over_http(server: Any) -> AsyncIterator[str]:
    """The address of a server that runs in this process."""
    listener = listen("127.0.0.1", 0)
    app = server if callable(server) else server.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    serving = asyncio.create_task((running := uvicorn.Server(config)).serve(sockets=[listener]))
    try:
        yield url_of(listener, path="/mcp")
    finally:
        running.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await serving


def a_task(*servers: McpServer, shared: bool = False, **members: Any) -> McpTask:
    members = {"setup": lambda self, session: "go on", "servers": servers, "shared": shared, **members}
    return type("Made", (McpTask,), members)()


def paged(tools: dict[str, Callable[[], Any]], *, size: int = 2, schema: Any = None) -> Server[Any]:
    """A low-level server that lists its tools page by page and answers with what functions return."""
    names = list(tools)

    async def list_tools(_: Any, params: Any) -> types.ListToolsResult:
        first = int(params.cursor) if params is not None and params.cursor else 0
        found = [
            types.Tool(name=name, description=f"tool {name}", input_schema=schema or {"type": "object"})
            for name in names[first : first + size]
        ]
        following = str(first + size) if first + size < len(names) else None
        return types.ListToolsResult(tools=found, next_cursor=following)

    async def call_tool(_: Any, params: Any) -> types.CallToolResult:
        result = tools[params.name]()
        return result if isinstance(result, types.CallToolResult) else text(str(result))

    return Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)


def text(said: str, **options: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=said)], **options)


async def wait_for_end(*pids: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        for pid in pids:
            while is_alive(pid):
                await asyncio.sleep(0.02)  # another's process: nothing tells of its end


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


# Names and schemas.


async def test_all_pages_are_read_and_names_that_models_refuse_are_mapped():
    names = ["files.read", "files/read", "plain", "files_read", "x" * 70, "über"]
    tools: dict[str, Callable[[], Any]] = {name: (lambda name=name: name) for name in names}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    async with (
        over_http(paged(tools, schema=schema)) as url,
        testing.play(a_task(McpServer.http(url))) as episode,
    ):
        shown = [found.function.name for found in episode.tools]
        assert len(shown) == len(set(shown)) == 6
        assert all(len(name) <= 64 and name.replace("_", "").isascii() for name in shown)
        assert (shown[2], shown[3], shown[5]) == ("plain", "files_read", "_ber")
        assert all(found.function.parameters == schema for found in episode.tools)
        for name, original in zip(shown, names, strict=True):
            assert (await episode.call(name)).text == original
        refused = await episode.call("plain", b=1)
        assert refused.text.startswith("error: ")


def test_names_are_the_same_whatever_else_there_is_and_never_collide():
    one = shown_names(["a.b", "a/b"])
    assert one["a.b"] == "a_b"
    assert one["a/b"].startswith("a_b_")
    assert shown_names(["a.b"], taken=["a_b"])["a.b"] == shown_names(["a.b", "a_b"])["a.b"]
    with pytest.raises(ConfigError, match=r"two tools are called `a`.*prefix"):
        shown_names(["a", "a"])
    with pytest.raises(ConfigError, match="`submit`"):
        shown_names(["submit"], taken=["submit"])


async def test_several_servers_are_told_apart_by_prefix_and_tools_chosen_by_name():
    async with (
        over_http(paged({"f": lambda: 1, "g": lambda: 2})) as one,
        over_http(paged({"f": lambda: 3})) as two,
    ):
        both = McpServer.http(one, only=frozenset({"f"})), McpServer.http(two, prefix="two_")
        async with testing.play(a_task(*both)) as episode:
            assert [found.function.name for found in episode.tools] == ["f", "two_f"]
            assert [(await episode.call(name)).text for name in ("f", "two_f")] == ["1", "3"]
        clash = await start(a_task(McpServer.http(one), McpServer.http(two)))
        assert "two tools are called `f`" in clash.metrics["error"]
        unknown = await start(a_task(McpServer.http(one, only=frozenset({"h"}))))
        assert "['h']" in unknown.metrics["error"]


async def start(task: Task) -> Any:
    """The first exchange of an episode that may fail at its start."""
    runner = Runner(task)
    _, opening = await runner.start(0)
    await runner.cancel_all()
    return opening


async def test_tools_of_the_task_stay_and_a_list_that_changes_reaches_the_session():
    server = MCPServer("growing", log_level="ERROR")

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Grow."""
        server.add_tool(lambda: "more", name="more", description="more")
        await ctx.notify_tools_changed()
        return "grown"

    class Growing(McpTask):
        def setup(self, session: Session) -> str:
            return "grow"

        @tool
        def own(self, session: Session) -> str:
            """The task's."""
            return "own"

    async with over_http(server) as url:
        task = Growing()
        task.servers = [McpServer.http(url)]
        async with testing.play(task) as episode:
            assert [found.function.name for found in episode.tools] == ["own", "grow"]
            await episode.call("grow")
            async with asyncio.timeout(DEADLINE_S):
                while len(episode.tools) < 3:  # the notice and the answer come on streams of their own
                    await episode.call("own")
                    await episode.call("grow")
            assert [found.function.name for found in episode.tools] == ["own", "grow", "more"]
            assert (await episode.call("more")).text == "more"
            assert (await episode.call("own")).text == "own"


# Results.


def image() -> types.CallToolResult:
    parts = [types.TextContent(text="a pixel"), types.ImageContent(data=PIXEL, mime_type="image/png")]
    return types.CallToolResult(content=parts)


def mixed() -> types.CallToolResult:
    note = types.TextResourceContents(uri="file:///note", text="milk", mime_type="text/plain")
    blob = types.BlobResourceContents(uri="file:///blob", blob=PIXEL, mime_type="application/zip")
    parts = [
        types.AudioContent(data=PIXEL, mime_type="audio/wav"),
        types.EmbeddedResource(resource=note),
        types.EmbeddedResource(resource=blob),
        types.ResourceLink(name="manual", uri="file:///manual", description="all of it"),
    ]
    return types.CallToolResult(content=parts)


def drawing() -> types.CallToolResult:
    blob = types.BlobResourceContents(uri="file:///p", blob=PIXEL, mime_type="image/png")
    return types.CallToolResult(content=[types.EmbeddedResource(resource=blob)])


def refuse() -> Any:
    raise mcp.MCPError(code=types.INVALID_PARAMS, message="no such shelf")


IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}

RESULTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "text": (lambda: text("5"), "5"),
    "texts": (
        lambda: types.CallToolResult(content=[types.TextContent(text=each) for each in "ab"]),
        "a\nb",
    ),
    "nothing": (lambda: types.CallToolResult(content=[]), ""),
    "structured": (
        lambda: types.CallToolResult(content=[], structured_content={"n": 1, "s": "é"}),
        '{"n": 1, "s": "é"}',
    ),
    "both": (lambda: text('{"n": 1}', structured_content={"n": 1}), '{"n": 1}'),
    "image": (image, [{"type": "text", "text": "a pixel"}, IMAGE]),
    "drawing": (drawing, [IMAGE]),
    "mixed": (
        mixed,
        "[audio, audio/wav, 4 bytes]\nfile:///note:\nmilk\n[file:///blob, application/zip, 4 bytes]\n"
        "[link: manual, file:///manual, all of it]",
    ),
    "failed": (lambda: text("no such item", is_error=True), "error: no such item"),
    "silent": (lambda: types.CallToolResult(content=[], is_error=True), "error"),
    "refused": (refuse, "error: no such shelf"),
}


async def test_each_kind_of_result_is_told():
    tools = {name: function for name, (function, _) in RESULTS.items()}
    async with (
        over_http(paged(tools)) as url,
        testing.play(a_task(McpServer.http(url))) as episode,
    ):
        for name, (_, expected) in RESULTS.items():
            seen = await episode.call(name)
            assert seen.messages[0].content == expected, name
            assert seen.status is SampleStatus.RUNNING


async def test_a_result_that_breaks_the_servers_own_schema_is_a_task_error():
    listed = types.Tool(
        name="f", input_schema={"type": "object"}, output_schema={"type": "object", "required": ["n"]}
    )

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[listed])

    async def call_tool(_: Any, __: Any) -> types.CallToolResult:
        return text("{}", structured_content={})

    async with (
        over_http(Server("wrong", on_list_tools=list_tools, on_call_tool=call_tool)) as url,
        testing.play(a_task(McpServer.http(url))) as episode,
    ):
        last = await episode.call("f")
        assert last.status is SampleStatus.TASK_ERROR
        assert f"MCP server `{url}` fails at `f`" in last.metrics["error"]


async def test_what_no_json_holds_reaches_a_server_as_what_it_does():
    server = MCPServer("echo", log_level="ERROR")

    @server.tool()
    def echo(said: str) -> str:
        """Echo."""
        return said

    async with over_http(server) as url, testing.play(a_task(McpServer.http(url))) as episode:
        assert (await episode.call("echo", said="a\ud800b")).text == "a?b"


# Time.


def waiting() -> tuple[MCPServer, asyncio.Event, asyncio.Event]:
    """A server whose tool waits for ever, and events of its beginning and its cancellation."""
    server = MCPServer("slow", log_level="ERROR")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def wait() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    return server, begun, cancelled


async def test_a_call_that_takes_too_long_is_told_and_cancelled_and_the_episode_goes_on():
    server, _, cancelled = waiting()
    async with (
        over_http(server) as url,
        testing.play(a_task(McpServer.http(url, call_timeout_s=0.2))) as episode,
    ):
        late = await episode.call("wait")
        assert (late.text, late.status) == (
            "error: no answer within 0.2 s; the call was cancelled",
            SampleStatus.RUNNING,
        )
        async with asyncio.timeout(DEADLINE_S):
            await cancelled.wait()


async def test_a_session_that_is_cancelled_cancels_its_call():
    server, begun, cancelled = waiting()
    async with over_http(server) as url, testing.play(a_task(McpServer.http(url))) as episode:
        calling = asyncio.create_task(episode.call("wait"))
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
            await episode.cancel()
            await cancelled.wait()
            assert (await calling).status is SampleStatus.CANCELLED


async def test_many_sessions_share_a_server_or_have_connections_of_their_own():
    tools: dict[str, Callable[[], Any]] = {"one": lambda: 1}
    async with over_http(paged(tools)) as url:
        for shared in (False, True):
            task = a_task(
                McpServer.http(url), shared=shared, grade=lambda self, session, answer: float(answer)
            )

            async def play(answer: str, task: McpTask = task) -> float:
                async with testing.play(task) as episode:
                    assert (await episode.call("one")).text == "1"
                    await episode.call("submit", answer=answer)
                    return episode.reward

            rewards = await asyncio.gather(*(play(f"0.{place % 10}") for place in range(30)))
            assert rewards == [pytest.approx(place % 10 / 10) for place in range(30)]
            await task.close()


async def test_a_server_that_is_not_there_is_a_task_error():
    listener = listen("127.0.0.1", 0)
    url = url_of(listener, path="/mcp")
    listener.close()
    failed = await start(a_task(McpServer.http(url)))
    assert (failed.status, failed.reward) == (SampleStatus.TASK_ERROR, 0.0)
    assert f"MCP server `{url}` does not start: ConnectError" in failed.metrics["error"]


@pytest.mark.parametrize(("status", "told"), [(500, "an error response"), (404, ""), (200, "")])
async def test_what_stands_in_for_a_server_that_is_gone_is_a_task_error(status: int, told: str):
    app = paged({"f": lambda: "yes"}).streamable_http_app()
    is_gone = False

    async def gone(scope: Any, receive: Any, send: Any) -> None:
        if not is_gone or scope["type"] != "http":
            await app(scope, receive, send)
            return
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/html")]}
        )
        await send({"type": "http.response.body", "body": b"<h1>gateway</h1>"})

    async with over_http(gone) as url, testing.play(a_task(McpServer.http(url))) as episode:
        assert (await episode.call("f")).text == "yes"
        is_gone = True
        last = await episode.call("f")
        assert (last.status, last.reward) == (SampleStatus.TASK_ERROR, 0.0)
        assert f"MCP server `{url}` fails at `f`" in last.metrics["error"]
        assert told in last.metrics["error"]


async def test_headers_reach_the_server():
    seen: list[str | None] = []
    server = MCPServer("guarded", log_level="ERROR")

    @server.tool()
    def who(ctx: Context) -> str:
        """Who asks."""
        headers: Any = ctx.headers
        seen.append(headers.get("authorization"))
        return "you"

    async with over_http(server) as url:
        guarded = McpServer.http(url, headers={"Authorization": "Bearer secret"})
        assert "secret" not in repr(guarded)
        async with testing.play(a_task(guarded)) as episode:
            await episode.call("who")
    assert seen == ["Bearer secret"]


# Processes.


async def test_a_started_server_sees_few_variables_and_leaves_nothing_behind(
    script: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SECRET", "x")
    server = McpServer.stdio(sys.executable, script, env={"GIVEN": "y"})
    async with testing.play(a_task(server)) as episode:
        seen = set((await episode.call("variables")).text.split())
        assert "GIVEN" in seen
        assert seen <= {"GIVEN", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
        pids = [int((await episode.call(name)).text) for name in ("pid", "daemon")]
        assert all(map(is_alive, pids))
    await wait_for_end(*pids)


async def test_a_server_that_dies_is_a_task_error_with_its_last_words(script: Path):
    async with testing.play(a_task(McpServer.stdio(sys.executable, script))) as episode:
        daemon = int((await episode.call("daemon")).text)
        last = await episode.call("die", code=3)
        assert (last.status, last.reward) == (SampleStatus.TASK_ERROR, 0.0)
        assert f"{script}` has ended; its last words: out of memory\nexit code 3" in last.metrics["error"]
    await wait_for_end(daemon)


async def test_a_shared_server_that_died_is_started_anew_for_the_next_session(script: Path):
    task = a_task(McpServer.stdio(sys.executable, script), shared=True)
    try:
        async with testing.play(task) as one, testing.play(task) as two:
            first = (await one.call("pid")).text
            assert (await two.call("pid")).text == first
            await one.call("die", code=1)
            assert (await two.call("pid")).status is SampleStatus.TASK_ERROR
        async with testing.play(task) as three:
            again = (await three.call("pid")).text
            assert again != first
    finally:
        await task.close()
    await wait_for_end(int(first), int(again))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no-such-program",), "no-such-program: No such file or directory"),
        (("sh", "-c", "echo broken >&2; exit 4"), "broken\nexit code 4"),
        (("sh", "-c", "echo waiting >&2; exec sleep 1000"), "no answer within `start_timeout_s` = 0.5 s"),
    ],
)
async def test_a_server_that_does_not_start_is_a_task_error(words: tuple[str, ...], told: str):
    limit = 0.5 if "waiting" in words[-1] else DEADLINE_S
    failed = await start(a_task(McpServer.stdio(*words, start_timeout_s=limit)))
    assert failed.status is SampleStatus.TASK_ERROR
    assert "does not start" in failed.metrics["error"]
    assert told in failed.metrics["error"]


STUBBORN = "trap '' TERM HUP INT; setsid sleep 1000 & echo $! $$ >> {pids}; while :; do sleep 1000; done"

PARENT = """
import asyncio, sys
from agentrl_env_sdk.adapters.mcp import McpServer, McpTools

async def main():
    async with McpTools(McpServer.stdio("sh", "-c", sys.argv[1])):
        pass

asyncio.run(main())
"""


async def test_a_server_ends_with_a_parent_that_is_killed(tmp_path: Path):
    pids = tmp_path / "pids"
    words = [sys.executable, "-c", PARENT, STUBBORN.format(pids=pids)]
    with subprocess.Popen(words) as parent:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (pids.exists() and len(pids.read_text().split()) == 2):
                    await asyncio.sleep(0.02)
            started = [int(pid) for pid in pids.read_text().split()]
            assert all(map(is_alive, started))
        finally:
            os.kill(parent.pid, signal.SIGKILL)
    await wait_for_end(*started)


# Other tasks.


async def test_any_task_may_open_tools_in_its_setup():
    class Own(Task):
        async def setup(self, session: Session) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            session.state["mcp"] = tools = McpTools(McpServer.http(session.sample))
            await tools.open()
            await tools.offer(session)
            return "go on"

        async def teardown(self, session: Session) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            await session.state["mcp"].close()

    async with over_http(paged({"f": lambda: "yes"})) as url, testing.play(Own, sample=url) as episode:
        assert (await episode.call("f")).text == "yes"


async def test_a_task_without_servers_says_so():
    assert "`Made.servers` is empty" in (await start(a_task())).metrics["error"]


def test_a_server_is_reached_one_way():
    with pytest.raises(ConfigError, match=r"McpServer\.stdio"):
        McpServer()
    with pytest.raises(ConfigError, match="http://"):
        McpServer.http("localhost:8000/mcp")
    with pytest.raises(ConfigError, match="`call_timeout_s` must be > 0, got 0"):
        McpServer.stdio("x", call_timeout_s=0)


async def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"agentrl-env-sdk\[mcp\]"):
        await McpTools(McpServer.stdio("x")).open()


async def test_the_example_is_solved_by_its_oracle():
    target = str(Path(__file__).parents[3] / "examples" / "adapters" / "mcp_task.py")
    async with testing.play(target, split="test") as episode:
        task: Any = episode.runner.task
        try:
            await episode.play(testing.OracleAgent(task.oracle))
            assert (episode.status, episode.reward) == (SampleStatus.COMPLETED, 1.0)
        finally:
            await task.close()


async def test_who_is_cancelled_while_a_server_starts_leaves_no_descriptor(script: Path):
    before = set(Path("/proc/self/fd").iterdir())
    for turns in range(12):
        opening = asyncio.create_task(McpTools(McpServer.stdio(sys.executable, script)).open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
    async with asyncio.timeout(DEADLINE_S):
        while set(Path("/proc/self/fd").iterdir()) - before:
            await asyncio.sleep(0.02)  # what the loop closes, it closes a little later

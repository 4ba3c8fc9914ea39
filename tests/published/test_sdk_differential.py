"""The same task on the published worker and on ours gives the same answers, but for what is listed here."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.timeout(300)

BIN = Path(sys.executable).parent
TASKS = Path(__file__).parent / "tasks"
SESSION = 7_000_000


class Api:
    """A worker's API, as a controller uses it.

    Attributes:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._last = SESSION

    def post(self, route: str, body: Any = None) -> tuple[int, Any]:
        """Code and body of the answer."""
        response = self._http.post(f"/{route}", json=body)
        return response.status_code, response.json()

    def get(self, route: str) -> Any:
        """What a route says."""
        return self._http.get(f"/{route}").json()

    def play(self, index: int | str, *replies: Any, custom_task: Any = None) -> list[dict[str, Any]]:
        """Every answer of a session; a string is what an assistant says."""
        self._last += 1
        start = {"index": index, "session_id": self._last, "custom_task": custom_task}
        answers = [self.post("start_sample", start)]
        for reply in replies:
            messages = [{"role": "assistant", "content": reply} if isinstance(reply, str) else reply]
            answers.append(self.post("interact", {"session_id": self._last, "messages": messages}))
        assert [code for code, _ in answers] == [200] * len(answers), answers
        return [body.get("env_out", body) for _, body in answers]

    def open(self, index: int | str) -> int:
        """Begin a session; returns its id."""
        self.play(index)
        return self._last


class Served:
    """`agentrl-env serve --published`, run on the file that the published worker runs."""

    def __init__(self, folder: Path, name: str, task: dict[str, Any], *options: str) -> None:
        config = folder / "ours.json"
        config.write_text(json.dumps({name: task}))
        words = [str(BIN / "agentrl-env"), "serve", "--published", str(config), name, *options]
        kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self._log = folder / "ours.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**kept, "PYTHONPATH": str(TASKS)},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("Serving"), self._log.read_text()
        self.url = line.split()[-1]

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Both = Callable[..., Any]


@pytest.fixture(scope="module")
def ours_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Serves a task with ours: `ours_alone(name, task, *options)`."""
    started: list[Served] = []

    def serve(name: str, task: dict[str, Any], *options: str) -> Served:
        started.append(Served(tmp_path_factory.mktemp(name), name, task, *options))
        return started[-1]

    yield serve
    for each in started:
        each.kill()


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Api, Api]]:
    """What `both` has started, by kind and parameters."""
    return {}


@pytest.fixture
async def both(serve_all: Any, client: Any, ours_alone: Any, pairs: Any) -> Both:
    """The published worker's API and ours for a task: `theirs, ours = await both("Class", ...)`."""

    async def start(kind: str, module: str = "their_tasks", **parameters: Any) -> tuple[Api, Api]:
        key = f"{module}.{kind} {parameters}"
        if key not in pairs:
            theirs = serve_all("http", kind, 4, module=module, **parameters)
            named = {"name": theirs.name, "concurrency": 4, **parameters}
            ours = ours_alone(theirs.name, {"module": f"{module}.{kind}", "parameters": named})
            await client.until_served(theirs)
            pairs[key] = Api(theirs.url), Api(ours.url)
        return pairs[key]

    return start


def call(name: str, call_id: str = "call_1", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def same(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
    """Hold two sessions' answers against each other, but for what ours adds and leaves out on purpose.

    Ours names the metrics both ways, reports a last answer's score where the task has none (0 for a
    failure), says what a failure was, and repeats the tools only when they change.
    """
    assert len(theirs) == len(ours)
    for place, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        our, their = dict(our), dict(their)
        assert our.pop("metrics") == our["metric"]
        if our["finish"]:
            own = set() if our["status"] == "task error" else their["metric"].keys()
            their["metric"], our["metric"] = (
                {key: value for key, value in each["metric"].items() if key not in {"score", "error"} - own}
                for each in (their, our)
            )
        tools = our.pop("tools"), their.pop("tools")
        if place == 0:
            assert tools[0] == tools[1]
        assert our == their, f"answer {place}"
        assert {"messages", "status", "finish", "reward", "metric"} == our.keys()


async def test_a_shop_is_the_same(both):
    theirs, ours = await both("Shop")
    sessions = [
        [0, call("price", thing="drum"), "7"],
        [1, "11"],
        [2, *[call("price", f"call_{n}", thing="harp") for n in range(4)]],
    ]
    for index, *replies in sessions:
        same(theirs.play(index, *replies), ours.play(index, *replies))
    custom = {"thing": "lute", "price": 99}
    same(theirs.play(-1, "99", custom_task=custom), ours.play(-1, "99", custom_task=custom))
    assert theirs.get("get_indices") == ours.get("get_indices") == [-1, 0, 1, 2]
    assert theirs.get("worker_status") == ours.get("worker_status") == {"concurrency": 4, "current": 0}


async def test_scripts_are_the_same(both):
    says = [[{"role": "user", "content": text}] for text in ("a", "{heard}", "{heard}", "end")]
    rewards = [None, {"reward": 0.1, "metrics": {"steps": [1, 2]}}, None, {"reward": -2.5, "score": 0.75}]
    early = {"says": says[:1], "rewards": [{"reward": -0.5, "score": 0.1}]}
    scripts = [
        {"says": says, "rewards": rewards},
        {**early, "status": "task limit reached"},
        {**early, "status": "raise"},
        {"says": says[:2], "status": "raise"},
        {"says": says[:2], "status": "agent context limit"},
    ]
    theirs, ours = await both("Script", scripts=scripts)
    spoken = {"role": "assistant", "content": "hm", "reasoning_content": "so", "x_extra": {"deep": [None]}}
    for index, replies in enumerate([[spoken, "b", "c"], [], [], ["b"], ["b"]]):
        same(theirs.play(index, *replies), ours.play(index, *replies))
        same(*(api.play(-1, *replies, custom_task=scripts[index]) for api in (theirs, ours)))


@pytest.mark.parametrize(
    ("habit", "replies"),
    [
        ("does_talk", ["x", "y", "z"]),
        ("does_rewrite", ["x", "y"]),
        ("does_fail", ["x"]),
        ("does_tuple_result", ["x"]),
    ],
)
async def test_habits_are_the_same(habits, habit, replies):
    theirs, ours = habits
    same(theirs.play(habit, *replies), ours.play(habit, *replies))


@pytest.fixture
async def habits(both):
    """Both workers of `Habits`."""
    return await both("Habits", "sdk_tasks")


async def test_an_overall_is_the_same(habits):
    results = [
        {"index": "does_talk", "status": "completed", "result": {"reward": 2.5}, "history": []},
        {"index": 3, "status": "task error", "result": None},
        {
            "index": "x",
            "status": "completed",
            "result": {"reward": 1},
            "history": [{"role": "user", "content": "a"}, {"reward": 1.0, "metrics": {}}],
        },
    ]
    expected = {"indices": ["does_talk", 3, "x"], "completed": 2, "reward": 3.5, "messages": 2}
    for api in habits:
        assert api.post("calculate_overall", {"name": "habits", "results": results}) == (200, expected)


async def test_a_cancelled_session_frees_its_slot_in_both(habits):
    for api in habits:
        session_id = api.open("does_talk")
        assert api.get("worker_status")["current"] == 1
        assert api.get("get_sessions") == {str(session_id): "does_talk"}
        assert api.post("cancel", {"session_id": session_id})[0] == 200
        assert api.get("worker_status")["current"] == 0
        gone = api.post("interact", {"session_id": session_id, "messages": []})
        assert gone[0] == 400
        assert api.post("cancel", {"session_id": 1})[0] == 400


@pytest.mark.parametrize(
    ("full_async", "waiting", "working"),
    [
        (False, "AgentCancelledException", "answered, went on, AgentCancelledException"),
        (True, "CancelledError", "answered, CancelledError"),
    ],
)
async def test_a_cancellation_looks_the_same(
    serve_all, client, ours_alone, tmp_path, eventually, full_async, waiting, working
):
    folders = [tmp_path / name for name in ("theirs", "ours")]
    for folder in folders:
        folder.mkdir()
    options = {"full_async": full_async}
    theirs = serve_all("http", "Witness", 4, module="sdk_tasks", path=str(folders[0]), **options)
    parameters = {"name": theirs.name, "concurrency": 4, "path": str(folders[1]), **options}
    ours = ours_alone(theirs.name, {"module": "sdk_tasks.Witness", "parameters": parameters})
    await client.until_served(theirs)
    for folder, url in zip(folders, (theirs.url, ours.url), strict=True):
        await _cancel_both(Api(url), folder, eventually)
        assert [(folder / name).read_text() for name in ("waiting", "working")] == [waiting, working]


async def _cancel_both(api: Api, folder: Path, eventually: Any) -> None:
    """Cancel a session that waits for its agent, and one that is at work."""

    async def is_there(name: str) -> bool:
        return (folder / name).exists()

    api.post("cancel", {"session_id": api.open("waiting")})
    session_id = api.open("working")
    said = {"session_id": session_id, "messages": [{"role": "assistant", "content": "x"}]}
    answering = asyncio.create_task(asyncio.to_thread(api.post, "interact", said))
    await eventually(lambda: is_there("working-at-work"))
    api.post("cancel_with_notice", {"session_id": session_id})
    (folder / "go").touch()
    await eventually(lambda: is_there("working"))
    await answering


# What follows differs on purpose: faults of the published worker that ours does not have.


async def test_ours_sends_no_reward_twice(habits):
    theirs, ours = (api.play("does_full_history", "x", "y") for api in habits)
    assert [each["messages"] for each in theirs] == [each["messages"] for each in ours]
    assert [each["reward"] for each in theirs] == [1, 1, 1]
    assert [each["reward"] for each in ours] == [1, 0, 0]


async def test_ours_sends_what_follows_a_cleared_history(habits):
    theirs, ours = (api.play("does_clear", "x", "y") for api in habits)
    assert [[message["content"] for message in each["messages"]] for each in theirs][1] == []
    assert [[message["content"] for message in each["messages"]] for each in ours][1] == ["c"]


async def test_ours_keeps_an_episodes_tools(habits):
    theirs, ours = (api.play("does_own_tools", "x", "y") for api in habits)
    names = [
        [[tool["function"]["name"] for tool in each["tools"] or []] for each in answers]
        for answers in (theirs, ours)
    ]
    assert names == [[["jump"], ["wait"], ["wait"]], [["jump"], [], []]]


async def test_ours_sends_a_last_picture(habits):
    theirs, ours = (api.play("does_picture", "x")[-1]["messages"] for api in habits)
    assert theirs[0]["content"] == []
    assert [part["type"] for part in ours[0]["content"]] == ["text", "image_url"]


async def test_ours_survives_what_is_no_reply(habits):
    theirs, ours = habits
    for messages in ([], [{"role": "user", "content": "I am no assistant."}]):
        assert _answer_to(theirs, messages)[0] == 500
        code, answer = _answer_to(ours, messages)
        assert (code, answer["env_out"]["status"]) == (200, "running")


def _answer_to(api: Api, messages: list[dict[str, Any]]) -> tuple[int, Any]:
    session_id = api.open("does_talk")
    try:
        response = httpx.post(
            f"{api.url}/interact", json={"session_id": session_id, "messages": messages}, trust_env=False
        )
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status_code, response.json() if is_json else None
    finally:
        api.post("cancel", {"session_id": session_id})


async def test_ours_refuses_a_sample_that_does_not_exist(both):
    theirs, ours = await both("Shop")
    assert theirs.play(99)[0]["status"] == "task error"
    assert ours.post("start_sample", {"index": 99, "session_id": 1})[0] == 400


async def test_ours_frees_the_slot_of_a_task_that_lets_its_cancellation_pass(both):
    theirs, ours = await both("Naive")
    for api, current in ((theirs, 1), (ours, 0)):
        session_id = api.open(0)
        api.post("cancel_with_notice", {"session_id": session_id})
        if api is ours:
            api.post("cancel", {"session_id": session_id})  # which waits for the end of the first
        assert api.get("worker_status")["current"] == current


async def test_both_serve_one_task_of_a_controller(serve, ours_alone, controller, client, over, eventually):
    theirs = serve(over, "Shop", 2)
    await client.until_served(theirs)
    named = {"name": theirs.name, "concurrency": 2}
    task = {"module": "their_tasks.Shop", "parameters": named}
    ours_alone(theirs.name, task, "--controller", controller.urls[over])

    async def are_both_there() -> bool:
        return [each["status"] for each in await client.workers(theirs.name)] == ["ALIVE", "ALIVE"]

    await eventually(are_both_there)
    started = [await client.start(theirs.name, 1) for _ in range(4)]
    assert [each["current"] for each in await client.workers(theirs.name)] == [2, 2]
    answers = [await client.interact(session_id, "12") for session_id, _ in started]
    assert [(each["reward"], each["metrics"]["score"]) for each in answers] == [(1.0, 1.0)] * 4

"""Agents of the real `openai` package against sessions, and sessions against a scripted endpoint."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from aiohttp import web

from agentrl_core import ConfigError, FunctionCall, Message, RewardItem, SampleStatus, ToolCall
from agentrl_core.client import SessionClient
from agentrl_core.sockets import listen, url_of
from agentrl_env_sdk import Session, Task, testing, tool
from agentrl_env_sdk.adapters.openai import OpenAIAgent, OpenAIAgentTask, wire_messages
from agentrl_env_sdk.content import image_part, text_part
from agentrl_env_sdk.tasks.guess import Guess
from agentrl_env_sdk.testing import act
from agentrl_env_sdk.worker.http import create_app
from agentrl_env_sdk.worker.runner import Runner

openai = pytest.importorskip("openai")

DEADLINE_S = 10.0
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "add", "parameters": {"type": "object", "properties": {}}},
}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def served_guess() -> AsyncIterator[str]:
    """The address of a worker that serves `guess`."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(Runner(Guess())), log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield url_of(listener, path="/api")
    server.should_exit = True
    await serving


# An agent as a task.


async def adder(client: Any, sample: Any) -> float:
    """An agent with a loop and a tool of its own."""
    messages: list[Any] = [{"role": "system", "content": "Add."}, {"role": "user", "content": str(sample)}]
    while True:
        answer = await client.chat.completions.create(model="any", messages=messages, tools=[ADD])
        said = answer.choices[0].message
        messages.append(said)
        if not said.tool_calls:
            return 1.0 if said.content == str(sum(sample)) else 0.0
        for made in said.tool_calls:
            total = sum(json.loads(made.function.arguments)["numbers"])
            messages.append({"role": "tool", "tool_call_id": made.id, "content": str(total)})


def sync_adder(client: Any, sample: Any) -> RewardItem:
    answer = client.chat.completions.create(model="any", messages=[{"role": "user", "content": str(sample)}])
    right = answer.choices[0].message.content == str(sum(sample))
    return RewardItem(reward=float(right), score=0.25, metrics={"thread": threading.current_thread().name})


def a_task(agent: Any, **options: Any) -> OpenAIAgentTask:
    return OpenAIAgentTask(agent, splits={"train": [[1, 2], [3, 4]]}, turn_timeout_s=DEADLINE_S, **options)


async def test_each_completion_is_a_turn_and_the_agents_reward_is_the_episodes():
    async with testing.play(a_task(adder), index=1) as episode:
        assert [message.role for message in episode.opening.messages] == ["system", "user"]
        assert [found.function.name for found in episode.tools] == ["add"]
        calls = [act("add", numbers=[3, 4]), act("add", numbers=[7])]
        answered = await episode.act(calls)
        assert [(m.role, m.text, m.tool_call_id) for m in answered.messages] == [
            ("tool", "7", "call_1"),
            ("tool", "7", "call_2"),
        ]
        last = await episode.say("7")
        assert (last.finish, last.reward, last.status, last.messages) == (
            True,
            1.0,
            SampleStatus.COMPLETED,
            (),
        )


async def test_a_sync_agent_runs_on_a_thread_and_may_tell_more_than_a_reward():
    async with testing.play(a_task(sync_adder)) as episode:
        last = await episode.say("3")
        assert (last.reward, episode.score, last.metrics["thread"]) == (1.0, 0.25, "task")


async def test_many_agents_play_at_the_same_time():
    async def one(index: int) -> float:
        async with testing.play(task, index=index % 2) as episode:
            await episode.call("add", numbers=[1])
            await episode.say("3")
            return episode.reward

    task = a_task(adder)
    rewards = await asyncio.gather(*(one(index) for index in range(20)))
    assert rewards == [1.0, 0.0] * 10


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_reply_can_be_streamed(is_async: bool):
    seen: list[Any] = []
    options: dict[str, Any] = {
        "model": "m",
        "messages": HELLO,
        "tools": [ADD],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    async def stream(client: Any, _: Any) -> float:
        seen.extend([chunk async for chunk in await client.chat.completions.create(**options)])
        return 1.0

    def sync_stream(client: Any, _: Any) -> float:
        seen.extend(client.chat.completions.create(**options))
        return 1.0

    async with testing.play(a_task(stream if is_async else sync_stream)) as episode:
        calls = [act("add", a=1), act("add", b="é")]
        made = [each.model_copy(update={"id": f"c{place}"}) for place, each in enumerate(calls)]
        await episode.act(Message(role="assistant", content="two calls", tool_calls=made))
    *chunks, usage = seen
    assert (usage.choices, usage.usage.total_tokens) == ([], 0)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "two calls")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert len({chunk.id for chunk in seen}) == 1
    parts: dict[int, str] = {}
    begun = [(c.index, c.id, c.function.name) for d in deltas for c in d.tool_calls or [] if c.id]
    for delta in deltas:
        for each in delta.tool_calls or []:
            parts[each.index] = parts.get(each.index, "") + each.function.arguments
    assert begun == [(0, "c0", "add"), (1, "c1", "add")]
    assert [json.loads(text) for text in parts.values()] == [{"a": 1}, {"b": "é"}]


async def test_the_clients_own_assembly_of_a_stream_works():
    async def agent(client: Any, _: Any) -> float:
        async with client.chat.completions.stream(model="m", messages=HELLO) as stream:
            final = await stream.get_final_completion()
        choice = final.choices[0]
        return float((choice.message.content, choice.finish_reason) == ("hi", "stop"))

    async with testing.play(a_task(agent)) as episode:
        await episode.say("hi")
        assert episode.reward == 1.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"n": 2}, "`n` = 2 cannot be had: a session has one reply"),
        ({"response_format": {"type": "json_object"}}, "not held to a format"),
        ({"logprobs": True}, "probabilities"),
        ({"tool_choice": "required", "tools": [ADD]}, "the agent's choice"),
        ({"functions": [ADD["function"]]}, "use `tools`"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "`tools` must be functions"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"content": "no role"}]}, "role"),
    ],
)
async def test_what_cannot_be_had_is_refused_in_openais_form(given: dict[str, Any], told: str):
    async def agent(client: Any, _: Any) -> float:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**{"model": "m", "messages": HELLO, **given})
        assert refused.value.type == "invalid_request_error"
        assert told in refused.value.body["message"]
        assert refused.value.param in given
        return 0.5

    async with testing.play(a_task(agent)) as episode:
        assert (episode.status, episode.reward) == (SampleStatus.COMPLETED, 0.5)


async def test_what_promises_nothing_and_what_is_to_be_ignored_pass():
    async def agent(client: Any, _: Any) -> float:
        harmless = {"n": 1, "tool_choice": "none", "temperature": 0.5, "seed": 3, "max_tokens": 5}
        await client.chat.completions.create(
            model="m",
            messages=HELLO,
            tools=[ADD],
            response_format={"type": "json_object"},
            stop=["x"],
            **harmless,
        )
        return 1.0

    async with testing.play(a_task(agent, ignored=["response_format"])) as episode:
        assert episode.tools == ()  # since `tool_choice` is "none"
        await episode.say("{}")
        assert episode.reward == 1.0
    with pytest.raises(ConfigError, match=r"\['temperature'\]"):
        a_task(agent, ignored=["temperature"])


async def test_only_the_session_itself_may_ask_and_only_for_completions():
    async def agent(client: Any, _: Any) -> float:
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="guessed").chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
            await client.responses.create(model="m", input="hello")
        assert [model.id async for model in client.models.list()] == ["agent"]
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {client.api_key}"}) as http,
            http.post(f"{client.base_url}chat/completions", data=b"{") as response,
        ):
            assert response.status == 400
            assert "no JSON" in (await response.json())["error"]["message"]
        return 1.0

    async with testing.play(a_task(agent)) as episode:
        assert (episode.status, episode.reward) == (SampleStatus.COMPLETED, 1.0)


async def test_who_asks_again_gets_the_same_answer_and_a_turn_is_counted_once():
    requests: list[Any] = []
    asked_again = asyncio.Event()

    async def count(request: Any) -> None:
        requests.append(request)
        if len(requests) == 2:
            asked_again.set()

    async def agent(client: Any, _: Any) -> float:
        http = openai.DefaultAsyncHttpxClient(trust_env=False, event_hooks={"request": [count]})
        async with http:
            impatient = client.with_options(timeout=0.2, max_retries=10, http_client=http)
            asking = impatient.chat.completions.create(model="m", messages=HELLO)
            first = (await asking).choices[0].message.content
        later = [*HELLO, {"role": "assistant", "content": first}, {"role": "user", "content": "again"}]
        second = await client.chat.completions.create(model="m", messages=later)
        return float((first, second.choices[0].message.content) == ("one", "two"))

    async with testing.play(a_task(agent)) as episode:
        async with asyncio.timeout(DEADLINE_S):
            await asked_again.wait()
        again = await episode.say("one")
        assert [message.text for message in again.messages] == ["again"]
        await episode.say("two")
        assert (episode.reward, episode.session.turns_left) == (1.0, 30)


async def test_a_rewritten_history_is_a_task_error():
    async def agent(client: Any, _: Any) -> float:
        for text in ("hello", "something else"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return 1.0

    async with testing.play(a_task(agent)) as episode:
        last = await episode.say("hi")
        assert (last.status, last.reward) == (SampleStatus.TASK_ERROR, 0.0)
        assert "rewrote its conversation" in last.metrics["error"]


@pytest.mark.parametrize(
    ("result", "error"),
    [(None, "must return its reward"), ("1.0", "must return its reward"), (float("nan"), "finite")],
)
async def test_a_reward_that_is_none_is_a_task_error(result: Any, error: str):
    async def agent(client: Any, _: Any) -> Any:
        await client.chat.completions.create(model="m", messages=HELLO)
        return result

    async with testing.play(a_task(agent)) as episode:
        last = await episode.say("hi")
        assert last.status is SampleStatus.TASK_ERROR
        assert error in last.metrics["error"]


async def test_an_agent_that_raises_is_a_task_error():
    async def agent(client: Any, _: Any) -> float:
        answer = await client.chat.completions.create(model="m", messages=HELLO)
        return json.loads(answer.choices[0].message.content)["reward"]

    async with testing.play(a_task(agent)) as episode:
        last = await episode.say("no JSON")
        assert last.status is SampleStatus.TASK_ERROR
        assert "JSONDecodeError" in last.metrics["error"]


async def test_an_agent_that_never_ends_meets_the_limit_of_turns():
    ended = asyncio.Event()

    async def agent(client: Any, _: Any) -> float:
        messages: list[Any] = list(HELLO)
        try:
            while True:
                answer = await client.chat.completions.create(model="m", messages=messages)
                messages += [answer.choices[0].message, *HELLO]
        finally:
            ended.set()

    async with testing.play(a_task(agent, max_turns=2)) as episode:
        await episode.say("one")
        last = await episode.say("two")
        assert (last.status, last.metrics["truncated"]) == (SampleStatus.TASK_LIMIT_REACHED, "max_turns")
    assert ended.is_set()


async def test_a_cancelled_session_cancels_its_agent():
    ended = asyncio.Event()

    async def agent(client: Any, _: Any) -> float:
        try:
            await client.chat.completions.create(model="m", messages=HELLO)
        finally:
            ended.set()
        return 1.0

    async with testing.play(a_task(agent)) as episode:
        await episode.cancel()
        assert ended.is_set()


async def test_a_cancelled_session_ends_the_wait_of_an_agent_on_a_thread():
    ended = threading.Event()
    raised: list[BaseException] = []

    def agent(client: Any, _: Any) -> float:
        try:
            client.chat.completions.create(model="m", messages=HELLO)
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()
        return 1.0

    async with testing.play(a_task(agent)) as episode:
        await episode.cancel()
    assert await asyncio.to_thread(ended.wait, DEADLINE_S)
    assert isinstance(raised[0], (openai.APIError, RuntimeError))


# A model as the agent.

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@asynccontextmanager
async def model(answer: Answer, *, is_async: bool = True) -> AsyncIterator[tuple[Any, list[dict[str, Any]]]]:
    """A client of an endpoint that answers by a function, and the requests that it got."""
    asked: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        choice = {"index": 0, "finish_reason": "stop", **answer(asked[-1])}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        options = {"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "api_key": "none"}
        direct = {"trust_env": False}
        if is_async:
            http = openai.DefaultAsyncHttpxClient(**direct)
            async with openai.AsyncOpenAI(**options, http_client=http) as client:
                yield client, asked
        else:
            http = openai.DefaultHttpxClient(**direct)
            with openai.OpenAI(**options, http_client=http) as client:
                yield client, asked
    finally:
        await runner.cleanup()


def halving(asked: dict[str, Any]) -> dict[str, Any]:
    """Plays `guess` as its oracle does, from the messages alone."""
    words = asked["messages"][0]["content"].split()
    low, high = int(words[-3]), int(words[-1])
    guesses: list[int] = []
    for message in asked["messages"][1:]:
        if message["role"] == "assistant":
            guesses.append(json.loads(message["tool_calls"][0]["function"]["arguments"])["number"])
        elif message["content"] == "higher":
            low = guesses[-1] + 1
        else:
            high = guesses[-1] - 1
    return called("guess", number=(low + high) // 2, call_id=f"c{len(guesses)}")


def called(name: str, *, call_id: str = "c0", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": call_id, "type": "function", "function": function}
    return {
        "message": {"role": "assistant", "content": None, "tool_calls": [made]},
        "finish_reason": "tool_calls",
    }


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_model_plays_an_episode(is_async: bool):
    async with model(halving, is_async=is_async) as (client, asked):
        agent = OpenAIAgent(client, "m", temperature=0.5)
        async with testing.play(Guess, index=0) as episode:
            await episode.play(agent)
            assert (episode.status, episode.score) == (SampleStatus.COMPLETED, 1.0)
        assert (asked[0]["temperature"], asked[0]["model"]) == (0.5, "m")
        assert [each["function"]["name"] for each in asked[0]["tools"]] == ["guess"]
        assert [len(each["messages"]) for each in asked] == [1 + 2 * turn for turn in range(len(asked))]


async def test_a_model_plays_a_session_of_a_worker(served_guess: str):
    async with model(halving) as (client, _), SessionClient(served_guess) as sessions:
        replies = await OpenAIAgent(client, "m").play(await sessions.start("guess", 5))
        assert (replies[-1].status, replies[-1].metrics["score"]) == (SampleStatus.COMPLETED, 1.0)


async def test_a_session_whose_model_fails_is_cancelled(served_guess: str):
    async with model(lambda _: {"message": None}) as (client, _), SessionClient(served_guess) as sessions:
        session = await sessions.start("guess", 5)
        with pytest.raises((openai.OpenAIError, AttributeError)):
            await OpenAIAgent(client.with_options(base_url=f"{client.base_url}nowhere"), "m").play(session)
        assert session.finished


class Gallery(Task):
    """Shows an image as a tool's answer."""

    def setup(self, session: Session) -> list[Message]:
        return [Message(role="user", content=[text_part("look"), image_part(b"\x89PNG-1")])]

    @tool
    def show(self, session: Session) -> list[dict[str, Any]]:
        """Show one."""
        return [text_part("here"), image_part(b"\x89PNG-2")]

    @tool
    def leave(self, session: Session) -> str:
        """Leave."""
        session.finish(reward=1.0)
        return "bye"


async def test_images_are_shown_and_those_of_tools_by_the_user():
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        return called("show") if len(asked["messages"]) == 1 else called("leave")

    async with model(answer) as (client, asked), testing.play(Gallery) as episode:
        await episode.play(OpenAIAgent(client, "m"))
        assert episode.reward == 1.0
    opening, _, told, shown = asked[1]["messages"]
    assert [part["type"] for part in opening["content"]] == ["text", "image_url"]
    assert told == {"role": "tool", "content": "here", "tool_call_id": "c0"}
    assert (shown["role"], [part["type"] for part in shown["content"]]) == ("user", ["image_url"])


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"content": None}, ""),
        ({"content": None, "refusal": "I will not"}, "I will not"),
        ({"content": "cut sho"}, "cut sho"),
    ],
)
async def test_a_reply_without_a_call_is_told_as_it_is(said: dict[str, Any], text: str):
    def answer(_: dict[str, Any]) -> dict[str, Any]:
        return {"message": {"role": "assistant", **said}, "finish_reason": "length"}

    async with model(answer) as (client, _):
        reply = await OpenAIAgent(client, "m").reply([Message(role="user", content="hi")], [])
    assert (reply.text, reply.tool_calls) == (text, None)


async def test_arguments_that_were_cut_short_are_for_the_environment_to_judge():
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        made = called("guess")
        made["message"]["tool_calls"][0]["function"]["arguments"] = '{"num'
        return made if len(asked["messages"]) == 1 else halving({"messages": asked["messages"][:1]})

    async with model(answer) as (client, _), testing.play(Guess, index=0) as episode:
        agent = OpenAIAgent(client, "m")
        first = await episode.act(await agent(episode, episode.last))
        assert first.text.startswith("error: arguments must be a JSON object")
        await episode.act(await agent(episode, episode.last))
        assert episode.session.invalid_actions == 1


def test_arguments_that_are_objects_become_text():
    made = ToolCall(id="c", function=FunctionCall(name="f", arguments={"a": 1}))
    wire = wire_messages([Message(role="assistant", tool_calls=[made])])
    assert wire[0]["content"] is None
    assert wire[0]["tool_calls"][0] == {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": 1}'},
    }


def test_a_missing_client_names_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with testing.play_sync(Guess, index=0):
        pass  # nothing else needs it
    with (
        pytest.raises(testing.EpisodeError, match=r"agentrl-env-sdk\[openai\]"),
        testing.play_sync(a_task(adder)),
    ):
        pass


# The examples.

EXAMPLES = Path(__file__).parents[3] / "examples" / "adapters"


async def test_the_example_of_an_agent_plays_guess(served_guess: str):
    async with model(halving) as (client, asked):
        words = [str(EXAMPLES / "openai_agent.py"), served_guess, "guess", "m", "--samples", "3"]
        direct = {"OPENAI_BASE_URL": str(client.base_url), "OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=pipe, stderr=pipe, env=os.environ | direct
        )
        said, complained = await process.communicate()
    assert said.decode() == "scores [1.0, 1.0, 1.0], mean 1.000\n", complained.decode()
    assert asked[0]["temperature"] == 1.0


async def test_the_example_of_a_task_is_solved_by_its_oracle():
    target = str(EXAMPLES / "openai_task.py")
    async with testing.play(target, split="test") as episode:
        task: Any = episode.runner.task
        await episode.play(testing.OracleAgent(task.oracle))
        assert (episode.status, episode.reward) == (SampleStatus.COMPLETED, 1.0)
    async with testing.play(target) as episode:
        told = await episode.call("multiply", a=3)
        assert told.text == "error: 'b'"
        assert (await episode.say("I do not know")).reward == 0.0

import asyncio
import itertools
import json

import pytest
from aiohttp import web

from agentrl_core import Outcome, Segment
from agentrl_core.client import SessionClient
from agentrl_workers.config import RolloutConfig
from agentrl_workers.engines import EngineError, Generation
from agentrl_workers.rollout import Episode, Rollout

GUESS = '<tool_call>\n{"name": "guess", "arguments": {"number": 7}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "guess", "parameters": {"properties": {"number": {}}}}}]
EPISODE = Episode("t-0-0", "t-0", "t", 3, seed=5)


class Environment:
    """A session server in this process that answers from a script.

    Attributes:
        script: answer to each interaction in turn: a JSON object, an HTTP status, or an event to wait for.
        said: what the agent sent.
        cancelled: sessions that were cancelled.
    """

    def __init__(self, *script, opening=None):
        self.opening = opening or {
            "messages": [{"role": "user", "content": "find the number"}],
            "tools": TOOLS,
        }
        self.script = iter(script)
        self.said = []
        self.cancelled = []
        self.started = []
        self.ids = itertools.count(1)

    async def start_sample(self, request):
        self.started.append(await request.json())
        return web.json_response(self.opening, headers={"session_id": str(next(self.ids))})

    async def interact(self, request):
        self.said += (await request.json())["messages"]
        answer = next(self.script)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        if isinstance(answer, int):
            return web.json_response({"message": "gone", "code": "worker_lost"}, status=answer)
        return web.json_response(answer)

    async def cancel(self, request):
        self.cancelled.append(request.headers["session_id"])
        return web.json_response(None)


class Script:
    """A sampler that replies with the given texts."""

    def __init__(self, renderer, *texts, reason="stop"):
        self.renderer, self.texts, self.reason = renderer, iter(texts), reason
        self.prompts = []

    async def generate(self, prompt_ids, sampling, *, affinity):
        self.prompts.append(list(prompt_ids))
        text = next(self.texts)
        if isinstance(text, Exception):
            raise text
        ids = self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = tuple([*ids, *self.renderer.stop_token_ids] if self.reason == "stop" else ids)
        return Generation(
            token_ids=ids,
            logps=(-0.5,) * len(ids),
            segments=(Segment(version=2, start=0, end=len(ids)),),
            finish_reason=self.reason,
            cached_tokens=0,
        )


def running(text="higher", **fields):
    return {"messages": [{"role": "tool", "content": text}], "reward": 0.1, **fields}


DONE = {"messages": [], "finish": True, "status": "completed", "reward": 0.9, "metrics": {"score": 1.0}}


@pytest.fixture
async def play(renderer):
    """Play an episode against a scripted environment with a scripted sampler."""
    async with asyncio.timeout(30):
        servers, clients = [], []

        async def run(environment, sampler, **settings):
            app = web.Application()
            for route in ("start_sample", "interact", "cancel"):
                app.router.add_post(f"/api/{route}", getattr(environment, route))
            server = web.AppRunner(app, shutdown_timeout=0.01)
            await server.setup()
            servers.append(server)
            await web.TCPSite(server, "127.0.0.1", 0).start()
            client = SessionClient(f"http://127.0.0.1:{server.addresses[0][1]}/api")
            clients.append(client)
            config = RolloutConfig(**{"turn_timeout_s": 5.0, "max_tokens_per_turn": 64} | settings)
            return await Rollout(client, sampler, renderer, config).play(EPISODE)

        yield run
        for client in clients:
            await client.close()
        for server in servers:
            await server.cleanup()


async def test_an_episode_keeps_exactly_the_sampled_tokens(play, renderer):
    environment = Environment(running(), DONE)
    sampler = Script(renderer, GUESS, GUESS)
    trajectory = await play(environment, sampler)
    assert trajectory.outcome is Outcome.COMPLETED
    assert (trajectory.reward, trajectory.score) == (pytest.approx(1.0), 1.0)
    assert [turn.reward for turn in trajectory.turns] == [0.1, 0.9]
    assert environment.started == [{"name": "t", "index": 3, "seed": 5, "group_id": "t-0"}]
    first, second = trajectory.turns
    assert renderer.text(first.token_ids) == GUESS + "<|im_end|>"
    assert (
        renderer.text(second.context_ids) == "\n<|im_start|>tool\nhigher<|im_end|>\n<|im_start|>assistant\n"
    )
    # What the engine is asked to continue is what was sampled, token by token.
    assert sampler.prompts[1] == [*first.context_ids, *first.token_ids, *second.context_ids]
    call = environment.said[0]["tool_calls"][0]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("guess", {"number": 7})
    assert call["id"] != environment.said[1]["tool_calls"][0]["id"]
    assert environment.cancelled == []
    assert trajectory.oldest_version == 2


async def test_other_tools_begin_a_new_sample_of_the_same_trajectory(play, renderer):
    other = [{"type": "function", "function": {"name": "stop", "parameters": {"properties": {}}}}]
    sampler = Script(renderer, GUESS, GUESS)
    trajectory = await play(Environment(running(tools=other), DONE), sampler)
    assert [turn.starts_sample for turn in trajectory.turns] == [True, True]
    assert sampler.prompts[1] == list(trajectory.turns[1].context_ids)
    assert "stop()" in renderer.text(sampler.prompts[1])


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        (
            {"finish": True, "status": "task error", "metrics": {"error": "no disk"}},
            "environment_error",
            "no disk",
        ),
        ({"finish": True, "status": "agent invalid action"}, "agent_error", "agent invalid action"),
        ({"finish": True, "status": "task limit reached"}, "truncated", "task limit reached"),
        (500, "infrastructure_error", "worker_lost"),
        ({"finish": "maybe"}, "infrastructure_error", "malformed"),
    ],
)
async def test_each_end_has_its_class_and_reason(play, renderer, answer, outcome, reason):
    trajectory = await play(Environment(answer), Script(renderer, GUESS))
    assert trajectory.outcome == outcome
    assert reason in trajectory.reason
    assert trajectory.reward == 0.0


async def test_a_session_that_fails_at_its_start_has_its_class_and_reason(play, renderer):
    failed = {"messages": [], "finish": True, "status": "task error", "metrics": {"error": "no disk"}}
    environment = Environment(opening=failed)
    trajectory = await play(environment, Script(renderer))
    assert (trajectory.outcome, trajectory.reason) == (Outcome.ENVIRONMENT_ERROR, "task error: no disk")
    assert (trajectory.turns, environment.cancelled) == ((), [])


async def test_a_conversation_that_cannot_be_rendered_is_the_environments_fault(play, renderer):
    environment = Environment(opening={"messages": [], "tools": TOOLS})
    trajectory = await play(environment, Script(renderer))
    assert trajectory.outcome is Outcome.ENVIRONMENT_ERROR
    assert "cannot render messages of []" in trajectory.reason
    assert environment.cancelled == ["1"]


async def test_an_environment_that_never_answers_is_a_failure_of_the_infrastructure(play, renderer):
    environment = Environment(asyncio.Event())
    trajectory = await play(environment, Script(renderer, GUESS), turn_timeout_s=0.2)
    assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert "deadline_exceeded" in trajectory.reason
    assert environment.cancelled == ["1"]


async def test_an_engine_that_fails_is_a_failure_of_the_infrastructure(play, renderer):
    environment = Environment()
    trajectory = await play(environment, Script(renderer, EngineError("out of memory")))
    assert trajectory.outcome is Outcome.INFRASTRUCTURE_ERROR
    assert trajectory.reason == "engine: out of memory"
    assert environment.cancelled == ["1"]


async def test_a_reply_that_is_cut_off_truncates_the_episode_and_is_not_sent(play, renderer):
    environment = Environment()
    trajectory = await play(environment, Script(renderer, "many words", reason="length"))
    assert trajectory.outcome is Outcome.TRUNCATED
    assert trajectory.num_tokens > 0
    assert (environment.said, environment.cancelled) == ([], ["1"])


async def test_turns_and_context_are_limited(play, renderer):
    environment = Environment(*[running()] * 9)
    trajectory = await play(environment, Script(renderer, *[GUESS] * 9), max_turns=2)
    assert (trajectory.outcome, len(trajectory.turns)) == (Outcome.TRUNCATED, 2)
    assert trajectory.reason == "no end after 2 turns"
    trajectory = await play(
        Environment(running("x " * 200)), Script(renderer, GUESS), context_length=150, max_tokens_per_turn=64
    )
    assert trajectory.outcome is Outcome.TRUNCATED
    assert "leave no room in a context of 150" in trajectory.reason


async def test_a_cancelled_episode_gives_its_session_back(play, renderer):
    gate = asyncio.Event()
    environment = Environment(gate)
    playing = asyncio.create_task(play(environment, Script(renderer, GUESS)))
    while not environment.said:
        await asyncio.sleep(0.005)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert environment.cancelled == ["1"]

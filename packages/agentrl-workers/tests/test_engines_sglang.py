"""The SGLang engine without SGLang: what it says, reads and starts; tests/sglang has the real one."""

import asyncio
import json
import os
import signal
import stat
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from aiohttp import web
from pydantic import ValidationError

from agentrl_core import Segment
from agentrl_workers.engines import EngineError, SamplingParams
from agentrl_workers.engines.sglang import SGLangConfig, SGLangEngine
from agentrl_workers.engines.sglang.facts import check_facts, vocabulary_of
from agentrl_workers.engines.sglang.server import Server, command_line
from agentrl_workers.engines.sglang.transfer import aligned, check_alignment
from agentrl_workers.engines.sglang.wire import (
    JoinedReply,
    Reply,
    error_text,
    generate_body,
    read_prompt_logps,
    score_body,
)
from agentrl_workers.engines.sglang.witness import Witness, held_name
from agentrl_workers.weights.buckets import TensorSpec

# Requests.


def test_a_request_says_every_sampling_value():
    sampling = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=11, stop_token_ids=(3, 4), seed=5
    )
    body = generate_body((8, 9), sampling, rid="r", cache_key="k", stream=True)
    assert body == {
        "input_ids": [8, 9],
        "sampling_params": {
            "max_new_tokens": 11,
            "min_new_tokens": 0,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": None,
            "stop_token_ids": [3, 4],
            "ignore_eos": False,
            "n": 1,
            "sampling_seed": 5,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "stream": True,
        "rid": "r",
        "extra_key": "k",
    }
    json.dumps(body)


@pytest.mark.parametrize("top_k", [-1, 0])
def test_a_request_without_limits_keeps_all_tokens_and_ends_at_none(top_k):
    sampling = generate_body([1], SamplingParams(top_k=top_k), rid="r", cache_key="k", stream=False)[
        "sampling_params"
    ]
    assert (sampling["top_k"], sampling["stop_token_ids"], sampling["ignore_eos"]) == (-1, None, True)


def test_a_prompt_is_scored_from_its_start_without_a_reply():
    body = score_body([1, 2], rid="r", cache_key="k")
    assert (body["sampling_params"]["max_new_tokens"], body["logprob_start_len"]) == (0, 0)
    assert (body["return_logprob"], body["stream"]) == (True, False)


# Answers.


def answer(
    ids: list[int], *, total: int | None = None, finish: Any = None, spans: Any = None, **meta: Any
) -> dict[str, Any]:
    """An answer as the server writes it; the log-probability of token t is -t / 10."""
    described = {
        "id": "r",
        "finish_reason": finish,
        "weight_version": "7",
        "completion_tokens": len(ids) if total is None else total,
        "output_token_logprobs": [[-token / 10, token, None] for token in ids],
        **meta,
    }
    if spans is not None:
        described["weight_versions"] = [dict(zip(("version", "start", "end"), s, strict=True)) for s in spans]
    return {"text": "", "output_ids": ids, "meta_info": described}


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"type": "stop", "matched": 3}, "stop"),
        ({"type": "length", "length": 3}, "length"),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, "abort"),
    ],
)
def test_a_whole_reply_is_read(finish, expected):
    reply = Reply()
    new = reply.add(answer([1, 2, 3], finish=finish, spans=[("6", 0, 1), ("7", 1, 3)], cached_tokens=4))
    assert new == [(1, -0.1), (2, -0.2), (3, -0.3)]
    assert (reply.token_ids, reply.logps) == ([1, 2, 3], [-0.1, -0.2, -0.3])
    assert reply.segments == [Segment(version=6, start=0, end=1), Segment(version=7, start=1, end=3)]
    assert (reply.finish_reason, reply.cached_tokens) == (expected, 4)


@pytest.mark.parametrize(
    "pieces",
    [
        [answer([1]), answer([2, 3], total=3), answer([4], total=4, finish={"type": "length", "length": 4})],
        [answer([1]), answer([1, 2, 3]), answer([1, 2, 3, 4], finish={"type": "length", "length": 4})],
        # An end without a token of its own: the server repeats the last one, or sends none.
        [
            answer([1, 2, 3, 4]),
            answer([4], total=4, finish={"type": "abort", "message": "Abort in waiting queue"}),
        ],
    ],
    ids=["only-new", "all-so-far", "repeated-end"],
)
def test_pieces_of_either_kind_make_the_same_reply(pieces):
    reply = Reply()
    told = [token for piece in pieces for token, _ in reply.add(piece)]
    assert told == reply.token_ids == [1, 2, 3, 4]
    assert reply.segments == [Segment(version=7, start=0, end=4)]


def test_an_aborted_reply_may_be_empty():
    reply = Reply()
    reply.add(answer([], finish={"type": "abort", "message": "x"}, spans=[("7", 0, 0)]))
    assert (reply.token_ids, reply.segments, reply.finish_reason) == ([], [], "abort")


def test_a_version_that_came_and_went_before_the_first_token_is_no_segment():
    reply = Reply()
    reply.add(answer([1], finish={"type": "length"}, spans=[("5", 0, 0), ("7", 0, 1)]))
    assert reply.segments == [Segment(version=7, start=0, end=1)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"error": "unknown field `x`"}, "refused the request: unknown field `x`"),
        ({"error": {"message": "too long", "code": 400}}, "refused the request: too long"),
        (
            answer([1], finish={"type": "abort", "message": "queue is full", "status_code": 503}),
            "gave up the request: queue is full",
        ),
        (answer([1, 2], total=3), "cannot be read .*3 new tokens need as many ids"),
        (answer([1, 2], output_token_logprobs=[[-0.1, 1, None], [-0.1, 5, None]]), "which agree"),
        (answer([1, 2], finish={"type": "length"}, spans=[("7", 0, 1)]), "do not cover 2 tokens"),
        (
            answer([1], finish={"type": "length"}, spans=[("default", 0, 1)]),
            "start it with `--weight-version",
        ),
        (answer([1], finish={"type": "tired"}), "unknown finish reason `tired`"),
        ({"output_ids": [1]}, "cannot be read .*KeyError: 'meta_info'"),
        ([1, 2], "cannot be read"),
        ("no JSON", "cannot be read"),
    ],
)
def test_an_answer_that_is_none_says_why(broken, message):
    with pytest.raises(EngineError, match=message):
        Reply().add(broken)


def test_parts_of_an_interrupted_reply_join_and_a_version_that_goes_on_is_one_segment():
    whole = JoinedReply()
    for ids, spans in (([1, 2], [("1", 0, 2)]), ([3, 4], [("1", 0, 1), ("2", 1, 2)])):
        part = Reply()
        part.add(answer(ids, finish={"type": "abort"}, spans=spans, cached_tokens=len(ids) + 5))
        whole.add(part)
    generation = whole.generation("length")
    assert generation.token_ids == (1, 2, 3, 4)
    assert generation.logps == (-0.1, -0.2, -0.3, -0.4)
    assert generation.segments == (Segment(version=1, start=0, end=3), Segment(version=2, start=3, end=4))
    assert (generation.finish_reason, generation.cached_tokens) == ("length", 7)


def test_a_scored_prompt_has_no_log_probability_for_its_first_token():
    scored = {"meta_info": {"input_token_logprobs": [[None, 1, None], [-1.5, 2, None]]}}
    assert read_prompt_logps(scored, length=2) == (-1.5,)
    with pytest.raises(EngineError, match="scored 2 of 3 tokens"):
        read_prompt_logps(scored, length=3)
    with pytest.raises(EngineError, match="refused to score a prompt: no"):
        read_prompt_logps({"error": "no"}, length=2)
    with pytest.raises(EngineError, match="cannot be read"):
        read_prompt_logps({"meta_info": {}}, length=2)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": "a"}, "a"),
        ({"error": {"message": "b", "type": "x"}}, "b"),
        ({"success": False, "message": "c"}, "c"),
        ({"detail": "d"}, "d"),
        ("Cache not flushed\n", "Cache not flushed"),
        ("", "it gave no reason"),
    ],
)
def test_what_an_error_says_is_found_in_every_shape(body, text):
    assert error_text(body) == text


# Weights.


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, dtype)


def test_tensors_of_a_bucket_are_ordered_so_that_each_is_aligned():
    mixed = [
        spec("a", "bfloat16", 3),
        spec("b", "float32", 3),
        spec("none", "float32", 0),
        spec("c", "uint8", 5),
        spec("d", "int64", 1),
    ]
    with pytest.raises(EngineError, match=r"`b` .float32. would start at byte 6 of its bucket"):
        check_alignment(mixed)
    ordered = aligned(mixed)
    assert [each.name for each in ordered] == ["d", "b", "a", "c"]
    check_alignment(ordered)


@pytest.mark.parametrize("bucket", [[], [spec("none", "float32", 0)]])
def test_an_empty_bucket_is_refused(bucket):
    with pytest.raises(EngineError, match="without a single byte"):
        check_alignment(bucket)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.qkv_proj.bias"),
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.gate_up_proj.weight"),
        ("model.layers.3.mlp.down_proj.weight", "model.layers.3.mlp.down_proj.weight"),
        ("model.layers.3.mlp.experts.17.gate_proj.weight", "model.layers.3.mlp.experts.w13_weight"),
        ("layers.3.block_sparse_moe.experts.17.w3.weight", "layers.3.block_sparse_moe.experts.w13_weight"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", "model.layers.3.mlp.experts.w2_weight"),
        ("layers.3.mlp.shared_expert.gate_proj.weight", "layers.3.mlp.shared_expert.gate_up_proj.weight"),
        ("model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate.weight"),
    ],
)  # fmt: skip
def test_a_tensor_is_looked_for_under_the_servers_name(ours, theirs):
    assert held_name(ours) == theirs


HELD = {"model.layers.0.self_attn.qkv_proj.weight": "h1", "model.norm.weight": "h2"}
SENT = {
    **{f"model.layers.0.self_attn.{part}_proj.weight": number for number, part in enumerate("qkv")},
    "model.norm.weight": 9,
}


def test_the_witness_agrees_where_the_same_changed_on_both_sides():
    witness = Witness()
    witness.check(SENT, [HELD, HELD])
    witness.check(SENT, [HELD, HELD])
    changed = {**SENT, "model.layers.0.self_attn.k_proj.weight": 77}
    # A rank whose part did not change keeps its sum.
    witness.check(changed, [HELD, {**HELD, "model.layers.0.self_attn.qkv_proj.weight": "h3"}])


def test_the_witness_names_what_the_server_did_not_take_in():
    witness = Witness()
    witness.check(SENT, [HELD])
    changed = {**SENT, "model.layers.0.self_attn.k_proj.weight": 77}
    with pytest.raises(EngineError, match=r"did not take in `model.layers.0.self_attn.k_proj.weight`"):
        witness.check(changed, [HELD])
    # What a smaller type cannot hold is no proof of a loss.
    witness.check(changed, [HELD], narrowed=["model.layers.0.self_attn.k_proj.weight"])


def test_the_witness_names_what_changed_on_the_server_alone():
    witness = Witness()
    witness.check(SENT, [HELD])
    with pytest.raises(EngineError, match=r"`model.norm.weight` changed, though what was sent did not"):
        witness.check(SENT, [{**HELD, "model.norm.weight": "h3"}])


def test_the_witness_names_tensors_without_a_place_and_places_without_a_tensor():
    with pytest.raises(EngineError, match=r"no place for `model.extra.weight`"):
        Witness().check({**SENT, "model.extra.weight": 1}, [HELD])
    with pytest.raises(EngineError, match=r"nothing was sent for the server's `model.embed.weight`"):
        Witness().check(SENT, [{**HELD, "model.embed.weight": "h"}])


def test_a_tied_head_and_computed_frequencies_need_no_place_load_after_load():
    witness = Witness()
    tied = {**HELD, "model.embed_tokens.weight": "h5"}
    for number, held in enumerate((tied, {**tied, "model.embed_tokens.weight": "h6"})):
        sent = {**SENT, "lm_head.weight": number, "model.embed_tokens.weight": number}
        witness.check({**sent, "model.rotary_emb.inv_freq": 4}, [held])


def test_a_head_of_its_own_has_no_place_in_a_server_that_ties_it():
    sent = {**SENT, "lm_head.weight": 3, "model.embed_tokens.weight": 4}
    held = {**HELD, "model.embed_tokens.weight": "h5"}
    with pytest.raises(EngineError, match=r"`lm_head\.weight` that was sent differs"):
        Witness().check(sent, [held])
    Witness().check(sent, [{**held, "lm_head.weight": "h6"}])


# The process.


def words(config: SGLangConfig, **changes: Any) -> list[str]:
    told: dict[str, Any] = {
        "model": "/m",
        "dtype": "bfloat16",
        "context_length": 100,
        "num_slots": 8,
        "version": 4,
        "port": 5,
        "on_cpu": False,
    }
    return command_line(config, **{**told, **changes})


def test_the_command_line_says_what_the_settings_say_and_the_users_words_come_last():
    config = SGLangConfig(python="/p", tensor_parallel=2, arguments=("--port", "9"), api_key="secret")
    line = words(config)
    assert line[:5] == ["/p", "-m", "sglang.launch_server", "--model-path", "/m"]
    assert line[-2:] == ["--port", "9"]
    pairs = dict(pairwise(line[:-2]))
    assert pairs["--dtype"] == "bfloat16"
    assert pairs["--context-length"] == "100"
    assert pairs["--max-running-requests"] == "8"
    assert pairs["--tp-size"] == "2"
    assert pairs["--weight-version"] == "4"
    assert pairs["--port"] == "5"
    assert {"--skip-tokenizer-init", "--incremental-streaming-output"} < set(line)
    assert "--device" not in line
    # Everybody on the machine can read a command line.
    assert "secret" not in " ".join(line)


def test_only_without_cuda_the_server_is_told_to_do_without():
    line = words(SGLangConfig(), on_cpu=True)
    assert line[0] == sys.executable
    assert line[line.index("--device") + 1] == "cpu"
    assert line[line.index("--max-total-tokens") + 1] == "800"


def test_a_running_server_takes_no_arguments():
    with pytest.raises(ValidationError, match="remove `url` to start a server"):
        SGLangConfig(url="http://x", arguments=("--tp-size", "2"))


def test_an_address_without_a_scheme_is_refused():
    with pytest.raises(ValidationError, match=r"`url` must be an address such as .* got `10.0.0.7:30000`"):
        SGLangConfig(url="10.0.0.7:30000")


def test_a_key_does_not_show_in_the_settings():
    assert "secret" not in repr(SGLangConfig(api_key="secret"))


def program(folder: Path, body: str) -> str:
    """A program in the place of the interpreter that has SGLang."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


ANSWERS = """
    import http.server, os, subprocess, sys
    child = subprocess.Popen(["sleep", "1000"])
    print("child", child.pid, flush=True)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/ready" else 404)
            self.end_headers()
        def log_message(self, *words):
            pass
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


async def begin(server: Server) -> None:
    await server.start(model="/m", dtype="float32", context_length=10, num_slots=2, version=0)


async def test_a_server_that_ends_at_its_start_is_an_error_with_its_last_lines(tmp_path):
    python = program(tmp_path, 'import sys; print("first"); print("out of memory"); sys.exit(3)')
    server = Server(SGLangConfig(python=python), tmp_path / "logs" / "server.log")
    with pytest.raises(
        EngineError, match=r"did not start: process \d+ ended with exit code 3; .* out of memory"
    ):
        await begin(server)


async def test_a_server_that_is_not_ready_in_time_is_ended_and_its_last_lines_shown(tmp_path):
    python = program(tmp_path, 'import time; print("loading", flush=True); time.sleep(1000)')
    server = Server(SGLangConfig(python=python, start_timeout_s=1.5), tmp_path / "server.log")
    with pytest.raises(EngineError, match=r"not ready within 1.5 s; it said last: loading"):
        await begin(server)
    assert server.exit_code == -signal.SIGTERM


async def test_an_interpreter_that_is_not_there_is_an_error_with_the_way_out(tmp_path):
    server = Server(SGLangConfig(python="/nowhere/python"), tmp_path / "server.log")
    with pytest.raises(EngineError, match=r"cannot be started: `/nowhere/python`: .* `python` must name"):
        await begin(server)


async def test_a_server_ends_with_all_its_children(tmp_path):
    server = Server(SGLangConfig(python=program(tmp_path, ANSWERS)), tmp_path / "server.log")
    await begin(server)
    child = psutil.Process(int(server.words().split()[1]))
    assert server.exit_code is None
    await server.stop()
    assert server.exit_code == -signal.SIGTERM
    await gone(child)


async def test_a_server_ends_with_its_owner_even_of_sigkill(tmp_path):
    code = f"""
import asyncio
from pathlib import Path
from agentrl_workers.engines.sglang import SGLangConfig
from agentrl_workers.engines.sglang.server import Server

async def main():
    server = Server(SGLangConfig(python={program(tmp_path, ANSWERS)!r}), Path({str(tmp_path / "log")!r}))
    await server.start(model="/m", dtype="float32", context_length=10, num_slots=2, version=0)
    print(server.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    async with asyncio.timeout(90):
        server = psutil.Process(int(await owner.stdout.readline()))
    owner.kill()
    await owner.wait()
    await gone(server)
    os.killpg(server.pid, signal.SIGKILL)


async def gone(process: psutil.Process) -> None:
    async with asyncio.timeout(20):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.02)


async def test_a_key_reaches_the_server_in_a_file_that_is_gone_once_it_runs(tmp_path):
    body = (
        """
    import os, sys
    path = sys.argv[sys.argv.index("--config") + 1]
    print(oct(os.stat(path).st_mode & 0o777), open(path).read(), flush=True)
    """
        + ANSWERS
    )
    config = SGLangConfig(python=program(tmp_path, body), api_key="secret")
    server = Server(config, tmp_path / "server.log")
    await begin(server)
    assert server.words().startswith("0o600 api-key: secret")
    assert [path.name for path in tmp_path.iterdir() if "secret" in path.name] == []
    await server.stop()


# Faults that the real server cannot be made to show.


class Faulty:
    """A server that answers what a test puts into `answers`."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        made = self.answers.get(request.path, {})
        return await made(request) if callable(made) else web.json_response(made)


@pytest.fixture
async def faulty() -> AsyncIterator[Faulty]:
    server = Faulty()
    facts = {"tp_size": 2, "dp_size": 1, "context_length": 108, "model_path": "/m", "dtype": "auto"}
    server.answers["/server_info"] = facts
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def attach(faulty: Faulty, **settings: Any) -> SGLangEngine:
    config = SGLangConfig(**{"url": faulty.url, "start_timeout_s": 20.0, **settings})
    return await SGLangEngine.start(
        config, model="", dtype="", context_length=100, num_slots=4, version=5, log=Path("/dev/null")
    )


async def drop(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1000)
    return web.Response()


async def test_attaching_says_the_version_and_reads_the_servers_facts(faulty):
    engine = await attach(faulty, api_key="k")
    assert (engine.version, engine.world_size, engine.context_length) == (5, 2, 100)
    assert ("/update_weight_version", {"new_version": "5", "abort_all_requests": False}) in faulty.asked
    assert engine.alive()
    await engine.close()
    await engine.close()
    assert not engine.alive()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"dp_size": 2}, "has `--dp-size 2`, which weights cannot reach; run one server for each replica"),
        ({"context_length": 107}, "context of 107 tokens, of which it keeps 8: .* `--context-length 108`"),
    ],
)
def test_a_server_that_cannot_serve_us_is_refused(facts, message):
    with pytest.raises(EngineError, match=message):
        check_facts({"tp_size": 1, **facts}, url="http://x", context_length=100)


async def test_attaching_to_nobody_ends_by_its_deadline(faulty):
    with pytest.raises(EngineError, match=r"no SGLang server is ready at .* within 0.3 s; check the address"):
        await attach(faulty, url="http://127.0.0.1:9", start_timeout_s=0.3)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_connection_that_breaks_is_an_error_that_says_whose_log_to_read(faulty, streams):
    faulty.answers["/generate"] = drop
    engine = await attach(faulty)
    with pytest.raises(
        EngineError, match=r"a reply: .* is gone .*; this server is not ours, so see its own log"
    ):
        await engine.generate([1], SamplingParams(), on_token=(lambda *_: None) if streams else None)
    await engine.close()


async def test_a_stream_that_ends_within_a_reply_is_an_error(faulty):
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(answer([1])).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    faulty.answers["/generate"] = half
    engine = await attach(faulty)
    told: list[int] = []
    with pytest.raises(EngineError, match="stream ended within a reply"):
        await engine.generate([1], SamplingParams(), on_token=lambda token, _: told.append(token))
    assert told == [1]
    await engine.close()


async def test_a_server_that_does_not_sample_is_not_healthy(faulty):
    async def starve(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    faulty.answers["/health_generate"] = starve
    engine = await attach(faulty)
    with pytest.raises(EngineError, match="the server's health: the server answered 503: it gave no reason"):
        await engine.check_health()
    await engine.close()


async def test_a_refused_request_is_aborted_nowhere_but_says_why(faulty):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "queue is full"}}, status=503)

    faulty.answers["/generate"] = refuse
    engine = await attach(faulty)
    with pytest.raises(EngineError, match="a reply: the server answered 503: queue is full"):
        await engine.generate([1], SamplingParams())
    await engine.close()


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("/pause_generation", "pausing the server .retract."),
        ("/begin_weight_update", "opening an update of the weights"),
        ("/update_weights_from_distributed", "receiving `a` to `b`"),
        ("/end_weight_update", "closing the update of the weights"),
        ("/update_weight_version", "naming version 6"),
        ("/flush_cache", "flushing the prefix cache"),
        ("/weights_checker", "the server's checksums"),
        ("/continue_generation", "continuing"),
    ],
)
async def test_every_step_of_an_update_has_a_deadline_and_a_name(faulty, path, stage, monkeypatch):
    monkeypatch.setattr("agentrl_workers.engines.sglang.updates._LET_GO_TIMEOUT_S", 0.05)
    engine = await attach(faulty, control_timeout_s=0.3, transfer_timeout_s=0.3)
    faulty.answers[path] = hang

    async def update() -> None:
        await engine.begin_update()
        await engine.receive_bucket([spec("a", "float32", 1), spec("b", "float32", 1)], group="g")
        await engine.finish_update(6, sums={"a": 1, "b": 2})

    faulty.answers.setdefault("/weights_checker", {"ranks": [{"checksums": {"a": "x", "b": "y"}}]})
    with pytest.raises(EngineError, match=f"{stage}: no answer of .*{path} within 0.3 s"):
        await update()
    with pytest.raises(EngineError, match=f"of no version since an update failed: {stage}"):
        await engine.generate([1], SamplingParams())
    await engine.close()


async def test_an_update_that_is_refused_lets_the_server_go_on_without_what_ran(faulty):
    engine = await attach(faulty)
    faulty.answers["/end_weight_update"] = {"success": False, "message": "no session"}
    await engine.begin_update()
    faulty.asked.clear()
    with pytest.raises(
        EngineError, match="closing the update of the weights: the server said no: no session"
    ):
        await engine.finish_update(6)
    assert [path for path, _ in faulty.asked[1:]] == [
        "/end_weight_update",
        "/abort_request",
        "/continue_generation",
    ]
    assert engine.version == 5
    await engine.close()


async def test_a_server_that_hangs_and_is_not_ours_fails_what_runs(faulty):
    faulty.answers |= {"/generate": hang, "/update_weights_from_distributed": hang}
    engine = await attach(faulty, transfer_timeout_s=0.3)
    call = asyncio.create_task(engine.generate([1], SamplingParams()))
    async with asyncio.timeout(10):
        while all(path != "/generate" for path, _ in faulty.asked):
            await asyncio.sleep(0.01)
    await engine.begin_update()
    with pytest.raises(EngineError, match="receiving `a` to `a`: no answer"):
        await engine.receive_bucket([spec("a", "float32", 1)], group="g")
    with pytest.raises(EngineError, match=r"is gone .* of no version since an update failed: receiving"):
        await call
    await engine.close()


async def test_weights_without_a_single_value_are_refused(faulty):
    engine = await attach(faulty)
    with pytest.raises(EngineError, match="weights of version 6 hold nothing to send"):
        await engine.load_weights({"a": torch.ones(0)}, version=6)
    await engine.close()


async def test_an_abort_that_was_not_ours_ends_the_reply(faulty):
    faulty.answers["/generate"] = answer([1, 2], finish={"type": "abort", "message": "Aborted"})
    engine = await attach(faulty)
    generation = await engine.generate([1], SamplingParams())
    assert (generation.token_ids, generation.finish_reason) == ((1, 2), "abort")
    await engine.close()


def test_the_vocabulary_is_read_where_the_models_folder_can_be_seen(tmp_path):
    assert vocabulary_of(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 12}}')
    assert vocabulary_of(str(tmp_path)) == 12
    (tmp_path / "config.json").write_text('{"vocab_size": 13}')
    assert vocabulary_of(str(tmp_path)) == 13


async def test_our_side_of_a_group_that_the_server_does_not_join_is_not_waited_for(faulty):
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"success": False, "message": "no such backend"}, status=400)

    faulty.answers["/init_weights_update_group"] = refuse
    engine = await attach(faulty, transfer_timeout_s=4.0)
    with pytest.raises(EngineError, match=r"joining the group `engine-.*`: the server answered 400: no such"):
        async with asyncio.timeout(3):
            await engine.load_weights({"a": torch.ones(2)}, version=6)
    assert engine.alive()
    await engine.close()
    # Torch does not let go of the meeting before its deadline, and a process must not end meanwhile.
    left = [thread for thread in threading.enumerate() if thread.name == "sglang-transfer"]
    await asyncio.to_thread(lambda: [thread.join(20) for thread in left])

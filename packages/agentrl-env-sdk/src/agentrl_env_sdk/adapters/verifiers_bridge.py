"""Runs in the environment of a verifiers package, and speaks JSON lines with `VerifiersTask`.

    <- {"do": "start", "episode": e, "index": n}
    -> {"episode": e, "call": c, "messages": [...], "tools": [...]}
    <- {"do": "reply", "call": c, "message": {...}}
    -> {"episode": e, "end": {...}}
    <- {"do": "cancel", "episode": e}

The rollouts ask for completions at an endpoint of this process that has the shape of OpenAI's; each question
becomes a line. Only the standard library, `chat_wire` and what verifiers brings are imported, and those
when it runs.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

_LONGEST_LINE = 256 * 2**20


class Bridge:
    """The environment, its endpoint, and the episodes that are being played."""

    def __init__(self, env: Any, tasks: list[Any], say: Any) -> None:
        self._env = env
        self._tasks = tasks
        self._say = say
        self._calls: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._playing: dict[str, asyncio.Task[None]] = {}
        self._episodes: dict[str, str] = {}
        self._url = ""

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Play what the lines ask for until they end."""
        from aiohttp import web

        app = web.Application(client_max_size=_LONGEST_LINE)
        app.router.add_post("/{key}/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with self._env.serving():
                self._say({"ready": len(self._tasks)})
                while line := await lines.readline():
                    self._take(json.loads(line))
                for playing in self._playing.values():
                    playing.cancel()
                await asyncio.gather(*self._playing.values(), return_exceptions=True)
        finally:
            await runner.cleanup()

    def _take(self, asked: dict[str, Any]) -> None:
        if asked["do"] == "start":
            playing = asyncio.create_task(self._play(asked["episode"], asked["index"]))
            self._playing[asked["episode"]] = playing
        elif asked["do"] == "cancel" and (playing := self._playing.get(asked["episode"])):
            playing.cancel()
        elif asked["do"] == "reply" and (call := self._calls.pop(asked["call"], None)) and not call.done():
            call.set_result(asked["message"])

    async def _play(self, episode: str, index: int) -> None:
        from verifiers.v1.clients import ModelContext  # pyright: ignore[reportMissingImports]
        from verifiers.v1.configs.client import EvalClientConfig  # pyright: ignore[reportMissingImports]

        key = secrets.token_urlsafe(24)  # The endpoint is open to whoever is on this machine.
        self._episodes[key] = episode
        try:
            client = EvalClientConfig(base_url=f"{self._url}/{key}/v1", api_key_var="AGENTRL_NO_KEY")
            context = ModelContext(model="agent", client=client)
            ended = await self._env.run_episode(self._tasks[index], context)
            self._say({"episode": episode, "end": _result(ended)})
        except Exception as error:
            self._say({"episode": episode, "end": {"error": f"{type(error).__name__}: {error}"}})
        finally:
            del self._episodes[key], self._playing[episode]

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web
        from chat_wire import completion, events  # pyright: ignore[reportMissingImports]

        episode = self._episodes.get(request.match_info["key"])
        if episode is None:
            return web.json_response({"error": {"message": "no such episode"}}, status=404)
        body = await request.json()
        call = f"c{next(self._numbers)}"
        self._calls[call] = asyncio.get_running_loop().create_future()
        asked = {"messages": body["messages"], "tools": body.get("tools")}
        self._say({"episode": episode, "call": call, **asked})
        try:
            message = await self._calls[call]
        finally:
            self._calls.pop(call, None)
        if not body.get("stream"):
            return web.json_response(completion(message, body))
        return web.Response(text=events(message, body), content_type="text/event-stream")


def _result(ended: Any) -> dict[str, Any]:
    """What an episode came to: the rewards of its traces by name, weighted, and their metrics."""
    errors = [*ended.errors, *(error for trace in ended.traces for error in trace.errors)]
    if not ended.ok:
        last = errors[-1] if errors else None
        return {"error": "the episode failed" if last is None else f"{last.type}: {last.message}"}
    rewards: dict[str, float] = {}
    metrics: dict[str, Any] = {}
    for trace in ended.traces:
        prefix = f"{trace.agent.name}/" if len(ended.traces) > 1 else ""
        scored = ((name, each) for name, each in trace.rewards.items() if each is not None)
        rewards |= {f"{prefix}{name}": float(each.value) for name, each in scored}
        metrics |= {f"{prefix}{name}": value for name, value in trace.metrics.items()}
    stops = [trace.stop_condition for trace in ended.traces if trace.is_truncated]
    return {"rewards": rewards, "metrics": metrics, "truncated": next(iter(stops), None)}


async def _main(config: dict[str, Any], limit: int | None, *, only_count: bool, say: Any) -> None:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # pyright: ignore[reportMissingImports]

    env = load_environment(resolve_env_config(config))
    taskset = env.taskset if limit is None else env.taskset.take(limit)
    if not taskset.bounded:
        raise SystemExit(f"the taskset `{config['taskset']['id']}` has no end; say `limit`")
    tasks = list(taskset)
    if only_count:
        say({"ready": len(tasks)})
        return
    lines = asyncio.StreamReader(limit=_LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    await Bridge(env, tasks, say).serve(lines)


def main() -> None:
    """Play episodes until standard input ends; standard output is for the protocol alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", help="the environment's configuration, in JSON")
    parser.add_argument("--limit", type=int, help="samples of the taskset")
    parser.add_argument("--count", action="store_true", help="only tell how many samples there are")
    given = parser.parse_args()
    # While its folder is where modules are looked for.
    import chat_wire  # noqa: F401  # pyright: ignore[reportMissingImports]

    sys.path.remove(str(Path(__file__).parent))  # Where a module has the name of their package.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # What the environment prints is no part of the protocol.

    def say(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_main(json.loads(given.config), given.limit, only_count=given.count, say=say))


if __name__ == "__main__":
    main()

"""What a server says of itself, and whether it is one that this engine can use."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from agentrl_workers.config import SGLangConfig
from agentrl_workers.engines.base import EngineError
from agentrl_workers.engines.sglang.client import Client
from agentrl_workers.engines.sglang.server import is_ready

SPARE_TOKENS = 8
"""The server keeps the last few tokens of its context for itself."""
_ATTACH_POLL_S = 1.0
_CONTINUE_TIMEOUT_S = 5.0


async def ask_facts(url: str, config: SGLangConfig) -> Mapping[str, Any]:
    """What a server says of itself, once it is ready."""

    async def not_ours() -> str:
        return "see the server's own log"

    client = Client(url, config.api_key, not_ours)
    try:
        await _wait_ready(client, config.start_timeout_s)
        return await client.ask(
            "/server_info", None, stage="asking for the server's settings", timeout_s=config.control_timeout_s
        )
    finally:
        await client.close()


async def _wait_ready(client: Client, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
            while not await is_ready(session, client.url):
                # One that a dead trainer left paused is not ready, either.
                with contextlib.suppress(EngineError):
                    await client.ask(
                        "/continue_generation", {}, stage="continuing", timeout_s=_CONTINUE_TIMEOUT_S
                    )
                await asyncio.sleep(_ATTACH_POLL_S)
    except TimeoutError as error:
        raise EngineError(
            f"no SGLang server is ready at {client.url} within {timeout_s:g} s; check the address"
        ) from error


def check_facts(facts: Mapping[str, Any], *, url: str, context_length: int) -> None:
    if facts.get("dp_size", 1) != 1:
        raise EngineError(
            f"the server at {url} has `--dp-size {facts['dp_size']}`, which weights cannot reach; "
            "run one server for each replica instead"
        )
    theirs = facts.get("context_length")
    if theirs is not None and theirs < context_length + SPARE_TOKENS:
        raise EngineError(
            f"the server at {url} has a context of {theirs} tokens, of which it keeps {SPARE_TOKENS}: less "
            f"than `context_length` {context_length}; start it with `--context-length "
            f"{context_length + SPARE_TOKENS}`"
        )


def vocabulary_of(model: str) -> int | None:
    """Number of the model's token ids, where its folder can be seen from here."""
    try:
        settings = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return settings.get("vocab_size") or settings.get("text_config", {}).get("vocab_size")

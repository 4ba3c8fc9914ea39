"""A real SGLang server on the CPU, from an environment of its own, which `nox -s sglang` makes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl_workers.engines.sglang import SGLangConfig, SGLangEngine

STANDINS = Path(__file__).parent / "standins"
CONTEXT = 192
VOCABULARY = 320
NUM_SLOTS = 64
API_KEY = "key-of-the-tests"
START_TIMEOUT_S = 900.0
"""Most of a start is importing the file of every model, which takes minutes on a busy machine."""
PATIENCE_S = 120.0

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All share one event loop, the server's parent; starting it counts as a part of the first test."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        item.add_marker(pytest.mark.timeout(START_TIMEOUT_S + 300))


def make_model(seed: int) -> PreTrainedModel:
    """A tiny random model, far enough from uniform that a wrong weight shows."""
    torch.manual_seed(seed)
    settings = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.1,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = Qwen3ForCausalLM(settings).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


@pytest.fixture(scope="session")
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """The model that the server starts with, and another."""
    return make_model(0), make_model(1)


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of an environment that has SGLang."""
    path = os.environ.get("AGENTRL_SGLANG_PYTHON", "")
    if not path:
        pytest.skip("AGENTRL_SGLANG_PYTHON names no interpreter; run `nox -s sglang`")
    return path


@pytest.fixture(scope="session")
def start(
    python: str, models: tuple[PreTrainedModel, PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Awaitable[SGLangEngine]]:
    """Starts a server with the first model, or attaches to one that `url` names."""
    folder = tmp_path_factory.mktemp("sglang")
    models[0].save_pretrained(folder / "model")

    async def begin(*, version: int = 0, **settings: Any) -> SGLangEngine:
        if "url" not in settings:
            settings["python"] = python
            settings["environment"] = {"PYTHONPATH": str(STANDINS), "HF_HUB_OFFLINE": "1"}
        config = SGLangConfig(**{"api_key": API_KEY, "start_timeout_s": START_TIMEOUT_S, **settings})
        return await SGLangEngine.start(
            config,
            model=str(folder / "model"),
            dtype="float32",
            context_length=CONTEXT,
            num_slots=NUM_SLOTS,
            version=version,
            log=folder / "server.log",
        )

    return begin


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(start: Callable[..., Awaitable[SGLangEngine]]) -> AsyncIterator[SGLangEngine]:
    """The one server of the tests, with the first model as version 0."""
    started = time.monotonic()
    running = await start()
    print(f"\nthe server was ready after {time.monotonic() - started:.0f} s")
    yield running
    await running.close()


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for something that no event tells of."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {PATIENCE_S:.0f} s: {what}")


def full_logps(
    model: PreTrainedModel, prompt: Sequence[int], reply: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of a reply by one forward pass over the whole."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0].double() / temperature
    logps = torch.log_softmax(logits, dim=-1)
    return [logps[len(prompt) + place - 1, token].item() for place, token in enumerate(reply)]


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """The likeliest continuation, as `transformers` finds it."""
    ids = model.generate(
        torch.tensor([list(prompt)]), do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=2
    )
    return ids[0, len(prompt) :].tolist()

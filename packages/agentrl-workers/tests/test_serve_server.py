import asyncio
import signal
import socket
import time
from pathlib import Path

import aiohttp
import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_workers.services import Service, command
from agentrl_workers.warmstart.tokenizer import train_tokenizer

HELLO = [{"role": "user", "content": "find the number"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(["find the number"], vocabulary=300)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=100_000,
    )
    model = Qwen3ForCausalLM(config)
    model.lm_head.weight.data.zero_()  # Greedy, it says the first token for ever.
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.timeout(120)
async def test_the_command_serves_a_checkpoint_until_a_signal_ends_it_and_what_runs(
    checkpoint: Path,
) -> None:
    words = [
        command("agentrl-train"),
        "serve",
        str(checkpoint),
        "--port",
        "0",
        "--name",
        "m",
        "--num-slots",
        "2",
    ]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("Serving m on http://127.0.0.1:")
        url = line.split()[-1]
        async with aiohttp.ClientSession() as http:
            body = {"model": "m", "messages": HELLO, "stream": True, "temperature": 0}
            async with http.post(f"{url}/chat/completions", json=body) as response:
                await response.content.readuntil(b"\n\n")
                started = time.monotonic()
                process.send_signal(signal.SIGTERM)
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.text()
                await process.wait()
                assert time.monotonic() - started < 4.0  # Two, and as much again for a busy machine.
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.timeout(120)
async def test_a_port_in_use_is_one_clear_line(checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        service = Service(
            "s", [command("agentrl-train"), "serve", str(checkpoint), "--port", port], tmp_path / "log"
        )
        assert await service.run() == 1
    assert (tmp_path / "log").read_text() == (
        f"error: cannot listen on 127.0.0.1:{port}: the port is in use; "
        "choose another port, or 0 for a free one\n"
    )


@pytest.mark.timeout(120)
async def test_a_context_beyond_the_models_is_one_clear_line(checkpoint: Path, tmp_path: Path) -> None:
    words = ["serve", str(checkpoint), "--port", "0", "--context-length", "100001"]
    service = Service("s", [command("agentrl-train"), *words], tmp_path / "log")
    assert await service.run() == 1
    assert (
        "error: the context length must be at most the model's 100000, got 100001"
        in (tmp_path / "log").read_text()
    )

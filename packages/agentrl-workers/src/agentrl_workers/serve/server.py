"""Loads a checkpoint and serves it until a signal ends it."""

from pathlib import Path

import torch
import uvicorn

from agentrl_core import ConfigError
from agentrl_core.sockets import listen, url_of
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.models import default_device, load_model, load_tokenizer
from agentrl_workers.serve.app import create_app

_SHUTDOWN_S = 1


def serve(
    checkpoint: Path,
    *,
    host: str,
    port: int,
    name: str,
    context_length: int | None,
    num_slots: int,
    dtype: str,
    seed: int,
    token: str | None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        checkpoint: folder with the model and its tokenizer.
        host: address to listen on.
        port: port; 0 takes a free one.
        name: the model's name in requests.
        context_length: longest sequence in tokens; None takes the model's.
        num_slots: sequences decoded at the same time.
        dtype: of the weights and the cache, by its name in torch.
        seed: of the draws of requests without a seed.
        token: bearer token that requests must carry; None asks for none.

    Raises:
        ConfigError: the folder holds no model, the context or the cache is too large, or the port is in use.
    """
    device = default_device()
    if device.type == "cpu":
        torch.set_num_threads(1)  # A server shares its machine; more threads are slower for small models.
    listener = listen(host, port)
    engine = _load(checkpoint, context_length, num_slots=num_slots, dtype=dtype, seed=seed, device=device)
    renderer = ChatRenderer(load_tokenizer(str(checkpoint)))
    app = create_app(engine, renderer, name=name, token=token)
    print(f"Serving {name} on {url_of(listener, path='/v1')}", flush=True)  # noqa: T201
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=_SHUTDOWN_S)
    uvicorn.Server(config).run(sockets=[listener])


def _load(
    checkpoint: Path,
    context_length: int | None,
    *,
    num_slots: int,
    dtype: str,
    seed: int,
    device: torch.device,
) -> EmbeddedEngine:
    model = load_model(str(checkpoint), dtype=dtype, device=device)
    longest = int(model.config.max_position_embeddings)
    length = context_length or longest
    if length > longest:
        raise ConfigError(f"the context length must be at most the model's {longest}, got {length}")
    try:
        return EmbeddedEngine(model, num_slots=num_slots, context_length=length, seed=seed)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f"no memory for a cache of {num_slots} sequences of {length} tokens; "
            "give a smaller --context-length or --num-slots"
        ) from error

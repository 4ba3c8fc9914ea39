"""Loads a checkpoint and serves it until a signal ends it."""

from pathlib import Path

import torch
import uvicorn

from agentrl_core.sockets import listen, url_of
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.models import default_device, load_model, load_tokenizer
from agentrl_workers.serve.app import create_app


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

    Raises:
        ConfigError: the folder holds no model, or the port is in use.
    """
    device = default_device()
    if device.type == "cpu":
        torch.set_num_threads(1)  # A server shares its machine; more threads are slower for small models.
    listener = listen(host, port)
    model = load_model(str(checkpoint), dtype=dtype, device=device)
    renderer = ChatRenderer(load_tokenizer(str(checkpoint)))
    length = context_length or int(model.config.max_position_embeddings)
    engine = EmbeddedEngine(model, num_slots=num_slots, context_length=length, seed=seed)
    print(f"Serving {name} on {url_of(listener, path='/v1')}", flush=True)  # noqa: T201
    app = create_app(engine, renderer, name=name, token=token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])

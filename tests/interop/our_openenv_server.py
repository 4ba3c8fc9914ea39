"""The example `examples/adapters/openenv_server.py` at a free port."""

import runpy
from pathlib import Path

import uvicorn

from agentrl_core.sockets import listen, url_of

example = Path(__file__).parents[2] / "examples" / "adapters" / "openenv_server.py"
app = runpy.run_path(str(example))["app"]
listener = listen("127.0.0.1", 0)
print(f"at {url_of(listener, path='')}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])

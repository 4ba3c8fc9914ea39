"""Routes agents' sessions to task workers: capacity, affinity, fair queues, answers given exactly once.

    agent -> api -> Controller -> placement, admission -> HttpTransport -> task worker
                        |-- Sessions (state machine)
    task worker --heartbeat--> Registry

`create_app(Controller(config))` is an ASGI app to mount elsewhere; `agentrl-controller serve` serves it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from agentrl_controller.api import create_app
    from agentrl_controller.config import ControllerConfig
    from agentrl_controller.controller import Controller

__all__ = ["Controller", "ControllerConfig", "create_app"]

_HOMES = {"Controller": "controller", "ControllerConfig": "config", "create_app": "api"}


def __getattr__(name: str) -> typing.Any:
    # The server's libraries take half a second to import; the command's help does without them.
    if name not in _HOMES:
        raise AttributeError(f"module `agentrl_controller` has no attribute `{name}`")
    return getattr(importlib.import_module(f"agentrl_controller.{_HOMES[name]}"), name)

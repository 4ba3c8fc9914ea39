"""Routes agents' sessions to task workers: capacity, affinity, fair lines, answers given exactly once.

    agent --> api --> Controller --> Starts ----> Pool (Registry, placement, Admission, Sessions)
                          |--------> Exchanges ----> HttpTransport --> task worker
                          |--------> Cancellations ------^
                          '--------> Audit --------------^
    task worker --heartbeat--> Registry

`Controller(config).app` is an ASGI app to mount elsewhere; `agentrl-controller serve` serves it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from agentrl_controller.config import ControllerConfig
    from agentrl_controller.controller import Controller

__all__ = ["Controller", "ControllerConfig"]

_HOMES = {"Controller": "controller", "ControllerConfig": "config"}


def __getattr__(name: str) -> typing.Any:
    # The server's libraries take half a second to import; the command's help does without them.
    if name not in _HOMES:
        raise AttributeError(f"module `agentrl_controller` has no attribute `{name}`")
    return getattr(importlib.import_module(f"agentrl_controller.{_HOMES[name]}"), name)

"""Ways to reach a task worker."""

from agentrl_controller.transports.base import Call, Transport, WorkerError, WorkerReply
from agentrl_controller.transports.gateway import Gateway
from agentrl_controller.transports.http import HttpTransport

__all__ = ["Call", "Gateway", "HttpTransport", "Transport", "WorkerError", "WorkerReply"]

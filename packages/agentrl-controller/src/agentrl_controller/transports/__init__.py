"""Ways to reach a task worker."""

from agentrl_controller.transports.http import HttpTransport, WorkerError

__all__ = ["HttpTransport", "WorkerError"]

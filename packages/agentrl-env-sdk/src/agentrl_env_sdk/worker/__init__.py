"""Serves a task: one session table, an HTTP transport, heartbeats to a controller.

controller or agent --HTTP--> create_app --> Runner --> Task.run
Worker --heartbeats--> controller
"""

from agentrl_env_sdk.worker.lifecycle import Worker, WorkerConfig
from agentrl_env_sdk.worker.runner import Runner

__all__ = ["Runner", "Worker", "WorkerConfig"]

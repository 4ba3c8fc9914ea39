"""Serves a task: one session table, two transports to it, and a link to a controller.

    agent, controller --HTTP--> Front --\
                                         Routes -> Runner -> Task.run
    controller --stream--> StreamLink --/
    Worker --heartbeats, cancel notices--> HttpLink or StreamLink --> controller
    Crew -> several processes with a Worker each
"""

from agentrl_env_sdk.worker.lifecycle import Worker, WorkerConfig
from agentrl_env_sdk.worker.runner import Runner

__all__ = ["Runner", "Worker", "WorkerConfig"]

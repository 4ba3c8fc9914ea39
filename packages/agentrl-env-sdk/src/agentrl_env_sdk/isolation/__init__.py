"""Episodes in processes of their own, for tasks that are heavy, unsafe, or leave children behind.

    worker: IsolatedTask --control socket--> nursery (forked once, one thread, the task loaded)
               |                                |  fork, kill with all descendants, report how it ended
               +------- a socket each ------> episode (a Runner of its own for one session)

The worker hands each episode's socket to the nursery, which forks itself for it: no import is paid twice.
"""

from agentrl_env_sdk.isolation.task import IsolatedTask

__all__ = ["IsolatedTask"]

"""Tasks written for the published SDK, `agentrl-worker`, on ours, unchanged.

    config.yaml -> load_published -> their class, importing `agentrl.worker.*` -- install --> our modules
                        |
                   PublishedTask -> Runner -> whatever serves or plays a task

`typings`, `task` and `environment` hold the names that such tasks import.
"""

from agentrl_env_sdk.published.imports import install, installed
from agentrl_env_sdk.published.loading import load_published
from agentrl_env_sdk.published.player import PublishedTask

__all__ = ["PublishedTask", "install", "installed", "load_published"]

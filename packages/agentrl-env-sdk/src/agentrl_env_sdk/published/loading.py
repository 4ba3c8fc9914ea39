"""Finds a published task in a configuration and makes it ready to be played."""

import sys
import traceback
from pathlib import Path

from agentrl_core import ConfigError
from agentrl_env_sdk.config import load_config, load_entry
from agentrl_env_sdk.published.imports import install
from agentrl_env_sdk.published.player import PublishedTask
from agentrl_env_sdk.published.task import Task
from agentrl_env_sdk.published.typings import InstanceFactory


def load_published(path: str | Path, name: str | None) -> PublishedTask:
    """The task of an entry, with `agentrl.worker` meaning our modules from now on.

    Modules are looked up from the working directory first, as `python -m agentrl.worker` does.

    Raises:
        ConfigError: the configuration is wrong, or the task cannot be imported or made.
    """
    if name is None:
        known = ", ".join(f"`{each}`" for each in load_config(path)) or "nothing"
        raise ConfigError(f"say which entry of `{path}` is meant; it has {known}")
    module, parameters = load_entry(path, name)
    install()
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        task = InstanceFactory(module=module, parameters=parameters).create()
        if isinstance(task, Task):
            return PublishedTask(task)
    except Exception as error:
        message = f"`{module}` of entry `{name}` cannot be made:\n{traceback.format_exc().rstrip()}"
        raise ConfigError(message) from error
    rule = "must derive from `agentrl.worker.task.Task`; serve our own without `--published`"
    raise ConfigError(f"`{module}` of entry `{name}` {rule}")

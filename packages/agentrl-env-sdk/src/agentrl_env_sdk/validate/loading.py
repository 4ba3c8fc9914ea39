"""Finds an oracle that lies apart from its task."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.oracle import Oracle


def load_oracle(target: str) -> Oracle:
    """The oracle of `module:function` or `file.py:function`.

    Raises:
        ConfigError: there is no such function.
    """
    where, separator, name = target.rpartition(":")
    if not separator or not name:
        raise ConfigError(f"`--oracle` must be `module:function`, got `{target}`; name the function")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"`{where}` cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"`{where}` has no function `{name}`; an oracle takes a session and yields actions")
    return found  # type: ignore[return-value]


def _module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"agentrl_env_oracle_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"there is no file `{path}`")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

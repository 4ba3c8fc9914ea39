"""Finds the task that a person names: `file.py`, `file.py:Class` or `package.module:Class`."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from agentrl_core import ConfigError
from agentrl_env_sdk.task import Task


def load_task(target: str) -> Task:
    """The task of a target.

    Raises:
        ConfigError: the code cannot be imported, or it holds no task or several.
    """
    where, _, name = target.partition(":") if not target.endswith(".py") else (target, "", "")
    module = _module(where)
    if name:
        found = getattr(module, name, None)
        if not (inspect.isclass(found) and issubclass(found, Task)):
            raise ConfigError(f"`{where}` has no task class `{name}`; it has {_names(module) or 'none'}")
        return found()
    own = _classes(module)
    if len(own) != 1:
        what = f"several tasks, {_names(module)}" if own else "no class that derives from `Task`"
        raise ConfigError(f"`{where}` holds {what}; name one as `{where}:Class`")
    return own[0]()


def _module(where: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(where)
        path = Path(where)
        if not path.is_file():
            raise ConfigError(f"there is no file `{where}`")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.absolute()))
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        # The author's own lines are what helps; the import machinery above them does not.
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        raise ConfigError(f"`{where}` cannot be imported:\n{''.join(lines[-3:]).rstrip()}") from error
    return module


def _classes(module: ModuleType) -> list[type[Task]]:
    return [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, Task) and member.__module__ == module.__name__
    ]


def _names(module: ModuleType) -> str:
    return ", ".join(found.__name__ for found in _classes(module))

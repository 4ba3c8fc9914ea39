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
    chosen = _choose(_module(where), where, name)
    try:
        return chosen()
    except Exception as error:
        message = f"`{chosen.__name__}()` of `{where}` fails:\n{_traceback(error)}"
        raise ConfigError(message) from error


def _choose(module: ModuleType, where: str, name: str) -> type[Task]:
    if name:
        found = getattr(module, name, None)
        if not (inspect.isclass(found) and issubclass(found, Task)):
            raise ConfigError(f"`{where}` has no task class `{name}`; it has {_names(module) or 'none'}")
        return found
    own = _classes(module)
    if len(own) != 1:
        what = f"several tasks, {_names(module)}" if own else "no class that derives from `Task`"
        raise ConfigError(f"`{where}` holds {what}; name one as `{where}:Class`")
    return own[0]


def _module(where: str) -> ModuleType:
    if where.endswith(".py") and not Path(where).is_file():
        raise ConfigError(f"there is no file `{where}`")
    try:
        return _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"`{where}` cannot be imported:\n{_traceback(error)}") from error


def _import_module(where: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(where)


def _import_file(path: Path) -> ModuleType:
    # A name of its own, or a file called `queue.py` would take the place of Python's.
    spec = importlib.util.spec_from_file_location(f"agentrl_env_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.absolute()))
    spec.loader.exec_module(module)
    return module


def _traceback(error: BaseException) -> str:
    """The author's own lines; those of the import machinery above them do not help."""
    step = error.__traceback__
    while step is not None and _is_machinery(step.tb_frame.f_code.co_filename):
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen") or filename in (__file__, importlib.__file__)


def _classes(module: ModuleType) -> list[type[Task]]:
    return [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, Task) and member.__module__ == module.__name__
    ]


def _names(module: ModuleType) -> str:
    return ", ".join(found.__name__ for found in _classes(module))

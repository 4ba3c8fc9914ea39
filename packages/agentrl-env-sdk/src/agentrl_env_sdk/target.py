"""Finds the task that a person names: `file.py`, `package.module`, a class of either, or a configuration."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.config import is_config, load_config, load_entry
from agentrl_env_sdk.task import Task

_ENTRY_POINTS = "agentrl_env.tasks"
"""Group in which packages name their tasks: `name = "package.module:Class"`."""


def load_task(target: str, entry: str | None = None) -> Task:
    """The task of a target.

    Args:
        target: code, or a configuration.
        entry: name in the configuration; its only one where it is absent.

    Raises:
        ConfigError: the code cannot be imported, or it holds no task or several; or the configuration is
            wrong or has no such entry.
    """
    if is_config(target):
        return _configured(Path(target), entry)
    if entry is not None:
        raise ConfigError(
            f"`{target}` is no configuration and has no entry `{entry}`; name a class with a colon"
        )
    where, name = _parts(target)
    return _make(_choose(_module(where), where, name), where, {})


def sources_of(target: str, entry: str | None = None) -> list[Path]:
    """Folders with the code of a target, to be watched for changes.

    Raises:
        ConfigError: the configuration is wrong or has no such entry.
    """
    if not is_config(target):
        return [_folder(_parts(target)[0], Path.cwd())]
    path = Path(target).absolute()
    module, _ = load_entry(path, _entry(path, entry))
    where, _ = _configured_parts(module, path)
    return list(dict.fromkeys([path.parent, _folder(where, path.parent)]))


def _folder(where: str, beside: Path) -> Path:
    if where.endswith(".py"):
        return Path(where).absolute().parent
    _make_importable(Path.cwd())
    _make_importable(beside)
    spec = importlib.util.find_spec(where.partition(".")[0])
    origin = None if spec is None else spec.origin
    if origin is not None:
        return Path(origin).parent
    return (
        Path(next(iter(spec.submodule_search_locations)))
        if spec and spec.submodule_search_locations
        else beside
    )


def _parts(target: str) -> tuple[str, str]:
    """File or module, and the class if one is named; an installed package may have a short name for both."""
    for installed in entry_points(group=_ENTRY_POINTS, name=target):
        return installed.module, installed.attr
    where, _, name = target.partition(":") if not target.endswith(".py") else (target, "", "")
    return where, name


def _configured(path: Path, entry: str | None) -> Task:
    name = _entry(path, entry)
    module, parameters = load_entry(path, name)
    _make_importable(path.absolute().parent)
    where, chosen = _configured_parts(module, path)
    try:
        task = _make(_choose(_module(where), where, chosen), where, parameters)
    except ConfigError as error:
        hint = (
            f"\nA task that is written for the published SDK is served by `serve --published {path} {name}`."
        )
        raise ConfigError(f"{error}{hint if 'agentrl.worker' in str(error) else ''}") from error
    # Entries of one class would answer for each other if they all had the class's name.
    task.name = task.name or name
    return task


def _configured_parts(module: str, path: Path) -> tuple[str, str]:
    """File or module, and the class, of `package.module.Class`, `package.module:Class` or `file.py:Class`."""
    if ":" in module or module.endswith(".py"):
        where, name = _parts(module)
        return (str(path.parent / where) if where.endswith(".py") else where), name
    where, _, name = module.rpartition(".")
    if not where:
        raise ConfigError(f"`module` in `{path}` must be `package.module.Class`, got `{module}`")
    return where, name


def _entry(path: Path, entry: str | None) -> str:
    if entry is not None:
        return entry
    known = list(load_config(path))
    if len(known) != 1:
        names = ", ".join(f"`{name}`" for name in known) or "nothing"
        raise ConfigError(f"`{path}` has {names}; name the entry to take after it")
    return known[0]


def _make(chosen: type[Task], where: str, parameters: Mapping[str, Any]) -> Task:
    try:
        return chosen(**parameters)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
        message = f"`{chosen.__name__}({given})` of `{where}` fails:\n{_traceback(error)}"
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
    _make_importable(Path.cwd())
    return importlib.import_module(where)


def _import_file(path: Path) -> ModuleType:
    # A name of its own, or a file called `queue.py` would take the place of Python's.
    spec = importlib.util.spec_from_file_location(f"agentrl_env_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _make_importable(path.absolute().parent)
    spec.loader.exec_module(module)
    return module


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


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

"""Makes a new task package from the template that comes along."""

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from agentrl_core import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_SUFFIX = ".txt"
"""Of template files, so that nothing takes them for code of ours."""


def create(name: str, *, folder: Path) -> list[Path]:
    """Write the package of a new task; returns its files.

    Args:
        name: of the task, in kebab-case; it becomes the package's, and its module's and class's in their way.
        folder: where the package's own folder is made.

    Raises:
        ConfigError: the name will not do, or the folder cannot be written or is taken.
    """
    if not _NAME.fullmatch(name):
        rule = "must be lower-case letters and digits with single hyphens"
        raise ConfigError(f"the name `{name}` {rule}, such as `word-hunt`")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise ConfigError(f"the name `{name}` is a word of Python's own; choose another")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise ConfigError(f"there is a Python module `{module}` already; choose another name than `{name}`")
    if (folder / name).exists():
        raise ConfigError(f"`{folder / name}` exists already; choose another name, or move it away")
    words = {"__NAME__": name, "__MODULE__": module, "__CLASS__": "".join(map(str.title, name.split("-")))}
    written = []
    try:
        for path, text in _files(files("agentrl_env_sdk") / "templates" / "task", ""):
            target = folder / name / _filled(path, words)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_filled(text, words), encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise ConfigError(f"cannot write `{folder / name}`: {error.strerror}") from error
    return sorted(written)


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    """Paths and contents of a template's files."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{path}{entry.name.removesuffix(_SUFFIX)}", entry.read_text(encoding="utf-8")


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text

"""Modules without a body: whatever is imported from them exists, and says so when it is used."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn


class Missing(type):
    """A name of a package that is not here; it can be imported, subclassed and decorated with, not called."""

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"`{cls.__module__}.{cls.__name__}` is compiled code that is not here")

    def __getattr__(cls, name: str) -> "Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{cls.__module__}.{cls.__name__}", name)


def missing(module: str, name: str) -> Missing:
    """A stand-in for one name."""
    return Missing(name, (), {"__module__": module})


def names_of(module: str) -> Callable[[str], Missing]:
    """A module's `__getattr__` that has every name."""

    def get(name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(module, name)

    return get


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of a package that has no file of its own."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(self._prefix):
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = names_of(module.__name__)  # pyright: ignore


def stand_in(package: str) -> Callable[[str], Missing]:
    """Let a package have every submodule; returns its `__getattr__`."""
    sys.meta_path.append(_Submodules(package))
    return names_of(package)

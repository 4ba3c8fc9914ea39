"""Makes `agentrl.worker` mean our modules, whether or not the published package is installed."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

_ROOT = "agentrl"
_PREFIX = "agentrl.worker"
_OURS = "agentrl_env_sdk.published"
_MODULES = {
    _PREFIX: f"{_OURS}.about",
    f"{_PREFIX}.config": f"{_OURS}.configuration",
    f"{_PREFIX}.environment": f"{_OURS}.environment",
    f"{_PREFIX}.task": f"{_OURS}.task",
    f"{_PREFIX}.trace_store": f"{_OURS}.traces",
    f"{_PREFIX}.typings": f"{_OURS}.typings",
    f"{_PREFIX}.utils": f"{_OURS}.durations",
}
_PACKAGES = (_PREFIX, f"{_PREFIX}.environment")


class _Alias(Loader):
    """Fills a module with the public names of ours."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None  # which stands for a new module

    def exec_module(self, module: ModuleType) -> None:
        ours = importlib.import_module(self._ours)
        names = getattr(ours, "__all__", [])
        vars(module).update({name: getattr(ours, name) for name in names}, __all__=list(names))
        module.__doc__ = ours.__doc__


class _Worker(MetaPathFinder):
    """Finds `agentrl.worker` and what is below it, before anything installed is asked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname in _MODULES:
            return spec_from_loader(fullname, _Alias(_MODULES[fullname]), is_package=fullname in _PACKAGES)
        if fullname.startswith(f"{_PREFIX}."):
            known = ", ".join(f"`{name}`" for name in _MODULES)
            message = f"`{fullname}` is no part of what `--published` offers, which is {known}"
            raise ModuleNotFoundError(message, name=fullname)
        return None


class _Root(MetaPathFinder):
    """Finds an empty `agentrl` where none is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != _ROOT:
            return None
        spec = ModuleSpec(_ROOT, None, is_package=True)
        spec.submodule_search_locations = []
        return spec


_FINDERS: tuple[MetaPathFinder, MetaPathFinder] = (_Worker(), _Root())


def install() -> None:
    """Make `import agentrl.worker` bring our modules from now on, in this process alone."""
    if _FINDERS[0] not in sys.meta_path:
        _forget()
        sys.meta_path.insert(0, _FINDERS[0])
        sys.meta_path.append(_FINDERS[1])


@contextmanager
def installed() -> Iterator[None]:
    """`install` for a while; afterwards everything is as it was."""
    before = {name: module for name, module in sys.modules.items() if _concerns(name)}
    install()
    try:
        yield
    finally:
        for finder in _FINDERS:
            sys.meta_path.remove(finder)
        _forget()
        sys.modules.update(before)


def _forget() -> None:
    for name in [name for name in sys.modules if _concerns(name)]:
        del sys.modules[name]
    root: Any = sys.modules.get(_ROOT)
    if root is not None and hasattr(root, "worker"):
        del root.worker


def _concerns(name: str) -> bool:
    return name == _PREFIX or name.startswith(f"{_PREFIX}.")

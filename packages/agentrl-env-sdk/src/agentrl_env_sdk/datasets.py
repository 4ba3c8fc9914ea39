"""Samples that need not lie in memory; a split takes any sequence, these two among them."""

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from agentrl_core import ConfigError


class _Rows(Sequence[Any]):
    """A sequence by position alone."""

    def _row(self, position: int) -> Any:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._row(position) for position in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"there are {len(self)} samples, none is {index}")
        return self._row(position)


class JsonLines(_Rows):
    """The lines of a file, each a JSON value; only where they begin is kept in memory.

    Raises:
        ConfigError: there is no such file.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._starts = array("Q")
        try:
            with self._path.open("rb") as file:
                position = 0
                for line in file:
                    if line.strip():
                        self._starts.append(position)
                    position += len(line)
        except OSError as error:
            raise ConfigError(f"samples cannot be read from `{path}`: {error}") from error

    def __len__(self) -> int:
        return len(self._starts)

    def _row(self, position: int) -> Any:
        with self._path.open("rb") as file:
            file.seek(self._starts[position])
            line = file.readline()
        try:
            return json.loads(line)
        except ValueError as error:
            raise ValueError(f"sample {position} of `{self._path}` is no JSON: {error}") from error


class Generated(_Rows):
    """Samples that a function makes when they are asked for; it must make the same one again.

    Args:
        function: takes a position in [0, count) and returns the sample.
        count: how many there are.

    Raises:
        ConfigError: the count is negative.
    """

    def __init__(self, function: Callable[[int], Any], count: int) -> None:
        if not callable(function):
            raise ConfigError(f"`function` of generated samples must be callable, got {function!r}")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"`count` of generated samples must be a whole number >= 0, got {count!r}")
        self._function = function
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _row(self, position: int) -> Any:
        return self._function(position)

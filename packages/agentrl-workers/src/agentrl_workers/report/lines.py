"""Lines of a file that may be huge, torn or still growing."""

from collections.abc import Iterator
from pathlib import Path

_LONGEST_BYTES = 8 * 2**20


def read_lines(path: Path) -> Iterator[bytes | None]:
    """Each line that is not blank, one at a time; None for one too long to hold. No file has no lines."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        while line := file.readline(_LONGEST_BYTES):
            if len(line) == _LONGEST_BYTES and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(_LONGEST_BYTES)
                yield None
            elif line.strip():
                yield line

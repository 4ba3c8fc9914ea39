"""Which line of a task is meant, among Python's, other libraries' and our own."""

import sysconfig
import types
from collections.abc import Sequence
from pathlib import Path

_SDK = Path(__file__).parents[1]
_EXAMPLES = _SDK / "tasks"
_PYTHON = Path(sysconfig.get_path("stdlib"))
_LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))


def authors_line(frames: Sequence[types.FrameType]) -> str:
    """The first of some frames, innermost first, that is a task author's, as `file:line in function`.

    Where there is none, the first that is not the SDK's; empty without frames.
    """
    own = [frame for frame in frames if _rank(frame) == 0]
    found = own or sorted(frames, key=_rank)
    if not found:
        return ""
    return f"{found[0].f_code.co_filename}:{found[0].f_lineno} in {found[0].f_code.co_name}"


def _rank(frame: types.FrameType) -> int:
    """0 for a task's code, 1 for libraries, 2 for Python itself, 3 for the SDK."""
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(_SDK):
        return 0 if path.is_relative_to(_EXAMPLES) else 3
    if any(path.is_relative_to(folder) for folder in _LIBRARIES):
        return 1
    return 2 if path.is_relative_to(_PYTHON) or str(path).startswith("<frozen") else 0

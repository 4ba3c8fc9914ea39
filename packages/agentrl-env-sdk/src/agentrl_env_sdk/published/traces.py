"""`agentrl.worker.trace_store`: files of an episode, kept by time and found by session and by sample.

ROOT/by-time/YY/MM/DD/HH/[TAG-]INDEX-SESSION-MILLISECONDS.EXT   one file, or a .zip, or a folder
ROOT/by-session/AA/BB/session_SESSION                           a link to it, AA BB of the session's id
ROOT/by-task/INDEX/AA/BB/session_SESSION                        another
"""

import asyncio
import os
import shutil
import time
import weakref
import zipfile
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["TraceStore", "TraceWriter"]

_ZONE = timezone(timedelta(hours=8))
"""The zone of the folders, whatever the machine's is."""


class TraceStore:
    """A folder of traces.

    Args:
        root: the folder; made where there is none.

    Attributes:
        root: the same.
        by_time: where the traces are.
        by_session: links to them, by session.
        by_task: links to them, by sample.
    """

    def __init__(self, root: os.PathLike[str] | str) -> None:
        self.root = Path(root).resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.by_time, self.by_session, self.by_task = (
            self.root / name for name in ("by-time", "by-session", "by-task")
        )

    def new_trace(
        self,
        task_index: int | str,
        session_id: int | str,
        ts: int | None = None,
        mktemp_dir: Path | str | None = None,
        disable_compression: bool = False,
        tag: str | None = None,
    ) -> "TraceWriter":
        """A folder to write files to, which are kept once it is closed.

        Args:
            task_index: the sample.
            session_id: the session.
            ts: Unix time in milliseconds; now where it is absent.
            mktemp_dir: where the folder is made meanwhile.
            disable_compression: whether several files stay a folder rather than become a .zip.
            tag: begins the trace's name.
        """
        ts = int(time.time() * 1000) if ts is None else ts
        name = "-".join(str(part) for part in (tag, task_index, session_id, ts) if part is not None)
        home = self.by_time / datetime.fromtimestamp(ts / 1000, _ZONE).strftime("%y/%m/%d/%H")

        def keep(folder: Path) -> Path | None:
            kept = _kept(folder, home / name, compress=not disable_compression)
            if kept is not None:
                for base in (self.by_session, self.by_task / str(task_index)):
                    _link(_bucket(base, session_id) / f"session_{session_id}", kept)
            return kept

        return TraceWriter(keep, mktemp_dir=mktemp_dir)


class TraceWriter:
    """The folder of a trace that is being written; a context manager, sync and async.

    Attributes:
        final_path: where it is kept; None before it is closed, and where nothing was written.
    """

    def __init__(self, keep: Callable[[Path], Path | None], mktemp_dir: Path | str | None = None) -> None:
        if mktemp_dir is not None:
            Path(mktemp_dir).mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix="trace", dir=mktemp_dir)
        self._folder = Path(folder.name)
        self.final_path: Path | None = None
        # A trace that nobody closes is kept all the same, when it is forgotten or the process ends.
        self._finish = weakref.finalize(self, _finished, keep, folder)

    def get_dir(self) -> Path:
        """The folder."""
        return self._folder

    def close(self) -> Path | None:
        """Keep what was written; returns where."""
        if self._finish.alive:
            self.final_path = self._finish()
        return self.final_path

    async def aclose(self) -> Path | None:
        """`close` without blocking the loop."""
        return await asyncio.to_thread(self.close)

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> "TraceWriter":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()


def _finished(keep: Callable[[Path], Path | None], folder: "TemporaryDirectory[str]") -> Path | None:
    with folder:
        return keep(Path(folder.name))


def _kept(folder: Path, target: Path, *, compress: bool) -> Path | None:
    """Move what a folder holds to where it is kept, whole or not at all; None where it holds nothing."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    if len(files) == 1 and list(folder.iterdir()) == files:
        target = target.with_name(target.name + (files[0].suffix or ".bin"))
        shutil.copy2(files[0], partial)
    elif compress:
        target = target.with_name(f"{target.name}.zip")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(folder).as_posix())
    else:
        shutil.copytree(folder, partial, symlinks=True)
        partial.chmod(0o755)
    partial.replace(target)
    return target


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def _bucket(base: Path, session_id: int | str) -> Path:
    """A folder of two levels, so that none holds too many links."""
    number = session_id if isinstance(session_id, int) else zlib.crc32(session_id.encode())
    return base / f"{number >> 8 & 0xFF:02x}" / f"{number & 0xFF:02x}"

"""Runs a check of a task that asks for processes where it can do no harm: in one, and with its end.

check -> guard (adopts, and kills what is left) -> fork (runs the check) -> file -> Finding
"""

import asyncio
import os
import pickle
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from agentrl_env_sdk.processes import adopt_orphans, die_with_parent, kill_descendants, kill_tree
from agentrl_env_sdk.validate.report import Finding, Verdict

Check = Callable[[], Coroutine[Any, Any, Finding]]


async def guarded(name: str, check: Check) -> Finding:
    """What a check finds in a fork of this process; that the fork ends without an answer is a problem.

    Whatever the task has started there is ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer, end = Path(folder, "answer"), Path(folder, "end")
        guard = os.fork()
        if guard == 0:
            # Nothing of the caller may run here: not its handlers, nor what its frames would do at their end.
            try:
                _guard(check, answer, end)
            finally:
                os._exit(0)
        try:
            await asyncio.to_thread(os.waitpid, guard, 0)
        except asyncio.CancelledError:
            kill_tree(guard)
            raise
        return _read(name, answer, end)


def _read(name: str, answer: Path, end: Path) -> Finding:
    if answer.exists():
        return pickle.loads(answer.read_bytes())
    how = end.read_text() if end.exists() else "unknown to us"
    problem = (
        f"the process that played it ended before the check was over ({how}): something in the task ends its "
        "own process, such as `os._exit` or a crash; on a worker such an episode is a `task error`"
    )
    return Finding(name, Verdict.FAILED, "played in a process of its own", (problem,))


def _guard(check: Check, answer: Path, end: Path) -> None:
    die_with_parent()
    adopt_orphans()
    child = os.fork()
    if child == 0:
        try:
            _run(check, answer)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    end.write_text(f"signal {-code}" if code < 0 else f"exit code {code}")
    kill_descendants(os.getpid())


def _run(check: Check, answer: Path) -> None:
    die_with_parent()
    adopt_orphans()
    found = pickle.dumps(asyncio.run(check()))
    draft = answer.with_suffix(".draft")
    draft.write_bytes(found)
    draft.rename(answer)
    os._exit(0)

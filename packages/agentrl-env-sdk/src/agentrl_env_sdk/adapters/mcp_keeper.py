"""Runs an MCP server as a child, and leaves nothing of it behind.

    python -I -S mcp_keeper.py PARENT COMMAND ...

The server gets this process's pipes. When the server ends, when this process is told to, and when PARENT
ends, however it does, all that the server has started is ended, daemons included (Linux; elsewhere, the
process group is all that its parent can end). Only the standard library is imported, so it starts at once.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

_GRACE_S = 1.0
"""How long a server may take to end after SIGTERM."""
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_NOT_FOUND = 127


def main(parent: int, words: list[str]) -> int:
    """Keep a server; returns its exit code, or 128 and the number of the signal that ended it.

    Args:
        parent: the process that has started this one.
        words: the server's command line.
    """
    processes = _processes()
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOPS, signal.SIGCHLD})
    processes.adopt_orphans()
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # It has ended before the kernel knew what to do then.
        return 0

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        processes.die_with_parent()

    try:
        server = subprocess.Popen(words, preexec_fn=prepare)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        return _NOT_FOUND
    _let_go_of_pipes()
    code = _wait(server)
    processes.kill_descendants(os.getpid())
    return code


def _wait(server: "subprocess.Popen[bytes]") -> int:
    """Wait until the server has ended, or has been told to and had its time."""
    while server.poll() is None:
        if signal.sigwait({*_STOPS, signal.SIGCHLD}) in _STOPS:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_GRACE_S)
            return 0
        _reap_others(server.pid)
    code = server.returncode
    if code != 0:
        sys.stderr.write(f"exit code {code}\n" if code > 0 else f"ended by signal {-code}\n")
    return code if code >= 0 else 128 - code


def _reap_others(server: int) -> None:
    """Take leave of orphans that have ended; the server's own end is for `poll` to find."""
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == server:
                return
            os.waitpid(found.si_pid, 0)


def _let_go_of_pipes() -> None:
    """Nobody would learn that the server has closed its pipes, if this process held them, too."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)


def _processes() -> ModuleType:
    """The module `agentrl_env_sdk.processes`, without the package around it."""
    path = Path(__file__).parent.parent / "processes.py"
    spec = importlib.util.spec_from_file_location("processes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""A process that forks others: small, with one thread, and without a loop that a fork could break."""

import contextlib
import gc
import os
import selectors
import signal
import socket
import struct
from collections.abc import Callable

from agentrl_env_sdk.processes import adopt_orphans, children_of, kill_tree

Body = Callable[[socket.socket], None]
"""What a forked process does with its socket."""

_COMMAND = struct.Struct("<cQ")
"""`f` (fork, with a descriptor) or `k` (kill), and the number that the other side gave the process."""
_REPORT = struct.Struct("<Qi")
"""The number of a process that has ended, and its wait status."""
_KEPT = 3


class Nursery:
    """The worker's end of the process that forks.

    Args:
        body: runs in each forked process.
    """

    def __init__(self, body: Body) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing of the caller may run here: not its handlers, nor what its frames would do at their end.
            try:
                _become(theirs, body)
            finally:
                os._exit(1)
        theirs.close()
        self.socket.setblocking(False)

    def fork(self, number: int, connection: socket.socket) -> None:
        """Start a process that gets a socket.

        Raises:
            OSError: the nursery is gone.
        """
        socket.send_fds(self.socket, [_COMMAND.pack(b"f", number)], [connection.fileno()])

    def kill(self, number: int) -> None:
        """End a process with all its descendants; nothing happens to one that has ended."""
        with contextlib.suppress(OSError):
            self.socket.send(_COMMAND.pack(b"k", number))

    def reports(self) -> list[tuple[int, int]]:
        """Numbers and wait statuses of processes that have ended since.

        Raises:
            EOFError: the nursery is gone.
        """
        found: list[tuple[int, int]] = []
        while True:
            try:
                data = self.socket.recv(_REPORT.size)
            except BlockingIOError:
                return found
            except OSError as error:
                raise EOFError(str(error)) from error
            if not data:
                raise EOFError("the process that forks episodes is gone")
            found.append(_REPORT.unpack(data))

    def close(self) -> None:
        """End the nursery, and all that it has forked."""
        self.socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _become(control: socket.socket, body: Body) -> None:
    """The nursery's whole life."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # A worker that drains still needs it; it goes with the worker.
    _close_others(control.fileno())
    gc.freeze()  # What is never collected is never copied.
    adopt_orphans()
    _Children(control, body).run()
    os._exit(0)


def _close_others(kept: int) -> None:
    """Let go of the worker's files: nobody would learn that it closed them."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(_KEPT, kept)
    os.closerange(kept + 1, limit if limit > 0 else 65536)


class _Children:
    """The processes that the nursery has forked."""

    def __init__(self, control: socket.socket, body: Body) -> None:
        self._control = control
        self._body = body
        self._numbers: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def run(self) -> None:
        """Do what is asked until nobody can ask any more."""
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            is_wanted = True
            while is_wanted:
                for key, _ in selector.select():
                    if key.fileobj is self._control:
                        is_wanted = self._obey()
                    else:
                        woken.recv(4096)
                self._reap()
        for pid in list(self._numbers):
            kill_tree(pid)
        self._kill_orphans()

    def _obey(self) -> bool:
        """Do one thing; returns whether there may be more."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _COMMAND.size, 1)
        except OSError:
            return False
        if not data:
            return False
        command, number = _COMMAND.unpack(data)
        if command == b"f":
            self._fork(number, descriptors[0])
        elif number in self._pids:
            kill_tree(self._pids[number])
        return True

    def _fork(self, number: int, descriptor: int) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._body(socket.socket(fileno=descriptor))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(descriptor)
        self._numbers[pid], self._pids[number] = number, pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is None:
                continue
            del self._pids[number]
            self._kill_orphans()
            with contextlib.suppress(OSError):
                self._control.send(_REPORT.pack(number, status))

    def _kill_orphans(self) -> None:
        """End what an episode left behind when it died; it is ours now, but none of those we forked."""
        for pid in children_of(os.getpid()):
            if pid not in self._numbers:
                kill_tree(pid)

"""The line of each task: starts wait their turn for a slot, first come, first served."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from agentrl_controller.sessions import Session
from agentrl_core import ErrorCode, SampleIndex, SessionError, StartRequest

RETRY_AFTER_S = 1.0
"""When who was refused may come again."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in a line."""

    request: StartRequest
    """What is to be started."""
    index: SampleIndex
    """The sample as the workers know it."""
    granted: "asyncio.Future[Session]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done with a session once it has a slot; whoever takes the ticket out of the line sets it."""


class Admission:
    """A bounded line for each task. It decides the order; who has slots to give takes from the head.

    Args:
        max_queue: starts of a task that wait at most.
    """

    def __init__(self, *, max_queue: int) -> None:
        self._max_queue = max_queue
        self._lines: dict[str, OrderedDict[Ticket, None]] = {}

    def depth(self, task: str) -> int:
        """Starts of a task that wait."""
        return len(self._lines.get(task, ()))

    def enter(self, ticket: Ticket, *, first: bool = False) -> None:
        """Join the line of the ticket's task.

        Args:
            ticket: the place to be had.
            first: whether it had its turn before and lost the slot again; it goes to the front.

        Raises:
            SessionError: too many wait already.
        """
        task = ticket.request.name
        line = self._lines.setdefault(task, OrderedDict())
        if len(line) >= self._max_queue and not first:
            raise SessionError(
                f"{len(line)} starts of `{task}` wait for a slot already, which is the limit",
                code=ErrorCode.NO_CAPACITY,
                retry_after_s=RETRY_AFTER_S,
            )
        line[ticket] = None
        line.move_to_end(ticket, last=not first)

    def leave(self, ticket: Ticket) -> None:
        """Give up a place; nothing happens to one that is not in line."""
        task = ticket.request.name
        line = self._lines.get(task)
        if line is not None:
            line.pop(ticket, None)
            if not line:
                del self._lines[task]

    def head(self, task: str) -> Ticket | None:
        """Whose turn it is; None where nobody waits."""
        for ticket in self._lines.get(task, ()):
            if not ticket.granted.done():  # A caller that went away leaves at its next step.
                return ticket
        return None

    def refuse(self, task: str, error: SessionError) -> None:
        """Tell everybody in a line that there is nothing to wait for."""
        for ticket in self._lines.pop(task, ()):
            if not ticket.granted.done():
                ticket.granted.set_exception(error)

    def refuse_all(self, error: SessionError) -> None:
        """Tell everybody in every line."""
        for task in list(self._lines):
            self.refuse(task, error)

"""The line of each task: starts wait for a slot, clients take turns, each client's keep their order."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentrl_controller.fairness import RoundRobin
from agentrl_controller.sessions import Session
from agentrl_core import ErrorCode, SampleIndex, SessionError, StartRequest

RETRY_AFTER_S = 1.0
"""When who was refused may come again."""


class NoSlotError(SessionError):
    """A start got no slot.

    Attributes:
        position: starts of the task that were before it, and itself.
    """

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(message, code=ErrorCode.NO_CAPACITY, retry_after_s=RETRY_AFTER_S)
        self.position = position


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in a line."""

    request: StartRequest
    """What is to be started."""
    index: SampleIndex
    """The sample as the workers know it."""
    client: str = ""
    """Who asks."""
    start_id: str | None = None
    """The start's request id."""
    trace: str | None = None
    """The caller's `traceparent`."""
    granted: "asyncio.Future[Session]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done with a session once it has a slot; whoever takes the ticket out of the line sets it."""


class _Line:
    """Those who wait for slots of a task."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.returned: OrderedDict[Ticket, None] = OrderedDict()
        self.clients: dict[str, OrderedDict[Ticket, None]] = {}
        self.turns = RoundRobin(weights)
        self.size = 0

    def position(self, ticket: Ticket) -> int:
        """The ticket's place if every client waited its turn with equal weight, from 1 on."""
        if ticket in self.returned:
            return 1 + list(self.returned).index(ticket)
        place = list(self.clients[ticket.client]).index(ticket)
        others = (line for client, line in self.clients.items() if client != ticket.client)
        return len(self.returned) + 1 + place + sum(min(len(line), place) for line in others)


class Admission:
    """A bounded line for each task. It decides the order; who has slots to give takes from the head.

    Args:
        max_queue: starts of a task that wait at most.
        task_weights: shares of the tasks where they compete for one limit.
        client_weights: shares of the clients in a line.
    """

    def __init__(
        self,
        *,
        max_queue: int,
        task_weights: Mapping[str, float] | None = None,
        client_weights: Mapping[str, float] | None = None,
    ) -> None:
        self._max_queue = max_queue
        self._client_weights = client_weights or {}
        self._turns = RoundRobin(task_weights)
        self._lines: dict[str, _Line] = {}

    def depth(self, task: str) -> int:
        """Starts of a task that wait."""
        line = self._lines.get(task)
        return line.size if line else 0

    def position(self, ticket: Ticket) -> int:
        """The place of a ticket in its line, from 1 on."""
        return self._lines[ticket.request.name].position(ticket)

    def enter(self, ticket: Ticket, *, first: bool = False) -> None:
        """Join the line of the ticket's task.

        Args:
            ticket: the place to be had.
            first: whether it had its turn before and lost the slot again; it goes before all others.

        Raises:
            NoSlotError: too many wait already.
        """
        task = ticket.request.name
        line = self._lines.get(task)
        if line is None:
            line = self._lines[task] = _Line(self._client_weights)
        if line.size >= self._max_queue and not first:
            message = f"{line.size} starts of `{task}` wait for a slot already, which is the limit"
            raise NoSlotError(message, position=line.size + 1)
        if first:
            line.returned[ticket] = None
            line.returned.move_to_end(ticket, last=False)
        else:
            line.clients.setdefault(ticket.client, OrderedDict())[ticket] = None
        line.size += 1

    def leave(self, ticket: Ticket) -> None:
        """Give up a place; nothing happens to one that is not in line."""
        task = ticket.request.name
        line = self._lines.get(task)
        if line is None:
            return
        if ticket in line.returned:
            del line.returned[ticket]
        elif ticket in line.clients.get(ticket.client, ()):
            tickets = line.clients[ticket.client]
            del tickets[ticket]
            if not tickets:
                del line.clients[ticket.client]
        else:
            return
        line.size -= 1
        if not line.size:
            del self._lines[task]

    def task_in_turn(self, may_start: Callable[[str], bool]) -> str | None:
        """The task whose turn it is among those with somebody in line that may start something now."""
        waiting = [task for task in self._lines if may_start(task)]
        return self._turns.choose(waiting) if waiting else None

    def next(self, task: str, may_start: Callable[[str], bool]) -> Ticket | None:
        """Take out whose turn it is, among the clients that may start something; None where nobody waits."""
        line = self._lines.get(task)
        if line is None:
            return None
        for ticket in line.returned:
            if _is_waiting(ticket) and may_start(ticket.client):
                self.leave(ticket)
                return ticket
        heads = {
            client: head
            for client, tickets in line.clients.items()
            if may_start(client) and (head := next(filter(_is_waiting, tickets), None)) is not None
        }
        if not heads:
            return None
        ticket = heads[line.turns.choose(heads)]
        self.leave(ticket)
        return ticket

    def clients(self, task: str) -> list[str]:
        """Clients that wait for a slot of a task."""
        line = self._lines.get(task)
        if line is None:
            return []
        return [*line.clients, *(ticket.client for ticket in line.returned)]

    def refuse(self, task: str, error: SessionError) -> None:
        """Tell everybody in a line that there is nothing to wait for."""
        line = self._lines.pop(task, None)
        if line is None:
            return
        for tickets in (line.returned, *line.clients.values()):
            for ticket in tickets:
                if _is_waiting(ticket):
                    ticket.granted.set_exception(error)

    def refuse_all(self, error: SessionError) -> None:
        """Tell everybody in every line."""
        for task in list(self._lines):
            self.refuse(task, error)


def _is_waiting(ticket: Ticket) -> bool:
    return not ticket.granted.done()  # A caller that went away leaves at its next step.

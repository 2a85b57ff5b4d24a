"""Decides who gets the next free worker: callers in the order in which they came, the least loaded worker first."""

from collections.abc import Callable, Collection
from types import TracebackType

import attrs

from fedstack.executors.fleet.fleet import AGAIN_SECONDS, Fleet
from fedstack.executors.fleet.waits import Decision, GiveUp, Pause, Use, Wait, closed_error
from fedstack.executors.fleet.worker import Worker


@attrs.define(eq=False)
class Ticket:
    """The place in the queue of a caller that wants a worker.

    Attributes:
      preferred: The workers to prefer, such as those that hold what its call needs.
      worker: The worker that it has got.
      released: Whether it needs none any more.
    """

    preferred: Collection[Worker] = ()
    worker: Worker | None = None
    released: bool = False


class Lease:
    """A worker that one caller has for a call, until it is released; use it in a `with` block.

    Attributes:
      worker: The worker. It may be lost meanwhile, which the call finds out.
    """

    def __init__(self, worker: Worker, release: Callable[[], None]) -> None:
        self.worker = worker
        self._release = release

    def release(self) -> None:
        """Lets the next caller have the worker. Idempotent; from any thread."""
        self._release()

    def __enter__(self) -> Worker:
        return self.worker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Lease of {self.worker!r}>"


class TicketQueue:
    """The callers that wait for one worker of a fleet each.

    A worker is given to as many callers at a time as it has `capacity` for, whether or not it is lost meanwhile.

    Args:
      fleet: The workers.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: dict[Ticket, None] = {}  # in the order in which they came; any can be taken out
        self._given = 0
        self._wait: Wait | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: Ticket) -> None:
        """A caller wants a worker; see `grant`."""
        if not self._waiting:
            self._wait = None  # what others may have waited for before
        if not ticket.released:
            self._waiting[ticket] = None

    def release(self, ticket: Ticket) -> None:
        """A caller needs its worker no more, or does not want one any longer. Idempotent."""
        self._waiting.pop(ticket, None)
        if ticket.worker is not None and not ticket.released:
            ticket.worker.load -= 1
        ticket.released = True

    def grant(self) -> list[Ticket]:
        """Returns the tickets that get a worker now."""
        granted: list[Ticket] = []
        while self._waiting and not self._fleet.closed:
            ticket = next(iter(self._waiting))
            worker = self._choice(ticket)
            if worker is None:
                break
            del self._waiting[ticket]
            ticket.worker, worker.last_given = worker, self._given
            worker.load += 1
            self._given += 1
            granted.append(ticket)
        return granted

    def take_all(self) -> list[Ticket]:
        """Returns the tickets that wait, which get no worker any more."""
        waiting = list(self._waiting)
        for ticket in waiting:
            self.release(ticket)
        return waiting

    def decide(self) -> Decision:
        """Returns what to do for the callers that wait: `Use` once there are none, `GiveUp` if none gets a worker.

        While workers are ready it waits until one is free; while none is, as `Wait` does.
        """
        if self._fleet.closed:
            return GiveUp(closed_error())
        if not self._waiting:
            return Use([])
        ready = self._fleet.ready
        if not ready:
            self._wait = self._wait or Wait(self._fleet)
            decision = self._wait.decide()
            if isinstance(decision, GiveUp):
                self._wait = None
            return decision
        self._wait = None
        self._fleet.waited(in_vain=False)
        if ready[0].refusal is not None and all(map(self._fleet.is_full, ready)):
            return GiveUp(ready[0].refusal)
        return Pause(AGAIN_SECONDS)

    def _choice(self, ticket: Ticket) -> Worker | None:
        """Returns the worker that a caller gets: the least loaded, and of several that which has rested longest."""
        free = [w for w in self._fleet.ready if w.load < w.capacity and not self._fleet.is_full(w)]
        liked = [worker for worker in free if worker in ticket.preferred] or free
        return min(liked, key=lambda worker: (worker.load / worker.capacity, worker.last_given), default=None)

    def __repr__(self) -> str:
        return f"<TicketQueue of {len(self._waiting)} for {self._fleet!r}>"

"""Defines the two states in which clients of a phase are not done: a worker runs them, or they wait for a worker."""

import sys
from collections.abc import Hashable, Iterator

import attrs

from fedstack.executors.base.hand_ins import Origin


@attrs.define(eq=False)
class Assignment:
    """A contiguous range of clients that a worker runs.

    Attributes:
      worker: The worker.
      clients: The clients.
      losses: The number of times that these clients have been lost so far.
      left: The clients that are still needed from the worker, as ranges in ascending order.
      is_shared: Whether other workers may have received some of these clients, so that the worker may end without them.
      done: The number of clients that the worker has handed in.
      begun: The index of the first client that the worker has certainly not begun.
      failures: The number of times that each of the clients has failed so far.
      origin: The worker that had the clients before, and why they are here; `None` if they have begun here.
    """

    worker: Hashable
    clients: range
    losses: int
    left: list[range]
    is_shared: bool = False
    done: int = 0
    begun: int = sys.maxsize
    failures: int = 0
    origin: Origin | None = None

    @property
    def size(self) -> int:
        """The number of clients that are still needed from the worker."""
        return sum(map(len, self.left))


@attrs.define(eq=False)
class Waiting:
    """A range of clients that waits for a worker.

    Attributes:
      clients: The clients.
      losses: The number of times that these clients have been lost so far.
      since: The time from which the clients may run, in seconds.
      is_held: Whether the clients must wait for the end of a search.
      failures: The number of times that each of the clients has failed so far.
      avoids: The worker on which they failed last, or with which they were lost twice. Other workers run the clients,
        if there are any.
      origin: The worker that had the clients before, and why they wait; `None` if they have not begun.
    """

    clients: range
    losses: int
    since: float
    is_held: bool = False
    failures: int = 0
    avoids: Hashable = None
    origin: Origin | None = None

    def at(self, clients: range, *, is_held: bool) -> "Waiting":
        """Returns the same for some of the clients."""
        return attrs.evolve(self, clients=clients, is_held=is_held)


def without(clients: range, others: range) -> list[range]:
    """Returns the parts of a range of clients that are before and behind other clients."""
    first, last = max(clients.start, others.start), min(clients.stop, others.stop)
    if first >= last:
        return [clients]
    return [part for part in (range(clients.start, first), range(last, clients.stop)) if part]


def held_among(waiting: Waiting, suspects: range) -> Iterator[Waiting]:
    """Yields the parts of a waiting range that are before, among and behind the suspects; the suspects are held."""
    clients = waiting.clients
    first, last = max(clients.start, suspects.start), min(clients.stop, suspects.stop)
    if first >= last:
        yield waiting
        return
    parts = (range(clients.start, first), False), (range(first, last), True), (range(last, clients.stop), False)
    for part, is_suspected in parts:
        if part:
            yield waiting.at(part, is_held=is_suspected or waiting.is_held)

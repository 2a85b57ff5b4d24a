"""Defines a block of clients, which run one after the other on one thread."""

import attrs

from fedstack.computations.leaves.bound_operation import ThreadPlace
from fedstack.computations.leaves.compilations import compilations
from fedstack.transport.wire.frames import RunningClients

# How long a block takes, unless its clients are few, or each yields much; see `ClientBlocks`.
BLOCK_SECONDS = 0.004


@attrs.define(eq=False)
class Block:
    """A block of clients that run sequentially on one thread.

    Attributes:
      start: The index of the first client.
      stop: The index after the last client.
      begin: The start time, as returned by `time.perf_counter`.
      place: The client that the thread is currently running.
      is_counted: Whether `done` is updated after each client.
      done: The number of clients that are done.
    """

    start: int
    stop: int
    begin: float
    place: ThreadPlace
    is_counted: bool
    done: int = 0

    def work(self, function: str, now: float) -> RunningClients:
        """Returns the running work of the block, with the current client if it is known."""
        function = compilations.shown(function, self.place.thread)
        if self.is_counted:
            first = min(self.start + self.done, self.stop - 1)
            return RunningClients(first, 1, function, now - self.begin)
        client = self.place.client()
        if client == self.stop:
            client = None  # all clients have returned
        return RunningClients(self.start, self.stop - self.start, function, now - self.begin, client)

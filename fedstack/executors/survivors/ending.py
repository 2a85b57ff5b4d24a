"""Ends a phase before all of its clients are done, once enough are."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from fedstack.errors import ClientLeftOutError, FedstackError


class Ending:
    """The end of a phase that does not wait for all of its clients. Thread-safe.

    Args:
      enough: The number of clients that must be done; `None` if another process counts them.
      present: The number of clients that take part in the phase.
      leaves_out: Whether clients that are not done at the end are left out of the contribution, because another process
        decides whether they are late.

    Attributes:
      is_over: Whether the phase has ended: clients that are not done are late, and no further client begins.
    """

    def __init__(self, enough: int | None = None, present: int = 0, *, leaves_out: bool = False) -> None:
        self.enough = enough
        self.leaves_out = leaves_out
        self._present = present
        self.is_over = False
        self._done = 0
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def done(self, clients: int = 1) -> None:
        """Counts clients that are done, and ends the phase if these are enough."""
        if self.enough is None:
            return
        with self._lock:
            self._done += clients
            is_enough = self._done >= self.enough
        if is_enough:
            self.end()

    def end(self) -> None:
        """Ends the phase. Idempotent."""
        with self._lock:
            self.is_over = True
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def share_of(self, clients: int) -> int:
        """Returns how many of some clients must be done if the same share of all is to be done."""
        return -(-(self.enough or 0) * clients // max(1, self._present))

    def watch(self, ended: Callable[[], None]) -> Callable[[], None]:
        """Calls a function when the phase ends, or now if it has ended.

        Args:
          ended: The function. It may be called on any thread, and must not block.

        Returns:
          A function that forgets `ended`.
        """
        with self._lock:
            if not self.is_over:
                self._watchers.append(ended)
                return lambda: self._forget(ended)
        ended()
        return lambda: None

    def _forget(self, ended: Callable[[], None]) -> None:
        with self._lock:
            if ended in self._watchers:
                self._watchers.remove(ended)

    def __repr__(self) -> str:
        return f"<Ending after {self.enough} clients, {self._done} done>"


def left_out_among(errors: Mapping[int, FedstackError]) -> Set[int]:
    """Returns the clients that were not done when a phase ended, given the errors of clients."""
    return {client for client, error in errors.items() if isinstance(error, ClientLeftOutError)}


def ranges_of(clients: Sequence[int]) -> Iterator[range]:
    """Yields the ranges of consecutive clients, given the clients in ascending order."""
    start = 0
    for index in range(1, len(clients) + 1):
        if index == len(clients) or clients[index] != clients[index - 1] + 1:
            yield range(clients[start], clients[index - 1] + 1)
            start = index


def left_out(client: int) -> ClientLeftOutError:
    """Returns the error of a client that was not done when a phase ended."""
    error = ClientLeftOutError(
        f"Client {client} was not done when enough others were, so the phase ended without it; increase `enough` of "
        "client_failures to wait for more clients"
    )
    error.client_index = client
    return error

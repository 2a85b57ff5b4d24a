"""Defines the conditions under which the clients of one phase may fail, or are absent."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import attrs

from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.errors import (
    CarrierError,
    ClientTimeoutError,
    ClosedError,
    FedstackError,
    InvalidValueError,
    LeafError,
    ResourceLimitError,
    RetryableError,
    TypeMismatchError,
)
from fedstack.executors.survivors.ending import Ending

# The errors of a client's own functions, sequences and values.
_OWN = (LeafError, TypeMismatchError, InvalidValueError, ClientTimeoutError)
# Errors that may occur while a client runs, without being its own.
_OTHERS = (RetryableError, ResourceLimitError, CarrierError, ClosedError)


@attrs.frozen(eq=False)
class Tolerance(SystemScope):
    """Part of the scope of a phase whose clients may fail.

    Attributes:
      absent: The indices of the clients that have failed in earlier phases or do not take part, in ascending order.
      client_seconds: The time limit of a client, in seconds; `None` for no limit.
      retries: The number of times that a client runs again after it has failed.
      retries_elsewhere: Whether a client that is to run again is left out, because another worker runs it.
      ending: Ends the phase before all clients are done; `None` if it waits for all.
    """

    absent: Sequence[int] = ()
    client_seconds: float | None = None
    retries: int = 0
    retries_elsewhere: bool = False
    ending: Ending | None = None

    def absent_in(self, clients: range) -> Sequence[int]:
        """Returns the absent clients of a range, in ascending order."""
        return self.absent[bisect_left(self.absent, clients.start) : bisect_left(self.absent, clients.stop)]

    def present_in(self, clients: range) -> int:
        """Returns the number of clients of a range that are present."""
        return len(clients) - len(self.absent_in(clients))

    def parts(self, clients: range) -> Iterator[tuple[range, bool]]:
        """Splits a range into consecutive ranges of clients that are all present or all absent.

        Yields:
          Each range, and whether its clients are present.
        """
        start = clients.start
        for client in self.absent_in(clients):
            if start < client:
                yield range(start, client), True
            yield range(client, client + 1), False
            start = client + 1
        if start < clients.stop:
            yield range(start, clients.stop), True


def present_among(clients: range) -> int:
    """Returns the number of clients of a range that are present in the phase of the current scope."""
    tolerance = current_scope().of(Tolerance)
    return len(clients) if tolerance is None else tolerance.present_in(clients)


class Guarded(SystemScope):
    """The scope of clients that run in child processes of their worker, because they may end their process."""


def may_run_again(error: FedstackError) -> bool:
    """Returns whether a client that has failed may run again. A client that took too long would take as long again."""
    return not isinstance(error, ClientTimeoutError)


def is_own(error: BaseException) -> bool:
    """Returns whether an error that occurred while a client ran is a failure of this client."""
    if not isinstance(error, FedstackError) or isinstance(error, _OTHERS):
        return False
    return isinstance(error, _OWN) or error.client_index is not None

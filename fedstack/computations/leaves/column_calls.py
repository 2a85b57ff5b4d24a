"""Knows at which client each thread is that calls a function for one client after the other.

A call over a column writes down once what it fills; whoever shows what runs looks how much of that is there. So a
client costs nothing.
"""

import threading
from collections.abc import Sized

# By the thread: the first client of a call over a column, and its results so far. A function may run a computation, so
# there may be calls within calls; the innermost is the last.
_calls: dict[int, list[tuple[int, Sized]]] = {}


class ColumnCall:
    """This thread calls a function for clients while the block runs.

    Args:
      first_client: The first of them.
      results: What they have returned, one each, in their order; it grows.
    """

    def __init__(self, first_client: int, results: Sized) -> None:
        self._call = first_client, results

    def __enter__(self) -> None:
        _calls.setdefault(threading.get_ident(), []).append(self._call)

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        calls = _calls[thread]
        calls.pop()
        if not calls:
            del _calls[thread]


class ThreadPlace:
    """Where this thread is now: within which calls. Whoever has it can look which client the next call is at."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._depth = len(_calls.get(self._thread, ()))

    def client(self) -> int | None:
        """Returns the client that the call is at: one past the last, when it is done. `None` if there is no call."""
        calls = tuple(_calls.get(self._thread, ()))  # as the list is now: it changes meanwhile
        if len(calls) <= self._depth:
            return None
        first_client, results = calls[self._depth]
        return first_client + len(results)

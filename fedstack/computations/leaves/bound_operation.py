"""Defines bound operations, which programs call: from payload to payload.

A call over a column also records which results it fills. A progress display sees by their number at which client each
thread is, which costs nothing per client.
"""

import threading
from collections.abc import Sized

from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column, column_from_payloads

# For each thread the calls over columns that it is in, the innermost last: functions may run computations. Each has its
# first client and its results so far.
_calls: dict[int, list[tuple[int, Sized]]] = {}


class ColumnCall:
    """Records that this thread calls a function for one client after the other in the block.

    Args:
      first_client: The first client.
      results: The list that the results are appended to, in the order of the clients.
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
    """The calls over columns that this thread is in now. Any thread can read which client the next one within is at."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._depth = len(_calls.get(self._thread, ()))

    def client(self) -> int | None:
        """Returns the client that the call is at, or one past the last when it is done; `None` if there is no call."""
        calls = tuple(_calls.get(self._thread, ()))  # a copy, since the list changes meanwhile
        if len(calls) <= self._depth:
            return None
        first_client, results = calls[self._depth]
        return first_client + len(results)


class BoundOperation:
    """An operation that is ready to run, on several threads at once. Its result is trusted.

    Attributes:
      name: Its name in messages.
      result: The type of its result.
      prefers_columns: Whether `call_column` does more than call one by one; then it is used even for large results.
      max_parallel: The largest number of clients of a phase that may run at the same time, for a function with one
        device or one session; `None` for any number. Calls at the server and of other invocations do not count.
      differing_module: The module that it is from, if the sender has another version of it; else empty.
    """

    name: str
    result: Type
    prefers_columns: bool = False
    max_parallel: int | None = None
    differing_module: str = ""

    def call(self, argument: object, client: int | None = None) -> object:
        """Runs it once.

        Args:
          argument: The payload of its argument; `None` if it has no parameter.
          client: The index of the client, for error messages; `None` at the server.
        """
        raise NotImplementedError

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        """Runs it once for each of `size` clients, `first_client` and those after it."""
        arguments = [None] * size if argument is None else argument.items()
        payloads: list[object] = []
        with ColumnCall(first_client, payloads):
            for client, item in enumerate(arguments, first_client):
                payloads.append(self.call(item, client))
        return column_from_payloads(payloads, self.result, list_is_own=True)

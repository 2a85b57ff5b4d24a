"""Waits for several calls, as Ray and `concurrent.futures` do."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import cast

from fedstack.errors import DeadlineExceededError, TypeMismatchError
from fedstack.foundations.number_checks import check_whole_number
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.remote_value import RemoteValue
from fedstack.service.coordinator.time_bounds import check_timeout

# As good as any time; for longer no thread can wait.
_LONGEST_SECONDS = threading.TIMEOUT_MAX / 2


def wait(
    values: Iterable[RemoteValue], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[RemoteValue], list[RemoteValue]]:
    """Waits until so many calls have ended, whatever came of them.

    Args:
      values: Their values.
      num_returns: How many of them.
      timeout: How long to wait, in seconds; `None` for any time, 0 not at all.

    Returns:
      The first `num_returns` of those that have ended, or all of those if the time has passed, and the others; both in
      the order of `values`.

    Raises:
      InvalidValueError: If `num_returns` is not among 1 to the number of values, or the timeout is negative.
    """
    listed = _listed(values)
    check_timeout(timeout)
    if not listed:
        return [], []
    check_whole_number("num_returns", num_returns, 1, len(listed))
    ended = [value for value in listed if value.done()]
    if len(ended) < num_returns:
        ends = _Ends(listed)
        try:
            until = _until(timeout)
            for _ in range(min(num_returns, len(ends))):
                ends.next(until)
        except queue.Empty:
            pass
        finally:
            ends.forget()
        ended = [value for value in listed if value.done()]
    ended = ended[:num_returns]
    shown = set(ended)
    return ended, [value for value in listed if value not in shown]


def as_completed(values: Iterable[RemoteValue], timeout: float | None = None) -> Iterator[RemoteValue]:
    """Yields values as their calls end, whatever comes of them.

    Raises:
      DeadlineExceededError: If that takes longer than `timeout` seconds, counted from the call of this function.
    """
    check_timeout(timeout)
    return _as_completed(_listed(values), _until(timeout), timeout)


def _as_completed(values: Sequence[RemoteValue], until: float | None, timeout: float | None) -> Iterator[RemoteValue]:
    ends = _Ends(values)
    del values  # those that have been yielded are not held here
    most = len(ends)
    try:
        while ends:
            yield ends.next(until)
    except queue.Empty:
        raise DeadlineExceededError(
            f"Expected all of {most} calls to end within {timeout:g} s, found {most - len(ends)} that did"
        ) from None
    finally:
        ends.forget()


def _listed(values: Iterable[RemoteValue]) -> list[RemoteValue]:
    """Returns values to wait for.

    Raises:
      TypeMismatchError: If they are none.
    """
    if isinstance(cast(object, values), RemoteValue) or not isinstance(cast(object, values), Iterable):
        raise TypeMismatchError(
            f"Expected values of calls in a list, found {describe(cast(object, values))}; write [value] for one"
        )
    listed = list(values)
    for index, value in enumerate(cast("list[object]", listed)):
        if not isinstance(value, RemoteValue):
            raise TypeMismatchError(f"Expected values that schedule has returned, found {describe(value)}; at {index}")
    return listed


def _until(timeout: float | None) -> float | None:
    return None if timeout is None or timeout > _LONGEST_SECONDS else time.monotonic() + timeout


class _Ends:
    """Values whose calls have ended, one after the other, for one thread that waits.

    Its length is how many are still to come.

    Args:
      values: The values; each counts once.
    """

    def __init__(self, values: Iterable[RemoteValue]) -> None:
        self._ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
        self._callbacks = {value: partial(self._ended.put, value) for value in dict.fromkeys(values)}
        self._loops = {value.driver.loop for value in self._callbacks}
        for value, callback in self._callbacks.items():
            value.driver.when_ended(value.closure, callback)

    def next(self, until: float | None) -> RemoteValue:
        """Returns the value of the next call to end.

        Raises:
          queue.Empty: If there is none by then.
          RuntimeError: If called on the loop on which the calls run, which would wait for itself.
        """
        if self._ended.empty() and any(loop.is_current() for loop in self._loops):
            raise RuntimeError(
                "Expected to wait outside of the loop on which the calls run, found that loop; await the values there, "
                "or use asyncio.as_completed"
            )
        value = self._ended.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        del self._callbacks[value]
        return value

    def forget(self) -> None:
        """Is told of no more ends: who waits again and again would have ever more to be told. Safe in finalizers."""
        for value, callback in self._callbacks.items():
            value.driver.forget(value.closure, callback)

    def __len__(self) -> int:
        return len(self._callbacks)

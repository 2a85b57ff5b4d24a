"""Defines the handle to the value of a scheduled call, and how to fetch values in structures and wait for them."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence, Set, ValuesView
from functools import partial
from typing import Any, cast

from fedstack.computations.types.language import Type
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.tensor_values import describe
from fedstack.errors import DeadlineExceededError, ForeignValueError, InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.number_checks import check_whole_number
from fedstack.service.coordinator.calls.boxes import Box, unboxed
from fedstack.service.coordinator.calls.closures import Closure, ClosureCall, ResultArgument
from fedstack.service.coordinator.calls.python_calls import ArgumentOnly
from fedstack.service.coordinator.calls.structures import leaves_of, replaced
from fedstack.service.coordinator.scheduled_calls import ScheduledCalls, check_timeout, within

# Types that look like structures, but cannot hold values in place of handles, or lose them.
_NO_STRUCTURES: tuple[type, ...] = (Set, ValuesView, Iterator)
# As good as no limit; no thread can wait longer.
_LONGEST_SECONDS = threading.TIMEOUT_MAX / 2


class RemoteValue(ArgumentOnly):
    """A handle to the present or future value of a scheduled call, which stays at its worker until it is fetched.

    Pass it as an argument to later calls, on its own or anywhere inside a structure. `await` it to fetch the value.

    Attributes:
      calls: The calls of its coordinator.
      closure: The call.
    """

    def __init__(self, owner: object, calls: ScheduledCalls, closure: Closure, call: ClosureCall) -> None:
        self._owner = owner  # a coordinator without references is closed
        self.calls = calls
        self.closure = closure
        self._result = call.result_of(closure)
        weakref.finalize(self, calls.driver.drop, closure).atexit = False

    @property
    def type_signature(self) -> Type:
        """The type of the value as a worker has it: for a Python function, the type of a box with any value."""
        return self._result.type_signature

    def as_argument(self, calls: ScheduledCalls) -> ResultArgument:
        """Returns the value as an argument for calls of a coordinator.

        Raises:
          ForeignValueError: If it belongs to another coordinator.
        """
        if self.calls is not calls:
            raise ForeignValueError(f"Expected a value of this coordinator, found {self!r} of another one")
        return self._result

    def done(self) -> bool:
        """Returns whether the call has ended, including by failing or being cancelled."""
        return self.closure.has_ended

    @property
    def is_here(self) -> bool:
        """Whether there is nothing to wait for: this process has the value or the error."""
        return self.closure.is_here

    def cancel(self) -> bool:
        """Cancels the call, and the calls that need its value; returns whether it had not ended."""
        return self.calls.cancel(self.closure)

    def get(self, timeout: float | None = None) -> Any:
        """Waits for the value and fetches it, in the containers of its type.

        Later calls return an equal value, whatever the timeout. Its arrays and containers belong to the caller:
        changing them changes no other copy. The first call of `get` after the scheduled call has ended transfers the
        value; the transfer counts towards the timeout and continues after it, for a later call of `get`.

        Raises:
          LeafError: If the function raised.
          ClosureCancelledError: If the call was cancelled.
          DeadlineExceededError: If it takes longer than `timeout` seconds; the call continues.
        """
        check_timeout(timeout)
        return self.calls.wait(fetched(self, timeout, self))

    def fetch(self, timeout: float | None = None) -> Any:
        """Same as `get`."""
        return self.get(timeout)

    def __await__(self) -> Generator[Any, None, object]:
        return self.calls.loop.run(fetched(self)).__await__()

    def result_of(self, payload: object) -> object:
        """Returns a payload in the containers of its type."""
        return unboxed(cast(Box, payload)) if self._result.boxed else to_result(payload, self.type_signature)

    def __repr__(self) -> str:
        closure = self.closure
        where = ", ".join(worker.name for worker in closure.held) or ("here" if closure.copy is not None else "")
        error = "" if closure.error is None else f": {str(closure.error).partition(chr(10))[0]}"
        return f"<RemoteValue of {closure.name!r}: {closure.state.value}{where and f' at {where}'}{error}>"


async def fetched(structure: object, timeout: float | None = None, what: object = None) -> object:
    """Returns a structure with the handles in it replaced by their values.

    Args:
      structure: The structure.
      timeout: How long values may take, in seconds; values that are here already are returned in any case, and
        transfers in progress continue.
      what: A description of the awaited object, for error messages.

    Raises:
      InvalidValueError: If there are handles in sets, or in anything that can be iterated over only once.
      DeadlineExceededError: If they take longer.
    """
    groups: dict[ScheduledCalls, dict[Closure, None]] = {}  # by coordinator
    for path, part in leaves_of(structure, "structure"):
        if isinstance(part, RemoteValue):
            groups.setdefault(part.calls, {})[part.closure] = None
        elif isinstance(part, _NO_STRUCTURES) and _may_have_values(part):
            raise InvalidValueError(f"Expected lists, tuples and dictionaries, found {type(part).__name__}; at {path}")
    waits = [calls for calls, closures in groups.items() if not calls.begin(closures)]
    homes = gather([calls.fetch(closures) for calls, closures in groups.items()])
    await (within(homes, timeout, what) if waits else homes)

    def result(part: object) -> object:
        return part.result_of(cast(Any, part.closure.copy)[0]) if isinstance(part, RemoteValue) else part

    return await off_loop(lambda: replaced(structure, result))


def _may_have_values(collection: object) -> bool:
    if isinstance(collection, Iterator):
        return True  # looking would consume its content
    members = list(cast("Collection[object]", collection))
    return any(isinstance(part, RemoteValue) for _, part in leaves_of(members, ""))


def wait(
    values: Iterable[RemoteValue], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[RemoteValue], list[RemoteValue]]:
    """Waits until a number of calls have ended, whatever their outcome.

    Args:
      values: The values of the calls.
      num_returns: How many calls to wait for.
      timeout: How long to wait, in seconds; `None` for no limit, 0 for not at all.

    Returns:
      The values of the first `num_returns` calls that have ended, or of all that have ended if the time has passed, and
      the other values; both in the order of `values`.

    Raises:
      InvalidValueError: If `num_returns` is not from 1 to the number of values, or the timeout is negative.
    """
    listed = _listed(values)
    check_timeout(timeout)
    if not listed:
        return [], []
    check_whole_number("num_returns", num_returns, 1, len(listed))
    ends, deadline = _Completions(listed), _deadline(timeout)
    with contextlib.suppress(queue.Empty), contextlib.closing(ends):
        for _ in range(min(num_returns, len(ends))):
            ends.next(deadline)
    ended = [value for value in listed if value.done()][:num_returns]
    shown = set(ended)
    return ended, [value for value in listed if value not in shown]


def as_completed(values: Iterable[RemoteValue], timeout: float | None = None) -> Iterator[RemoteValue]:
    """Yields values as their calls end, whatever their outcome.

    Raises:
      DeadlineExceededError: If it takes longer than `timeout` seconds, counted from the call of this function.
    """
    check_timeout(timeout)
    return _as_completed(_listed(values), _deadline(timeout), timeout)


def _as_completed(values: Sequence[RemoteValue], deadline: Deadline, timeout: float | None) -> Iterator[RemoteValue]:
    ends = _Completions(values)
    del values  # do not keep values that have been yielded
    most = len(ends)
    with contextlib.closing(ends):
        try:
            while ends:
                yield ends.next(deadline)
        except queue.Empty:
            raise DeadlineExceededError(
                f"Expected all of {most} calls to end within {timeout:g} s, found {most - len(ends)} that did"
            ) from None


def _listed(values: Iterable[RemoteValue]) -> list[RemoteValue]:
    """Returns a list of the values to wait for.

    Raises:
      TypeMismatchError: If they are not values of calls.
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


def _deadline(timeout: float | None) -> Deadline:
    """Returns the deadline for a thread to wait; a timeout longer than a lock can wait for means forever."""
    return Deadline(None if timeout is None or timeout > _LONGEST_SECONDS else timeout)


class _Completions:
    """Values in the order in which their calls end, for one waiting thread.

    Its length is the number of values that are still to come.

    Args:
      values: The values; each counts once.
    """

    def __init__(self, values: Iterable[RemoteValue]) -> None:
        self._ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
        self._callbacks = {value: partial(self._ended.put, value) for value in dict.fromkeys(values)}
        self._loops = {value.calls.loop for value in self._callbacks}
        for value, callback in self._callbacks.items():
            value.calls.when_ended(value.closure, callback)

    def next(self, deadline: Deadline) -> RemoteValue:
        """Returns the value of the next call to end.

        Raises:
          queue.Empty: If none has ended by the deadline.
          RuntimeError: If called on the loop that the calls run on, which would wait for itself.
        """
        if self._ended.empty() and any(loop.is_current() for loop in self._loops):
            raise RuntimeError(
                "Expected to wait outside of the loop on which the calls run, found that loop; await the values there, "
                "or use asyncio.as_completed"
            )
        value = self._ended.get(timeout=deadline.left)
        del self._callbacks[value]
        return value

    def close(self) -> None:
        """Unsubscribes from the remaining calls, so that repeated waits do not accumulate callbacks.

        Safe in finalizers.
        """
        for value, callback in self._callbacks.items():
            value.calls.forget(value.closure, callback)

    def __len__(self) -> int:
        return len(self._callbacks)

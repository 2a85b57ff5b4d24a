"""Defines the handle to a scheduled call's value, and functions that wait for calls or fetch their values."""

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

# Types that contain handles, but in which handles cannot be replaced by values.
_NO_STRUCTURES: tuple[type, ...] = (Set, ValuesView, Iterator)
# Longer timeouts mean no limit, because no thread can wait that long.
_LONGEST_SECONDS = threading.TIMEOUT_MAX / 2


class RemoteValue(ArgumentOnly):
    """A handle to the value of a scheduled call, which may still be running.

    The value stays on its worker until it is fetched. Pass the handle as an argument to later calls, alone or inside a
    structure. Call `get` or `await` the handle to fetch the value.

    Attributes:
      calls: The calls of the coordinator that the value belongs to.
      closure: The scheduled call.
    """

    def __init__(self, owner: object, calls: ScheduledCalls, closure: Closure, call: ClosureCall) -> None:
        self._owner = owner  # keeps the coordinator open: an unreferenced one is closed
        self.calls = calls
        self.closure = closure
        self._result = call.result_of(closure)
        weakref.finalize(self, calls.driver.drop, closure).atexit = False

    @property
    def type_signature(self) -> Type:
        """The type of the value on the worker. For a call of a Python function, this is always the type of a box."""
        return self._result.type_signature

    def as_argument(self, calls: ScheduledCalls) -> ResultArgument:
        """Returns the value as an argument for calls of a coordinator.

        Raises:
          ForeignValueError: If the value belongs to another coordinator.
        """
        if self.calls is not calls:
            raise ForeignValueError(
                f"Expected a value from the coordinator that runs the call, found {self!r} from another coordinator; "
                "fetch the value and pass the result"
            )
        return self._result

    def done(self) -> bool:
        """Returns whether the call has ended: it succeeded, failed, or was cancelled."""
        return self.closure.has_ended

    @property
    def is_here(self) -> bool:
        """Whether this process has the value or the error, so that `get` returns or raises without waiting."""
        return self.closure.is_here

    def cancel(self) -> bool:
        """Cancels the call and all calls that need its value.

        Returns:
          Whether the call was cancelled; `False` if it had already ended.
        """
        return self.calls.cancel(self.closure)

    def get(self, timeout: float | None = None) -> Any:
        """Waits until the call has ended, and returns its value in the containers that the value's type specifies.

        The value is transferred to this process once. The transfer counts toward the timeout and continues in the
        background if the timeout expires. After the transfer, every call of `get` returns an equal value without
        waiting. The caller owns the returned arrays and containers: changing them affects no other copy.

        Raises:
          LeafError: If the function raised an error.
          ClosureCancelledError: If the call was cancelled.
          DeadlineExceededError: If the value is not available within `timeout` seconds. The call continues.
        """
        check_timeout(timeout)
        return self.calls.wait(fetched(self, timeout, self))

    def fetch(self, timeout: float | None = None) -> Any:
        """An alias for `get`."""
        return self.get(timeout)

    def __await__(self) -> Generator[Any, None, object]:
        return self.calls.loop.run(fetched(self)).__await__()

    def result_of(self, payload: object) -> object:
        """Converts a payload to the value that a user receives, in the containers that its type specifies."""
        return unboxed(cast(Box, payload)) if self._result.boxed else to_result(payload, self.type_signature)

    def __repr__(self) -> str:
        closure = self.closure
        where = ", ".join(worker.name for worker in closure.held) or ("here" if closure.copy is not None else "")
        error = "" if closure.error is None else f": {str(closure.error).partition(chr(10))[0]}"
        return f"<RemoteValue of {closure.name!r}: {closure.state.value}{where and f' at {where}'}{error}>"


async def fetched(structure: object, timeout: float | None = None, what: object = None) -> object:
    """Waits for the values of the handles in a structure, and returns the structure with values instead of handles.

    Args:
      structure: The structure.
      timeout: How long to wait for values that are not in this process yet, in seconds. Transfers in progress continue
        after the timeout.
      what: The object to name in error messages.

    Raises:
      InvalidValueError: If a set, or an object that can be iterated over only once, may contain handles.
      DeadlineExceededError: If the values are not available within `timeout`.
    """
    groups: dict[ScheduledCalls, dict[Closure, None]] = {}  # by coordinator
    for path, part in leaves_of(structure, "structure"):
        if isinstance(part, RemoteValue):
            groups.setdefault(part.calls, {})[part.closure] = None
        elif isinstance(part, _NO_STRUCTURES) and _may_have_values(part):
            raise InvalidValueError(
                f"Expected handles in lists, tuples or dictionaries, found an object of type {type(part).__name__} at "
                f"{path}; convert the object to a list"
            )
    waits = [calls for calls, closures in groups.items() if not calls.begin(closures)]
    homes = gather([calls.fetch(closures) for calls, closures in groups.items()])
    await (within(homes, timeout, what) if waits else homes)

    def result(part: object) -> object:
        return part.result_of(cast(Any, part.closure.copy)[0]) if isinstance(part, RemoteValue) else part

    return await off_loop(lambda: replaced(structure, result))


def _may_have_values(collection: object) -> bool:
    if isinstance(collection, Iterator):
        return True  # a search would consume the elements
    members = list(cast("Collection[object]", collection))
    return any(isinstance(part, RemoteValue) for _, part in leaves_of(members, ""))


def wait(
    values: Iterable[RemoteValue], num_returns: int = 1, timeout: float | None = None
) -> tuple[list[RemoteValue], list[RemoteValue]]:
    """Waits until `num_returns` calls have ended, regardless of their outcomes.

    Args:
      values: The values of the calls.
      num_returns: The number of calls to wait for.
      timeout: The time limit in seconds. `None` means no limit; 0 means not to wait.

    Returns:
      Two lists, both in the order of `values`: the values of calls that have ended, at most `num_returns` of them, and
      all other values. If the timeout expires, the first list may be shorter than `num_returns`.

    Raises:
      InvalidValueError: If `num_returns` is not between 1 and the number of values, or `timeout` is negative.
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
    """Yields values in the order in which their calls end, regardless of the calls' outcomes.

    Raises:
      DeadlineExceededError: If not all calls end within `timeout` seconds after this function is called.
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
                f"Expected all {most} calls to end within {timeout:g} s, but only {most - len(ends)} ended; raise the "
                "timeout, or wait again for the remaining values"
            ) from None


def _listed(values: Iterable[RemoteValue]) -> list[RemoteValue]:
    """Returns a list of the values to wait for.

    Raises:
      TypeMismatchError: If `values` is not an iterable of values of calls.
    """
    if isinstance(cast(object, values), RemoteValue) or not isinstance(cast(object, values), Iterable):
        raise TypeMismatchError(
            f"Expected a list of values returned by schedule, found {describe(cast(object, values))}; write [value] to "
            "wait for a single value"
        )
    listed = list(values)
    for index, value in enumerate(cast("list[object]", listed)):
        if not isinstance(value, RemoteValue):
            raise TypeMismatchError(f"Expected values returned by schedule, found {describe(value)} at index {index}")
    return listed


def _deadline(timeout: float | None) -> Deadline:
    """Returns the deadline for a waiting thread. Timeouts longer than a lock's maximum wait mean no deadline."""
    return Deadline(None if timeout is None or timeout > _LONGEST_SECONDS else timeout)


class _Completions:
    """The values of calls in the order in which the calls end, for one waiting thread.

    The length of this object is the number of values that `next` has not returned yet.

    Args:
      values: The values. Duplicates are ignored.
    """

    def __init__(self, values: Iterable[RemoteValue]) -> None:
        self._ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
        self._callbacks = {value: partial(self._ended.put, value) for value in dict.fromkeys(values)}
        self._loops = {value.calls.loop for value in self._callbacks}
        for value, callback in self._callbacks.items():
            value.calls.when_ended(value.closure, callback)

    def next(self, deadline: Deadline) -> RemoteValue:
        """Waits for the next call to end, and returns its value.

        Raises:
          queue.Empty: If no further call has ended by the deadline.
          RuntimeError: If called on the loop that runs the calls, since waiting would block that loop.
        """
        if self._ended.empty() and any(loop.is_current() for loop in self._loops):
            raise RuntimeError(
                "A blocking wait would never end on the event loop that runs the calls; await the values instead, or "
                "use asyncio.as_completed"
            )
        value = self._ended.get(timeout=deadline.left)
        del self._callbacks[value]
        return value

    def close(self) -> None:
        """Removes the callbacks from the remaining calls, so that repeated waits do not accumulate callbacks.

        Safe in finalizers.
        """
        for value, callback in self._callbacks.items():
            value.calls.forget(value.closure, callback)

    def __len__(self) -> int:
        return len(self._callbacks)

"""Defines what stands for the value of a scheduled call, and how to wait for several."""

import threading
import time
import weakref
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence, Set, ValuesView
from itertools import chain
from typing import Any, TypeVar, cast

from fedstack.computations.types.language import Type
from fedstack.computations.values.containers import to_result
from fedstack.errors import DeadlineExceededError, ForeignValueError, InvalidValueError
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.service.coordinator.calls.boxes import Box, unboxed
from fedstack.service.coordinator.calls.calls import Call, Result
from fedstack.service.coordinator.calls.per_worker import ArgumentOnly
from fedstack.service.coordinator.calls.structures import leaves_of, parts_of, replaced
from fedstack.service.coordinator.driver import Driver, within
from fedstack.service.coordinator.scheduling.closures import Closure

_T = TypeVar("_T")
# What looks like a structure, and has no places in which to put values, or loses them.
_NO_STRUCTURES: tuple[type, ...] = (Set, ValuesView, Iterator)


class RemoteValue(ArgumentOnly):
    """The value of a scheduled call, now or later. It stays at the worker that made it until it is fetched.

    Give it as an argument of later calls, on its own or anywhere inside of a structure. `await` it to fetch it.

    Attributes:
      driver: What runs the call.
      closure: The call.
    """

    def __init__(self, owner: object, driver: Driver, closure: Closure, call: Call) -> None:
        self._owner = owner  # a coordinator that nobody refers to is closed
        self.driver = driver
        self.closure = closure
        self._result = call.result_of(closure)
        weakref.finalize(self, driver.drop, closure).atexit = False

    @property
    def type_signature(self) -> Type:
        """The type of the value, as a worker has it: of a Python function's that of a box with any value."""
        return self._result.type_signature

    def as_argument(self, driver: Driver) -> Result:
        """Returns it as an argument of calls that a driver runs.

        Raises:
          ForeignValueError: If it is of another coordinator.
        """
        if self.driver is not driver:
            raise ForeignValueError(f"Expected a value of this coordinator, found {self!r} of another one")
        return self._result

    def done(self) -> bool:
        """Returns whether the call has ended, also if it has failed or was cancelled."""
        return self.closure.has_ended

    def cancel(self) -> bool:
        """Cancels the call, and those that need its value; returns whether it had not ended."""
        return self.driver.cancel(self.closure)

    def get(self, timeout: float | None = None) -> Any:
        """Fetches the value, when it is there, in the containers of its type.

        Raises:
          LeafError: If the function raised.
          ClosureCancelledError: If the call was cancelled.
          DeadlineExceededError: If it takes longer than `timeout` seconds; the call goes on.
        """
        return wait_for(self.driver, fetched(self), timeout, self)

    def fetch(self, timeout: float | None = None) -> Any:
        """Does what `get` does."""
        return self.get(timeout)

    def __await__(self) -> Generator[Any, None, object]:
        return self.driver.loop.run(fetched(self)).__await__()

    def result_of(self, payload: object) -> object:
        """Returns the value of a payload, in the containers of its type."""
        return unboxed(cast(Box, payload)) if self._result.boxed else to_result(payload, self.type_signature)

    def __repr__(self) -> str:
        closure = self.closure
        where = ", ".join(place.name for place in closure.held) or ("here" if closure.copy is not None else "")
        error = "" if closure.error is None else f": {str(closure.error).partition(chr(10))[0]}"
        return f"<RemoteValue of {closure.name!r}: {closure.state.value}{where and f' at {where}'}{error}>"


async def fetched(structure: object) -> object:
    """Returns a structure with results in place of what stands for them.

    Raises:
      InvalidValueError: If it has sets in it, or what can be iterated over once only.
    """
    for path, part in leaves_of(structure, "structure"):
        if isinstance(part, _NO_STRUCTURES):
            raise InvalidValueError(f"Expected lists, tuples and dictionaries, found {type(part).__name__}; at {path}")
    groups: dict[Driver, list[RemoteValue]] = {}  # by the coordinator that each is of
    for value in dict.fromkeys(parts_of(structure, RemoteValue)):
        groups.setdefault(value.driver, []).append(value)
    homes = [driver.fetching.bring_home([value.closure for value in values]) for driver, values in groups.items()]
    payloads = dict(zip(chain.from_iterable(groups.values()), chain.from_iterable(await gather(homes))))

    def result(part: object) -> object:
        return part.result_of(payloads[part]) if isinstance(part, RemoteValue) else part

    return await off_loop(lambda: replaced(structure, result))


def wait_for(driver: Driver, work: Coroutine[Any, Any, _T], timeout: float | None, what: object) -> _T:
    """Runs work on a driver's loop, and waits for it on another thread.

    Raises:
      DeadlineExceededError: If it takes longer.
    """
    return driver.loop.run_sync(within(work, timeout, what))


def wait(
    values: Sequence[RemoteValue], num_returns: int = 1, timeout: float | None = None
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
      InvalidValueError: If `num_returns` is not among 1 to the number of values.
    """
    if not values:
        return [], []
    if not 1 <= num_returns <= len(values):
        raise InvalidValueError(f"Expected num_returns from 1 to {len(values)}, found {num_returns}")
    try:
        for _ in zip(range(num_returns), as_completed(values, timeout)):
            pass
    except DeadlineExceededError:
        pass
    ended = [value for value in values if value.done()][:num_returns]
    return ended, [value for value in values if value not in ended]


def as_completed(values: Iterable[RemoteValue], timeout: float | None = None) -> Iterator[RemoteValue]:
    """Yields values as their calls end, whatever comes of them.

    Raises:
      DeadlineExceededError: If that takes longer than `timeout` seconds, counted from the call of this function.
    """
    listed = list(dict.fromkeys(values))
    return _as_completed(listed, None if timeout is None else time.monotonic() + timeout, timeout)


def _as_completed(values: list[RemoteValue], until: float | None, timeout: float | None) -> Iterator[RemoteValue]:
    ended: dict[RemoteValue, None] = {}
    changed = threading.Condition()

    def note(value: RemoteValue) -> None:
        with changed:
            ended[value] = None
            changed.notify()

    for value in values:
        value.driver.when_ended(value.closure, lambda value=value: note(value))
    for count in range(len(values)):
        with changed:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not changed.wait_for(lambda: bool(ended), left):
                raise DeadlineExceededError(
                    f"Expected all of {len(values)} calls to end within {timeout:g} s, found {count} that did"
                )
            value = next(iter(ended))
            del ended[value]
        yield value

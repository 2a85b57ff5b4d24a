"""Defines what stands for the value of a scheduled call, and how values come home in structures."""

import weakref
from collections.abc import Collection, Generator, Iterator, Set, ValuesView
from itertools import chain
from typing import Any, cast

from fedstack.computations.types.language import Type
from fedstack.computations.values.containers import to_result
from fedstack.errors import ForeignValueError, InvalidValueError
from fedstack.executors.concurrency.off_loop import off_loop
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.service.coordinator.calls.boxes import Box, unboxed
from fedstack.service.coordinator.calls.calls import Call, Result
from fedstack.service.coordinator.calls.per_worker import ArgumentOnly
from fedstack.service.coordinator.calls.structures import leaves_of, replaced
from fedstack.service.coordinator.driver import Driver
from fedstack.service.coordinator.scheduling.closures import Closure
from fedstack.service.coordinator.time_bounds import check_timeout, within

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

    @property
    def is_here(self) -> bool:
        """Whether nothing is to be waited for: this process has the value, or the error."""
        return self.closure.copy is not None or self.closure.error is not None

    def cancel(self) -> bool:
        """Cancels the call, and those that need its value; returns whether it had not ended."""
        return self.driver.cancel(self.closure)

    def get(self, timeout: float | None = None) -> Any:
        """Fetches the value, when it is there, in the containers of its type.

        Later calls return an equal value, whatever the timeout. Its arrays and containers are the caller's own: what is
        changed in them changes no other. The first call after the end of the scheduled one brings the value here, which
        takes its time too and goes on after the timeout: a later one finds it.

        Raises:
          LeafError: If the function raised.
          ClosureCancelledError: If the call was cancelled.
          DeadlineExceededError: If it takes longer than `timeout` seconds; the call goes on.
        """
        check_timeout(timeout)
        return self.driver.wait(fetched(self, timeout, self))

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


async def fetched(structure: object, timeout: float | None = None, what: object = None) -> object:
    """Returns a structure with results in place of what stands for them.

    Args:
      structure: The structure.
      timeout: How long values may take, in seconds; those that are here already are returned in any case, and those
        that are under way go on coming.
      what: What is waited for, for messages.

    Raises:
      InvalidValueError: If it has values in sets, or anything that can be iterated over once only.
      DeadlineExceededError: If they take longer.
    """
    groups: dict[Driver, list[RemoteValue]] = {}  # by the coordinator that each is of
    parts: dict[RemoteValue, None] = {}
    for path, part in leaves_of(structure, "structure"):
        if isinstance(part, RemoteValue):
            parts[part] = None
        elif isinstance(part, _NO_STRUCTURES) and _may_have_values(part):
            raise InvalidValueError(f"Expected lists, tuples and dictionaries, found {type(part).__name__}; at {path}")
    for value in parts:
        groups.setdefault(value.driver, []).append(value)
    values = list(chain.from_iterable(groups.values()))
    closures = {driver: [value.closure for value in some] for driver, some in groups.items()}
    waits = [driver for driver, some in closures.items() if not driver.fetching.begin(some)]
    homes = gather([driver.fetching.bring_home(some) for driver, some in closures.items()])
    found = await (within(homes, timeout, what) if waits else homes)
    payloads = dict(zip(values, chain.from_iterable(found)))

    def result(part: object) -> object:
        return part.result_of(payloads[part]) if isinstance(part, RemoteValue) else part

    return await off_loop(lambda: replaced(structure, result))


def _may_have_values(collection: object) -> bool:
    if isinstance(collection, Iterator):
        return True  # a look would take what is in it
    members = list(cast("Collection[object]", collection))
    return any(isinstance(part, RemoteValue) for _, part in leaves_of(members, ""))

"""Caches a bounded number of executors for reuse, and closes each evicted executor once it is no longer in use."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import cast

import attrs

from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor, ExecutorFactory, PlacementLiteral
from fedstack.computations.values.federated_values import checked_cardinalities
from fedstack.errors import ClosedError
from fedstack.executors.concurrency.closing import ClosesOnExit
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.error_text import counted
from fedstack.foundations.number_checks import check_whole_number

Key = tuple[tuple[str, int], ...]


@attrs.define(eq=False)
class _Entry:
    executor: Executor
    key: Key
    users: int = 0
    retired: bool = False


class ResourceManagingExecutorFactory(ClosesOnExit, ExecutorFactory):
    """Creates one executor per set of cardinalities, and keeps the most recently used executors.

    An executor that is evicted or cleaned up is closed immediately if it is idle, otherwise when its last lease ends.

    Args:
      stack_fn: Creates an executor for given cardinalities.
      max_executors: The maximum number of executors to keep.
      default_num_clients: The number of clients to use if the cardinalities do not specify it.
      max_threads: The maximum number of functions that all executors of the factory together run at the same time;
        `None` if unknown.

    Attributes:
      max_threads: The value of the parameter `max_threads`.
    """

    def __init__(
        self,
        stack_fn: Callable[[CardinalitiesType], Executor],
        *,
        max_executors: int = 10,
        default_num_clients: int = 0,
        max_threads: int | None = None,
    ) -> None:
        check_whole_number("default_num_clients", default_num_clients, 0)
        check_whole_number("max_executors", max_executors, 1)
        self._stack_fn = stack_fn
        self.max_threads = max_threads
        self._max_executors = max_executors
        self._default_num_clients = default_num_clients
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._leased: dict[int, _Entry] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replaces the lock in a forked child; see `after_fork`.

        Leases of other threads never end in a child, so their executors are dropped without being closed.
        """
        self._lock = threading.Lock()

    @property
    def default_num_clients(self) -> int:
        """The number of clients to use if the cardinalities do not specify it."""
        return self._default_num_clients

    def create_executor(self, cardinalities: CardinalitiesType) -> Executor:
        """Returns the executor for the given cardinalities, and creates it if necessary.

        The factory owns the executor and closes it.

        Raises:
          CardinalityError: If `cardinalities` does not map placements to numbers of participants.
          ClosedError: If the factory is closed.
        """
        return self._entry(cardinalities).executor

    def lease(self, cardinalities: CardinalitiesType) -> Executor:
        """Returns the executor for the given cardinalities, and keeps it open until the caller releases it."""
        return self._entry(cardinalities, leased=True).executor

    def release(self, executor: Executor, *, failed: bool) -> None:
        """Ends a lease.

        Args:
          executor: The leased executor.
          failed: Whether the invocation failed. A failure retires the executor: it is not leased again, and it is
            closed when its last lease ends.
        """
        with self._lock:
            entry = self._leased[id(executor)]
            entry.users -= 1
            if failed:
                self._retire(entry)
            if entry.users:
                return
            del self._leased[id(executor)]
            close, end = entry.retired, self._closed and not self._leased
        if close:
            executor.close()
        if end:
            self.end()

    def clean_up_executor(self, cardinalities: CardinalitiesType) -> None:
        """Removes the executor for the given cardinalities, and closes it as soon as it is no longer leased."""
        with self._lock:
            entry = self._entries.get(self._key(cardinalities))
            if entry is None:
                return
            self._retire(entry)
            close = not entry.users
        if close:
            entry.executor.close()

    def _retire(self, entry: _Entry) -> None:
        entry.retired = True
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _entry(self, cardinalities: CardinalitiesType, *, leased: bool = False) -> _Entry:
        key = self._key(cardinalities)
        evicted: list[_Entry] = []
        with self._lock:
            if self._closed:
                raise self._closed_error()
            entry = self._entries.get(key)
            if entry is None:
                filled: dict[PlacementLiteral, int] = {CLIENTS: self._default_num_clients, **cardinalities}
                entry = self._entries[key] = _Entry(self._stack_fn(filled), key)
            self._entries.move_to_end(key)
            if leased:
                entry.users += 1
                self._leased[id(entry.executor)] = entry
            while len(self._entries) > self._max_executors:
                oldest = next(iter(self._entries.values()))
                self._retire(oldest)
                if not oldest.users:
                    evicted.append(oldest)
        for old in evicted:
            old.executor.close()
        return entry

    def _key(self, cardinalities: Mapping[PlacementLiteral, int]) -> Key:
        if isinstance(cardinalities, dict) and (not cardinalities or list(cardinalities) == [CLIENTS]):
            count = cast(object, cardinalities.get(CLIENTS, self._default_num_clients))
            if type(count) is int and count >= 0:
                return ((CLIENTS.uri, count),)  # a shortcut for the usual case, which takes a quarter of the time
        filled = {CLIENTS: self._default_num_clients, **checked_cardinalities(cardinalities)}
        return tuple(sorted((placement.uri, count) for placement, count in filled.items()))

    def close(self) -> None:
        """Closes all idle executors now, and leased executors when they are released. Idempotent."""
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            for entry in entries:
                self._retire(entry)
            idle = [entry for entry in entries if not entry.users]
            end = not self._leased
        for entry in idle:
            entry.executor.close()
        if end:
            self.end()

    def _closed_error(self) -> ClosedError:
        return ClosedError("This executor factory is closed; create a new one")

    def end(self) -> None:
        """Releases resources that the executors share.

        Called after the factory and all its executors are closed, possibly more than once.
        """

    def __repr__(self) -> str:
        return (
            f"<ResourceManagingExecutorFactory {counted(len(self._entries), 'executor')}, {len(self._leased)} leased>"
        )


def borrow(factory: ExecutorFactory, cardinalities: CardinalitiesType) -> tuple[Executor, Callable[[], None]]:
    """Borrows an executor from a factory: returns the executor, and a function that releases it."""
    if isinstance(factory, ResourceManagingExecutorFactory):
        executor = factory.lease(cardinalities)
        return executor, lambda: factory.release(executor, failed=False)
    executor = factory.create_executor(cardinalities)
    return executor, lambda: factory.clean_up_executor(cardinalities)

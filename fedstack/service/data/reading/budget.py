"""Defines the memory budget of the data service: the number of elements in each buffer between a split and the user.

Elements are transferred in blocks, which wait in up to four buffers. Each buffer contains at most `AHEAD` blocks,
unless an option sets another number:

| buffer | number of blocks | bytes per block |
| --- | --- | --- |
| on the worker, prepared but not sent | `AHEAD` for each stream | as requested; `max_ahead_bytes` in total |
| on the consumer, received | `AHEAD` for each worker; `max_outstanding_requests` if that is less | `SENT_BYTES` |
| on the consumer, for the user | `AHEAD` for each worker, or `max_outstanding_requests` | `SENT_BYTES` |
| after a `prefetch` step | determined by its argument | `BLOCK_BYTES`; on a worker part of `max_gathered_bytes` |

By default a consumer therefore buffers `2 * AHEAD * SENT_BYTES`, 32 MiB, for each worker. The third buffer is the plan
of the pass, which keeps track of each block in case a worker is lost. The other buffers are instances of `Ahead`, a
bounded read-ahead.
"""

import abc
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

from fedstack.computations.codec.payload_sizes import known_bytes
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import exact_bytes
from fedstack.computations.values.columns import Column
from fedstack.errors import ClosedError, ResourceLimitError
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.data.reading.dataset_scope import dataset_scope, reading
from fedstack.transport.peers.io_loop import Outcome

_T = TypeVar("_T")
# The elements of a dataset in blocks, each with at least one element.
Blocks: TypeAlias = Iterator[Column]

# The maximum size of a block when it is prepared: enough rows to make the cost per block negligible, and few enough
# bytes to stay in the CPU's cache. A data worker also sends blocks of this size to readers that request no other size.
BLOCK_ROWS = 1 << 13
BLOCK_BYTES = 1 << 20
# The size of the blocks that a consumer requests: large enough to make the cost per message negligible.
SENT_BYTES = 8 << 20
# The approximate size in bytes of the elements of several clients that are read ahead in one call to a data worker.
CLIENTS_BYTES = 4 << 20
# The maximum time in seconds that an element waits for later elements of its block, or for elements that are sent
# together with it.
SECONDS_TOGETHER = 0.005
# The number of blocks in each buffer: one for the consumer to take and one that is being prepared, so that neither side
# is idle.
AHEAD = 2
# The number of items after which a producer that does not pause yields its thread to other work.
_ITEMS_IN_A_TURN = 16


class BlockSize:
    """The number of elements to prepare at a time.

    The number is one at first, and grows while the elements are small and do not take long to prepare.

    Attributes:
      rows: The number of elements.
    """

    def __init__(self, element: Type) -> None:
        self.rows = 1
        self._bytes_of = size_in(element)

    def note(self, block: Column, seconds: float) -> None:
        """Adapts the number to the size of a block and to the seconds that it took to prepare the block."""
        size = self._bytes_of(block)
        if seconds > SECONDS_TOGETHER or size > BLOCK_BYTES:
            self.rows = max(1, self.rows // 2)
        elif 2 * size <= BLOCK_BYTES:
            self.rows = min(BLOCK_ROWS, self.rows * 2)


def rows_at_once(element: Type) -> int:
    """Returns the maximum number of elements of a type in a block."""
    size = exact_bytes(element)
    return BLOCK_ROWS if not size else max(1, min(BLOCK_ROWS, BLOCK_BYTES // size))


def size_in(element: Type) -> Callable[[Column], int]:
    """Returns a function that estimates how many bytes of memory a block of elements of a type takes."""
    each = exact_bytes(element)
    if each:
        return lambda block: len(block) * each
    return lambda block: sum(known_bytes(item, element) for item in block.items())


def pieces(column: Column, rows: int, start: int = 0) -> Blocks:
    """Cuts a column into blocks of at most `rows` rows, beginning at row `start`."""
    for first in range(start, len(column), rows):
        yield column.slice(first, min(first + rows, len(column)))


class Budget:
    """A shared budget of bytes.

    Args:
      most: The number of bytes in the budget.
      refusal: Takes a description of the demand, and returns the error to raise if the budget is exceeded. Without a
        `refusal`, `take` always succeeds, and producers must check `is_full`.

    Attributes:
      taken: The number of bytes that have been taken.
    """

    def __init__(self, most: int, refusal: Callable[[str], Exception] | None = None) -> None:
        self.taken = 0
        self._most = most
        self._refusal = refusal
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the whole budget has been taken."""
        return self.taken >= self._most

    def take(self, size: int, what: str = "") -> None:
        """Takes bytes from the budget, or returns bytes to the budget if the number is negative.

        Args:
          size: The number of bytes.
          what: The purpose of the bytes, for the error message.

        Raises:
          Exception: The error that `refusal` returns, if the budget is exceeded.
        """
        with self._lock:
            if self._refusal is not None and size > 0 and self.taken + size > self._most:
                raise self._refusal(f"{size} more for {what}, in addition to {self.taken} that are in use")
            self.taken += size

    def __repr__(self) -> str:
        return f"<Budget: {self.taken} of {self._most} bytes taken>"


class Ahead(abc.ABC, Generic[_T]):
    """A queue of items that a producer prepares ahead of its single consumer.

    The producer and the consumer may run on any threads. A subclass defines how the producer is started. The producer
    puts items until the queue is full, and is restarted when the consumer has taken some of the items.

    Args:
      most: The maximum number of waiting items.
      budget: A budget of bytes that also limits the items. If the budget is exhausted, the producer may still prepare
        one item when the consumer waits for it.
    """

    def __init__(self, most: int, budget: Budget | None = None) -> None:
        self._most = most
        self._budget = budget
        self._lock = threading.Lock()
        self._made: deque[tuple[_T, int]] = deque()
        self._held_bytes = 0  # the bytes of the item that the consumer took last
        self._waiting: Outcome[_T | None] | None = None
        self._is_at_work = self._is_over = self._has_ended = False
        self._error: Exception | None = None

    @abc.abstractmethod
    def _start(self) -> None:
        """Starts the producer, which calls `put`."""

    def _stop(self) -> None:
        """Ends an idle producer after the consumer has stopped taking items."""

    def take(self) -> Outcome[_T | None]:
        """Returns an outcome that resolves to the next item, or to `None` after the last item.

        Releases the bytes of the previous item.
        """
        waiting = self._waiting = Outcome[_T | None]()
        self._go_on()
        return waiting

    def end(self) -> None:
        """Stops taking items, and discards the waiting items. Idempotent."""
        with self._lock:
            stops = not (self._has_ended or self._is_at_work or (self._is_over and self._error is None))
            self._has_ended, self._error = True, None
            self._give_back(self._held_bytes + sum(size for _, size in self._made))
            self._made.clear()
        if stops:
            self._stop()
        self._go_on()  # ends a waiting consumer without an item

    def put(self, item: _T, size: int = 0, is_last: bool = False) -> bool:
        """Adds an item.

        Args:
          item: The item.
          size: The size of the item in bytes.
          is_last: Whether the item is known to be the last. The producer has then ended.

        Returns:
          Whether there is room for another item. If not, the producer must pause until it is started again.

        Raises:
          ClosedError: If the consumer has stopped taking items.
        """
        with self._lock:
            if self._has_ended:
                raise ClosedError("The consumer of these items has ended")
            self._made.append((item, size))
            self._is_over = is_last
            if self._budget is not None:
                self._budget.take(size)
        self._go_on()
        with self._lock:
            self._is_at_work = not (self._is_over or self._is_full)
            return self._is_at_work

    def finish(self, error: Exception | None = None) -> None:
        """Marks the end of the items, with or without an error. This is the last call of the producer."""
        with self._lock:
            self._is_at_work, self._is_over = False, True
            stops = self._has_ended and error is not None
            self._error = None if error is None or stops else without_own_frames(error)
        if stops:
            self._stop()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Starts the producer if there is room, and passes an item to the consumer if the consumer waits."""
        with self._lock:
            waiting, item, error = self._waiting, None, self._error
            if waiting is not None:
                self._give_back(self._held_bytes)
                if self._made:
                    (item, self._held_bytes), error = self._made.popleft(), None
                elif not (self._is_over or self._has_ended):
                    waiting = None
            if waiting is not None:
                self._waiting = None
            starts = not (self._is_at_work or self._is_over or self._has_ended or self._is_full)
            self._is_at_work = self._is_at_work or starts
        if starts:
            self._start()  # before the consumer starts to process its item
        if waiting is not None:
            waiting.set(item, error)

    def _give_back(self, size: int) -> None:
        """Returns bytes to the budget, and notes that the item taken last is released. The lock must be held."""
        if self._budget is not None:
            self._budget.take(-size)
        self._held_bytes = 0

    @property
    def _is_full(self) -> bool:
        """Whether the producer must wait for the consumer."""
        full = self._budget is not None and self._budget.is_full
        return len(self._made) >= self._most or (full and (bool(self._made) or self._waiting is None))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._made)} of {self._most} made>"


class MadeAhead(Ahead[_T]):
    """A queue of the items of an iterator. The iterator runs on threads, in the scope in which the queue was created.

    When the consumer ends, the iterator is closed on a thread. The scope's `is_wanted` then returns false, because a
    step that discards all elements would otherwise never end.

    Args:
      items: The iterator.
      threads: The threads on which the iterator runs.
      most: The maximum number of waiting items.
      size_of: Returns the number of bytes that an item takes from the budget.
      budget: The budget.
      is_last: Returns whether an item is known to be the last, so that no job needs to be abandoned at the end.
    """

    def __init__(
        self,
        items: Iterator[_T],
        threads: LeafThreads,
        most: int = AHEAD,
        size_of: Callable[[_T], int] = lambda item: 0,
        budget: Budget | None = None,
        is_last: Callable[[_T], bool] = lambda item: False,
    ) -> None:
        super().__init__(most, budget)
        self._items = items
        self._threads = threads
        self._size_of = size_of
        self._is_last = is_last
        self._job: Job[None] | None = None
        self._gone = gone = threading.Event()
        scope = current_scope()
        outer = dataset_scope().is_wanted
        self._scope = reading(scope, is_wanted=lambda: not gone.is_set() and (outer is None or outer()))

    def end(self) -> None:
        self._gone.set()
        super().end()
        if self._job is not None and not self._is_over:
            self._threads.abandon(self._job)

    def _start(self) -> None:
        with self._scope.entered():
            self._job = job = self._threads.submit(self._make)
        job.add_done_callback(self._has_made)

    def _make(self) -> None:
        for _ in range(_ITEMS_IN_A_TURN):
            item = next(self._items, None)
            if item is None:
                return self.finish()
            is_last = self._is_last(item) and next(self._items, None) is None
            if not self.put(item, self._size_of(item), is_last):
                return None
        return self._start()

    def _has_made(self, job: "Job[None]") -> None:
        error = job.exception()
        if error is not None and not isinstance(error, Exception):
            error = ResourceLimitError(f"Reading was interrupted by {type(error).__name__}")
        if error is not None:
            self.finish(error)

    def _stop(self) -> None:
        close: Callable[[], None] | None = getattr(self._items, "close", None)  # generators have this method
        if close is not None:
            with self._scope.entered(), contextlib.suppress(ClosedError):  # closed threads no longer use the iterator
                self._threads.submit(close)

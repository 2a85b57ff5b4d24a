"""Defines the memory budget of the data service: how many elements are held at each place, from a split to the user.

Elements travel in blocks, which wait in up to four places. Each place holds `AHEAD` blocks, or as many as its option
says:

| place | number of blocks | bytes per block |
| --- | --- | --- |
| at the worker, made but not sent | `AHEAD` for each stream | as requested; `max_ahead_bytes` in total |
| at the consumer, received | `AHEAD` for each worker; `max_outstanding_requests` if that is less | `SENT_BYTES` |
| at the consumer, for the user | `AHEAD` for each worker, or `max_outstanding_requests` | `SENT_BYTES` |
| behind a `prefetch` | as many as its argument says | `BLOCK_BYTES`; at a worker part of `max_gathered_bytes` |

By default a consumer thus holds `2 * AHEAD * SENT_BYTES`, 32 MiB, for each worker. All places but the third are an
`Ahead`, a bounded read-ahead; the third is the plan of the pass, which accounts for each block if a worker is lost.
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

# The maximum size of a block when it is made: enough rows to make the cost per block negligible, few enough bytes to
# stay in the cache. A data worker also sends blocks of this size to readers that request no other size.
BLOCK_ROWS = 1 << 13
BLOCK_BYTES = 1 << 20
# The size of the blocks that a consumer requests: large enough to make the cost per message negligible.
SENT_BYTES = 8 << 20
# How many bytes of the clients of a group of references are read ahead, in one call for each data worker.
CLIENTS_BYTES = 4 << 20
# How long an element may wait for later elements of its block, or for elements that travel with it.
SECONDS_TOGETHER = 0.005
# How many blocks wait at each place: one to take and one being made, so that neither side idles.
AHEAD = 2
# The number of items after which a producer that never pauses yields its thread to other work.
_ITEMS_IN_A_TURN = 16


class BlockSize:
    """The number of elements to make at a time: one at first, then more while they are small and quickly made.

    Attributes:
      rows: The number of elements.
    """

    def __init__(self, element: Type) -> None:
        self.rows = 1
        self._bytes_of = size_in(element)

    def note(self, block: Column, seconds: float) -> None:
        """Adapts the number to a block and the seconds that it took to make."""
        size = self._bytes_of(block)
        if seconds > SECONDS_TOGETHER or size > BLOCK_BYTES:
            self.rows = max(1, self.rows // 2)
        elif 2 * size <= BLOCK_BYTES:
            self.rows = min(BLOCK_ROWS, self.rows * 2)


def rows_at_once(element: Type) -> int:
    """Returns the number of elements of a type in a block."""
    size = exact_bytes(element)
    return BLOCK_ROWS if not size else max(1, min(BLOCK_ROWS, BLOCK_BYTES // size))


def size_in(element: Type) -> Callable[[Column], int]:
    """Returns a function that estimates the bytes of memory of the elements of a block, for blocks of one type."""
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
      most: The number of bytes.
      refusal: Makes the error for exceeding the budget, from a description of the demand. Without it `take` always
        succeeds, and producers check `is_full`.

    Attributes:
      taken: The number of bytes that are taken.
    """

    def __init__(self, most: int, refusal: Callable[[str], Exception] | None = None) -> None:
        self.taken = 0
        self._most = most
        self._refusal = refusal
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the whole budget is taken."""
        return self.taken >= self._most

    def take(self, size: int, what: str = "") -> None:
        """Takes bytes, or gives them back if the number is negative.

        Args:
          size: The number of bytes.
          what: The purpose of the bytes, for the refusal.

        Raises:
          Exception: The refusal, if the budget does not suffice.
        """
        with self._lock:
            if self._refusal is not None and size > 0 and self.taken + size > self._most:
                raise self._refusal(f"{size} more for {what}, beside {self.taken} that are gathered")
            self.taken += size

    def __repr__(self) -> str:
        return f"<Budget: {self.taken} of {self._most} bytes taken>"


class Ahead(abc.ABC, Generic[_T]):
    """Items that a producer makes and one consumer takes, in order. Either may run on any thread.

    A subclass defines how the producer is started. The producer puts items until there is no room, and is started again
    when the consumer has taken some.

    Args:
      most: The maximum number of items that wait.
      budget: A budget of bytes that also limits the items; but one item may be made whenever the consumer waits for it.
    """

    def __init__(self, most: int, budget: Budget | None = None) -> None:
        self._most = most
        self._budget = budget
        self._lock = threading.Lock()
        self._made: deque[tuple[_T, int]] = deque()
        self._held_bytes = 0  # of the item that the consumer took last
        self._waiting: Outcome[_T | None] | None = None
        self._is_at_work = self._is_over = self._has_ended = False
        self._error: Exception | None = None

    @abc.abstractmethod
    def _start(self) -> None:
        """Starts the producer, which puts items."""

    def _stop(self) -> None:
        """Ends an idle producer: the consumer takes no more items."""

    def take(self) -> Outcome[_T | None]:
        """Returns the next item once it is made; `None` after the last. Releases the bytes of the previous item."""
        waiting = self._waiting = Outcome[_T | None]()
        self._go_on()
        return waiting

    def end(self) -> None:
        """Takes no more items, and drops the items that wait. Idempotent."""
        with self._lock:
            stops = not (self._has_ended or self._is_at_work or (self._is_over and self._error is None))
            self._has_ended, self._error = True, None
            self._give_back(self._held_bytes + sum(size for _, size in self._made))
            self._made.clear()
        if stops:
            self._stop()
        self._go_on()  # without an item

    def put(self, item: _T, size: int = 0, is_last: bool = False) -> bool:
        """Adds an item of `size` bytes; returns whether there is room for another. If not, the producer pauses.

        After an item that is known to be the last, the producer has ended.

        Raises:
          ClosedError: If the consumer takes no more items.
        """
        with self._lock:
            if self._has_ended:
                raise ClosedError("Expected a consumer of items made ahead, found that it has ended")
            self._made.append((item, size))
            self._is_over = is_last
            if self._budget is not None:
                self._budget.take(size)
        self._go_on()
        with self._lock:
            self._is_at_work = not (self._is_over or self._is_full)
            return self._is_at_work

    def finish(self, error: Exception | None = None) -> None:
        """Ends the items, with or without an error. The producer calls it last, and is idle afterwards."""
        with self._lock:
            self._is_at_work, self._is_over = False, True
            stops = self._has_ended and error is not None
            self._error = None if error is None or stops else without_own_frames(error)
        if stops:
            self._stop()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Starts the producer if there is room, and hands out an item if the consumer waits for one."""
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
            self._start()  # before the consumer works on its item
        if waiting is not None:
            waiting.set(item, error)

    def _give_back(self, size: int) -> None:
        """Gives back bytes, including those of the item that was taken last. Call it under the lock."""
        if self._budget is not None:
            self._budget.take(-size)
        self._held_bytes = 0

    @property
    def _is_full(self) -> bool:
        """Whether the producer has to wait for the consumer."""
        full = self._budget is not None and self._budget.is_full
        return len(self._made) >= self._most or (full and (bool(self._made) or self._waiting is None))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._made)} of {self._most} made>"


class MadeAhead(Ahead[_T]):
    """Items of an iterator that runs on threads, in the scope in which this object is made.

    When the consumer ends, the iterator is closed on a thread. The scope then reports that its items are not wanted any
    more, since a step that leaves out all elements would otherwise never end.

    Args:
      items: The iterator.
      threads: The threads on which it runs.
      most: The maximum number of items that wait.
      size_of: Returns the number of bytes that an item takes of the budget.
      budget: The budget.
      is_last: Returns whether an item is known to be the last; no job is then abandoned at the end.
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
        close: Callable[[], None] | None = getattr(self._items, "close", None)  # of generators
        if close is not None:
            with self._scope.entered(), contextlib.suppress(ClosedError):  # if closed, nothing else uses the iterator
                self._threads.submit(close)

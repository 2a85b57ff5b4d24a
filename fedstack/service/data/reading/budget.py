"""Says how many elements are held where, from a split to the user: the memory budget of the data service.

Elements travel in blocks. These wait in up to four places, each of which holds `AHEAD` of them or what its option says:

| where | how many blocks | of how many bytes |
| --- | --- | --- |
| at the worker, made and not sent yet | `AHEAD` for each stream | asked for; all together `max_ahead_bytes` |
| at the consumer, received | `AHEAD` for each worker; `max_outstanding_requests` if that is less | `SENT_BYTES` |
| at the consumer, for the user | `AHEAD` for each worker, or `max_outstanding_requests` | `SENT_BYTES` |
| behind a `prefetch` | as many as that says | `BLOCK_BYTES`; at a worker part of `max_gathered_bytes` |

So a consumer holds `2 * AHEAD * SENT_BYTES`, 32 MiB, for each worker by default. All but the third are an `Ahead`, a
bounded read-ahead; the third is the plan of the pass, which knows what each block is worth when a worker is lost.
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
# The elements of a dataset, some at a time, each block with one element at least.
Blocks: TypeAlias = Iterator[Column]

# The most of a block where it is made: enough rows that the work per block does not count, few enough bytes to stay in
# the cache. A data worker also sends blocks of this size to readers that ask for no other.
BLOCK_ROWS = 1 << 13
BLOCK_BYTES = 1 << 20
# The blocks that a consumer asks for: large enough that the work per message does not count.
SENT_BYTES = 8 << 20
# How much is read ahead of the clients of a group of references, in one call for each data worker.
CLIENTS_BYTES = 4 << 20
# How long an element may wait for those after it in the same block, or for those that travel with it.
SECONDS_TOGETHER = 0.005
# How many blocks wait at each place: one to take and one in the making, so that neither side stands still.
AHEAD = 2
# A producer that never pauses gives its thread to other work after so many items.
_ITEMS_IN_A_TURN = 16


class BlockSize:
    """Says how many elements to make at a time: one at first, then more, as long as they are small and quickly made.

    Attributes:
      rows: How many.
    """

    def __init__(self, element: Type) -> None:
        self.rows = 1
        self._bytes_of = size_in(element)

    def note(self, block: Column, seconds: float) -> None:
        """Notes what was made, and how long that took."""
        size = self._bytes_of(block)
        if seconds > SECONDS_TOGETHER or size > BLOCK_BYTES:
            self.rows = max(1, self.rows // 2)
        elif 2 * size <= BLOCK_BYTES:
            self.rows = min(BLOCK_ROWS, self.rows * 2)


def rows_at_once(element: Type) -> int:
    """Returns how many elements of a type make a block."""
    size = exact_bytes(element)
    return BLOCK_ROWS if not size else max(1, min(BLOCK_ROWS, BLOCK_BYTES // size))


def size_in(element: Type) -> Callable[[Column], int]:
    """Returns what says about how much memory the elements of a block take, for many blocks of one type."""
    each = exact_bytes(element)
    if each:
        return lambda block: len(block) * each
    return lambda block: sum(known_bytes(item, element) for item in block.items())


def pieces(column: Column, rows: int, start: int = 0) -> Blocks:
    """Cuts a column into blocks of so many rows."""
    for first in range(start, len(column), rows):
        yield column.slice(first, min(first + rows, len(column)))


class Budget:
    """A number of bytes that several share.

    Args:
      most: The number.
      refusal: Makes the error for taking more, from a description of what was found. Without it `take` always
        succeeds, and producers look at `is_full`.

    Attributes:
      taken: How many are taken.
    """

    def __init__(self, most: int, refusal: Callable[[str], Exception] | None = None) -> None:
        self.taken = 0
        self._most = most
        self._refusal = refusal
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether all of it is taken."""
        return self.taken >= self._most

    def take(self, size: int, what: str = "") -> None:
        """Takes some; gives them back for a negative number.

        Args:
          size: How many.
          what: What they are for, for the refusal.

        Raises:
          Exception: The refusal, if there are not so many.
        """
        with self._lock:
            if self._refusal is not None and size > 0 and self.taken + size > self._most:
                raise self._refusal(f"{size} more for {what}, beside {self.taken} that are gathered")
            self.taken += size

    def __repr__(self) -> str:
        return f"<Budget: {self.taken} of {self._most} bytes taken>"


class Ahead(abc.ABC, Generic[_T]):
    """Items that a producer makes and one consumer takes, in that order. Any thread may be either.

    A subclass says how the producer is started. That puts items until there is no room, and is started again when the
    consumer has taken some.

    Args:
      most: How many items may wait.
      budget: What they take of it counts as well; but one item may be made whenever the consumer waits for it.
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
        """Has the producer put items."""

    def _stop(self) -> None:
        """Ends the producer, which is not at work: the consumer takes no more."""

    def take(self) -> Outcome[_T | None]:
        """Returns the next item, as soon as it is there; `None` after the last. The one before is done with."""
        waiting = self._waiting = Outcome[_T | None]()
        self._go_on()
        return waiting

    def end(self) -> None:
        """Takes no more items, and drops those that wait. Idempotent."""
        with self._lock:
            stops = not (self._has_ended or self._is_at_work or (self._is_over and self._error is None))
            self._has_ended, self._error = True, None
            self._give_back(self._held_bytes + sum(size for _, size in self._made))
            self._made.clear()
        if stops:
            self._stop()
        self._go_on()  # without an item

    def put(self, item: _T, size: int = 0, is_last: bool = False) -> bool:
        """Adds an item of so many bytes; returns whether there is room for another one. Else the producer pauses.

        After the last one, if that is known, the producer has ended.

        Raises:
          ClosedError: If the consumer takes no more.
        """
        with self._lock:
            if self._has_ended:
                raise ClosedError("Expected a consumer of what is made ahead, found that it has ended")
            self._made.append((item, size))
            self._is_over = is_last
            if self._budget is not None:
                self._budget.take(size)
        self._go_on()
        with self._lock:
            self._is_at_work = not (self._is_over or self._is_full)
            return self._is_at_work

    def finish(self, error: Exception | None = None) -> None:
        """Says that there are no more items, because of an error or without one; the producer is not at work then."""
        with self._lock:
            self._is_at_work, self._is_over = False, True
            stops = self._has_ended and error is not None
            self._error = None if error is None or stops else without_own_frames(error)
        if stops:
            self._stop()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Starts the producer if there is room, and hands out an item if it is waited for."""
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
            self._start()  # before the consumer works on what it gets
        if waiting is not None:
            waiting.set(item, error)

    def _give_back(self, size: int) -> None:
        """Gives back bytes, those of the item that was taken last among them. Under the lock."""
        if self._budget is not None:
            self._budget.take(-size)
        self._held_bytes = 0

    @property
    def _is_full(self) -> bool:
        """Whether there is nothing to do until the consumer asks."""
        full = self._budget is not None and self._budget.is_full
        return len(self._made) >= self._most or (full and (bool(self._made) or self._waiting is None))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._made)} of {self._most} made>"


class MadeAhead(Ahead[_T]):
    """Items of an iterator, which runs on threads, in the scope in which this is made.

    When the consumer ends, the iterator is closed on a thread. Its scope then says that its items are no longer wanted,
    since a step that leaves out all elements would never end.

    Args:
      items: The iterator.
      threads: Where it runs.
      most: How many items may wait.
      size_of: Returns how many bytes of the budget an item takes.
      budget: The budget.
      is_last: Returns whether it is known of an item that there are none after it: no job is given up for these.
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
            with self._scope.entered(), contextlib.suppress(ClosedError):  # then nothing else has the iterator
                self._threads.submit(close)

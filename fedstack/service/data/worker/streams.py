"""Makes blocks of elements a few ahead of whoever takes them, on threads."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import ResourceLimitError
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.foundations.traceback_filter import without_frames
from fedstack.service.data.datasets.blocks import reading
from fedstack.transport.peers.loop_calls import calls_on
from fedstack.transport.wire.parcels import Parcel

# How many blocks are made before somebody asks for them.
AHEAD = 2
# A stream that is read without a pause gives its thread to others now and then.
_BLOCKS_IN_A_TURN = 16


@attrs.frozen(eq=False)
class Block:
    """Some elements, ready to be sent.

    Attributes:
      parcel: They as a message; the last of the stream, if it is known that there are none after them.
      size: About how many bytes they take.
    """

    parcel: Parcel
    size: int


class AheadRoom:
    """Room for the blocks of all streams that are made and not sent yet, in bytes.

    Args:
      most: How many bytes there may be of them, but for one block of each stream that somebody waits for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        return self._taken >= self._most

    def take(self, size: int) -> None:
        """Takes room; gives it back for a negative number."""
        with self._lock:
            self._taken += size

    def __repr__(self) -> str:
        return f"<AheadRoom: {self._taken} of {self._most} bytes taken>"


class Stream:
    """Blocks that are made one after the other, on a thread, and taken in that order.

    It belongs to the loop on which it was made.

    Args:
      blocks: Makes them.
      threads: Where that runs.
      scope: For whom.
      room: Has room for those that are made ahead.
    """

    def __init__(self, blocks: Iterator[Block], threads: LeafThreads, scope: WorkScope, room: AheadRoom) -> None:
        self._blocks = blocks
        self._threads = threads
        # Steps that leave out all that they get would go on for ever.
        self._gone = gone = threading.Event()
        self._scope = reading(scope, is_wanted=lambda: not gone.is_set())
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._made: deque[Block] = deque()
        self._sent_bytes = 0
        self._waiting: asyncio.Future[Block | None] | None = None
        self._job: Job[bool] | None = None
        self._is_over = False
        self._failure: Exception | None = None
        self._has_ended = False

    def next(self) -> "asyncio.Future[Block | None]":
        """Returns the next block as a future: `None` after the last one. The one before has been sent."""
        self._has_sent()
        self._waiting = self._loop.create_future()
        self._hand_out()
        return self._waiting

    def end(self) -> None:
        """Makes no more blocks; nobody waits for one. Idempotent."""
        self._has_sent()
        self._gone.set()
        if self._has_ended:
            return
        with self._lock:
            self._has_ended = True
            self._room.take(-sum(block.size for block in self._made))
            self._made.clear()
        job = self._job
        if job is not None:
            self._threads.abandon(job)
        if job is None or job.cancelled():
            self._start(self._close)

    def _has_sent(self) -> None:
        self._room.take(-self._sent_bytes)
        self._sent_bytes = 0

    def _hand_out(self) -> None:
        """Gives a block to who waits for it, and has more made."""
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            if self._made:
                block = self._made.popleft()
                self._sent_bytes = block.size
                waiting.set_result(block)
                if block.parcel.is_last:
                    self._has_ended = True
                    if self._job is None and not self._is_over:  # else it comes to its end by itself
                        self._start(self._close)
            elif self._failure is not None:
                self._has_ended = True
                waiting.set_exception(self._failure)
            elif self._is_over:
                self._has_ended = True
                waiting.set_result(None)
        if not (self._has_ended or self._is_over or self._failure or self._is_full) and self._job is None:
            self._job = self._start(self._make)
            self._job.add_done_callback(lambda job: self._on_loop(lambda: self._has_made(job)))

    @property
    def _is_full(self) -> bool:
        """Whether there is nothing to do until somebody asks."""
        ahead, waiting = len(self._made), self._waiting
        is_waited_for = waiting is not None and not waiting.done()
        return ahead >= AHEAD or (self._room.is_full and (ahead > 0 or not is_waited_for))

    def _start(self, work: Callable[[], bool]) -> Job[bool]:
        with self._scope.entered():
            return self._threads.submit(work)

    def _on_loop(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits
            calls_on(self._loop).add(function)

    def _make(self) -> bool:
        """Makes blocks while there is room for them; returns whether there are no more. On a thread."""
        for _ in range(_BLOCKS_IN_A_TURN):
            block = next(self._blocks, None)
            with self._lock:
                if block is None or self._has_ended:
                    break
                self._made.append(block)
                self._room.take(block.size)
            self._on_loop(self._hand_out)
            if self._is_full:
                return False
        else:
            return False
        return self._close()

    def _close(self) -> bool:
        close: Callable[[], None] | None = getattr(self._blocks, "close", None)  # of generators
        if close is not None:
            close()
        return True

    def _has_made(self, job: Job[bool]) -> None:
        """Is called on the loop when a thread has done its turn."""
        self._job = None
        if job.cancelled():
            return
        error = job.exception()
        if self._has_ended:
            if error is None and not job.result():  # it had done its turn before it could see the end
                self._start(self._close)
            return
        if isinstance(error, Exception):
            self._failure = without_frames(error)
        elif error is not None:
            self._failure = ResourceLimitError(f"Reading was interrupted by {type(error).__name__}")
        else:
            self._is_over = job.result()
        self._hand_out()

"""Keeps what is being read: streams of blocks that are made a few ahead, on threads, and asked for by number."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence

import attrs

from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import FedstackError, InvalidValueError, ResourceLimitError, StaleSessionError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.thread_pool import Job
from fedstack.foundations.traceback_filter import consume_exception, without_frames
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service.limits.fair_shares import FairShares
from fedstack.transport.peers.loop_calls import calls_on
from fedstack.transport.wire.parcels import Parcel

# How many blocks are made before somebody asks for them.
AHEAD = 2
# How many somebody may ask for before the first of them is there.
_MOST_WAITING = 64
# A stream that is read without a pause gives its thread to others now and then.
_BLOCKS_IN_A_TURN = 16
# How many streams are remembered that have been read to their end: more of them may have been asked for.
_MOST_FINISHED = 4096


@attrs.frozen(eq=False)
class Block:
    """Some elements, ready to be sent.

    Attributes:
      parcel: They as a message.
      is_last: Whether it is known that there are none after them.
      size: About how many bytes they take.
    """

    parcel: Parcel
    is_last: bool
    size: int


class AheadRoom:
    """Room for the blocks of all streams that nobody has asked for yet, in bytes.

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
    """Blocks that are made one after the other, on a thread, and handed out by number; each of them once.

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
        self._scope = scope
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._made: deque[Block] = deque()
        self._waiting: dict[int, asyncio.Future[Block | None]] = {}
        self._next = 0
        self._job: Job[bool] | None = None
        self._is_over = False
        self._failure: Exception | None = None
        self.has_ended = False

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for the next block, and not only for one after it that is never asked for."""
        return self._next in self._waiting

    def ask(self, number: int) -> "asyncio.Future[Block | None]":
        """Returns the block of a number as a future: `None` after the last one. To cancel it ends the stream.

        Raises:
          InvalidValueError: If it has been asked for before, or many before it have not.
        """
        if self.has_ended:
            raise _ended()
        if number < self._next or number in self._waiting or number >= self._next + _MOST_WAITING:
            raise InvalidValueError(
                f"Expected block {self._next} of a stream, or one of the {_MOST_WAITING} after it that nobody has "
                f"asked for, found {number}; ask for each once, and begin a new stream to have one again"
            )
        future: asyncio.Future[Block | None] = self._loop.create_future()
        self._waiting[number] = future
        future.add_done_callback(self._on_done)
        self._hand_out()
        return future

    def _on_done(self, future: "asyncio.Future[Block | None]") -> None:
        if future.cancelled():  # what it was to have would be missing
            self.end()

    def end(self) -> None:
        """Makes no more blocks. Whoever waits for one gets an error. Idempotent."""
        if self.has_ended:
            return
        with self._lock:
            self.has_ended = True
            self._room.take(-sum(block.size for block in self._made))
            self._made.clear()
        job = self._job
        if job is not None:
            self._threads.abandon(job)
        if job is None or job.cancelled():
            self._start(self._close)
        self._fail(_ended())

    def _hand_out(self) -> None:
        """Gives blocks that are made to those who wait for them, and has more made."""
        while self._made and self._next in self._waiting:
            block = self._made.popleft()
            self._room.take(-block.size)
            self._pass_on(block)
        if self._failure is not None and not self._made:
            self._fail(self._failure)
        elif self._is_over and not self._made:
            while self._next in self._waiting:
                self._pass_on(None)
        elif not (self.has_ended or self._is_over or self._is_full) and self._job is None:
            self._job = self._start(self._make)
            self._job.add_done_callback(lambda job: self._on_loop(lambda: self._has_made(job)))

    @property
    def _is_full(self) -> bool:
        """Whether there is nothing to do until somebody asks."""
        ahead = len(self._made)
        return ahead >= AHEAD or (self._room.is_full and (ahead > 0 or not self._waiting))

    def _pass_on(self, block: Block | None) -> None:
        future = self._waiting.pop(self._next)
        self._next += 1
        if not future.done():
            future.set_result(block)

    def _fail(self, failure: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(failure)
                consume_exception(future)

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
                if block is None or self.has_ended:
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
        if self.has_ended:
            if job.exception() is None and not job.result():  # it had done its turn before it could see the end
                self._start(self._close)
            return
        error = job.exception()
        if isinstance(error, Exception):
            self._failure = without_frames(error)
        elif error is not None:
            self._failure = ResourceLimitError(f"Reading was interrupted by {type(error).__name__}")
        else:
            self._is_over = job.result()
        self._hand_out()


def _ended() -> StaleSessionError:
    return StaleSessionError("The stream has ended before it was read to its end; begin a new one with block 0")


@attrs.define(eq=False)
class _Open:
    """A stream, what it is of, who reads it, and until when it is kept."""

    stream: Stream
    what: Hashable
    caller: str
    until: float


class StreamTable:
    """The streams that are open, by the ids that those who read them have drawn. It belongs to one loop.

    Args:
      most: How many there may be; one reader has half of them while others are there.
      lease_seconds: How long one is kept that nobody asks.
      refusal: Returns the error for one more than there may be.
    """

    def __init__(self, most: int, lease_seconds: float, refusal: Callable[[str], FedstackError]) -> None:
        self._lease_seconds = lease_seconds
        self._refusal = refusal
        self._places = FairShares(most)
        self._open: dict[bytes, _Open] = {}
        self._finished: dict[bytes, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def find(self, id: bytes, what: Hashable) -> Stream | None:
        """Returns a stream, and renews its lease; `None` for one that has been read to its end.

        Raises:
          StaleSessionError: If there is none.
          InvalidValueError: If it is of something else.
        """
        found = self._open.get(id)
        if found is None:
            if id in self._finished:
                return None
            raise StaleSessionError(
                "Expected a stream that is open here, found none of that id: it has ended, nobody asked for its blocks "
                f"for {self._lease_seconds:g} s, or the worker was started anew; begin a new one with block 0"
            )
        if found.what != what:
            raise InvalidValueError(
                "Expected a request for the same elements as the one before it in the stream, found one for others; "
                "begin another stream"
            )
        found.until = self._now + self._lease_seconds
        return found.stream

    def open(self, id: bytes, what: Hashable, caller: str, begin: Callable[[], Stream]) -> Stream:
        """Opens a stream.

        Raises:
          InvalidValueError: If there is one of that id.
          ResourceLimitError: If there is no place for it.
        """
        if id in self._open:
            raise InvalidValueError(
                "Expected the id of a new stream with block 0, found one that is open; draw another"
            )
        if not self._places.take(caller):
            raise self._refusal(self._places.refused)
        try:
            stream = begin()
        except BaseException:
            self._places.give_back(caller)
            raise
        self._finished.pop(id, None)
        self._open[id] = _Open(stream, what, caller, self._now + self._lease_seconds)
        if self._timer is None:
            self._sweep_later()
        return stream

    def finish(self, id: bytes, stream: Stream) -> None:
        """Forgets a stream that has been read to its end, or failed, but for that there was one."""
        found = self._open.get(id)
        if found is not None and found.stream is stream:
            self._remove(id)
            self._finished[id] = None
            if len(self._finished) > _MOST_FINISHED:
                del self._finished[next(iter(self._finished))]

    def fail(self, id: bytes, stream: Stream) -> None:
        """Ends a stream that has failed, or that somebody has stopped waiting for."""
        found = self._open.get(id)
        if found is not None and found.stream is stream:
            self.end(id)

    def end(self, id: bytes) -> None:
        """Ends a stream, if there is one."""
        self._finished.pop(id, None)
        if id in self._open:
            self._remove(id).end()

    def end_all(self) -> None:
        """Ends all of them."""
        for id in tuple(self._open):
            self.end(id)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remove(self, id: bytes) -> Stream:
        found = self._open.pop(id)
        self._places.give_back(found.caller)
        return found.stream

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _sweep_later(self) -> None:
        seconds = min((found.until for found in self._open.values()), default=self._now) - self._now
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.01), self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        for id, found in tuple(self._open.items()):
            if found.stream.is_waited_for:
                found.until = self._now + self._lease_seconds
            elif found.until <= self._now:
                self.end(id)
        if self._open:
            self._sweep_later()

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        """What is kept for those who read, and how long."""
        full, now = self._lease_seconds, self._now
        return [
            GetStatusResponse.Session(
                id=id.hex()[:8], lease_seconds_left=full if one.stream.is_waited_for else max(0.0, one.until - now)
            )
            for id, one in self._open.items()
        ]

    def __contains__(self, id: bytes) -> bool:
        return id in self._open

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<StreamTable of {len(self)}>"

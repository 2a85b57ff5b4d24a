"""Defines `Deadline`, which limits awaiting, blocking and retrying, and the cheap timers on which it is built.

Creating and cancelling an asyncio timer takes a tenth of the time of a small call, and each call has two timers that
almost always end before they are due. Therefore all timers of a loop share a single asyncio timer (see `LoopTimers`).
"""

import asyncio
import concurrent.futures
import contextvars
import heapq
import itertools
import math
import sys
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from fedstack.foundations.traceback_filter import consume_exception

_T = TypeVar("_T")
# Timers that have ended are removed from the heap once it has at least this many entries.
_MANY = 100
# Work that catches its cancellation is cancelled again after this time.
_AGAIN_SECONDS = 1.0


class LoopTimer:
    """Calls a function at a given time, unless the timer is ended first. Created by `LoopTimers.call_at`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def end(self) -> None:
        """Cancels the timer. This method is idempotent."""
        self.call = None


class LoopTimers:
    """The timers of one event loop. They may be used on that loop only, and the functions they call must not raise.

    Args:
      loop: The event loop. It references this object as long as a timer is pending.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[tuple[float, int, LoopTimer]] = []  # a heap, which may contain ended timers
        self._numbers = itertools.count()
        self._most = _MANY
        self._next: asyncio.TimerHandle | None = None

    def call_at(self, when: float, call: Callable[[], object]) -> LoopTimer:
        """Schedules a function to be called in an empty context at the given time of the loop's clock."""
        timer = LoopTimer(call)
        if len(self._timers) >= self._most:
            self._timers = [one for one in self._timers if one[2].call is not None]
            heapq.heapify(self._timers)
            self._most = max(_MANY, 2 * len(self._timers))
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        if self._next is None or when < self._next.when():
            self._wait()
        return timer

    def _wait(self) -> None:
        """Sets the loop's own timer to the time at which the first timer is due."""
        if self._next is not None:
            self._next.cancel()
        when = self._timers[0][0]
        self._next = self._loop.call_at(when, self._due, when, context=contextvars.Context())

    def _due(self, when: float) -> None:
        self._next = None
        due: list[LoopTimer] = []  # without timers that these set for the same time: a loop may call a moment early
        while self._timers and (self._timers[0][0] <= when or self._timers[0][2].call is None):
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            if timer.call is not None:
                timer.call()
        if self._timers:
            self._wait()


# The references are weak because timers may refer to their loop.
_timers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopTimers]]" = weakref.WeakKeyDictionary()


def timers_on(loop: asyncio.AbstractEventLoop) -> LoopTimers:
    """Returns the timers of an event loop, which are created on first use."""
    known = _timers.get(loop)
    found = None if known is None else known()
    if found is None:
        found = LoopTimers(loop)
        _timers[loop] = weakref.ref(found)
    return found


def clock_here() -> Callable[[], float]:
    """Returns the clock of the running event loop, which may be simulated, or else the system's monotonic clock."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        return time.monotonic


class Deadline:
    """A fixed point in time by which work must be done. Successive waits share the remaining time.

        deadline = Deadline(5.0)
        await deadline.wait(connect())
        return await deadline.wait(answer(), lambda: DeadlineExceededError("..."))

    Args:
      seconds: The time from now until the deadline; `None` or infinity for no limit.
      clock: Returns the time in seconds.
    """

    __slots__ = ("_at", "_clock")

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float | None:
        """The remaining time in seconds, at least 0; `None` if there is no limit."""
        return None if self._at == math.inf else max(0.0, self._at - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() >= self._at

    async def wait(self, work: Awaitable[_T], late: Callable[[], Exception] = asyncio.TimeoutError) -> _T:
        """Returns the result of `work`, or cancels `work` at the deadline and waits until it has ended.

        The work starts even if the deadline has passed. Unlike `asyncio.wait_for` before Python 3.12, this method never
        loses a cancellation from outside. A TimeoutError that the work itself raises is passed on unchanged. On Python
        3.11 and later the work runs in the caller's task, because a separate task would make a small call take a tenth
        longer.

        Args:
          work: A coroutine or a future.
          late: Returns the error to raise at the deadline.
        """
        left = self.left
        if left is None:
            return await work
        if sys.version_info < (3, 11):
            return await _in_task(work, left, late)
        limit = _TimeLimit(left)
        try:
            return await work
        except (Exception, asyncio.CancelledError):
            if limit.is_cancelled_from_outside:
                raise asyncio.CancelledError from None
            if limit.is_over:
                raise late() from None
            raise
        finally:
            limit.end()

    async def has_ended(self, *work: "asyncio.Future[Any]") -> bool:
        """Waits for futures and returns whether all of them ended before the deadline. Never cancels a future."""
        if not all(one.done() for one in work):
            await asyncio.wait(work, timeout=self.left)
        return all(one.done() for one in work)

    def wait_blocking(
        self, result: Callable[[float | None], _T], late: Callable[[], Exception] = asyncio.TimeoutError
    ) -> _T:
        """Blocks this thread until another thread has a result, and returns the result. Never cancels the work.

        Args:
          result: Accepts a timeout in seconds, and returns the result or raises TimeoutError, as `Future.result` does.
          late: Returns the error to raise at the deadline.
        """
        try:
            return result(self.left)
        except (TimeoutError, concurrent.futures.TimeoutError):
            if self.is_over:
                raise late() from None
            raise

    def attempts(self, pauses: Iterable[float]) -> AsyncIterator[int]:
        """Yields attempt numbers, starting at 0, until the pauses are exhausted or the deadline has passed.

        Loops that sleep between repetitions use this method or `attempts_blocking`; a test in `tests/project` rejects
        other loops that sleep. To have a function compute each pause, pass `iter(function, None)`.

        Args:
          pauses: The pause after each attempt, in seconds. The last pause is shortened so that the last attempt
            starts at the deadline.
        """
        return _Attempts(self, pauses)

    def attempts_blocking(self, pauses: Iterable[float]) -> Iterator[int]:
        """Yields attempt numbers like `attempts`, but blocks the thread during the pauses."""
        yield 0
        for number, pause in enumerate(pauses, 1):
            if self.is_over:
                return
            time.sleep(_shorter(pause, self.left))
            yield number

    def __repr__(self) -> str:
        return "<Deadline never>" if self.left is None else f"<Deadline in {self.left:.3g} s>"


class _Attempts(AsyncIterator[int]):
    """Iterates over attempt numbers, pausing between attempts.

    It is not a generator, because asyncio would create a task to close the generator when a caller leaves its loop.
    """

    def __init__(self, deadline: Deadline, pauses: Iterable[float]) -> None:
        self._deadline = deadline
        self._pauses = iter(pauses)
        self._next = 0

    async def __anext__(self) -> int:
        if self._next:
            pause = next(self._pauses, None)
            if pause is None or self._deadline.is_over:
                raise StopAsyncIteration
            await asyncio.sleep(_shorter(pause, self._deadline.left))
        self._next += 1
        return self._next - 1


class _TimeLimit:
    """Cancels the current task when its time is over, and again at intervals until the awaited work has ended."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline requires a running task"
        self._task: asyncio.Task[Any] = task
        self._loop = asyncio.get_running_loop()
        self._before = _cancelling(task)
        self._requests = 0
        self._wait(seconds)

    @property
    def is_over(self) -> bool:
        return self._requests > 0

    @property
    def is_cancelled_from_outside(self) -> bool:
        return _cancelling(self._task) > self._before + self._requests

    def _wait(self, seconds: float) -> None:
        self._timer = timers_on(self._loop).call_at(self._loop.time() + seconds, self._due)

    def _due(self) -> None:
        self._requests += 1
        self._task.cancel()
        self._wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """Ends the limit and withdraws its cancellation requests."""
        self._timer.end()
        for _ in range(self._requests):
            getattr(self._task, "uncancel")()  # noqa: B009  # Python 3.10 lacks it, but does not use this class
        del self._task  # breaks the reference cycle of the task, its error's frames and this object


def _cancelling(task: "asyncio.Task[Any]") -> int:
    return getattr(task, "cancelling")()  # noqa: B009


async def _in_task(work: Awaitable[_T], seconds: float, late: Callable[[], Exception]) -> _T:
    """Implements `Deadline.wait` with a separate task for Python 3.10, which does not count cancellation requests."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        is_late = not task.done()
        if is_late:
            task.cancel()
            await asyncio.wait([task])
        if is_late and (task.cancelled() or task.exception() is not None):
            raise late() from None
        return task.result()
    except asyncio.CancelledError:
        task.add_done_callback(consume_exception)  # the caller sees only the cancellation
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        raise
    finally:
        del task  # breaks a reference cycle: the task's error references this frame


def growing_pauses(first: float, longest: float) -> Iterator[float]:
    """Yields an endless series of pauses in seconds. Each is twice as long as the previous one, up to `longest`."""
    while True:
        yield first
        first = min(2 * first, longest)


async def let_others_run() -> None:
    """Yields to the event loop once, so that other tasks can run between the steps of long work."""
    await asyncio.sleep(0)


def _shorter(seconds: float, left: float | None) -> float:
    return seconds if left is None else min(seconds, left)

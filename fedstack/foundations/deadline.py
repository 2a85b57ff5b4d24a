"""Defines deadlines: one value that bounds awaiting, blocking and retrying; and the cheap timers below it.

Creating and cancelling a timer of asyncio takes a tenth of the time of a small call, and a call has two that nearly
always end before they are due. So all timers of a loop (`LoopTimers`) share the one that is due first.
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
# From this number of timers on, those that have ended are cleared away.
_MANY = 100
# Work that has caught its cancellation is cancelled again after this time.
_AGAIN_SECONDS = 1.0


class LoopTimer:
    """Calls a function when it is due, unless it has ended before. Made by `LoopTimers.call_at`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def end(self) -> None:
        """Cancels the call. Idempotent."""
        self.call = None


class LoopTimers:
    """The timers of one event loop, used on that loop only. The functions they call must not raise.

    Args:
      loop: The loop, which references this object as long as there is a timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[tuple[float, int, LoopTimer]] = []  # a heap, in which ended timers stay for a while
        self._numbers = itertools.count()
        self._most = _MANY
        self._next: asyncio.TimerHandle | None = None

    def call_at(self, when: float, call: Callable[[], object]) -> LoopTimer:
        """Calls a function at the given time of the loop, in an empty context."""
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
        """Sets the loop's own timer to when the first timer is due."""
        if self._next is not None:
            self._next.cancel()
        when = self._timers[0][0]
        self._next = self._loop.call_at(when, self._due, when, context=contextvars.Context())

    def _due(self, when: float) -> None:
        self._next = None
        while self._timers and (self._timers[0][0] <= when or self._timers[0][2].call is None):
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
        if self._timers:
            self._wait()


# Weak, because timers may refer to their loop.
_timers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopTimers]]" = weakref.WeakKeyDictionary()


def timers_on(loop: asyncio.AbstractEventLoop) -> LoopTimers:
    """Returns the timers of a loop."""
    known = _timers.get(loop)
    found = None if known is None else known()
    if found is None:
        found = LoopTimers(loop)
        _timers[loop] = weakref.ref(found)
    return found


class Deadline:
    """The moment by which something has to be done. It is fixed: each wait has the time that earlier waits have left.

        deadline = Deadline(5.0)
        await deadline.wait(connect())
        return await deadline.wait(answer(), lambda: DeadlineExceededError("..."))

    Args:
      seconds: How long from now; `None` or infinity for no limit.
      clock: Returns the time in seconds.
    """

    __slots__ = ("_at", "_clock")

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float | None:
        """The time left, in seconds, at least 0; `None` for no limit."""
        return None if self._at == math.inf else max(0.0, self._at - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() >= self._at

    async def wait(self, work: Awaitable[_T], late: Callable[[], Exception] = asyncio.TimeoutError) -> _T:
        """Returns the result of work, or cancels it at the deadline and waits until it has ended.

        Work begins even if the deadline has passed. Cancellations from outside are not lost, as `asyncio.wait_for`
        loses them before Python 3.12, and a TimeoutError of the work itself is raised as it is. From Python 3.11 on the
        work gets no task of its own, which would cost a small call a tenth of its time.

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
        """Waits for futures, and returns whether all have ended in time. It cancels none."""
        if not all(one.done() for one in work):
            await asyncio.wait(work, timeout=self.left)
        return all(one.done() for one in work)

    def wait_blocking(
        self, result: Callable[[float | None], _T], late: Callable[[], Exception] = asyncio.TimeoutError
    ) -> _T:
        """Blocks this thread until another one has a result, and returns that. At the deadline nothing is cancelled.

        Args:
          result: Returns the result within the given seconds, as `Future.result` does, or raises TimeoutError.
          late: Returns the error to raise at the deadline.
        """
        try:
            return result(self.left)
        except (TimeoutError, concurrent.futures.TimeoutError):
            if self.is_over:
                raise late() from None
            raise

    def attempts(self, pauses: Iterable[float]) -> AsyncIterator[int]:
        """Counts attempts from 0 on, with a pause after each, until there are no more pauses or the time is over.

        This is how fedstack does anything again and again, whether for a while or for ever: `tests/project` finds all
        other loops that sleep. `iter(pause, None)` gives pauses that a function returns.

        Args:
          pauses: How long to wait after each attempt, in seconds; the last attempt is made when the time is over.
        """
        return _Attempts(self, pauses)

    def attempts_blocking(self, pauses: Iterable[float]) -> Iterator[int]:
        """Yields what `attempts` does, on a thread without an event loop."""
        yield 0
        for number, pause in enumerate(pauses, 1):
            if self.is_over:
                return
            time.sleep(_shorter(pause, self.left))
            yield number

    def __repr__(self) -> str:
        return "<Deadline never>" if self.left is None else f"<Deadline in {self.left:.3g} s>"


class _Attempts(AsyncIterator[int]):
    """Counts attempts for one loop. As a generator it would be closed by a task of its own when the loop is left."""

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
    """Cancels the current task when the time is over, and again until the work that the task awaits has ended."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline is for a task"
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
        """Ends the limit, and takes back its cancellations."""
        self._timer.end()
        for _ in range(self._requests):
            getattr(self._task, "uncancel")()  # noqa: B009  # not on Python 3.10, where this class is not used


def _cancelling(task: "asyncio.Task[Any]") -> int:
    return getattr(task, "cancelling")()  # noqa: B009


async def _in_task(work: Awaitable[_T], seconds: float, late: Callable[[], Exception]) -> _T:
    """Implements `Deadline.wait` with a task, for Python 3.10, which does not count cancellations."""
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
        task.add_done_callback(consume_exception)  # the caller gets the cancellation, and nothing else
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        raise
    finally:
        del task  # its error references this frame


def growing_pauses(first: float, longest: float) -> Iterator[float]:
    """Yields pauses without end, each twice as long as the one before, up to the longest."""
    while True:
        yield first
        first = min(2 * first, longest)


async def let_others_run() -> None:
    """Gives what else is ready on the loop its turn, in the middle of work that takes many steps."""
    await asyncio.sleep(0)


def _shorter(seconds: float, left: float | None) -> float:
    return seconds if left is None else min(seconds, left)

"""Defines how long something may take: one value for what is awaited, what blocks a thread, and what is tried again."""

import asyncio
import concurrent.futures
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from fedstack.foundations.loop_timers import timers_on
from fedstack.foundations.traceback_filter import consume_exception

_T = TypeVar("_T")
# After so long work that has caught its cancellation is cancelled once more.
_AGAIN_SECONDS = 1.0


class Deadline:
    """The moment by which something has to be done. It does not move: each wait has what the ones before have left.

        deadline = Deadline(5.0)
        await deadline.wait(connect())
        return await deadline.wait(answer(), lambda: DeadlineExceededError("..."))

    Args:
      seconds: How long there is from now on; `None` or infinity for any time.
      clock: Returns the time in seconds.
    """

    __slots__ = ("_at", "_clock")

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float | None:
        """How long there still is, in seconds, at least 0; `None` for any time."""
        return None if self._at == math.inf else max(0.0, self._at - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._clock() >= self._at

    async def wait(self, work: Awaitable[_T], late: Callable[[], Exception] = asyncio.TimeoutError) -> _T:
        """Returns the result of work, which is cancelled when the time is over, and has ended then.

        Work begins even if the time is over. No cancellation from outside is lost, as `asyncio.wait_for` loses one
        before Python 3.12, and a TimeoutError of the work's own is raised as such. From Python 3.11 on the work gets no
        task of its own, as that costs a small call a tenth of its time.

        Args:
          work: A coroutine or a future.
          late: Returns the error to raise when the time is over.
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
        """Waits for futures, and returns whether all have ended in time; they are left alone if not."""
        if not all(one.done() for one in work):
            await asyncio.wait(work, timeout=self.left)
        return all(one.done() for one in work)

    def wait_blocking(
        self, result: Callable[[float | None], _T], late: Callable[[], Exception] = asyncio.TimeoutError
    ) -> _T:
        """Returns what another thread makes, and blocks this one until then; nothing is cancelled when it is late.

        Args:
          result: Returns it within so many seconds, such as the `result` of a future, or raises TimeoutError.
          late: Returns the error to raise when the time is over.
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
        """Does what `attempts` does, for a thread without an event loop."""
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
    """Cancels the current task when its time is over, and again until that has ended what the task awaits."""

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
        """Lets the task go on after this."""
        self._timer.end()
        for _ in range(self._requests):
            getattr(self._task, "uncancel")()  # noqa: B009  # not on Python 3.10, where this class is not used


def _cancelling(task: "asyncio.Task[Any]") -> int:
    return getattr(task, "cancelling")()  # noqa: B009


async def _in_task(work: Awaitable[_T], seconds: float, late: Callable[[], Exception]) -> _T:
    """Does what `Deadline.wait` does in a task of its own, for a Python that does not count cancellations."""
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
        del task  # an error of it has this frame


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

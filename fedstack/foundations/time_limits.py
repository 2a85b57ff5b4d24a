"""Awaits something for so long at most."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fedstack.foundations.loop_timers import timers_on
from fedstack.foundations.traceback_filter import consume_exception

_T = TypeVar("_T")
_MOST_SECONDS = 1e6
_AGAIN_SECONDS = 1.0


async def within_seconds(work: Awaitable[_T], seconds: float | None) -> _T:
    """Returns the result of work, which is cancelled if it takes longer. No cancellation from outside is lost.

    Before Python 3.12 `asyncio.wait_for` loses one that comes in the same step as the result, and the cancelled task
    goes on. Here the result is dropped. A caller that would have to give it back passes a task, and looks at that.

    Args:
      work: A coroutine, or a future, which is cancelled as well.
      seconds: For how long; `None` for any time.

    Raises:
      asyncio.TimeoutError: If it takes longer.
    """
    if sys.version_info >= (3, 12) and (seconds is None or seconds > 0):  # without time it would begin no work
        return await asyncio.wait_for(work, seconds)
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        is_late = not task.done()
        if is_late:
            task.cancel()
            await asyncio.wait([task])
        if is_late and task.cancelled():
            raise asyncio.TimeoutError
        return task.result()
    except asyncio.CancelledError:
        task.add_done_callback(consume_exception)  # the caller is told of the cancellation, and of nothing else
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        raise
    finally:
        del task  # an error of it has this frame


async def within(seconds: float, work: Coroutine[Any, Any, _T], late: Callable[[], Exception]) -> _T:
    """Awaits work, and cancels it when its time is over. Zero, and what is no positive number, is any time.

    Not by `asyncio.wait_for`, which cannot tell its own TimeoutError from one of the work's. And without a task of its
    own for the work, as that costs a small call a tenth of its time.

    Args:
      seconds: How long it may take.
      work: What to await.
      late: Returns the error to raise then.
    """
    if not 0.0 < seconds < _MOST_SECONDS:  # NaN is neither
        return await work
    deadline = _Deadline(seconds)
    try:
        return await work
    except (Exception, asyncio.CancelledError):
        if deadline.is_cause():
            raise late() from None
        raise
    finally:
        deadline.end()


class _Deadline:
    """Cancels the current task when its time is over, and again until that has ended what the task awaits."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "a deadline is for a task"
        self._task: asyncio.Task[Any] = task
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._timer = timers_on(self._loop).call_at(self._loop.time() + seconds, self._due)

    def _due(self) -> None:
        self._requests += 1
        self._task.cancel()
        self._wait(_AGAIN_SECONDS)

    def is_cause(self) -> bool:
        """Returns whether the task was cancelled for this, and for nothing else as far as this Python can tell."""
        cancelling = getattr(self._task, "cancelling", None)
        return self._requests > 0 and (cancelling is None or cancelling() <= self._requests)

    def end(self) -> None:
        """Lets the task go on after this."""
        self._timer.end()
        uncancel = getattr(self._task, "uncancel", None)
        if uncancel is not None:
            for _ in range(self._requests):
                uncancel()

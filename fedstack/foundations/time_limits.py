"""Awaits something for so long at most."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

from fedstack.foundations.traceback_filter import consume_exception

_T = TypeVar("_T")


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

"""Gives work so many seconds."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fedstack.executors.concurrency.side_by_side import end_all

_T = TypeVar("_T")
_MOST_SECONDS = 1e6


async def within(seconds: float, work: Coroutine[Any, Any, _T], late: Callable[[], Exception]) -> _T:
    """Awaits work, and cancels it when its time is over. Zero, and what is no positive number, is any time.

    Not by `asyncio.wait_for`, which cannot tell its own TimeoutError from one of the work's.

    Args:
      seconds: How long it may take.
      work: What to await.
      late: Returns the error to raise then.
    """
    if not 0.0 < seconds < _MOST_SECONDS:  # NaN is neither
        return await work
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise late()
    except BaseException as error:
        await end_all([task], error)
        raise
    return task.result()

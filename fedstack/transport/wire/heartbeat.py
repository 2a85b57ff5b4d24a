"""Notices when a peer that should give signs of life has been silent for too long."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Final, TypeVar, cast

from fedstack.computations.types.traceback_filter import consume_exception, drop_outcome
from fedstack.errors import DeadlineExceededError

_T = TypeVar("_T")
_END: Final = object()
# A loop that is later than that, and than half the limit, was held up: by a debugger, a lid, a full machine.
_HELD_UP_SECONDS = 0.5


async def watch(stream: AsyncIterable[_T], limit: float, *, who: str = "the peer") -> AsyncGenerator[_T, None]:
    """Yields what a stream yields, as long as it does not pause for too long.

    Only the time spent waiting for the stream counts, not what the consumer does in between.

    Args:
      stream: Anything to iterate over, calls of `grpc.aio` included. If it is waited for when this ends, it is
        cancelled; else it is left as it is, and its owner closes it.
      limit: How long it may yield nothing, in seconds.
      who: Who is expected to send something, for messages.

    Raises:
      DeadlineExceededError: If it yielded nothing for that long.
    """
    iterator = aiter(stream)
    while True:
        # A task for each item, and not `asyncio.wait_for`: that cannot be told from a TimeoutError of the stream's own,
        # and may lose a cancellation before Python 3.12.
        task = asyncio.create_task(_next_of(iterator))
        # Also of what the consumer does not come to ask for, since it is cancelled at that moment.
        task.add_done_callback(consume_exception)
        try:
            while not task.done():
                due = time.monotonic() + limit
                await asyncio.wait([task], timeout=limit)
                if time.monotonic() - due < max(limit / 2, _HELD_UP_SECONDS):
                    break
                # What came while this process was held up itself is still to be looked at.
            is_silent = not task.done()
        finally:
            await _end(task)
        if is_silent:
            raise DeadlineExceededError(
                f"{who} gave no sign of life within {limit:.3g} seconds; it hangs, or the way to it is cut"
            )
        item = task.result()
        if item is _END:
            return
        yield cast(_T, item)


async def _next_of(iterator: AsyncIterator[_T]) -> _T | object:
    return await anext(iterator, _END)


async def _end(task: "asyncio.Task[object]") -> None:
    """Cancels a task unless it is done, and returns when it is; what comes of it then is of no interest."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        drop_outcome(task)

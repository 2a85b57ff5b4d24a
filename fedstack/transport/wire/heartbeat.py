"""Notices when a peer that should give signs of life has been silent for too long."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from typing import Final, Protocol, TypeVar, cast

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.traceback_filter import consume_exception, drop_outcome

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
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
    iterator, loop = aiter(stream), asyncio.get_running_loop()
    while True:
        # A task for each item, and not `asyncio.wait_for`: that cannot be told from a TimeoutError of the stream's own,
        # and may lose a cancellation before Python 3.12.
        task = asyncio.create_task(_next_of(iterator))
        # Also of what the consumer does not come to ask for, since it is cancelled at that moment.
        task.add_done_callback(consume_exception)
        try:
            while not task.done():
                due = loop.time() + limit
                await asyncio.wait([task], timeout=limit)
                if not _held_up(loop.time() - due, limit):
                    break
                # What came while this process was held up itself is still to be looked at.
            is_silent = not task.done()
        finally:
            await _end(task)
        if is_silent:
            raise _silent(who, limit)
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


class Call(Protocol[_T_co]):
    """A call that runs, such as one of `grpc.aio`, or a future."""

    def cancel(self) -> bool:
        """Ends the call; returns whether it had not ended yet."""
        ...

    def __await__(self) -> Generator[object, None, _T_co]: ...


async def answered(call: Call[_T], limit: float, *, who: str = "the peer") -> _T:
    """Returns the one answer of a call, which is cancelled if that does not come in time: `watch` without a task.

    Args:
      call: The call.
      limit: How long it may take, in seconds.
      who: Who is expected to answer, for messages.

    Raises:
      DeadlineExceededError: If it took longer.
    """
    silence = _Silence(call, limit)
    try:
        return await call
    except asyncio.CancelledError:
        if silence.ended_call:
            raise _silent(who, limit) from None
        raise
    finally:
        silence.end()


class _Silence:
    """Ends a call that takes too long.

    Attributes:
      ended_call: Whether it has done so.
    """

    def __init__(self, call: Call[object], limit: float) -> None:
        self.ended_call = False
        self._call = call
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limit, self._due)

    def _due(self) -> None:
        if _held_up(self._loop.time() - self._timer.when(), self._limit):
            self._timer = self._loop.call_later(self._limit, self._due)
        else:
            self.ended_call = self._call.cancel()

    def end(self) -> None:
        self._timer.cancel()


def _held_up(late: float, limit: float) -> bool:
    """Returns whether a loop that was so late to notice a silence may have missed what came before."""
    return late >= max(limit / 2, _HELD_UP_SECONDS)


def _silent(who: str, limit: float) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"{who} gave no sign of life within {limit:.3g} seconds; it hangs, or the way to it is cut"
    )

"""Notices when a peer that should send signs of life has been silent for too long."""

import asyncio
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from typing import Any, Final, Protocol, TypeVar, cast

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.deadline import LoopTimer, timers_on

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_END: Final = object()
# A loop that is later than this, and later than half the limit, was held up: by a debugger, a closed lid, a busy
# machine.
_HELD_UP_SECONDS = 0.5


async def watch(stream: AsyncIterable[_T], limit: float, *, who: str = "the peer") -> AsyncGenerator[_T, None]:
    """Yields the items of a stream, as long as it does not pause for too long.

    Only the time spent waiting for the stream counts, not what the consumer does in between.

    Args:
      stream: Anything to iterate over, calls of `grpc.aio` included. If an item is being awaited at the end, it is
      cancelled; otherwise the owner of the stream closes it.
      limit: The longest pause, in seconds.
      who: The expected sender, for error messages.

    Raises:
      DeadlineExceededError: If the pause was longer.
    """
    iterator, silence = aiter(stream), _Silence(limit)
    try:
        while True:
            try:
                item = await _next_of(iterator, silence)
            except BaseException:
                if silence.ended_call:
                    break
                raise
            finally:
                silence.pause()
            if silence.ended_call or item is _END:
                break
            yield cast(_T, item)
    finally:
        silence.end()
    if silence.ended_call:
        raise silent(who, limit)


@types.coroutine
def _next_of(iterator: AsyncIterator[_T], silence: "_Silence") -> Generator[Any, Any, _T | object]:
    """Awaits an item, and passes the innermost awaitable to `silence`: so no item needs a task of its own.

    `asyncio.wait_for` makes a task, too; its TimeoutError looks like one of the stream; and before Python 3.12, it may
    lose a cancellation.
    """
    steps = iterator.__anext__().__await__()
    try:
        waits_for = steps.send(None)
        while True:
            silence.begin(waits_for)
            try:
                outcome = yield waits_for
            except BaseException as error:
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(outcome)
    except StopIteration as end:
        return end.value
    except StopAsyncIteration:
        return _END


class Call(Protocol[_T_co]):
    """A running call, such as one of `grpc.aio`, or a future."""

    def cancel(self) -> bool:
        """Ends the call; returns whether it had not ended before."""
        ...

    def __await__(self) -> Generator[object, None, _T_co]: ...


async def answered(call: Call[_T], limit: float, *, who: str = "the peer") -> _T:
    """Returns the single answer of a call, and cancels the call if it is late: `watch` without a task.

    Args:
      call: The call.
      limit: The most seconds that the call may take.
      who: The expected sender, for error messages.

    Raises:
      DeadlineExceededError: If the call took longer.
    """
    silence = _Silence(limit)
    silence.begin(call)
    try:
        return await call
    except asyncio.CancelledError:
        if silence.ended_call:
            raise silent(who, limit) from None
        raise
    finally:
        silence.end()


class _Silence:
    """Ends what is awaited if that takes too long.

    Args:
      limit: The most seconds that it may take.

    Attributes:
      ended_call: Whether it was ended.
    """

    def __init__(self, limit: float) -> None:
        self.ended_call = False
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._call: Call[object] | None = None
        self._end = self._when = 0.0
        self._timer: LoopTimer | None = None

    def begin(self, call: "Call[object] | None") -> None:
        """Starts to time an awaitable; a call that was ended may take its time to finish."""
        if self.ended_call:
            return
        self._call, self._end = call, self._loop.time() + self._limit
        if self._timer is None:  # else that finds out when it is due
            self._wait()

    def pause(self) -> None:
        """Stops timing."""
        self._call = None

    def end(self) -> None:
        self._call = None
        if self._timer is not None:
            self._timer.end()

    def _wait(self) -> None:
        self._when = self._end
        self._timer = timers_on(self._loop).call_at(self._end, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._call is None:
            return
        now = self._loop.time()
        if held_up(now - self._when, self._limit):
            self._end = now + self._limit
        if now < self._end:
            self._wait()
        else:
            self.ended_call, self._call = self._call.cancel(), None


def held_up(late: float, limit: float) -> bool:
    """Returns whether a loop that noticed a silence so late may have missed earlier signs of life."""
    return late >= max(limit / 2, _HELD_UP_SECONDS)


def silent(who: str, limit: float) -> DeadlineExceededError:
    """Returns the error for a peer that was silent for so many seconds."""
    return DeadlineExceededError(
        f"{who} gave no sign of life within {limit:.3g} seconds; it hangs, or the way to it is cut"
    )

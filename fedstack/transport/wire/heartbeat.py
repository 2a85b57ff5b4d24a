"""Detects peers that have been silent for too long, although they should send messages or heartbeats regularly."""

import asyncio
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from typing import Any, Final, Protocol, TypeVar, cast

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.deadline import LoopTimer, timers_on
from fedstack.transport.wire.bodies import Body

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_END: Final = object()
# If a timer fires later than this, and later than half its limit, the loop was held up, for example by a debugger, a
# suspended computer or an overloaded machine.
_HELD_UP_SECONDS = 0.5


async def watch(stream: AsyncIterable[_T], limit: float, *, who: str = "the peer") -> AsyncGenerator[_T, None]:
    """Yields the items of a stream until the stream ends or pauses for too long.

    Only the time spent waiting for the stream counts as a pause, not the time that the consumer takes between items.

    Args:
      stream: Any asynchronous iterable, such as a call of `grpc.aio`. If a pause is too long, the awaited item is
        cancelled. The owner of the stream closes it.
      limit: The maximum length of a pause, in seconds.
      who: The name of the sender in error messages.

    Raises:
      DeadlineExceededError: If a pause was longer than `limit`.
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
            if isinstance(item, Body):  # whose bytes are awaited elsewhere
                item.limit_silence(limit, lambda: silent(who, limit))
            yield cast(_T, item)
    finally:
        silence.end()
    if silence.ended_call:
        raise silent(who, limit)


@types.coroutine
def _next_of(iterator: AsyncIterator[_T], silence: "_Silence") -> Generator[Any, Any, _T | object]:
    """Awaits the next item without creating a task, and passes to `silence` each awaitable that the loop waits for.

    `asyncio.wait_for` is not used because it creates a task per item, its `TimeoutError` cannot be distinguished from a
    `TimeoutError` of the stream, and before Python 3.12, it may lose a cancellation.
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
    """A running call, such as a call of `grpc.aio`, or a future."""

    def cancel(self) -> bool:
        """Cancels the call. Returns whether the call was still running."""
        ...

    def __await__(self) -> Generator[object, None, _T_co]: ...


async def answered(call: Call[_T], limit: float, *, who: str = "the peer") -> _T:
    """Returns the response of a unary call. Cancels the call if it takes too long. Does not create a task.

    Args:
      call: The call.
      limit: The time limit of the call in seconds.
      who: The name of the sender in error messages.

    Raises:
      DeadlineExceededError: If the call took longer than `limit`.
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
    """A timer that cancels an awaited call if the wait takes too long.

    Args:
      limit: The maximum time to wait, in seconds.

    Attributes:
      ended_call: Whether the timer has cancelled a call.
    """

    def __init__(self, limit: float) -> None:
        self.ended_call = False
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._call: Call[object] | None = None
        self._end = self._when = 0.0
        self._timer: LoopTimer | None = None

    def begin(self, call: "Call[object] | None") -> None:
        """Starts timing an awaitable. Does nothing once the call is cancelled, since the call may take time to end."""
        if self.ended_call:
            return
        self._call, self._end = call, self._loop.time() + self._limit
        if self._timer is None:  # the running timer checks the new end when it fires
            self._wait()

    def pause(self) -> None:
        """Stops timing until the next `begin`."""
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
    """Returns whether a loop whose timer fired `late` seconds late may have missed messages before that."""
    return late >= max(limit / 2, _HELD_UP_SECONDS)


def silent(who: str, limit: float) -> DeadlineExceededError:
    """Returns the error for a peer that was silent for `limit` seconds."""
    return DeadlineExceededError(
        f"{who} sent no message or heartbeat within {limit:.3g} seconds; check whether it has stalled or the "
        "connection was interrupted"
    )


def suspended(late: float, who: str) -> DeadlineExceededError:
    """Returns the error for a call during which this process was suspended for `late` seconds."""
    return DeadlineExceededError(
        f"This process was suspended for {late:.3g} seconds during a call to {who}, for example by a debugger or an "
        "overloaded machine, so the response was received too late; the call may have been executed"
    )

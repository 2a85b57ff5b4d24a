"""Notices when a peer that should give signs of life has been silent for too long."""

import asyncio
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator
from typing import Any, Final, Protocol, TypeVar, cast

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.deadline import LoopTimer, timers_on

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
    """Awaits an item, and shows what is waited for at the bottom of that: so no item has to have a task of its own.

    `asyncio.wait_for` makes one too, cannot be told from a TimeoutError of the stream's own, and may lose a
    cancellation before Python 3.12.
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
    """Ends what is waited for when that takes too long.

    Args:
      limit: How long it may take, in seconds.

    Attributes:
      ended_call: Whether it has done so.
    """

    def __init__(self, limit: float) -> None:
        self.ended_call = False
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._call: Call[object] | None = None
        self._end = self._when = 0.0
        self._timer: LoopTimer | None = None

    def begin(self, call: "Call[object] | None") -> None:
        """Something is waited for from now on; once a call has been ended, it may take its time for that."""
        if self.ended_call:
            return
        self._call, self._end = call, self._loop.time() + self._limit
        if self._timer is None:  # else that finds out when it is due
            self._wait()

    def pause(self) -> None:
        """Nothing is waited for."""
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
    """Returns whether a loop that was so late to notice a silence may have missed what came before."""
    return late >= max(limit / 2, _HELD_UP_SECONDS)


def silent(who: str, limit: float) -> DeadlineExceededError:
    """Returns the error for a peer that has said nothing for so many seconds."""
    return DeadlineExceededError(
        f"{who} gave no sign of life within {limit:.3g} seconds; it hangs, or the way to it is cut"
    )

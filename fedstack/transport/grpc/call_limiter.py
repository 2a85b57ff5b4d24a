"""Lets so many calls to a peer go at a time, and lets none wait for its turn at a peer that answers nobody."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from fedstack.errors import DeadlineExceededError
from fedstack.foundations.deadline import Deadline


class CallLimiter:
    """The turns of calls to one peer.

    Together calls may take any time. But one that waits gives up when for as long as it might take itself no call has
    been answered: else many calls to a peer that is silent would fail group by group, each after a time of its own.

    Args:
      at_once: The most calls at a time.
      clock: Tells the time in seconds.
    """

    def __init__(self, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._clock = clock
        self._answered = clock()

    def answered(self) -> None:
        """Takes note that the peer has answered a call."""
        self._answered = self._clock()

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float, who: str) -> AsyncGenerator[None, None]:
        """Waits for a turn and holds it during the block.

        Args:
          seconds: How long the call may take once it has its turn.
          who: The peer, for messages.

        Raises:
          DeadlineExceededError: If no call was answered for that long.
        """
        if self._slots.locked():
            await self._wait(seconds, who)
        else:
            await self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    async def _wait(self, seconds: float, who: str) -> None:
        begun = self._clock()
        while (left := max(begun, self._answered) + seconds - self._clock()) > 0:
            acquiring = asyncio.ensure_future(self._slots.acquire())
            try:
                await Deadline(left).wait(acquiring)
                return
            except asyncio.TimeoutError:
                if _has_got(acquiring):  # in the step in which the time was over
                    return
            except asyncio.CancelledError:
                if _has_got(acquiring):
                    self._slots.release()
                raise
        raise DeadlineExceededError(
            f"{who} answered none of the calls before this one within {seconds:g} seconds; it hangs, or the way to it "
            "is cut"
        )

    def __repr__(self) -> str:
        return f"<CallLimiter, {'all taken' if self._slots.locked() else 'some free'}>"


def _has_got(acquiring: "asyncio.Task[bool]") -> bool:
    return acquiring.done() and not acquiring.cancelled()

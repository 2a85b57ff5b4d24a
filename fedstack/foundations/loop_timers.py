"""Timers of an event loop for what nearly always ends before they are due.

To make a timer of asyncio's and to cancel it takes a tenth of the time of a small call, and a call has two of them. Of
these here the loop knows the first.
"""

import asyncio
import contextvars
import heapq
import itertools
import weakref
from collections.abc import Callable

# With so many at least it is looked how many of them have ended.
_MANY = 100


class LoopTimer:
    """Calls something when it is due, unless it has ended before. Made by `LoopTimers.call_at`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def end(self) -> None:
        """Calls nothing any more. Idempotent."""
        self.call = None


class LoopTimers:
    """The timers of one loop, on which all of it happens. What they call must not raise.

    Args:
      loop: The loop, which keeps this as long as there is a timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[tuple[float, int, LoopTimer]] = []  # a heap; those that have ended are in it for a while
        self._numbers = itertools.count()
        self._most = _MANY
        self._next: asyncio.TimerHandle | None = None

    def call_at(self, when: float, call: Callable[[], object]) -> LoopTimer:
        """Calls something when the loop's time is so many seconds, in no context of the caller's."""
        timer = LoopTimer(call)
        if len(self._timers) >= self._most:
            self._timers = [one for one in self._timers if one[2].call is not None]
            heapq.heapify(self._timers)
            self._most = max(_MANY, 2 * len(self._timers))
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        if self._next is None or when < self._next.when():
            self._wait()
        return timer

    def _wait(self) -> None:
        """Sees to it that the loop comes back when the first of them is due."""
        if self._next is not None:
            self._next.cancel()
        when = self._timers[0][0]
        self._next = self._loop.call_at(when, self._due, when, context=contextvars.Context())

    def _due(self, when: float) -> None:
        self._next = None
        while self._timers and (self._timers[0][0] <= when or self._timers[0][2].call is None):
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
        if self._timers:
            self._wait()


# A loop has its timers as long as there are any; these may refer to the loop.
_timers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopTimers]]" = weakref.WeakKeyDictionary()


def timers_on(loop: asyncio.AbstractEventLoop) -> LoopTimers:
    """Returns the timers of a loop."""
    known = _timers.get(loop)
    found = None if known is None else known()
    if found is None:
        found = LoopTimers(loop)
        _timers[loop] = weakref.ref(found)
    return found

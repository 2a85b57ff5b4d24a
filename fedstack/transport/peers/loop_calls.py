"""Calls functions on an event loop from other threads, and wakes it once for many that come at about the same time.

`call_soon_threadsafe` writes to a socket each time, for which it lets go of Python's lock: with many calls in flight
both loops would spend more time on waking each other than on what they do.
"""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fedstack.foundations.deadline import timers_on

_T = TypeVar("_T", covariant=True)


class LoopCalls:
    """The functions to call on one loop, in the order in which they came. They must not raise.

    Args:
      loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def add(self, function: Callable[[], object]) -> None:
        """Calls a function soon, in no context of the caller's.

        Raises:
          RuntimeError: If the loop is closed.
        """
        self._waiting.append(function)
        if self._is_woken:
            return
        try:
            self._is_woken = True
            loop = self._loop()
            if loop is not None:
                loop.call_soon_threadsafe(self._call_all)
        except BaseException as error:  # Ctrl-C too: the next one has to wake the loop, at worst once too often
            self._is_woken = False
            if isinstance(error, RuntimeError):
                self._waiting.clear()  # they may refer to the loop
            raise

    def _call_all(self) -> None:
        self._is_woken = False  # first: what is added from now on wakes the loop again, and so nothing is left behind
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()


_calls: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls]" = weakref.WeakKeyDictionary()


def calls_on(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """Returns what calls functions on a loop; one for all who do so."""
    found = _calls.get(loop)
    return found if found is not None else _calls.setdefault(loop, LoopCalls(loop))


class Arriving(Protocol[_T]):
    """What another thread fulfils, such as a future."""

    def done(self) -> bool:
        """Returns whether that has happened."""
        ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Calls something when it happens, or at once."""
        ...

    def result(self) -> _T:
        """Returns the result, or raises the error."""
        ...

    def exception(self) -> BaseException | None:
        """Returns the error, if there is one."""
        ...


def outcome_of(future: Arriving[_T]) -> "asyncio.Future[_T]":
    """Returns a future of this loop with the outcome of one that another thread fulfils."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()
    calls = calls_on(loop)

    def arrive() -> None:
        if outcome.done():
            return
        error = future.exception()
        if error is None:
            outcome.set_result(future.result())
        else:
            outcome.set_exception(error)

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            calls.add(arrive)

    if future.done():
        arrive()
    else:
        future.add_done_callback(done)
    return outcome


async def arrival(future: Arriving[Any], seconds: float | None = None) -> bool:
    """Waits until a future that another thread fulfils is done, by one call on this loop.

    Args:
      future: What to wait for.
      seconds: How long at most; by default as long as it takes.

    Returns:
      Whether it is done.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    calls = calls_on(loop)

    def arrive() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: object) -> None:
        try:
            calls.add(arrive)
        except RuntimeError:  # the loop is closed, and nobody waits
            return

    future.add_done_callback(done)
    timer = None if seconds is None else timers_on(loop).call_at(loop.time() + seconds, arrive)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.end()
    return future.done()

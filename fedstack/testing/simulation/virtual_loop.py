"""An event loop whose simulated clock only advances while the loop is idle, so that hours of waiting take no time."""

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any

from fedstack.errors import FedstackError

# More than the resolution of the clock, because asyncio may run timers early by this resolution.
_LEAST_SECONDS = 1e-8
# The maximum number of loop iterations without an advance of the clock. A simulated second has some hundreds.
_MOST_STEPS = 100_000


class StuckError(FedstackError, RuntimeError):
    """Raised if a program waits while the loop has neither callbacks nor timers. The program would wait forever."""


class SpinningError(FedstackError, RuntimeError):
    """Raised if the loop is never idle, so that the simulated clock does not advance. The program might never end."""


class _Clock(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting for sockets or timers."""

    now = 0.0
    _steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError(
                f"Expected a task or timer for the program to wait for, found none after {self.now:.3f} simulated "
                "seconds; check that the program does not wait for sockets, threads or an event that is never set"
            )
        self._steps = 0 if timeout > 0 else self._steps + 1
        if self._steps > _MOST_STEPS:
            self._steps = 0
            raise SpinningError(
                f"Expected the simulated clock to advance, found it at {self.now:.3f} seconds for {_MOST_STEPS} "
                "iterations of the loop; check the program for an endless loop, or add `await asyncio.sleep(1)` to it"
            )
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock that starts at zero. The loop supports no sockets, and only one thread.

    Callbacks that are due at the same time run in the order in which they were scheduled, so that repeated runs of a
    program are identical.

    `run_until_complete` raises `StuckError` if the program waits for an event that cannot happen, and `SpinningError`
    if the program never lets the clock advance.
    """

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Returns the simulated time in seconds."""
        return self._clock.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedules a callback at a simulated time. The clock advances to this time once the loop is idle."""
        # asyncio may run a timer slightly early. If the clock had not advanced, a program might set it again forever.
        if when > self.time():
            when = max(when, self.time() + _LEAST_SECONDS)
        return super().call_at(when, callback, *args, context=context)

"""An event loop whose clock runs only while there is nothing to do: hours of waiting take no time."""

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any

from fedstack.errors import FedstackError

# More than asyncio lets timers go off too early.
_LEAST_SECONDS = 1e-8
# So many times over things may be done while the clock stands still. A simulated second has some hundreds of them.
_MOST_STEPS = 100_000


class StuckError(FedstackError, RuntimeError):
    """Nothing is left to do, no timer runs, and yet something is waited for: outside it would be for ever."""


class SpinningError(FedstackError, RuntimeError):
    """There is always something to do at once, so that the clock stands still: it would be for ever."""


class _Clock(selectors.SelectSelector):
    """In place of waiting for sockets or for a timer it sets the clock forward."""

    now = 0.0
    _steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError(f"Nothing is left to wait for after {self.now:.3f} simulated seconds")
        self._steps = 0 if timeout > 0 else self._steps + 1
        if self._steps > _MOST_STEPS:
            self._steps = 0
            raise SpinningError(
                f"The clock has stood still at {self.now:.3f} simulated seconds for {_MOST_STEPS} steps of the loop"
            )
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which begins at zero. It has no sockets, and serves one thread.

    What is due at the same time runs in the order in which it was asked for, so that two runs of the same program are
    the same.

    Raises:
      StuckError: From `run_until_complete`, if what it runs waits for something that nobody does.
      SpinningError: From there too, if what it runs never lets the clock go on.
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
        """Calls something at a time; if that is to come, the clock moves on until then."""
        if when > self.time():  # one that goes off before the clock has moved would be waited for again, for ever
            when = max(when, self.time() + _LEAST_SECONDS)
        return super().call_at(when, callback, *args, context=context)

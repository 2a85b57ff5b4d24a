"""Notices when an event loop stands still: all clients served there wait meanwhile."""

import asyncio
import logging
import time
from collections.abc import Callable

from fedstack.observe.events import LoopStalled
from fedstack.observe.observers import observers

_logger = logging.getLogger(__name__)
# A loop that comes back later than that has stood still.
STALL_SECONDS = 0.1
_BEAT_SECONDS = 0.1
_SECONDS_BETWEEN_WARNINGS = 60.0


class StallCounts:
    """Counts how often something came late, and says when to tell of it.

    Args:
      clock: Tells the time in seconds.

    Attributes:
      stalls: How often it came more than `STALL_SECONDS` late.
      longest_seconds: The most by which it did.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stalls = 0
        self.longest_seconds = 0.0
        self._clock = clock
        self._due: float | None = None
        self._quiet_until = 0.0

    def expect(self, seconds: float) -> None:
        """Expects the next beat after so many seconds."""
        self._due = self._clock() + seconds

    def beat(self) -> float | None:
        """Records a beat; returns by how many seconds it was late if that is to be logged, else `None`."""
        now = self._clock()
        late = 0.0 if self._due is None else now - self._due
        if late <= STALL_SECONDS:
            return None
        self.stalls += 1
        self.longest_seconds = max(self.longest_seconds, late)
        if observers.present:
            observers.tell(LoopStalled(seconds=late))
        if now < self._quiet_until:
            return None
        self._quiet_until = now + _SECONDS_BETWEEN_WARNINGS
        return late

    def __repr__(self) -> str:
        return f"<StallCounts {self.stalls} stalls, {self.longest_seconds:.3f} s the longest>"


class StallMeter:
    """The heartbeat of the running event loop, from `start` to `stop`.

    Attributes:
      counts: What it has seen.
    """

    def __init__(self) -> None:
        self.counts = StallCounts()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to measure."""
        self._next()

    def stop(self) -> None:
        """Measures no longer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        self.counts.expect(_BEAT_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        late = self.counts.beat()
        if late is not None:
            _logger.warning(
                "The server's event loop stood still for %.1f s, and all clients waited (%d times so far): a very "
                "large message, a machine with too much to do, or code that holds Python's lock",
                late,
                self.counts.stalls,
            )
        self._next()

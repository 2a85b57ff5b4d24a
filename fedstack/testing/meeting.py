"""Lets functions that should run side by side wait for each other, so that a test of concurrency needs no clock."""

import asyncio
import threading
import time
from typing import Any

# Far longer than any hand-over between threads takes, and short enough to wait for in a test that fails.
LIMIT_SECONDS = 15.0


class Meeting:
    """Holds up everybody who arrives until all who are expected have arrived once; afterwards everybody passes.

    Other than at a barrier it does no harm to arrive twice, as a function does that is tried again.

    Args:
      *expected: The names of those who must arrive.
    """

    def __init__(self, *expected: object) -> None:
        self._missing = set(expected)
        self._lock = threading.Lock()
        self._complete = threading.Event()

    def arrive(self, name: object) -> None:
        """Waits for the others.

        Raises:
          TimeoutError: If they do not come; then they are not running side by side.
        """
        with self._lock:
            self._missing.discard(name)
            if not self._missing:
                self._complete.set()
        if not self._complete.wait(LIMIT_SECONDS):
            with self._lock:
                missing = sorted(map(str, self._missing))
            raise TimeoutError(f"Expected all to run side by side, found that {', '.join(missing)} had not started")


async def until_set(event: threading.Event, *running: "asyncio.Task[Any]") -> None:
    """Waits in a coroutine for an event that something running on a thread sets.

    Polls, because the pool of threads that could wait for it may be what the event is about.

    Args:
      event: What to wait for.
      *running: The tasks in which it should happen; when one ends before, there is nothing to wait for.

    Raises:
      Exception: What one of the tasks raised.
      TimeoutError: If it does not happen.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not event.is_set():
        for task in running:
            if task.done():
                raise TimeoutError(f"Expected a function to be running, found the end of its task: {task.result()!r}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"Expected a function to get going within {LIMIT_SECONDS:.0f} s, found it has not")
        await asyncio.sleep(0.001)

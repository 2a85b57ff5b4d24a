"""Synchronisation between functions that should run concurrently, so that tests of concurrency need no clock."""

import asyncio
import threading
import time
from typing import Any

# Far longer than any switch between threads takes, and short enough for a failing test.
LIMIT_SECONDS = 15.0


class Meeting:
    """A barrier that blocks its participants until all of them have arrived, and is open afterwards.

    Unlike at a `threading.Barrier`, a participant may arrive more than once, as a retried function does.

    Args:
      *expected: The names of the participants.
    """

    def __init__(self, *expected: object) -> None:
        self._missing = set(expected)
        self._lock = threading.Lock()
        self._complete = threading.Event()

    def arrive(self, name: object) -> None:
        """Marks a participant as arrived, and waits for the others.

        Args:
          name: The name of the participant.

        Raises:
          TimeoutError: If a participant does not arrive within `LIMIT_SECONDS`, so that not all run concurrently.
        """
        with self._lock:
            self._missing.discard(name)
            if not self._missing:
                self._complete.set()
        if not self._complete.wait(LIMIT_SECONDS):
            with self._lock:
                missing = sorted(map(str, self._missing))
            raise TimeoutError(
                f"Expected all functions to run concurrently, found that {', '.join(missing)} had not started"
            )


async def until_set(event: threading.Event, *running: "asyncio.Task[Any]") -> None:
    """Waits in a coroutine for an event that a function on another thread sets.

    This function polls, because a thread that waits for the event might be taken from the thread pool under test.

    Args:
      event: The event to wait for.
      *running: The tasks that should cause the event. If a task ends before the event is set, waiting stops.

    Raises:
      Exception: The error of a task that failed before the event was set.
      TimeoutError: If a task returned before the event was set, or the event was not set within `LIMIT_SECONDS`.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not event.is_set():
        for task in running:
            if task.done():
                raise TimeoutError(f"Expected a running function, found that its task has returned {task.result()!r}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"Expected a function to start within {LIMIT_SECONDS:.0f} s, found none started")
        await asyncio.sleep(0.001)

"""Ends a test that takes too long, and no other: each process of a run watches the test that it runs.

A plugin of pytest's. A hung event loop answers neither signals nor exceptions, so the process has to go, and with it
what the test has started. `make test` has several processes: the test fails, and another one takes over what is left.
"""

import os
import threading
import time
from typing import Any

import psutil
import pytest
import pytest_timeout

_LOOK_SECONDS = 1.0
_END_SECONDS = 5.0  # for what was killed to be gone


def slowness() -> float:
    """How many times slower than an idle machine this one is: what wants to run, for each core."""
    if not hasattr(os, "getloadavg"):
        return 1.0
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Watch:
    """Ends the process if a test runs for longer than its limit of time, times the slowness of the machine."""

    def __init__(self) -> None:
        self._running: tuple[pytest.Item, Any, float] | None = None
        self._ended = threading.Event()
        # One for all tests: a thread for each would be thirteen thousand.
        threading.Thread(target=self._look, name="out-of-time", daemon=True).start()

    def begin(self, item: pytest.Item, settings: Any) -> None:
        self._running = (item, settings, time.monotonic())

    def end(self) -> None:
        self._running = None

    def close(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            if (running := self._running) is None:
                continue
            item, settings, start = running
            if time.monotonic() - start > settings.timeout * slowness() and running is self._running:
                started = psutil.Process().children(recursive=True)
                for process in started:
                    process.kill()
                psutil.wait_procs(started, _END_SECONDS)  # or they stay as zombies, where nobody else waits for them
                pytest_timeout.timeout_timer(item, settings)  # prints what all threads are doing, and exits


_WATCH = pytest.StashKey[Watch]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WATCH] = Watch()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_WATCH].close()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    item.config.stash[_WATCH].begin(item, settings)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    item.config.stash[_WATCH].end()
    return True

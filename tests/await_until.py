"""Waits in tests until something has come about."""

import time
from collections.abc import Callable


def await_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Returns when a condition holds; fails if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)

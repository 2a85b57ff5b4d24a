"""Counts work that goes on although it was cancelled, and bounds the threads that it gets."""

import threading
from collections.abc import Callable


class AbandonedWork:
    """Work that goes on although it was cancelled: a Python function cannot be stopped, and keeps its thread.

    As many threads as a limit says are replaced by others. Beyond it they count against the bound of their pool, and
    new work that finds no thread there is refused.

    Args:
      most: The limit.
      refusal: Returns the error for work that is refused; it gets the number of pieces.

    Attributes:
      count: How many pieces there are.
    """

    def __init__(self, most: int, refusal: Callable[[int], Exception]) -> None:
        self.count = 0
        self.refusal = refusal
        self._most = most
        self._replaced = 0
        self._lock = threading.Lock()

    def add(self) -> bool:
        """Takes note of one more; tells whether its thread is to be replaced."""
        with self._lock:
            self.count += 1
            is_replaced = self._replaced < self._most
            self._replaced += is_replaced
            return is_replaced

    def remove(self, was_replaced: bool) -> None:
        """Takes note that one has ended."""
        with self._lock:
            self.count -= 1
            self._replaced -= was_replaced

    def __repr__(self) -> str:
        return f"<AbandonedWork {self.count}, at most {self._most} with threads of their own>"

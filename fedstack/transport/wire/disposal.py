"""Collects the ids of values that are no longer referenced, so that a peer is notified of them in batches."""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fedstack.errors import InvalidValueError

_T = TypeVar("_T")


class DisposalQueue(Generic[_T]):
    """Queues the ids of values to dispose of, and returns them in batches by count and by age.

    Ids may be added at any time, because the garbage collector runs finalizers on any thread, even during `take`.
    Adding an id is therefore a single append to a deque, which needs no lock. Only one thread at a time may call
    `take`.

    Args:
      batch_size: The number of ids in a full batch.
      max_age: How many seconds an id may wait for its batch to become full.
      clock: A function that returns the time in seconds. Like `add`, it must be safe in finalizers.
    """

    def __init__(self, batch_size: int = 20, max_age: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        if batch_size < 1:
            raise InvalidValueError(f"Expected batch_size to be at least 1, found {batch_size}")
        self._batch_size = batch_size
        self._max_age = max_age
        self._clock = clock
        self._added: deque[tuple[_T, float]] = deque()

    def add(self, item: _T) -> None:
        """Adds an id. It is safe to call in finalizers."""
        self._added.append((item, self._clock()))

    @property
    def is_due(self) -> bool:
        """Whether `take` would return any ids."""
        return len(self._added) >= self._batch_size or self._wait_of_oldest() <= 0

    def take(self, force: bool = False) -> list[list[_T]]:
        """Removes the ids that are due, and returns them in batches.

        All ids are due if the oldest has waited for `max_age`; otherwise, only full batches are due.

        Args:
          force: Whether to treat all ids as due.
        """
        # Ids that are added from now on are returned by the next call.
        count = len(self._added)
        if not force and self._wait_of_oldest() > 0:
            count -= count % self._batch_size
        items = [self._added.popleft()[0] for _ in range(count)]
        return [items[start : start + self._batch_size] for start in range(0, count, self._batch_size)]

    def _wait_of_oldest(self) -> float:
        """Returns how many seconds the oldest id may still wait."""
        return max(0.0, self._added[0][1] + self._max_age - self._clock()) if self._added else self._max_age

    def __len__(self) -> int:
        return len(self._added)

    def __repr__(self) -> str:
        return f"<DisposalQueue of {len(self)}, in batches of {self._batch_size}>"

"""Collects the ids of values without references, so that a peer learns of many at once."""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fedstack.errors import InvalidValueError

_T = TypeVar("_T")


class DisposalQueue(Generic[_T]):
    """Ids to dispose of, in batches by count and by age.

    Anything may add at any time: the garbage collector runs finalizers on any thread, even during `take`. So adding is
    a
    single append to a deque, which needs no lock. Only one thread at a time may take.

    Args:
      batch_size: How many ids go into a batch.
      max_age: How long an id may wait for a batch to become full, in seconds.
      clock: Returns the time in seconds; it must be as harmless as `add`.
    """

    def __init__(self, batch_size: int = 20, max_age: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        if batch_size < 1:
            raise InvalidValueError(f"Expected a batch size of at least 1, found {batch_size}")
        self._batch_size = batch_size
        self._max_age = max_age
        self._clock = clock
        self._added: deque[tuple[_T, float]] = deque()

    def add(self, item: _T) -> None:
        """Adds an id. Safe in finalizers."""
        self._added.append((item, self._clock()))

    @property
    def is_due(self) -> bool:
        """Whether there is anything for `take` to return."""
        return len(self._added) >= self._batch_size or self._wait_of_oldest() <= 0

    def take(self, force: bool = False) -> list[list[_T]]:
        """Removes and returns the due ids: full batches, or all ids if the oldest has waited for long enough.

        Args:
          force: Whether all ids are due.
        """
        # Ids that are added from here on are for the next call.
        count = len(self._added)
        if not force and self._wait_of_oldest() > 0:
            count -= count % self._batch_size
        items = [self._added.popleft()[0] for _ in range(count)]
        return [items[start : start + self._batch_size] for start in range(0, count, self._batch_size)]

    def _wait_of_oldest(self) -> float:
        """Returns how long the oldest may still wait, in seconds."""
        return max(0.0, self._added[0][1] + self._max_age - self._clock()) if self._added else self._max_age

    def __len__(self) -> int:
        return len(self._added)

    def __repr__(self) -> str:
        return f"<DisposalQueue of {len(self)}, in batches of {self._batch_size}>"

"""Folds a general aggregation: by the functions of a user, in client order."""

import threading
from collections.abc import Callable, Sequence

from fedstack.computations.values.columns import Column
from fedstack.executors.folds.fold_states import FoldState


class AggregateState(FoldState):
    """A general aggregation: folds `accumulate` from `zero`, in client order.

    Blocks may come in any order; one that is not next waits. `merge` is for the results of other ranges.

    Args:
      first_client: The index of the first client of the range.
      zero: What the fold begins with.
      accumulate: Takes an accumulator, what a client yielded and the index of that client, for messages.
      merge: Takes the accumulators of two ranges.
    """

    def __init__(
        self,
        first_client: int,
        zero: object,
        accumulate: Callable[[object, object, int], object],
        merge: Callable[[object, object], object],
    ) -> None:
        self._next = first_client
        self._accumulator = zero
        self._accumulate = accumulate
        self._merge = merge
        self._waiting: dict[int, Column] = {}
        self._busy = False
        self._merged = False
        self._lock = threading.Lock()

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        with self._lock:
            self._waiting[start] = columns[0]
            if self._busy:
                return  # whoever folds now will find the block
            self._busy = True
        try:
            while (block := self._take()) is not None:
                accumulator = self._accumulator
                for client, value in enumerate(block[1].items(), block[0]):
                    accumulator = self._accumulate(accumulator, value, client)
                self._accumulator = accumulator
        except BaseException:
            with self._lock:
                self._busy = False
            raise

    def _take(self) -> tuple[int, Column] | None:
        with self._lock:
            start = self._next
            column = self._waiting.pop(start, None)
            if column is None:
                self._busy = False
                return None
            self._next += len(column)
            return start, column

    def partials(self) -> object:
        return self._accumulator

    def merge(self, partials: object) -> None:
        # A composed stack folds each child from zero; the first child's result is not merged with zero.
        self._accumulator = self._merge(self._accumulator, partials) if self._merged else partials
        self._merged = True

    def result(self) -> object:
        return self._accumulator

"""Keeps track of the elements that have been delivered to a consumer, and of those that it has acknowledged."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import attrs


@attrs.frozen
class Position:
    """A consumer's position in a pass.

    Attributes:
      finished: The ids of the ranges that the consumer has finished.
      rows: The number of finished elements of each range that is not finished yet, by the id of the range.
      left_out: The number of elements after these that also count as finished, because a step leaves them out.
    """

    finished: Collection[int] = frozenset()
    rows: Mapping[int, int] = MappingProxyType({})
    left_out: int = 0


class Acknowledgements:
    """The elements that have been delivered to a consumer, counted by range in the order of delivery."""

    def __init__(self) -> None:
        self._finished: dict[int, None] = {}
        self._news: list[int] = []
        self._rows: dict[int, int] = {}
        # Elements that have been delivered but not acknowledged: the range, the number of elements, and whether the
        # range ends after these elements.
        self._log: deque[tuple[int, int, bool]] = deque()
        self._acknowledged = 0

    def finish(self, id: int) -> None:
        """Records that the consumer has finished a range."""
        self._rows.pop(id, None)
        self._finished[id] = None
        self._news.append(id)

    def begin(self, id: int, rows: int) -> None:
        """Records that the consumer has already finished `rows` elements of a range."""
        if rows:
            self._rows[id] = rows

    def has_begun(self, id: int) -> bool:
        """Returns whether elements of a range, or its end, have been delivered to the consumer."""
        return id in self._rows or id in self._finished or any(id == one for one, _, _ in self._log)

    def hand_out(self, id: int, rows: int, is_over: bool) -> None:
        """Records that elements of a range have been delivered to the consumer.

        Args:
          id: The id of the range.
          rows: The number of elements; 0 to record only the end of the range.
          is_over: Whether the range ends after these elements.
        """
        self._log.append((id, rows, is_over))
        if not rows:
            self.acknowledge(self._acknowledged)

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements since the beginning, or all delivered elements if `rows` is `None`."""
        while self._log:
            id, some, is_over = self._log[0]
            if rows is not None and self._acknowledged + some > rows:
                return
            self._log.popleft()
            self._acknowledged += some
            self._rows[id] = self._rows.get(id, 0) + some
            if is_over:
                self.finish(id)

    def position(self, rows: int) -> Position:
        """Returns the position after the first `rows` elements, which may include elements not delivered yet."""
        counts, finished, left = dict(self._rows), dict(self._finished), rows - self._acknowledged
        left_out = 0
        for id, some, is_over in self._log:
            counts[id] = counts.get(id, 0) + min(some, left)
            if some > left:
                break
            if is_over:
                del counts[id]
                finished[id] = None
            left -= some
        else:
            left_out = left
        return Position(tuple(finished), {id: n for id, n in counts.items() if n}, left_out)

    @property
    def is_done(self) -> bool:
        """Whether the consumer has acknowledged all delivered elements."""
        return not self._log

    @property
    def finished_since(self) -> Sequence[int]:
        """The ids of the ranges that `take_finished` would return."""
        return self._news

    def take_finished(self) -> list[int]:
        """Returns the ids of the ranges that the consumer has finished since the last call."""
        news, self._news = self._news, []
        return news

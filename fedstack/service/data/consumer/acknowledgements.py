"""Keeps track of the elements that a consumer has been given, and of those it has acknowledged."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import attrs


@attrs.frozen
class Position:
    """A consumer's position in a pass.

    Attributes:
      finished: The ids of the ranges that the consumer has finished.
      rows: The number of elements that it has finished of each range that it has only begun, by the id of the range.
      left_out: The number of elements after these that it has finished as well, because a step leaves them out.
    """

    finished: Collection[int] = frozenset()
    rows: Mapping[int, int] = MappingProxyType({})
    left_out: int = 0


class Acknowledgements:
    """The elements that a consumer has been given, as counts by range, in the order of delivery."""

    def __init__(self) -> None:
        self._finished: dict[int, None] = {}
        self._news: list[int] = []
        self._rows: dict[int, int] = {}
        # Elements handed out but not acknowledged: the range, the number of elements, and whether the range ends there.
        self._log: deque[tuple[int, int, bool]] = deque()
        self._acknowledged = 0

    def finish(self, id: int) -> None:
        """Records that the consumer has finished a range."""
        self._rows.pop(id, None)
        self._finished[id] = None
        self._news.append(id)

    def begin(self, id: int, rows: int) -> None:
        """Records that the consumer had finished `rows` elements of a range earlier."""
        if rows:
            self._rows[id] = rows

    def has_begun(self, id: int) -> bool:
        """Returns whether the consumer has been given any elements of a range, or its end."""
        return id in self._rows or id in self._finished or any(id == one for one, _, _ in self._log)

    def hand_out(self, id: int, rows: int, is_over: bool) -> None:
        """Records that the consumer gets elements of a range; without elements it only notes the end of the range."""
        self._log.append((id, rows, is_over))
        if not rows:
            self.acknowledge(self._acknowledged)

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements since the beginning, or all that were handed out if `None`."""
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
        """Returns the position after `rows` elements since the beginning, which may be more than were handed out."""
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
        """Whether the consumer has acknowledged everything that it was given."""
        return not self._log

    @property
    def finished_since(self) -> Sequence[int]:
        """The ids of the ranges that `take_finished` would return."""
        return self._news

    def take_finished(self) -> list[int]:
        """Returns the ids of the ranges that the consumer has finished since the last call."""
        news, self._news = self._news, []
        return news

"""Keeps account of what a consumer has been given, and how much of that it has done with."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import attrs


@attrs.frozen
class Position:
    """A place in a pass.

    Attributes:
      finished: The ids of ranges that the consumer has done with.
      rows: How many elements it has done with of others that it has begun, by their ids.
      left_out: How many of those that come next it has done with, because a step leaves them out.
    """

    finished: Collection[int] = frozenset()
    rows: Mapping[int, int] = MappingProxyType({})
    left_out: int = 0


class Acknowledgements:
    """The elements that a consumer has been given, by range, in that order."""

    def __init__(self) -> None:
        self._finished: dict[int, None] = {}
        self._news: list[int] = []
        self._rows: dict[int, int] = {}
        # What has been handed out since: the range, how many of its elements, and whether these are its last.
        self._log: deque[tuple[int, int, bool]] = deque()
        self._acknowledged = 0

    def finish(self, id: int) -> None:
        """The consumer has done with a range."""
        self._rows.pop(id, None)
        self._finished[id] = None
        self._news.append(id)

    def begin(self, id: int, rows: int) -> None:
        """The consumer had done with so many elements of a range before."""
        if rows:
            self._rows[id] = rows

    def has_begun(self, id: int) -> bool:
        """Returns whether the consumer has had something of a range."""
        return id in self._rows or id in self._finished or any(id == one for one, _, _ in self._log)

    def hand_out(self, id: int, rows: int, is_over: bool) -> None:
        """The consumer gets elements of a range, and is told nothing if there are none."""
        self._log.append((id, rows, is_over))
        if not rows:
            self.acknowledge(self._acknowledged)

    def acknowledge(self, rows: int | None) -> None:
        """Acknowledges the first `rows` elements of all since the beginning; all that it has got if `None`."""
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
        """Returns the place after so many elements since the beginning, which may be more than it has been given."""
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
        """Whether the consumer has done with all that it was given."""
        return not self._log

    @property
    def finished_since(self) -> Sequence[int]:
        """The ranges that `take_finished` would return."""
        return self._news

    def take_finished(self) -> list[int]:
        """Returns the ranges that the consumer has done with since this was last asked."""
        news, self._news = self._news, []
        return news

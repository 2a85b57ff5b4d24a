"""A state machine that finds the units of work that end their process, by running fewer and fewer units.

The state machine decides which units to run next, and receives the outcome. A driver runs the units: either in child
processes of a worker, which report the unit that they are running, or as tasks on the workers of an engine, where the
only observation is the loss of a worker.

If a run *sees* which unit is running, all units run, first one after another and then all at once:

* A unit that ended the process runs again alone. If it ends that process too, it is the culprit. Otherwise, the
  search continues with the units after it.
* If no unit ends a process alone, but several units together do, the search finds the smallest range that does so. It
  moves the end and then the start of the range inwards, each by binary search.

If a run does not see which unit is running, an empty run comes first: if the empty run ends a worker, no client is to
blame. Then the suspects are halved repeatedly. If the first half ends its worker, it contains the culprit; otherwise
the other half does. The last suspect must end a worker alone, so that an accidental loss does not lead to false blame.
A unit that ends a worker only together with other units is not found. A search among n units takes ⌈log₂ n⌉ + 2 runs.

A run that was killed from outside (`ledger.py`) is repeated. After several such runs in a row, the search ends without
a result.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs

from fedstack.membership.ledger import may_be_its_own

# The number of consecutive runs killed from outside after which the search ends.
_MOST_KILLED = 3
_Steps: TypeAlias = "Generator[range, Ended | None, range | None]"


@attrs.frozen
class Ended:
    """How a run ended its process.

    Attributes:
      status: The return code of the process, as in `subprocess`; `None` if it is not known.
      among: The units that may have ended the process. The range contains a single unit if the units ran one after
        another, and is empty if no unit had started; `None` stands for all units of the run.
      cause: Further details from the driver, for its error message.
    """

    status: int | None = None
    among: range | None = None
    cause: Any = None


@attrs.frozen
class Culprit:
    """The result of a search.

    Attributes:
      units: The units that end their process: a single unit, or the smallest range of units that end it together;
        empty if the process ends before any unit runs.
      ended: How the process ended in the last run.
      processes: The number of processes that ended during the search.
    """

    units: range
    ended: Ended
    processes: int


class CulpritSearch:
    """A search for the units that end their process.

    Args:
      units: The suspected units.
      first: The prime suspects among the units, which run first. Used only if `sees` is true.
      sees: Whether a run sees which unit is running.

    Attributes:
      next: The units to run now; `None` once the search has ended.
      found: The result; `None` until the search finds a culprit.
    """

    def __init__(self, units: range, first: Iterable[int] = (), *, sees: bool) -> None:
        self.found: Culprit | None = None
        self._steps = _seeing(units, sorted(set(first) & set(units))) if sees else _blind(units)
        self._last: Ended | None = None
        self._processes = self._killed = 0
        self.next: range | None = next(self._steps)

    def answer(self, ended: Ended | None) -> None:
        """Records how the run of the `next` units ended its process; `None` if the process survived."""
        if ended is not None and not may_be_its_own(ended.status):
            self._killed += 1
            if self._killed == _MOST_KILLED:
                self.next = None
            return
        self._killed = 0
        if ended is not None:
            self._last = ended
            self._processes += 1
        try:
            self.next = self._steps.send(ended)
        except StopIteration as over:
            self.next = None
            if over.value is not None and self._last is not None:
                self.found = Culprit(over.value, self._last, self._processes)

    async def drive(self, run: Callable[[range], Awaitable[Ended | None]]) -> Culprit | None:
        """Runs the whole search and returns its result, or `None` if it finds no culprit."""
        while self.next is not None:
            self.answer(await run(self.next))
        return self.found

    def __repr__(self) -> str:
        return f"<CulpritSearch next: {self.next}, found: {self.found}>"


def _seeing(units: range, first: list[int]) -> _Steps:
    likely = range(first[0], first[-1] + 1) if first else units
    pieces = deque([units] if likely == units else [likely, units])
    together: range | None = None
    while pieces:
        piece = pieces.popleft()
        ended = yield piece
        if ended is None:
            continue
        among = piece if ended.among is None else ended.among
        if len(among) > 1:
            return (yield from _smallest(among))
        if not among or among == piece or (yield among) is not None:
            return among
        together = together or range(piece.start, among.stop)
        if among.stop < piece.stop:
            pieces.appendleft(range(among.stop, piece.stop))
    return None if together is None else (yield from _smallest(together))


def _smallest(units: range) -> _Steps:
    """Narrows a range of units that ended a process although no unit in the range does so alone."""
    start, last = units.start, units.stop - 1
    low = start + 1
    while low < last:
        middle = (low + last) // 2
        if (yield range(start, middle + 1)) is None:
            low = middle + 1
        else:
            last = middle
    high = last - 1
    while start < high:
        middle = (start + high + 1) // 2
        if (yield range(middle, last + 1)) is None:
            high = middle - 1
        else:
            start = middle
    return range(start, last + 1)


def _blind(units: range) -> _Steps:
    if (yield units[:0]) is not None:
        return None
    is_proven = False
    while len(units) > 1:
        half = units[: len(units) // 2]
        is_proven = (yield half) is not None
        units = half if is_proven else units[len(half) :]
    return units if is_proven or (yield units) is not None else None

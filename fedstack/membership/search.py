"""Finds the units of work that end the process they run in, by running fewer and fewer of them: a state machine.

It says what to run next and receives the outcome. The driver runs it: in child processes of a worker that report which
unit they are running, or as tasks at the workers of an engine, where all that is known is that a worker was lost.

If a run *sees* which unit it is running, all units run, first one after another and then all at once:

* a unit that ended the process runs again alone; if it ends that process too, it is found. Otherwise the units after
  it run;
* if no unit ends a process alone, but together they have ended one, the smallest range that does so is found by moving
  its end and then its start inwards, each by halving.

If it does not, an empty run comes first: if that ends a worker, no client is to blame. Then the suspects are halved.
The half that ends its worker has the culprit; if the first half survives, the culprit is in the other. The last suspect
must end a worker alone, so an accidental loss leads nowhere; a unit that does so only together with others is not
found. n units take ⌈log₂ n⌉ + 2 runs.

A run that was killed from outside (`ledger.py`) is repeated; if that keeps happening, no unit is found.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs

from fedstack.membership.ledger import may_be_its_own

# How often in a row a run may be killed from outside.
_MOST_KILLED = 3
_Steps: TypeAlias = "Generator[range, Ended | None, range | None]"


@attrs.frozen
class Ended:
    """How a run ended its process.

    Attributes:
      status: The process's return code, as in `subprocess`; `None` if it is not known.
      among: The units that may have ended it, if known: a single unit of those that ran one after another, or none if
        they had not begun; `None` for all that ran.
      cause: Further details from the driver, for its message.
    """

    status: int | None = None
    among: range | None = None
    cause: Any = None


@attrs.frozen
class Culprit:
    """The result of a search.

    Attributes:
      units: The units that end their process: a single unit, or the smallest range that does so only together; empty
        if the process ends before any unit runs.
      ended: How the process ended in the last run.
      processes: How many processes the search has ended.
    """

    units: range
    ended: Ended
    processes: int


class CulpritSearch:
    """A search for the units that end their process.

    Args:
      units: The suspected units.
      first: The units among them that are suspected most, if a run sees which unit it is running.
      sees: Whether a run sees that.

    Attributes:
      next: The units to run now; `None` once the search is over.
      found: The result, if there is one.
    """

    def __init__(self, units: range, first: Iterable[int] = (), *, sees: bool) -> None:
        self.found: Culprit | None = None
        self._steps = _seeing(units, sorted(set(first) & set(units))) if sees else _blind(units)
        self._last: Ended | None = None
        self._processes = self._killed = 0
        self.next: range | None = next(self._steps)

    def answer(self, ended: Ended | None) -> None:
        """Takes how the units to run ended their process; `None` if they did not."""
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
        """Runs the search to its end; returns its result."""
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
    """Narrows a range that has ended a process although no unit in it does so alone."""
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

"""Finds which units of work end the process they run in, by running fewer and fewer of them: a state machine.

It says what to run next and hears how that went; what runs it is the driver's: child processes of a worker that say
what they are at, or tasks at the workers of an engine, of which nothing is known but that a worker was lost.

Where a run *sees* what it is at, all units run, one after the other and then all at once:

* one that ended the process is run again alone; if it ends that too, it is found. Else those after it are run;
* if none ends a process alone, but they have ended one together, the smallest range that does is found by moving its
  end and then its beginning inwards, each by halving.

Where it does not, a run of nothing comes first: what ends a worker without any client is none of them. Then the
suspects are halved. The half that ends its worker has the culprit; if the first survives, it is in the other. The one
that is left has to end a worker alone, so a loss by chance leads nowhere; one that does so only with others is not
found. n units take ⌈log₂ n⌉ + 2 runs.

A run that was killed by others (`ledger.py`) is repeated; where that happens again and again, nobody is found.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs

from fedstack.membership.ledger import may_be_its_own

# How often in a row a run may be killed.
_MOST_KILLED = 3
_Steps: TypeAlias = "Generator[range, Ended | None, range | None]"


@attrs.frozen
class Ended:
    """How a run has ended its process.

    Attributes:
      status: What `subprocess` calls its return code; `None` where that is not known.
      among: The units that may have done it, where that is known: one of those that ran one after the other, none if
        they had not begun; `None` for all that ran.
      cause: What else the driver knows, for its message.
    """

    status: int | None = None
    among: range | None = None
    cause: Any = None


@attrs.frozen
class Culprit:
    """What a search has found.

    Attributes:
      units: What ends its process: one unit, or the smallest range that does so only together; none if what comes
        before them does.
      ended: How it has, when it ran last.
      processes: How many processes the search has ended.
    """

    units: range
    ended: Ended
    processes: int


class CulpritSearch:
    """One search.

    Args:
      units: Those that are suspected.
      first: Those of them that are suspected most, where a run sees what it is at.
      sees: Whether it does.

    Attributes:
      next: What to run now; `None` once the search is over.
      found: What it has found, if anything.
    """

    def __init__(self, units: range, first: Iterable[int] = (), *, sees: bool) -> None:
        self.found: Culprit | None = None
        self._steps = _seeing(units, sorted(set(first) & set(units))) if sees else _blind(units)
        self._last: Ended | None = None
        self._processes = self._killed = 0
        self.next: range | None = next(self._steps)

    def answer(self, ended: Ended | None) -> None:
        """What was to run has ended its process, or `None`: it has not."""
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
        """Runs the search to its end; returns what it has found."""
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
    """Narrows a range that has ended a process, and of which no unit does so alone."""
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

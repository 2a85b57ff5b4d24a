"""Records which work was lost with which workers, and decides which work is suspected of ending them and when to stop.

Work that ends the process it runs in (a crash in native code, `os._exit`) would take down one worker after another,
since each attempt runs it somewhere else. Units of work are the clients of a phase, a closure, or a range of a dataset.
All of them follow one rule:

1. *A loss is recorded* for all work that a worker had when its connection broke. A worker that could not be dialled,
   was full, was draining or has fallen silent does not count as a loss.
2. *Two losses make a suspicion.* Each attempt splits the clients of a phase differently, so ranges overlap rather than
   match: suspects are the clients in two of them. A suspect runs where it cannot harm other work: a closure runs with
   nothing beside it, clients run in a search (`search.py`), while the clients that are not suspected run as usual.
3. *Blame needs more.* A search names the client in a `LeafError`, which is the user's error and is not retried. If it
   finds none, the losses had another cause and are forgotten. Work that cannot be split is given up after four losses.

The exit status of a process points to the cause. SIGSEGV, SIGBUS, SIGABRT and an exit of its own come from the work
that ran there. SIGKILL comes from an operator, the machine, or the kernel when memory runs out, whatever used it up:
like other signals that people send, it neither blames nor clears the work. Such a loss raises no suspicion, but it is
still recorded, for the message when workers are lost repeatedly. If the status is not known, as for a worker on another
machine, a loss counts, since only a search can blame.
"""

import itertools
import signal
from collections.abc import Callable, Iterable, Sequence

import attrs

SUSPECTED = 2
ENOUGH = 4
# The most clients to name, both in a message and to a worker.
_MOST_NAMED = 100
_SENT_BY_OTHERS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_NEUTRAL = frozenset(-int(getattr(signal, name)) for name in _SENT_BY_OTHERS if hasattr(signal, name))


def may_be_its_own(status: int | None) -> bool:
    """Returns whether the work that ran in a process may have ended it.

    Args:
      status: The process's return code, as in `subprocess`; `None` if it is not known.
    """
    return status not in _NEUTRAL


@attrs.define(eq=False)
class LostWork:
    """Work that a worker had when it was lost.

    Attributes:
      work: A phase, a closure, or a range; only its identity counts.
      units: The clients, for a phase; other work is a single unit.
      worker: The worker.
      running: The units that were running when the worker was last heard from.
      is_sure: Whether the worker is known to have started on the units.
      find_status: Returns the exit status of the worker's process, once it is known.
      status: The status that `find_status` returned.
    """

    work: object
    units: range
    worker: object
    running: frozenset[int]
    is_sure: bool
    find_status: Callable[[], int | None]
    status: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the work may have ended the worker."""
        if self.status is None:  # the connection may break before the system has reaped the process
            self.status = self.find_status()
        return may_be_its_own(self.status)


@attrs.frozen
class Suspects:
    """Clients that were lost twice.

    Attributes:
      clients: The clients.
      running: The clients among them that were running when a worker was last heard from.
      workers: The workers that were lost with some of them; a worker that was lost twice is listed twice.
    """

    clients: range
    running: Sequence[int]
    workers: Sequence[object]

    @property
    def losses(self) -> int:
        """How many workers have ended while they had some of the clients."""
        return len(self.workers)

    def overlaps(self, units: range) -> bool:
        """Returns whether some of the clients are in a range."""
        return _overlap(self.clients, units)

    def __str__(self) -> str:
        workers = ", ".join(dict.fromkeys(map(str, self.workers)))
        return f"{self.losses} workers ({workers}) have ended while {_named(self.clients)} ran"


class LossLedger:
    """The losses of one invocation, of one coordinator, or of one pass over a dataset. Not thread-safe."""

    def __init__(self) -> None:
        self._lost: dict[int, list[LostWork]] = {}  # by the identity of the work; its entries keep the work alive

    def __len__(self) -> int:
        return sum(map(len, self._lost.values()))

    def lose(
        self,
        work: object,
        worker: object,
        units: range = range(1),
        *,
        running: Iterable[int] = (),
        is_sure: bool = True,
        find_status: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Records that a worker was lost while it had a part of some work; see `LostWork`."""
        lost = LostWork(work, units, worker, frozenset(running) & frozenset(units), is_sure, find_status)
        self._lost.setdefault(id(work), []).append(lost)

    def forget(self, work: object) -> None:
        """Forgets the losses of some work: it has made progress, or is not to blame."""
        self._lost.pop(id(work), None)

    def losses(self, work: object, unit: int = 0) -> int:
        """Returns the number of workers that some work, or one client of a phase, may have ended."""
        return sum(unit in lost.units for lost in self._counted(work))

    def is_suspected(self, work: object) -> bool:
        """Returns whether work that is a single unit must run with nothing beside it."""
        return id(work) in self._lost and self.losses(work) >= SUSPECTED

    def is_enough(self, work: object) -> bool:
        """Returns whether work that is a single unit must be given up."""
        return self.losses(work) >= ENOUGH

    def suspects(self, phase: object) -> list[Suspects]:
        """Returns the clients that were in two of a phase's losses, in order."""
        lost = self._counted(phase)
        bounds = sorted({bound for one in lost for bound in (one.units.start, one.units.stop)})
        found: list[range] = []
        for start, stop in itertools.pairwise(bounds):
            if sum(start in one.units for one in lost) < SUSPECTED:
                continue
            if found and found[-1].stop == start:
                start = found.pop().start
            found.append(range(start, stop))
        return [_suspects(clients, lost) for clients in found]

    def told(self) -> str:
        """Returns a line for the end of a message: the clients that may have ended workers; empty if there are none."""
        everything = [lost for some in self._lost.values() for lost in some]
        suspects = [found for some in self._lost.values() for found in self.suspects(some[0].work)]
        twice = [(found.clients, found.running) for found in suspects]
        ranges = twice or [(lost.units, sorted(lost.running)) for lost in everything]
        if not ranges:
            return ""
        listed = sorted({_named(clients) for clients, _ in ranges})
        running = sorted({client for _, some in ranges for client in some})[:_MOST_NAMED]
        last = f"; last heard of: {', '.join(map(str, running))}" if running else ""
        ran = "ran" if all(lost.is_sure for lost in everything) else "may have run"
        return f"\n  these {ran} where {'two workers' if twice else 'a worker'} ended: {', '.join(listed)}{last}"

    def _counted(self, work: object) -> list[LostWork]:
        return [lost for lost in self._lost.get(id(work), ()) if lost.counts]

    def __repr__(self) -> str:
        return f"<LossLedger of {len(self)} losses>"


def _suspects(clients: range, lost: Sequence[LostWork]) -> Suspects:
    overlapping = [one for one in lost if _overlap(one.units, clients)]
    running = {client for one in overlapping for client in one.running if client in clients}
    return Suspects(clients, sorted(running)[:_MOST_NAMED], [one.worker for one in overlapping])


def _overlap(some: range, others: range) -> bool:
    return some.start < others.stop and others.start < some.stop


def _named(clients: range) -> str:
    return f"client {clients.start}" if len(clients) == 1 else f"clients {clients.start} to {clients.stop - 1}"

"""Records which work was running on lost workers, and decides which work to suspect and when to give up.

Work that ends its own process (through a crash in native code, or `os._exit`) would end one worker after another,
because each attempt runs it on another worker. A unit of work is a client of a phase, a closure, or a range of a
dataset. The same rules apply to all units:

1. *A loss is recorded* for all work that a worker had when its connection broke. A worker that could not be dialled,
   was full, was draining or has fallen silent does not count as a loss.
2. *Two losses cause a suspicion.* Each attempt splits the clients of a phase differently, so that the ranges of two
   losses overlap rather than match. The suspects are the clients in the overlap. A suspect runs where it cannot harm
   other work: a closure runs with no other work on its worker, and clients run in a search (`search.py`). Clients that
   are not suspected run as usual.
3. *Blame requires proof.* A search names the client in a `LeafError`, which is the user's error and is not retried. If
   a search finds no client, the losses had another cause and are forgotten. Work that cannot be split is given up
   after four losses.

The exit status of a process is evidence of the cause. SIGSEGV, SIGBUS, SIGABRT and a voluntary exit are caused by the
work of the process. SIGKILL is sent by an operator, by the machine, or by the kernel when any process has exhausted the
memory. Like other signals that are usually sent from outside, it neither blames nor clears the work. A loss by such a
signal raises no suspicion, but it is still recorded for the error message if workers are lost repeatedly. If the status
is not known, as for a worker on another machine, the loss counts, because only a search can assign blame.
"""

import itertools
import signal
from collections.abc import Callable, Iterable, Sequence

import attrs

from fedstack.foundations.deadline import clock_here
from fedstack.transport.peers.retry import RetryPolicy

SUSPECTED = 2
ENOUGH = 4
# The maximum number of clients to name in a message, or to send to a worker.
_MOST_NAMED = 100
_SENT_BY_OTHERS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_NEUTRAL = frozenset(-int(getattr(signal, name)) for name in _SENT_BY_OTHERS if hasattr(signal, name))


def may_be_its_own(status: int | None) -> bool:
    """Returns whether the work that ran in a process may have ended the process.

    Args:
      status: The return code of the process, as in `subprocess`; `None` if it is not known.
    """
    return status not in _NEUTRAL


@attrs.define(eq=False)
class LostWork:
    """Work that was assigned to a worker when the worker was lost.

    Attributes:
      work: A phase, a closure, or a range of a dataset; it is compared by identity.
      units: The clients of a phase; other work is a single unit.
      worker: The lost worker.
      running: The units that were running according to the last report of the worker.
      is_sure: Whether the worker is known to have started on the units.
      find_status: Returns the exit status of the worker's process; `None` while it is not known.
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
    """Clients that were each assigned to at least two lost workers.

    Attributes:
      clients: The clients.
      running: The clients among them that were running according to the last reports of the workers.
      workers: The lost workers that had some of the clients; a worker that was lost twice is listed twice.
    """

    clients: range
    running: Sequence[int]
    workers: Sequence[object]

    @property
    def losses(self) -> int:
        """The number of workers that ended while they had some of the clients."""
        return len(self.workers)

    def overlaps(self, units: range) -> bool:
        """Returns whether a range contains some of the clients."""
        return _overlap(self.clients, units)

    def __str__(self) -> str:
        workers = ", ".join(dict.fromkeys(map(str, self.workers)))
        return f"{self.losses} workers ({workers}) ended while they ran {named(self.clients)}"


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
        """Records that a worker was lost while it had a part of `work`; see `LostWork`."""
        lost = LostWork(work, units, worker, frozenset(running) & frozenset(units), is_sure, find_status)
        self._lost.setdefault(id(work), []).append(lost)

    def forget(self, work: object) -> None:
        """Forgets the losses of work that has made progress or is not to blame."""
        self._lost.pop(id(work), None)

    def losses(self, work: object, unit: int = 0) -> int:
        """Returns the number of workers that a unit of some work, such as a client of a phase, may have ended."""
        return sum(unit in lost.units for lost in self._counted(work))

    def count(self, work: object) -> int:
        """Returns the number of losses that some work may have caused."""
        return len(self._counted(work))

    def is_suspected(self, work: object) -> bool:
        """Returns whether work that is a single unit must run with no other work on its worker."""
        return id(work) in self._lost and self.losses(work) >= SUSPECTED

    def is_enough(self, work: object) -> bool:
        """Returns whether work that is a single unit must be given up."""
        return self.losses(work) >= ENOUGH

    def suspects(self, phase: object) -> list[Suspects]:
        """Returns the clients that were part of at least two losses of a phase, in order."""
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
        """Returns a line about the clients that may have ended workers, to append to an error message.

        The line begins with a line break. The result is empty if no losses were recorded.
        """
        everything = [lost for some in self._lost.values() for lost in some]
        suspects = [found for some in self._lost.values() for found in self.suspects(some[0].work)]
        twice = [(found.clients, found.running) for found in suspects]
        ranges = twice or [(lost.units, sorted(lost.running)) for lost in everything]
        if not ranges:
            return ""
        listed = map(named, _joined([clients for clients, _ in ranges]))
        running = sorted({client for _, some in ranges for client in some})[:_MOST_NAMED]
        last = f"; last reported as running: {', '.join(map(str, running))}" if running else ""
        ran = "ran" if all(lost.is_sure for lost in everything) else "may have run"
        return (
            f"\n  these clients {ran} on {'two workers' if twice else 'a worker'} that ended: {', '.join(listed)}{last}"
        )

    def _counted(self, work: object) -> list[LostWork]:
        return [lost for lost in self._lost.get(id(work), ()) if lost.counts]

    def __repr__(self) -> str:
        return f"<LossLedger of {len(self)} losses>"


class InvocationLosses(LossLedger):
    """The losses of one invocation, and the retries that its policy still allows.

    Args:
      policy: The retry policy of the invocation, which starts now.
      check: A function that raises an error if lost work must not run again, for example because the context is closed.

    Attributes:
      causes: The most recent cause of a loss, by the address of the lost worker.
      is_over: Whether work has been lost so often that the invocation must not be repeated.
      hedging: Whether clients may run on two workers at the same time.
    """

    def __init__(self, policy: RetryPolicy, check: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._policy = policy
        self._check = check
        self._clock = clock_here()
        self._began = self._clock()
        self.causes: dict[str, str] = {}
        self.is_over = False
        self.hedging = policy.hedging and policy.attempts > 1

    def pause(self, losses: int) -> float | None:
        """Returns the pause before lost work runs again, in seconds; `None` if it must not run again.

        Args:
          losses: The number of times that the work has been lost.
        """
        self._check()
        pause = self._policy.pause(losses)
        is_over = losses >= self._policy.attempts or self._policy.ends_before(self._clock() + pause - self._began)
        return None if is_over else pause


def _suspects(clients: range, lost: Sequence[LostWork]) -> Suspects:
    overlapping = [one for one in lost if _overlap(one.units, clients)]
    running = {client for one in overlapping for client in one.running if client in clients}
    return Suspects(clients, sorted(running)[:_MOST_NAMED], [one.worker for one in overlapping])


def _joined(ranges: Iterable[range]) -> list[range]:
    """Returns ranges in ascending order, of which those that overlap are joined."""
    found: list[range] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if found and one.start < found[-1].stop:
            one = range(found[-1].start, max(found.pop().stop, one.stop))
        found.append(one)
    return found


def _overlap(some: range, others: range) -> bool:
    return some.start < others.stop and others.start < some.stop


def named(clients: range) -> str:
    """Returns a phrase for a range of clients, such as `clients 3 to 7`."""
    return f"client {clients.start}" if len(clients) == 1 else f"clients {clients.start} to {clients.stop - 1}"

"""Remembers which clients ran where workers ended, from one attempt of an invocation to the next.

A client that ends the process it runs in (a crash in native code, `os._exit`, memory) would take one worker after the
other: each attempt runs it somewhere else. It is found in four steps.

1. *A loss is noted* where a phase was running for a range of clients when the connection to its worker broke off
   (`remote_phases.py`): the phase, the range, and the clients of which the last heartbeat said that they ran. A worker
   that could not be dialled, was full, was told to stop or has fallen silent is no such loss.
2. *Two losses make a suspicion.* The workers that are left share the clients anew, so ranges of different attempts
   overlap rather than equal each other: clients that were in the ranges of two losses are suspects.
3. *The next attempt begins with a search* (`workers_executor.py`). One worker gets the phase for the suspects and runs
   it in child processes of its own (`PhaseRequest.isolate`), those first that were last heard of. So no third worker
   ends, whoever is left does the search, and nothing of it enters a result.
4. *Whoever ends a child is named* in a `LeafError`, which is the user's and not tried again. If nobody does, the losses
   came from elsewhere: they are forgotten, and the attempt goes on as any other.

On an engine that the user has, tasks of half of the suspects, and of half of these, take the place of child processes
(`backends/ending_clients.py`): a few more workers end, which the engine starts anew.

What is remembered belongs to one invocation and goes with it.
"""

import itertools
from collections.abc import Iterable, Sequence

import attrs

# The most clients that are named, in a message and to a worker.
_MOST_NAMED = 100


@attrs.frozen
class LostRange:
    """The clients of a phase that a worker had when it ended.

    Attributes:
      phase: The phase; only its identity counts.
      clients: The clients.
      running: Those that ran when it was last heard of.
      is_sure: Whether it had begun with them.
    """

    phase: object
    clients: range
    running: frozenset[int] = frozenset()
    is_sure: bool = True


@attrs.frozen
class Suspects:
    """Clients that were in the ranges of two losses.

    Attributes:
      clients: The clients.
      running: Those of them that ran when a worker was last heard of.
      losses: How many workers have ended with some of them.
    """

    clients: range
    running: Sequence[int]
    losses: int


class LostRanges:
    """The losses of one invocation."""

    def __init__(self) -> None:
        self._lost: list[LostRange] = []

    def __len__(self) -> int:
        return len(self._lost)

    def add(self, phase: object, clients: range, running: Iterable[int] = (), *, is_sure: bool = True) -> None:
        """Takes note that a worker has ended while it ran a phase for a range of clients, or may have run it."""
        self._lost.append(LostRange(phase, clients, frozenset(running) & frozenset(clients), is_sure))

    def forget(self, phase: object) -> None:
        """Forgets the losses of a phase: a search has found nobody to blame for them."""
        self._lost = [lost for lost in self._lost if lost.phase is not phase]

    def ended_with(self, phase: object, client: int) -> int:
        """Returns how many workers have ended while they had a client."""
        return sum(client in lost.clients for lost in self._lost if lost.phase is phase)

    def suspects(self, phase: object) -> list[Suspects]:
        """Returns the clients that were in two of a phase's losses, in their order."""
        return _twice_in([lost for lost in self._lost if lost.phase is phase])

    def told(self) -> str:
        """Returns a line for the end of a message: which clients may have ended workers; empty if none has."""
        phases = {id(lost.phase): lost.phase for lost in self._lost}
        suspects = [found for phase in phases.values() for found in self.suspects(phase)]
        twice = [(found.clients, found.running) for found in suspects]
        ranges = twice or [(lost.clients, sorted(lost.running)) for lost in self._lost]
        if not ranges:
            return ""
        listed = sorted({_named(clients) for clients, _ in ranges})
        running = sorted({client for _, some in ranges for client in some})[:_MOST_NAMED]
        last = f"; last heard of: {', '.join(map(str, running))}" if running else ""
        ran = "ran" if all(lost.is_sure for lost in self._lost) else "may have run"
        return f"\n  these {ran} where {'two workers' if twice else 'a worker'} ended: {', '.join(listed)}{last}"

    def __repr__(self) -> str:
        return f"<LostRanges {', '.join(_named(lost.clients) for lost in self._lost) or 'none'}>"


def _twice_in(lost: Sequence[LostRange]) -> list[Suspects]:
    bounds = sorted({bound for one in lost for bound in (one.clients.start, one.clients.stop)})
    found: list[range] = []
    for start, stop in itertools.pairwise(bounds):
        if sum(start in one.clients for one in lost) < 2:
            continue
        if found and found[-1].stop == start:
            start = found.pop().start
        found.append(range(start, stop))
    return [_suspects(clients, lost) for clients in found]


def _suspects(clients: range, lost: Sequence[LostRange]) -> Suspects:
    running = {client for one in lost for client in one.running if client in clients}
    losses = sum(one.clients.start < clients.stop and clients.start < one.clients.stop for one in lost)
    return Suspects(clients, sorted(running)[:_MOST_NAMED], losses)


def _named(clients: range) -> str:
    return f"client {clients.start}" if len(clients) == 1 else f"clients {clients.start} to {clients.stop - 1}"

"""Decides when clients of a phase move to idle workers: a state machine without clocks, tasks or sockets.

A worker is idle if it has run all of its clients, or has joined the phase late. The idle workers then take over clients
of the worker that has the most clients left:

1. *Clients move.* The busy worker is asked for clients that it has not begun (`Ask`). It alone knows how far it is, so
   it decides how many clients to keep, such that all of these workers end at the same time.
2. *Clients run twice* ("hedging"). If the busy worker does not respond, or is far slower than the idle worker and has
   begun all of its clients, its clients run on idle workers as well. The first contribution counts. A slow worker's
   clients run twice only if they are a small share of all clients.

A worker that drains is asked for all clients that it has not begun. No clients move during the first moments of a
phase, or while other workers are about to end too.
"""

import math
from collections.abc import Collection, Hashable, Sequence

import attrs

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.executors.base.hand_ins import Headway
from fedstack.membership.ledger import named

# A phase that is shorter than this ends without moving clients.
SETTLED_SECONDS = 0.05
# Workers that have the same number of clients end within this share of the time of a phase, within these limits.
_SPREAD, _LEAST_SPREAD_SECONDS, _MOST_SPREAD_SECONDS = 0.04, 0.01, 0.25
# A worker that has left no clients is asked again after this share of the time of a phase, and at least this time: the
# worker may have run some of them meanwhile, or may have begun only now.
_AGAIN, _LEAST_AGAIN_SECONDS = 0.1, 0.2
# A worker's clients run twice if another worker has been idle for this share of the time of a phase, and at least this
# time, and if the worker is slower than this share of the other worker's speed.
_IDLE, _LEAST_IDLE_SECONDS, _SLOW = 0.25, 0.2, 0.5
# Of workers that respond, at most this share of all clients runs twice.
_MOST_TWICE = 0.03


@attrs.frozen(eq=False)
class Ask:
    """A request to a worker to leave its last clients to other workers.

    Attributes:
      assignment: The assignment of the worker.
      workers: The idle workers; none if the worker drains, so that any other workers run the clients.
      rate: The number of clients that the idle workers run per second; infinity if the worker drains.
    """

    assignment: Assignment
    workers: Sequence[Hashable]
    rate: float


@attrs.frozen
class TakenOver:
    """Clients of a worker that another worker runs.

    Attributes:
      clients: The clients.
      worker: The worker that had the clients.
      by: The other worker; `None` if it has not been chosen yet.
      runs_twice: Whether the first worker runs the clients as well.
    """

    clients: range
    worker: Hashable
    by: Hashable | None
    runs_twice: bool

    def __str__(self) -> str:
        by = "The next free worker" if self.by is None else self.by
        return f"{by} runs {named(self.clients)} {'as well as' if self.runs_twice else 'instead of'} {self.worker}"


@attrs.define(eq=False)
class _Asked:
    """What is known about a worker that has been asked.

    Attributes:
      again_at: The time from which the worker may be asked again.
      headway: How far the worker was at the last answer.
      is_silent: Whether the worker has not responded.
      is_copied: Whether its clients run on other workers as well.
      drains_at: The time from which the worker, if it drains, is asked for all clients that it has not begun; infinity
        once it has been asked, and unless it says that it cannot leave any yet.
    """

    again_at: float = 0.0
    headway: Headway | None = None
    is_silent: bool = False
    is_copied: bool = False
    drains_at: float = 0.0


@attrs.define
class _Pace:
    """The number of clients that a worker has run, and the time that this took, in seconds."""

    clients: int = 0
    seconds: float = 0.0


class Balance:
    """Keeps the workers of one phase busy. Not thread-safe.

    Args:
      assignments: The assignments of the phase.
      clients: The number of clients of the phase.
      now: The time, in seconds, at which the phase begins.
      hedging: Whether clients may run on two workers at the same time.

    Attributes:
      taken: The clients that have been taken over since the caller last looked.
    """

    def __init__(self, assignments: Assignments, clients: int, now: float, *, hedging: bool = True) -> None:
        self._assignments = assignments
        self._begun = now
        self._budget = int(_MOST_TWICE * clients)
        self._hedging = hedging
        self._workers: tuple[Hashable, ...] = ()
        self._since: dict[Assignment, float] = {}  # the assignments whose workers can leave clients to others
        self._asked: dict[Assignment, _Asked] = {}
        self._asks: dict[Ask, None] = {}  # the requests that have not been answered
        self._idle: dict[Hashable, float] = {}
        self._leaving: Collection[Hashable] = ()
        self._paces: dict[Hashable, _Pace] = {}
        self.taken: list[TakenOver] = []

    # Events.

    def present(self, workers: Sequence[Hashable], leaving: Collection[Hashable] = ()) -> None:
        """Records which workers are available now, and which workers receive no more clients."""
        self._workers = tuple(workers)
        self._leaving = leaving

    def begun(self, assignment: Assignment, now: float) -> None:
        """Records that a worker, which can leave clients to others, has begun its clients."""
        self._since[assignment] = now

    def ended(self, assignment: Assignment, now: float) -> None:
        """Records that a worker has run its clients."""
        since = self._since.pop(assignment, now)
        self._asked.pop(assignment, None)
        pace = self._paces.setdefault(assignment.worker, _Pace())
        pace.clients += assignment.done
        pace.seconds += now - since

    def answered(self, ask: Ask, headway: Headway | None, now: float, *, is_silent: bool = False) -> list[Assignment]:
        """Records the answer to a request, and returns the assignments to start.

        Args:
          ask: The request.
          headway: How far the worker is; `None` without an answer, or if the worker cannot leave clients to others, or
            not yet.
          now: The time, in seconds.
          is_silent: Whether there was no answer in time.
        """
        del self._asks[ask]
        asked = self._asked.get(ask.assignment)
        if asked is None:
            return []  # it has ended
        asked.is_silent = is_silent
        left = ask.assignment.left
        if headway is not None and left and headway.stop < left[-1].stop:
            asked.headway, asked.again_at = headway, now
            worker, moved = ask.assignment.worker, range(headway.stop, left[-1].stop)
            started = self._assignments.move(ask.assignment, headway.stop, ask.workers)
            self.taken += [TakenOver(one.clients, worker, one.worker, runs_twice=False) for one in started]
            self._note_idle(now)
            if not started:
                self.taken.append(TakenOver(moved, worker, None, runs_twice=False))
            return started
        asked.again_at = now + max(_LEAST_AGAIN_SECONDS, _AGAIN * (now - self._begun))
        if headway is None:  # it may be receiving the clients, or loading a function
            asked.drains_at = now + _LEAST_AGAIN_SECONDS
        else:
            asked.headway = headway
        return []

    def is_silent(self, assignment: Assignment) -> bool:
        """Returns whether a worker did not answer when it was last asked."""
        asked = self._asked.get(assignment)
        return asked is not None and asked.is_silent

    # Decisions.

    def asks(self, now: float) -> list[Ask]:
        """Returns the requests to send at the time `now`."""
        self._note_idle(now)
        asks = [Ask(one, (), math.inf) for one in self._since if self._drains_at(one) <= now]
        idle = self._idle_now(now)
        asked = {ask.assignment for ask in [*self._asks, *asks]}
        ready = [one for one in self._since if one not in asked and self._can_give(one, now)] if idle else ()
        if ready:
            rate = sum(self._rate(worker, now) for worker in idle)
            asks.append(Ask(max(ready, key=lambda one: one.size), idle, rate))
        for ask in asks:
            ask.assignment.is_shared = True
            known = self._asked.setdefault(ask.assignment, _Asked())
            known.drains_at = known.drains_at if ask.workers else math.inf
            self._asks[ask] = None
        return asks

    def recall(self) -> list[Ask]:
        """Returns requests to all workers for the clients that they have not begun."""
        asked = {ask.assignment for ask in self._asks}
        asks = [Ask(one, (), math.inf) for one in self._since if one.left and one not in asked]
        for ask in asks:
            ask.assignment.is_shared = True
            self._asked.setdefault(ask.assignment, _Asked())
            self._asks[ask] = None
        return asks

    def copies(self, now: float) -> list[Assignment]:
        """Lets clients of silent and slow workers run twice, and returns the assignments to start at the time `now`."""
        self._note_idle(now)
        idle = self._idle_now(now)
        if not self._hedging or not idle:
            return []
        for one, asked in self._asked.items():
            if asked.is_copied or one not in self._assignments.running or one.worker in idle:
                continue
            if one.losses:  # the clients may have ended a worker, and would end two more
                continue
            if not asked.is_silent:
                if not self._is_far_behind(one, asked, idle, now) or one.size > self._budget:
                    continue
                self._budget -= one.size
            asked.is_copied = True
            started = self._assignments.copy(one, idle)
            self.taken += [TakenOver(copy.clients, one.worker, copy.worker, runs_twice=True) for copy in started]
            self._note_idle(now)
            return started
        return []

    def wakes_at(self, now: float) -> float | None:
        """Returns the time at which there may be something to decide without an event; `None` if there is none."""
        times = [*map(self._drains_at, self._since), *(map(self._due, self._idle.values()) if self._since else ())]
        due = min(times, default=math.inf)
        if due == math.inf:
            return None
        return due if due > now else now + self._spread(now)

    def _drains_at(self, one: Assignment) -> float:
        """Returns the time at which a worker must be asked for the clients that it has not begun, because it drains."""
        asked = self._asked.get(one)
        return (asked.drains_at if asked else 0.0) if one.worker in self._leaving and one.left else math.inf

    def _can_give(self, one: Assignment, now: float) -> bool:
        """Returns whether a worker may have clients that it has not begun."""
        asked = self._asked.get(one)
        if one.worker in self._leaving or not one.left:
            return False
        return asked is None or (now >= asked.again_at and not asked.is_silent and not asked.is_copied)

    def _is_far_behind(self, one: Assignment, asked: _Asked, idle: Sequence[Hashable], now: float) -> bool:
        """Returns whether a worker that responds, and has begun all of its clients, is far slower than idle workers."""
        patience = max(_LEAST_IDLE_SECONDS, _IDLE * (now - self._begun))
        if asked.headway is None or now - min(self._idle[worker] for worker in idle) < patience:
            return False
        own = max(asked.headway.done, one.done) / max(now - self._since[one], 1e-9)
        return own < _SLOW * max(self._rate(worker, now) for worker in idle)

    def _rate(self, worker: Hashable, now: float) -> float:
        """Returns the number of clients that a worker runs per second, as far as it is known."""
        own = self._paces.get(worker)
        known = [own] if own and own.clients else [pace for pace in self._paces.values() if pace.clients]
        known = known or [_Pace(one.done, now - since) for one, since in self._since.items() if one.done]
        clients, seconds = sum(pace.clients for pace in known), sum(pace.seconds for pace in known)
        return max(1, clients) / max(seconds if known else now - self._begun, 1e-6)

    def _due(self, since: float) -> float:
        """Returns the time from which a worker that has been idle for some time takes over clients."""
        return max(self._begun + SETTLED_SECONDS, since + self._spread(since))

    def _spread(self, now: float) -> float:
        """Returns the time within which workers with the same number of clients end."""
        return min(max(_LEAST_SPREAD_SECONDS, _SPREAD * (now - self._begun)), _MOST_SPREAD_SECONDS)

    def _idle_now(self, now: float) -> list[Hashable]:
        """Returns the idle workers that can take over clients now, because one of them has been idle for a while."""
        asking = {worker for ask in self._asks for worker in ask.workers}
        idle = [worker for worker in self._idle if worker not in asking]
        return idle if any(now >= self._due(self._idle[worker]) for worker in idle) else []

    def _note_idle(self, now: float) -> None:
        """Updates which workers are idle, and since when."""
        busy = {one.worker for one in self._assignments.running}
        self._idle = {w: self._idle.get(w, now) for w in self._workers if w not in busy and w not in self._leaving}

    def __repr__(self) -> str:
        return f"<Balance of {len(self._idle)} idle workers, {len(self._asks)} requests>"

"""Decides which worker runs which clients of a phase: a state machine without clocks, tasks or sockets.

The clients of a phase are always in one of three states: waiting for a worker, assigned to workers, or done. A phase
begins with one contiguous range per worker. A worker may hand in parts of its range before it has run the whole range.
If the worker is lost, only the clients that it has not handed in wait again, and are divided among the workers that are
available then. Clients may also move from one worker to another (`move`), or run on a second worker as well (`copy`);
`balance.py` decides when. Which worker ran a client never affects the result, because the contributions of all clients
are merged along the fixed tree over client indices.

Clients that are suspected of ending their worker wait until a search has ended (`hold` and `release`). If a client
fails, the error to raise is the error of the lowest failing client, so that clients before it still run, and clients
after it are dropped.

The driver (`elastic_phase.py`) reports events by calling methods, carries out the assignments that `start` returns, and
ends the assignments in `dropped`.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

from fedstack.backends.elastic.assignment import Assignment, Waiting, held_among, without
from fedstack.executors.base.hand_ins import Origin, Why
from fedstack.executors.composing_executor import even_counts, whole_blocks


class Assignments:
    """The assignments of one phase to workers. Not thread-safe.

    Args:
      clients: The clients of the phase.
      cuts_blocks: Whether many clients are divided evenly, and not at the blocks of general aggregations.

    Attributes:
      running: The assignments that workers are running, in the order in which they started.
      dropped: The running assignments that are no longer needed. The driver ends and removes them.
    """

    def __init__(self, clients: range, *, cuts_blocks: bool = True) -> None:
        self.running: dict[Assignment, None] = {}
        self.dropped: list[Assignment] = []
        self._waiting = [Waiting(clients, 0, 0.0)] if clients else []
        self._unfinished: list[Waiting] = []
        self._workers: tuple[Hashable, ...] = ()
        self._has_copies = False
        self._counts = _even if cuts_blocks else whole_blocks

    @property
    def is_done(self) -> bool:
        """Whether all clients are done, apart from failed clients and the clients behind them."""
        return not (self._waiting or self.running or self._unfinished)

    @property
    def is_idle(self) -> bool:
        """Whether no worker is running clients."""
        return not self.running

    @property
    def needs_workers(self) -> bool:
        """Whether clients wait, and it is unknown which workers are available."""
        return bool(self._waiting or (self._unfinished and not self.running)) and not self._workers

    @property
    def wakes_at(self) -> float | None:
        """The time at which the next waiting clients may run; `None` if no clients wait for a time."""
        return min((one.since for one in self._waiting if not one.is_held), default=None)

    def counts(self, workers: int) -> Sequence[int]:
        """Returns the numbers of clients with which so many workers begin the phase."""
        return self._counts(self._waiting[0].clients, workers)

    # Events.

    def begin(self, workers: Sequence[Hashable], counts: Sequence[int]) -> list[Assignment]:
        """Assigns consecutive ranges of all clients to workers, and returns the assignments to start.

        Args:
          workers: The available workers.
          counts: The number of clients of each worker.
        """
        self._workers = tuple(workers)
        phase, self._waiting = self._waiting[0], []
        stop = phase.clients.start
        started: list[Assignment] = []
        for worker, count in zip(workers, counts):
            start, stop = stop, stop + count
            if count:
                started.append(self._assign(worker, phase.at(range(start, stop), is_held=False)))
        return started

    def present(self, workers: Sequence[Hashable]) -> None:
        """Records which workers are available now, for the assignments that follow."""
        self._workers = tuple(workers)

    def start(self, now: float) -> list[Assignment]:
        """Divides the waiting clients that may run at the time `now` among the workers; returns the new assignments.

        Each range is divided evenly. The pieces go to the workers that have the fewest clients to run.
        """
        if not self.running:
            self._waiting += self._unfinished
            self._unfinished = []
        if not self._workers:
            return []
        ready = [one for one in self._waiting if not one.is_held and one.since <= now]
        if not ready:
            return []
        self._waiting = [one for one in self._waiting if one not in ready]
        load = dict.fromkeys(self._workers, 0)
        for assignment in self.running:
            if assignment.worker in load:
                load[assignment.worker] += assignment.size
        started: list[Assignment] = []
        for one in sorted(ready, key=lambda one: one.clients.start):
            others = [worker for worker in load if worker != one.avoids] or list(load)
            for piece in self._divided(one.clients, len(others)):
                worker = min(others, key=load.__getitem__)
                load[worker] += len(piece)
                started.append(self._assign(worker, one.at(piece, is_held=False)))
        return started

    def handed_in(self, assignment: Assignment, clients: range) -> bool:
        """Records that a worker has handed in the contribution of some of its clients.

        Returns:
          Whether the contribution counts. It does not count if these clients are not part of the assignment, are done,
          or are no longer needed.
        """
        if assignment not in self.running:
            return False
        for index, left in enumerate(assignment.left):
            if left.start <= clients.start < clients.stop <= left.stop:
                rest = range(left.start, clients.start), range(clients.stop, left.stop)
                assignment.left[index : index + 1] = filter(len, rest)
                assignment.done += len(clients)
                if self._has_copies:
                    self._no_longer_needed(clients, [one for one in self.running if one is not assignment])
                return True
        return False

    def left_to_others(self, assignment: Assignment, clients: range, able: Callable[[Assignment], bool]) -> bool:
        """Drops clients from an assignment if other workers are running all of them, and returns whether they are.

        Args:
          assignment: The assignment, whose worker has run the clients.
          clients: The clients.
          able: Returns whether the contribution of another assignment is worth waiting for.
        """
        if assignment not in self.running or not self._has_copies:
            return False
        rest = [clients]
        for other in self.running:
            if other is not assignment and able(other):
                for taken in other.left:
                    rest = [part for some in rest for part in without(some, taken)]
        if not rest:
            self._no_longer_needed(clients, [assignment])
        return not rest

    def ended(self, assignment: Assignment) -> bool:
        """Records that a worker has run its assignment, and returns whether this is possible.

        It is not if clients are missing that no other worker may have received. The assignment then remains.
        """
        if assignment.left and not assignment.is_shared:
            return False
        if self.running.pop(assignment, self) is not self:
            self._wait(assignment, 0, 0.0)
        return True

    def lost(self, assignment: Assignment, since: float) -> None:
        """Records the loss of a worker. The clients that it has not handed in wait again, until `present` is called.

        Clients that it had not begun do not count as lost.

        Args:
          assignment: The assignment of the worker.
          since: The time from which the clients may run again, in seconds.
        """
        if self.running.pop(assignment, self) is self:
            return
        self._workers = ()
        self._wait(assignment, 1, since)

    def failed(self, assignment: Assignment) -> None:
        """Records that a client of an assignment has failed. Clients behind the assignment are no longer needed."""
        self.running.pop(assignment, None)
        if assignment.left:
            self._no_longer_needed(range(assignment.left[0].start, sys.maxsize), list(self.running))

    def again(self, assignment: Assignment, clients: range) -> None:
        """Records that clients, which count as handed in, have failed and are to run again on another worker.

        The clients wait until `present` is called.
        """
        worker, failures = assignment.worker, assignment.failures + 1
        origin = Origin(Why.MOVED, str(worker))
        self._waiting.append(Waiting(clients, 0, 0.0, failures=failures, avoids=worker, origin=origin))
        self._workers = ()

    def move(self, assignment: Assignment, stop: int, workers: Sequence[Hashable]) -> list[Assignment]:
        """Moves the last clients of a worker, which has agreed not to run them, and returns the assignments to start.

        Args:
          assignment: The assignment of the worker.
          stop: The index of the first client to move.
          workers: The workers that run these clients. If none of them is available, the clients wait for `start`.
        """
        if assignment not in self.running:
            return []
        left, assignment.is_shared = assignment.left, True
        assignment.left = [part for some in left for part in without(some, range(stop, sys.maxsize))]
        moved = [part for some in left for part in without(some, range(stop))]
        waiting = [self._moving(assignment, clients) for clients in self._not_running(moved)]
        workers = [worker for worker in workers if worker in self._workers]
        if not workers:
            self._waiting += waiting
            return []
        return [
            self._assign(worker, one.at(piece, is_held=False))
            for one in waiting
            for worker, piece in zip(workers, self._divided(one.clients, len(workers)))
        ]

    def copy(self, assignment: Assignment, workers: Sequence[Hashable]) -> list[Assignment]:
        """Lets the clients of a worker run on other workers as well, and returns the assignments to start."""
        started: list[Assignment] = []
        assignment.is_shared = self._has_copies = True
        for left in assignment.left:
            for worker, piece in zip(workers, self._divided(left, len(workers))):
                started.append(self._assign(worker, self._moving(assignment, piece, Why.COPIED)))
                started[-1].is_shared = True
        return started

    def hold(self, suspects: Iterable[range]) -> None:
        """Keeps suspected clients waiting until `release` is called."""
        for some in suspects:
            self._waiting = [piece for one in self._waiting for piece in held_among(one, some)]

    def release(self) -> None:
        """Lets all clients run, after a search has ended."""
        for one in self._waiting:
            one.is_held = False

    def forgive(self) -> None:
        """Records that the cause of all losses so far has been found, so that they no longer count."""
        for one in (*self._waiting, *self.running):
            one.losses = 0

    def skip(self, clients: range) -> None:
        """Records that clients have failed, or are not waited for, so that they need not run again."""
        self._no_longer_needed(clients, list(self.running))

    def wait(self, clients: range, *, is_held: bool) -> None:
        """Records that clients, which count as handed in, were not done after all, so that they wait for a worker.

        Args:
          clients: The clients.
          is_held: Whether they wait until no worker is running clients.
        """
        (self._unfinished if is_held else self._waiting).append(Waiting(clients, 0, 0.0))
        self._workers = ()

    def dismiss(self) -> list[range]:
        """Returns the clients that wait for a worker. They no longer do."""
        waiting, self._waiting, self._unfinished = [*self._waiting, *self._unfinished], [], []
        return [one.clients for one in waiting]

    def keep_one_copy(self, rank: Callable[[Assignment], object]) -> None:
        """Of clients that run on two workers, keeps them only on the worker whose assignment has the highest rank."""
        if not self._has_copies:
            return
        for one in sorted(self.running, key=cast("Callable[[Assignment], Any]", rank), reverse=True):
            for clients in list(one.left) if one in self.running else ():
                self._no_longer_needed(clients, [other for other in self.running if other is not one])

    def _divided(self, clients: range, parts: int) -> Iterator[range]:
        """Yields consecutive ranges of similar length, none of which is empty."""
        start = clients.start
        for count in self._counts(clients, min(parts, len(clients))):
            yield range(start, start + count)
            start += count

    def _no_longer_needed(self, clients: range, running: Iterable[Assignment]) -> None:
        """Records that some clients need not run any more, and drops the assignments that have no others."""
        rest = [(one, without(one.clients, clients)) for one in self._waiting]
        self._waiting = [one.at(part, is_held=one.is_held) for one, parts in rest for part in parts]
        for one in running:
            left = [part for some in one.left for part in without(some, clients)]
            if left != one.left:
                one.left, one.is_shared = left, True
                if not left:
                    del self.running[one]
                    self.dropped.append(one)

    def _wait(self, assignment: Assignment, losses: int, since: float) -> None:
        """Lets the clients of an assignment that has ended wait, apart from clients that other workers are running."""
        begun, why = range(assignment.begun), Why.LOST if losses else Why.MOVED
        for clients in self._not_running(assignment.left):
            for part in without(clients, range(assignment.begun, sys.maxsize)):
                waiting = self._moving(assignment, part, why)
                waiting.losses, waiting.since = assignment.losses + losses, since
                # A worker that loses clients at once would always have the fewest, and so get them again and again.
                if losses and assignment.origin == Origin(Why.LOST, str(assignment.worker)):
                    waiting.avoids = assignment.worker
                self._waiting.append(waiting)
            self._waiting += [self._moving(assignment, part, why) for part in without(clients, begun)]

    def _moving(self, assignment: Assignment, clients: range, why: Why = Why.MOVED) -> Waiting:
        origin = Origin(why, str(assignment.worker))
        return Waiting(clients, assignment.losses, 0.0, failures=assignment.failures, origin=origin)

    def _not_running(self, left: list[range]) -> list[range]:
        """Returns those of the given clients that no worker is running."""
        for other in self.running if self._has_copies else ():
            for taken in other.left:
                left = [part for some in left for part in without(some, taken)]
        return left

    def _assign(self, worker: Hashable, waiting: Waiting) -> Assignment:
        clients, failures, origin = waiting.clients, waiting.failures, waiting.origin
        assignment = Assignment(worker, clients, waiting.losses, [clients], failures=failures, origin=origin)
        self.running[assignment] = None
        return assignment

    def __repr__(self) -> str:
        return f"<Assignments {list(self.running)} running, {self._waiting} waiting>"


def _even(clients: range, parts: int) -> list[int]:
    return even_counts(len(clients), parts)

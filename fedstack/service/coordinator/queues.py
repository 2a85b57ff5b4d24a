"""Decides which runnable closure is sent to which worker, and when.

The queues measure how long calls take on each worker, so that a slow worker leaves closures to faster ones.
"""

from collections import deque
from collections.abc import Callable, Sequence

from fedstack.membership.ledger import LossLedger
from fedstack.service.coordinator.calls.closures import Closure, ClosureState, WorkerState

MOST_RUNNING = 8
# How long a closure waits for other closures to be sent together with it, while a call to the worker is in flight.
GATHER_SECONDS = 0.002
# A call this short takes about as long in transit as on the worker, so the worker should already have the next call.
_QUICK_SECONDS = 0.05
# The weight of the most recent call in the moving average.
_NEWEST = 0.4
_MOST_NAMES = 100
_LEAST_SECONDS = 1e-6
# A worker is slow if its calls take at least this many times longer; durations vary even between equal workers.
_TIMES_SLOWER = 2.5
# A worker counts as slow for this multiple of its calls' duration, because its first calls may have loaded functions.
_TIMES_REMEMBERED = 10.0


class Pace:
    """The measured durations of one worker's calls, by name.

    A call is measured from the time at which it is assigned to the worker.

    Attributes:
      is_quick: Whether the most recent call was quick.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # the average duration, and the time of the last measurement
        self.is_quick = False

    def note(self, name: str, seconds: float, now: float) -> None:
        """Records the duration of a call that has ended."""
        self.is_quick = seconds <= _QUICK_SECONDS
        before, _ = self._known.pop(name, (seconds, now))
        # Insert the name last: the order of the names is that of their last measurements.
        self._known[name] = max(before + _NEWEST * (seconds - before), _LEAST_SECONDS), now
        if len(self._known) > _MOST_NAMES:
            del self._known[next(iter(self._known))]

    def slow_seconds(self, name: str, now: float) -> float | None:
        """Returns the duration of calls with the given name, or `None` if it is too short to matter or out of date."""
        seconds, heard = self._known.get(name, (0.0, now))
        return None if seconds <= _QUICK_SECONDS or now > heard + _TIMES_REMEMBERED * seconds else seconds

    def fast_seconds(self, name: str, others: float) -> float | None:
        """Returns the duration of calls with the given name if it is much shorter than `others`; otherwise `None`."""
        found = self._known.get(name)
        return None if found is None or found[0] * _TIMES_SLOWER > others else found[0]

    def __repr__(self) -> str:
        return f"<Pace of {len(self._known)} names>"


class Queues:
    """The workers, and the closures that wait for a worker.

    Each worker has a queue of the closures whose arguments it holds. All other closures share one queue.

    Args:
      most_running: The maximum number of closures that run on one worker at the same time.
      clock: Returns the time in seconds.

    Attributes:
      ledger: The record of closures that were running on lost workers. A suspected closure runs alone on its worker.
    """

    def __init__(self, most_running: int, clock: Callable[[], float]) -> None:
        self.ledger = LossLedger()
        self._most_running = most_running
        self._clock = clock
        self._workers: dict[WorkerState, deque[Closure]] = {}
        self._pace: dict[WorkerState, Pace] = {}
        self._anywhere: deque[Closure] = deque()
        self._suspects: deque[Closure] = deque()
        self._again: float | None = None
        self._looked = 0.0  # the time of the last assignments
        self._has_new = False

    @property
    def workers(self) -> tuple[WorkerState, ...]:
        """The current workers."""
        return tuple(self._workers)

    def add_worker(self, worker: WorkerState) -> None:
        """Adds a worker."""
        self._workers[worker] = deque()
        self._pace[worker] = Pace()

    def lose_worker(self, worker: WorkerState) -> None:
        """Removes a lost worker. Closures in its queue may then run on any other worker."""
        del self._pace[worker]
        self._anywhere.extendleft(reversed(self._workers.pop(worker)))

    def add(self, closure: Closure, *, first: bool, at_once: bool) -> None:
        """Queues a closure that can run.

        Args:
          closure: The closure.
          first: Whether to put the closure at the front of its queue.
          at_once: Whether to send the closure without waiting for other closures that could be sent in the same call.
            In a chain of dependent calls, such waits would add up.
        """
        self._has_new = True
        if self.ledger.is_suspected(closure):
            self._suspects.append(closure)
            return
        home = next((worker for need in closure.needs for worker in need.held), None)
        queue = self._anywhere if home is None else self._workers[home]
        if home is not None and at_once:
            home.due = 0.0
        if first:
            queue.appendleft(closure)
        else:
            queue.append(closure)

    def assignments(self, can_begin: Callable[[Closure], bool]) -> list[tuple[WorkerState, list[Closure]]]:
        """Assigns queued closures to workers, and returns for each worker the closures to start now.

        Args:
          can_begin: Returns whether a queued closure can still run.
        """
        self._again = None
        if self._is_empty:
            return []
        now, given = self._clock(), dict[WorkerState, list[Closure]]()
        self._looked = now
        free, self._has_new = [], True
        while free or self._has_new:
            if self._has_new:  # `can_begin` may queue closures, also for workers that had nothing to do before
                self._has_new = False
                free = [worker for worker in self._workers if self._takes_more(worker, now)]
                continue
            worker = min(free, key=lambda one: len(one.running))
            closure = self._next_for(worker, can_begin, now)
            if closure is None:
                free.remove(worker)
                continue
            closure.state = ClosureState.RUNNING
            worker.running[closure] = now
            given.setdefault(worker, []).append(closure)
            if not self._takes_more(worker, now):
                free.remove(worker)
        for worker in given:
            worker.due = now + GATHER_SECONDS
        return list(given.items())

    def seconds_to_assignments(self) -> float | None:
        """Returns the seconds until `assignments` must be called again if no event occurs; `None` means never."""
        if self._is_empty:
            return None
        # Of workers that were not given closures then, although their time may have come meanwhile.
        due = [one.due for one in self._workers if self._gathers(one, self._looked) and not self._is_full(one)]
        if self._again is not None:
            due.append(self._again)
        return max(0.0, min(due) - self._clock()) if due else None

    def ended(self, closure: Closure, worker: WorkerState, *, ran: bool = True) -> None:
        """Records that a worker no longer runs a closure.

        Args:
          closure: The closure.
          worker: The worker.
          ran: Whether the closure ran to completion, so that its duration counts.
        """
        begun = worker.running.pop(closure, None)
        if ran and begun is not None:
            now = self._clock()
            self._pace[worker].note(closure.name, now - begun, now)

    @property
    def _is_empty(self) -> bool:
        return not (self._anywhere or self._suspects or any(self._workers.values()))

    def _takes_more(self, worker: WorkerState, now: float) -> bool:
        if self._is_full(worker) or self._gathers(worker, now):
            return False
        return not any(map(self.ledger.is_suspected, worker.running))

    def _gathers(self, worker: WorkerState, now: float) -> bool:
        """Returns whether a worker's next call still waits for more closures because another call is in flight."""
        return worker.calls > 0 and worker.due > now

    def _is_full(self, worker: WorkerState) -> bool:
        return worker.silent or worker.draining or len(worker.running) >= self._most_at(worker)

    def _most_at(self, worker: WorkerState) -> int:
        """Returns the maximum number of closures to send to a worker.

        A worker receives more closures than it has threads only if its calls are short, because closures that wait on a
        worker cannot be reassigned when other workers become idle.
        """
        if worker.threads is None or self._pace[worker].is_quick:
            return self._most_running
        return min(self._most_running, worker.threads)

    def _leaves_to_others(self, worker: WorkerState, queue: Sequence[Closure], now: float) -> bool:
        """Returns whether faster workers would finish a queue before this worker finishes the queue's first closure."""
        own = self._pace[worker].slow_seconds(queue[0].name, now)
        if own is None:
            return False
        per_second, least, until = 0.0, own, now
        for other in self._workers:
            seconds = self._pace[other].fast_seconds(queue[0].name, own)
            oldest = next(iter(other.running.values()), now)
            # Ignore workers with a call that runs longer than usual, since that call may never end.
            if seconds is None or other.silent or other.draining or oldest + own <= now:
                continue
            per_second += self._most_at(other) / seconds
            least, until = min(least, seconds), max(until, oldest + own)
        if not per_second or len(queue) / per_second + least >= own:
            return False
        self._again = until if self._again is None else min(until, self._again)
        return True

    def _next_for(self, worker: WorkerState, can_begin: Callable[[Closure], bool], now: float) -> Closure | None:
        """Returns the closure to run next on a worker, or `None`."""
        own = self._workers[worker]
        candidates = [] if worker.running else [self._suspects]
        candidates += [own, self._anywhere]
        # Closures whose arguments are on full workers come last, because their arguments have to be moved.
        full = [queue for other, queue in self._workers.items() if self._is_full(other)]
        candidates += sorted(full, key=len, reverse=True)
        for queue in candidates:
            while queue:
                if queue is not own and self._leaves_to_others(worker, queue, now):
                    break
                closure = queue.popleft()
                if can_begin(closure):
                    return closure
        return None

    def __repr__(self) -> str:
        return f"<Queues of {len(self._workers)} workers>"

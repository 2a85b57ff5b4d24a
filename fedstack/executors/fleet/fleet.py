"""Decides which workers are ready, which are asked again and when: a state machine without sockets, tasks or logs."""

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable

import attrs

from fedstack.computations.types.language import RetryableError
from fedstack.errors import ResourceLimitError
from fedstack.executors.fleet.worker import Features, State, Worker

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
# How long a worker that had no room is not asked again, as long as others have some.
FULL_SECONDS = 5.0
# How long each wait for workers is that follows one in vain.
AGAIN_SECONDS = 0.25


@attrs.frozen
class Change:
    """A worker has come into another state.

    Attributes:
      worker: The worker.
      before: What was known of it until then.
      after: What is known of it from then on.
      cause: Why it is not ready.
    """

    worker: Worker
    before: State
    after: State
    cause: Exception | None


class Fleet:
    """The workers there are, and what is known of each.

    Events go in by methods: a worker is added, has answered, has failed, is lost. Decisions come out: which workers are
    ready, which are `due` to be asked. A `Wait` decides for a caller that waits. What an event costs does not grow with
    the number of workers. Not safe for threads.

    Args:
      connect_seconds: How long a caller waits for the first worker that is ready.
      clock: Returns the time in seconds.
    """

    def __init__(self, connect_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._connect_seconds = connect_seconds
        self._workers: tuple[Worker, ...] = ()
        self._numbers: Counter[State] = Counter()
        # When to ask whom; what does not agree with the worker any more does not count.
        self._agenda: list[tuple[float, int, Worker]] = []
        self._entries = itertools.count()
        self._at_rest: list[Worker] = []
        self._changes: list[Change] = []
        self._gave_up: float | None = None
        self._closed = False

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them, in the order in which they were added."""
        return self._workers

    @property
    def ready(self) -> list[Worker]:
        """Those that are ready."""
        return [worker for worker in self._workers if worker.is_ready]

    @property
    def number_ready(self) -> int:
        """How many are ready."""
        return self._numbers[State.READY]

    @property
    def states(self) -> set[State]:
        """The states in which there are any."""
        return {state for state, number in self._numbers.items() if number}

    @property
    def closed(self) -> bool:
        """Whether it was closed, and gives no workers any more."""
        return self._closed

    # What happens to workers.

    def add(self, worker: Worker) -> None:
        """There is one more worker; nothing has been heard of it."""
        self._workers = (*self._workers, worker)
        self._numbers[worker.state] += 1
        self._ask_soon(worker)

    def remove(self, worker: Worker) -> None:
        """A worker is not used any more. What is heard of it from here on does not count."""
        self._workers = tuple(other for other in self._workers if other is not worker)
        self._rest(worker)
        self._becomes(worker, State.REMOVED, None)
        self._numbers[State.REMOVED] = 0

    def answered(self, worker: Worker, features: Features) -> None:
        """A worker is there, and has said what it can do."""
        if worker.state in (State.REMOVED, State.GONE) or self._closed:
            return
        worker.features = features
        self._gave_up = None  # also where nobody waits for workers as long as there are some, as a coordinator
        self._rest(worker)
        self._becomes(worker, State.READY, None)

    def failed(self, worker: Worker, error: Exception) -> None:
        """A worker that was being asked has not answered; it is asked again, after pauses that grow."""
        if not worker.asking:
            return
        worker.asking = False
        self._ask_at(worker, self.clock() + worker.pause)
        worker.pause = min(2 * worker.pause, LONGEST_PAUSE)
        self._becomes(worker, _state_after(error), error)

    def lost(self, worker: Worker, error: Exception, *, for_good: bool = False) -> None:
        """A worker was found, or is said, to be away.

        Args:
          worker: The worker.
          error: Why.
          for_good: Whether it does not come back.
        """
        if worker.state is State.REMOVED or self._closed:
            return
        if for_good or worker.supervised:
            self._rest(worker)
        elif not worker.asking and worker.ask_at is None:
            self._ask_soon(worker)
        self._becomes(worker, State.GONE if for_good else _state_after(error), error)

    def returned(self, worker: Worker) -> None:
        """A worker that was away was found, or is said, to be there again; it is asked at once."""
        if worker.state not in (State.READY, State.BACK, State.REMOVED) and not self._closed:
            self._rest(worker)
            self._ask_soon(worker)
            self._becomes(worker, State.BACK, worker.cause)

    def full(self, worker: Worker, refusal: ResourceLimitError) -> bool:
        """A worker has no room for one more session; returns whether that is news."""
        is_news = worker.refusal is None
        # Not that error itself: it is raised, and its frames would be kept as long as the worker is full.
        worker.refusal, worker.refused_at = ResourceLimitError(str(refusal)), self.clock()
        return is_news

    def has_room(self, worker: Worker) -> None:
        """A worker has made room for a session."""
        worker.refusal = None

    def close(self) -> None:
        """Ends all asking and waiting. Idempotent."""
        self._closed = True
        for worker in self._workers:
            self._rest(worker)

    # What is to be done.

    def due(self) -> list[Worker]:
        """Returns the workers that are to be asked now if they are there; they count as being asked from here on."""
        due: list[Worker] = []
        while self.seconds_to_due() == 0:
            _, _, worker = heapq.heappop(self._agenda)
            worker.asking, worker.ask_at = True, None
            due.append(worker)
        return due

    def take_at_rest(self) -> list[Worker]:
        """Returns those that were being asked and need not be any more, since the last call of this method."""
        workers, self._at_rest = self._at_rest, []
        return workers

    def seconds_to_due(self) -> float | None:
        """Returns how long it is until a worker is to be asked; `None` if none is."""
        while self._agenda:
            at, _, worker = self._agenda[0]
            if worker.ask_at == at:
                return max(0.0, at - self.clock())
            heapq.heappop(self._agenda)
        return None

    def take_changes(self) -> list[Change]:
        """Returns what has changed since the last call of this method, in order."""
        changes, self._changes = self._changes, []
        return changes

    def is_full(self, worker: Worker) -> bool:
        """Returns whether a worker had no room so short a time ago that it is not to be asked for some."""
        return worker.refusal is not None and self.clock() - worker.refused_at < FULL_SECONDS

    def patience(self) -> float:
        """Returns how long a caller is to wait from now on for the first worker that is ready, in seconds.

        After a wait in vain the next ones are short until a worker is there: they are asked all the time. But some
        connections dial more seldom the longer their peer was away, and get the time since then.
        """
        if self._gave_up is None:
            return self._connect_seconds
        can_look = all(worker.can_look for worker in self._workers)
        again = AGAIN_SECONDS if can_look else max(AGAIN_SECONDS, self.clock() - self._gave_up)
        return min(self._connect_seconds, again)

    def waited(self, *, in_vain: bool) -> None:
        """A caller has waited for workers; see `patience`."""
        self._gave_up = self.clock() if in_vain else None

    def _ask_soon(self, worker: Worker) -> None:
        worker.pause = FIRST_PAUSE
        if not self._closed:
            self._ask_at(worker, self.clock())

    def _ask_at(self, worker: Worker, at: float) -> None:
        worker.ask_at = at
        heapq.heappush(self._agenda, (at, next(self._entries), worker))

    def _rest(self, worker: Worker) -> None:
        """Makes an end of asking a worker; what it still answers does not count."""
        if worker.asking:
            self._at_rest.append(worker)
        worker.asking, worker.ask_at = False, None

    def _becomes(self, worker: Worker, state: State, cause: Exception | None) -> None:
        before, worker.state, worker.cause = worker.state, state, cause
        if before is not state:
            self._numbers[before] -= 1
            self._numbers[state] += 1
            self._changes.append(Change(worker, before, state, cause))

    def __repr__(self) -> str:
        return f"<Fleet {', '.join(map(repr, self._workers))}>"


def _state_after(error: Exception) -> State:
    return State.AWAY if isinstance(error, RetryableError) else State.WRONG

"""Decides which workers are ready, which are asked again and when: a state machine without sockets, tasks or logs."""

import time
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
    ready, which are `due` to be asked. A `Wait` decides for a caller that waits. Not safe for threads.

    Args:
      connect_seconds: How long a caller waits for the first worker that is ready.
      clock: Returns the time in seconds.
    """

    def __init__(self, connect_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._connect_seconds = connect_seconds
        self._workers: tuple[Worker, ...] = ()
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
    def closed(self) -> bool:
        """Whether it was closed, and gives no workers any more."""
        return self._closed

    # What happens to workers.

    def add(self, worker: Worker) -> None:
        """There is one more worker; nothing has been heard of it."""
        self._workers = (*self._workers, worker)
        self._ask_soon(worker)

    def remove(self, worker: Worker) -> None:
        """A worker is not used any more. What is heard of it from here on does not count."""
        self._workers = tuple(other for other in self._workers if other is not worker)
        self._rest(worker)
        self._becomes(worker, State.REMOVED, None)

    def answered(self, worker: Worker, features: Features) -> None:
        """A worker is there, and has said what it can do."""
        if worker.state in (State.REMOVED, State.GONE) or self._closed:
            return
        worker.features = features
        self._rest(worker)
        self._becomes(worker, State.READY, None)

    def failed(self, worker: Worker, error: Exception) -> None:
        """A worker that was being asked has not answered; it is asked again, after pauses that grow."""
        if not worker.asking:
            return
        worker.asking = False
        worker.ask_at = self.clock() + worker.pause
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
        now = self.clock()
        due = [worker for worker in self._workers if worker.ask_at is not None and worker.ask_at <= now]
        for worker in due:
            worker.asking, worker.ask_at = True, None
        return due

    def seconds_to_due(self) -> float | None:
        """Returns how long it is until a worker is to be asked; `None` if none is."""
        times = [worker.ask_at for worker in self._workers if worker.ask_at is not None]
        return max(0.0, min(times) - self.clock()) if times else None

    def take_changes(self) -> list[Change]:
        """Returns what has changed since the last call of this method, in order."""
        changes, self._changes = self._changes, []
        return changes

    def is_full(self, worker: Worker) -> bool:
        """Returns whether a worker had no room so short a time ago that it is not to be asked for some."""
        return worker.refusal is not None and self.clock() - worker.refused_at < FULL_SECONDS

    def patience(self) -> float:
        """Returns how long a caller is to wait from now on for the first worker that is ready, in seconds.

        After a wait in vain the next ones are short: the workers are asked all the time. But some connections dial more
        seldom the longer their peer was away, and get the time since then.
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
        worker.pause, worker.ask_at = FIRST_PAUSE, None if self._closed else self.clock()

    def _rest(self, worker: Worker) -> None:
        """Makes an end of asking a worker; what it still answers does not count."""
        worker.asking, worker.ask_at = False, None

    def _becomes(self, worker: Worker, state: State, cause: Exception | None) -> None:
        before, worker.state, worker.cause = worker.state, state, cause
        if before is not state:
            self._changes.append(Change(worker, before, state, cause))

    def __repr__(self) -> str:
        return f"<Fleet {', '.join(map(repr, self._workers))}>"


def _state_after(error: Exception) -> State:
    return State.AWAY if isinstance(error, RetryableError) else State.WRONG

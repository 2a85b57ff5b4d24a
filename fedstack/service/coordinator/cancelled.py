"""Knows the closures that were cancelled while they ran, and how long callers wait until they have ended."""

from collections.abc import Callable, Iterable

from fedstack.service.coordinator.calls.closures import Closure, Stop, WorkerState

# Functions cannot be interrupted. Most end soon, and then nothing of what was cancelled goes on behind the caller's
# back. Those that do not end must not keep `join` from raising the error for which they were cancelled.
CANCELLED_SECONDS = 10.0


class CancelledClosures:
    """The closures that were cancelled while they ran on a worker, until the worker reports that they have ended.

    Args:
      clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._new: list[Closure] = []
        self._until: dict[Closure, float] = {}

    def add(self, closure: Closure) -> None:
        """Records that a closure was cancelled while it ran."""
        self._new.append(closure)
        self._until[closure] = self._clock() + CANCELLED_SECONDS

    def stops(self, workers: Iterable[WorkerState]) -> list[Stop]:
        """Returns the requests to stop the closures that were cancelled since the last call of this method."""
        new, self._new = self._new, []
        stops = {worker: [one for one in new if one in worker.running] for worker in workers} if new else {}
        return [Stop(worker, closures) for worker, closures in stops.items() if closures]

    def seconds_left(self, workers: Iterable[WorkerState]) -> float:
        """Returns how long callers still wait for closures that run although they were cancelled; 0 if for none."""
        if not self._until:
            return 0.0
        now, running = self._clock(), {closure for worker in workers for closure in worker.running}
        self._until = {closure: until for closure, until in self._until.items() if until > now and closure in running}
        return max(self._until.values(), default=now) - now

"""Knows the closures that were cancelled while they ran, and for how long they keep their places on workers."""

from collections.abc import Callable, Iterable

from fedstack.service.coordinator.calls.closures import Closure, Stop, WorkerState

# Functions cannot be interrupted. Most end soon, and then nothing of what was cancelled goes on behind the caller's
# back. Those that do not end must not keep `join` from raising the error for which they were cancelled, nor a worker
# from running other calls: the worker has more threads than places.
CANCELLED_SECONDS = 10.0


class CancelledClosures:
    """The closures that were cancelled while they ran on a worker, until they have ended or lose their places.

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

    def let_go(self, workers: Iterable[WorkerState]) -> float | None:
        """Frees the places of closures that still run after their time.

        Returns:
          The seconds until this method must be called again; `None` means never.
        """
        if not self._until:
            return None
        now, running = self._clock(), {closure: worker for worker in workers for closure in worker.running}
        self._until = {closure: until for closure, until in self._until.items() if closure in running}
        for closure in [closure for closure, until in self._until.items() if until <= now]:
            del self._until[closure], running[closure].running[closure]
        return min(self._until.values()) - now if self._until else None

"""Tells observers what becomes of the workers of a fleet."""

import logging
from collections.abc import Callable

from fedstack.executors.fleet.fleet import Change
from fedstack.executors.fleet.worker import State, Worker
from fedstack.observe.events import WorkerLost, WorkerReady
from fedstack.observe.observers import log_raised, observers

_logger = logging.getLogger(__name__)


class FleetObserver:
    """Is told what becomes of workers, on the transport's loop. Override what you want to know; it must not block."""

    def ready(self, worker: Worker) -> None:
        """A worker is ready, for the first time or again."""

    def lost(self, worker: Worker, error: Exception) -> None:
        """A worker that was ready is not any more; called once, however that was found out."""

    def removed(self, worker: Worker) -> None:
        """A worker does not belong to the fleet any more."""


class _Told(FleetObserver):
    """Tells the observers of this process."""

    def ready(self, worker: Worker) -> None:
        if observers.present:
            observers.tell(WorkerReady(worker=worker.address))

    def lost(self, worker: Worker, error: Exception) -> None:
        if observers.present:
            kind, reason = type(error).__name__, worker.line_of(error)
            observers.tell(WorkerLost(worker=worker.address, error=kind, reason=reason))


_TOLD = _Told()


class FleetObservers:
    """The observers of one fleet. They may come and go on any thread."""

    def __init__(self) -> None:
        self._observers: tuple[FleetObserver, ...] = ()

    def __len__(self) -> int:
        return len(self._observers)

    def add(self, observer: FleetObserver) -> Callable[[], None]:
        """Adds one; returns what removes it."""
        self._observers = (*self._observers, observer)
        return lambda: self._remove(observer)

    def _remove(self, observer: FleetObserver) -> None:
        self._observers = tuple(other for other in self._observers if other is not observer)

    def tell(self, change: Change) -> None:
        """Tells all of them; one that raises is told nothing more."""
        for observer in (_TOLD, *self._observers):
            try:
                _tell(observer, change)
            except Exception as error:
                log_raised(_logger, repr(observer), error, "it is told nothing more of workers")
                self._remove(observer)


def _tell(observer: FleetObserver, change: Change) -> None:
    if change.after is State.READY:
        observer.ready(change.worker)
    elif change.after is State.REMOVED:
        observer.removed(change.worker)
    elif change.before is State.READY and change.cause is not None:
        observer.lost(change.worker, change.cause)

"""Notifies observers of changes in the states of members."""

import logging
from collections.abc import Callable
from typing import Generic

from fedstack.membership.member import M, MemberState
from fedstack.membership.members import Change
from fedstack.observe.events import WorkerLost, WorkerReady
from fedstack.observe.observers import log_raised, observers

_logger = logging.getLogger(__name__)


class MembershipObserver(Generic[M]):
    """Receives changes of members on the transport's loop. Override the methods you need; they must not block."""

    def ready(self, member: M) -> None:
        """Called when a member is ready, for the first time or again."""

    def draining(self, member: M) -> None:
        """Called when a ready member is about to stop: it completes its current work and accepts no new work."""

    def lost(self, member: M, error: Exception) -> None:
        """Called once when a member that was ready or draining is lost, no matter how the loss was noticed."""

    def removed(self, member: M) -> None:
        """Called when a member has been removed."""


class MembershipObservers(Generic[M]):
    """The observers of one membership. Any thread may add or remove an observer."""

    def __init__(self) -> None:
        self._observers: tuple[MembershipObserver[M], ...] = ()

    def __len__(self) -> int:
        return len(self._observers)

    def add(self, observer: MembershipObserver[M]) -> Callable[[], None]:
        """Adds an observer, and returns a function that removes the observer."""
        self._observers = (*self._observers, observer)
        return lambda: self._remove(observer)

    def _remove(self, observer: MembershipObserver[M]) -> None:
        self._observers = tuple(other for other in self._observers if other is not observer)

    def tell(self, change: Change[M]) -> None:
        """Notifies the observers of this membership and of this process. An observer that raises is removed."""
        if observers.present:
            _report(change)
        for observer in self._observers:
            try:
                if change.after is MemberState.READY:
                    observer.ready(change.member)
                elif change.after is MemberState.DRAINING:
                    observer.draining(change.member)
                elif change.after is MemberState.REMOVED:
                    observer.removed(change.member)
                elif (cause := loss_in(change)) is not None:
                    observer.lost(change.member, cause)
            except Exception as error:
                log_raised(_logger, repr(observer), error, "it is removed and receives no further changes of workers")
                self._remove(observer)


def loss_in(change: Change[M]) -> Exception | None:
    """Returns the reason for the loss of a member that was in use; `None` if the change is not a loss."""
    return change.cause if change.before in (MemberState.READY, MemberState.DRAINING) else None


def _report(change: Change[M]) -> None:
    """Emits an event for the observers of this process."""
    member = change.member
    if change.after is MemberState.READY:
        observers.tell(WorkerReady(worker=member.address))
    elif change.after is not MemberState.REMOVED and (cause := loss_in(change)) is not None:
        observers.tell(WorkerLost(worker=member.address, error=type(cause).__name__, reason=member.line_of(cause)))

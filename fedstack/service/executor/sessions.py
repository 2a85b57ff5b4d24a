"""The table of the sessions of an executor service, one for each client.

A session ends when its client disposes of it, or has been silent for longer than the lease. The session's work is then
cancelled, and its values are freed.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterator

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import CLIENTS, CardinalitiesType, Executor, ExecutorFactory
from fedstack.errors import CardinalityError
from fedstack.executors.base.verb_executor import known_clients_of
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory, borrow
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.error_text import counted
from fedstack.observe.events import SessionOpened
from fedstack.observe.observers import observers
from fedstack.service.executor.session import Session, stale_session
from fedstack.service.host.calls.call_table import FairShares
from fedstack.service.host.limits import ServiceLimits, exceeded
from fedstack.transport.peers.leases import Leases

_logger = logging.getLogger(__name__)
Clock = Callable[[], float]
# How often to check whether clients have fetched their started values, and how long to wait for a silent client.
_LOOK_SECONDS = 0.02
_SILENT_SECONDS = 5.0


class SessionTable:
    """Opens, finds and ends the sessions of a service.

    Args:
      factory: Creates the executors.
      limits: The limits for clients.
      clock: Returns the time in seconds.
    """

    def __init__(self, factory: ExecutorFactory, limits: ServiceLimits, clock: Clock = time.monotonic) -> None:
        self._factory = factory
        self._limits = limits
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._leases: Leases[str] = Leases(max_leases=limits.max_sessions, clock=clock)
        self._shares = FairShares(limits.max_sessions, clock=clock)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, cardinalities: CardinalitiesType, clients: int, lease_seconds: float) -> Session:
        """Opens a session for the caller of the current call.

        Raises:
          ResourceLimitError: If there are too many sessions, or the caller already has its share of the sessions.
        """
        caller = current_scope().caller
        if not self._shares.take(caller) and not (self._make_room(caller) and self._shares.take(caller)):
            raise exceeded(
                self._limits, "max_sessions", self._shares.refused, "end other sessions, or wait until they expire"
            )
        try:
            executor, close = self.lend(cardinalities)
        except BaseException:
            self._shares.give_back(caller)
            raise

        def end() -> None:
            self._shares.give_back(caller)
            close()

        found = known_clients_of(executor)  # a factory may have a default number of clients
        any_number = CLIENTS not in cardinalities and isinstance(self._factory, ResourceManagingExecutorFactory)
        clients = clients if found is None else found
        session = Session(executor, clients, self._limits, end, takes_any_number=any_number)
        self._leases.open(session.id, lease_seconds)
        self._sessions[session.id] = session
        if observers.present:
            observers.tell(SessionOpened(session=session.id[:8], clients=clients))
        return session

    def _make_room(self, caller: str) -> bool:
        """Ends the longest idle session of a client that exceeds its share, and returns whether there was one."""
        debtor = self._shares.debtor(caller)
        idle = [session for session in self if debtor is not None and session.caller == debtor and not session.running]
        if not idle:
            return False
        longest = max(idle, key=lambda session: self._leases.idle_seconds(session.id))
        _logger.info(
            "Session %s ended: other clients need sessions, and its client has more than half of all sessions",
            longest.id[:8],
        )
        self.end(
            longest.id, "it was ended because other clients needed sessions, and its client had more than half of them"
        )
        return True

    def lend(self, cardinalities: CardinalitiesType) -> tuple[Executor, Callable[[], None]]:
        """Lends an executor: returns the executor, and a function that gives it back to the factory."""
        return borrow(self._factory, cardinalities)

    @contextlib.contextmanager
    def executor_for(self, session: Session, clients: int) -> Generator[Executor, None, None]:
        """Lends an executor for work with the given number of clients.

        Raises:
          CardinalityError: If the session has a different number of clients.
        """
        if session.takes_any_number:
            executor, give_back = self.lend({CLIENTS: clients})
            try:
                yield executor
            finally:
                give_back()
        elif clients == session.clients:
            yield session.executor
        else:
            raise CardinalityError(
                f"Expected a phase for the {counted(session.clients, 'client')} of the session, found a phase for "
                f"{clients}; to run phases with any number of clients, open a session without a fixed number"
            )

    def find(self, session_id: str) -> Session:
        """Returns the session with the given id, and renews its lease.

        Raises:
          StaleSessionError: If no session has the given id.
        """
        found = self._sessions.get(session_id)
        if found is None or not self._leases.renew(session_id):
            raise stale_session(session_id, "it has ended, or this server was restarted")
        return found

    def find_if_there(self, session_id: str) -> Session | None:
        """Returns the session with the given id and renews its lease, or returns `None`."""
        return self._sessions.get(session_id) if self.renew(session_id) else None

    def renew(self, session_id: str) -> bool:
        """Renews the lease of a session, and returns whether the session exists."""
        return session_id in self._sessions and self._leases.renew(session_id)

    @contextlib.contextmanager
    def hold(self, session: Session) -> Generator[None, None, None]:
        """Prevents a session's lease from expiring within the block."""
        self._leases.hold(session.id)
        try:
            yield
        finally:
            self._leases.release(session.id)

    def end(self, session_id: str, why: str) -> None:
        """Ends the session with the given id, if it exists, for the reason `why`."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._leases.end(session_id)
            session.end(why)

    def sweep(self) -> float | None:
        """Ends expired sessions.

        Returns:
          The time in seconds until the next session may expire; `None` if no session can expire.
        """
        for session_id in self._leases.expired():
            session = self._sessions.pop(session_id, None)
            if session is not None:
                _logger.info(
                    "Session %s ended: its lease expired with %s", session_id[:8], counted(len(session), "value")
                )
                session.end("its lease expired")
        return self._leases.next_expiry()

    async def handed_over(self) -> None:
        """Waits until all clients have fetched their started values, except clients that are silent for too long."""
        begun = self._clock()
        async for _ in Deadline().attempts(itertools.repeat(_LOOK_SECONDS)):
            if not any(self._may_come_for_values(session, self._clock() - begun) for session in self):
                break

    def _may_come_for_values(self, session: Session, seconds: float) -> bool:
        silent = min(seconds, self._leases.idle_seconds(session.id))
        return bool(session.started.ended) and silent < _SILENT_SECONDS

    def seconds_left(self, session_id: str) -> float:
        """Returns the remaining time of a session's lease in seconds."""
        return self._leases.seconds_left(session_id)

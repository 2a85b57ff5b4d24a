"""Keeps the sessions of an executor service, one for each client.

A session ends when its client disposes of it or is silent for longer than its lease; its work is then cancelled, and
its values are freed.
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
from fedstack.service.host.call_table import FairShares
from fedstack.service.host.limits import ServiceLimits, exceeded
from fedstack.transport.peers.leases import Leases

_logger = logging.getLogger(__name__)
Clock = Callable[[], float]
# How often to check whether a client has fetched its started values, and how long it may be silent meanwhile.
_LOOK_SECONDS = 0.02
_SILENT_SECONDS = 5.0


class SessionTable:
    """The sessions of one service.

    Args:
      factory: Makes executors.
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
          ResourceLimitError: If there are too many, or its client has its share of them.
        """
        caller = current_scope().caller
        if not self._shares.take(caller) and not (self._make_room(caller) and self._shares.take(caller)):
            raise exceeded(self._limits, "max_sessions", self._shares.refused, "end others, or let them expire")
        try:
            executor, close = self.lend(cardinalities)
        except BaseException:
            self._shares.give_back(caller)
            raise

        def end() -> None:
            self._shares.give_back(caller)
            close()

        found = known_clients_of(executor)  # a factory may have a default
        any_number = CLIENTS not in cardinalities and isinstance(self._factory, ResourceManagingExecutorFactory)
        clients = clients if found is None else found
        session = Session(executor, clients, self._limits, end, takes_any_number=any_number)
        self._leases.open(session.id, lease_seconds)
        self._sessions[session.id] = session
        if observers.present:
            observers.tell(SessionOpened(session=session.id[:8], clients=clients))
        return session

    def _make_room(self, caller: str) -> bool:
        """Ends an idle session of a client that has more than its share; returns whether there was one."""
        debtor = self._shares.debtor(caller)
        idle = [session for session in self if debtor is not None and session.caller == debtor and not session.running]
        if not idle:
            return False
        longest = max(idle, key=lambda session: self._leases.idle_seconds(session.id))
        _logger.info("Session %s ended: others wait, and its client has more than half of all", longest.id[:8])
        self.end(longest.id, "others wait for one, and its client had more than half of all")
        return True

    def lend(self, cardinalities: CardinalitiesType) -> tuple[Executor, Callable[[], None]]:
        """Returns an executor, and what gives it back."""
        return borrow(self._factory, cardinalities)

    @contextlib.contextmanager
    def executor_for(self, session: Session, clients: int) -> Generator[Executor, None, None]:
        """Lends the executor for a phase of so many clients.

        Raises:
          CardinalityError: If the session has another number of clients.
        """
        if session.takes_any_number:
            session.clients = clients
            executor, give_back = self.lend({CLIENTS: clients})
            try:
                yield executor
            finally:
                give_back()
        elif clients == session.clients:
            yield session.executor
        else:
            raise CardinalityError(
                f"Expected a phase for the {counted(session.clients, 'client')} of the session, found one for "
                f"{clients}; open a session without a number of clients for phases of any number"
            )

    def find(self, session_id: str) -> Session:
        """Returns a session, and renews its lease.

        Raises:
          StaleSessionError: If there is none of that id.
        """
        found = self._sessions.get(session_id)
        if found is None or not self._leases.renew(session_id):
            raise stale_session(session_id, "it has ended, or this server was restarted")
        return found

    def find_if_there(self, session_id: str) -> Session | None:
        """Returns the session with an id, if there is one, and renews its lease."""
        return self._sessions.get(session_id) if self.renew(session_id) else None

    def renew(self, session_id: str) -> bool:
        """Renews a lease; returns whether the session exists."""
        return session_id in self._sessions and self._leases.renew(session_id)

    @contextlib.contextmanager
    def hold(self, session: Session) -> Generator[None, None, None]:
        """Keeps a session's lease from running out while the block runs."""
        self._leases.hold(session.id)
        try:
            yield
        finally:
            self._leases.release(session.id)

    def end(self, session_id: str, why: str) -> None:
        """Ends a session, if there is one."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._leases.end(session_id)
            session.end(why)

    def sweep(self) -> float | None:
        """Ends expired sessions; returns the seconds until the next may expire."""
        for session_id in self._leases.expired():
            session = self._sessions.pop(session_id, None)
            if session is not None:
                _logger.info(
                    "Session %s ended: its lease ran out with %s", session_id[:8], counted(len(session), "value")
                )
                session.end("its lease ran out")
        return self._leases.next_expiry()

    async def handed_over(self) -> None:
        """Returns when no client has values here that it has started, but for clients that have fallen silent."""
        begun = self._clock()
        async for _ in Deadline().attempts(itertools.repeat(_LOOK_SECONDS)):
            if not any(self._may_come_for_values(session, self._clock() - begun) for session in self):
                break

    def _may_come_for_values(self, session: Session, seconds: float) -> bool:
        silent = min(seconds, self._leases.idle_seconds(session.id))
        return bool(session.started.ended) and silent < _SILENT_SECONDS

    def seconds_left(self, session_id: str) -> float:
        """Returns how long the lease of a session still runs."""
        return self._leases.seconds_left(session_id)

"""What the two halves of the executor service share: sessions, leases, limits, and what computations may bring."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.references import ReadBlocks
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import SystemScope, WorkKind, current_scope, set_scope
from fedstack.computations.types.language import (
    CLIENTS,
    CardinalitiesType,
    ExecutorFactory,
    get_context_stack,
)
from fedstack.computations.types.type_structure import release_unused_types
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.contexts.invocation import telling_path
from fedstack.errors import ClosedError, WorkerUnavailableError
from fedstack.executors.concurrency.abandoned_work import AbandonedWork
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.stacks.resource_factory import ResourceManagingExecutorFactory
from fedstack.proto.executor_pb2 import ExecutorId
from fedstack.service.executor.sessions.held_values import SharedComputation
from fedstack.service.executor.sessions.limited_admission import LimitedAdmission
from fedstack.service.executor.sessions.running_work import RunningWork
from fedstack.service.executor.sessions.session import Session
from fedstack.service.executor.sessions.sessions import Clock, SessionTable
from fedstack.service.host.limits import ServiceLimits, exceeded
from fedstack.transport.grpc.credentials import ClientCredentials

_T = TypeVar("_T")
_LONGEST_SLEEP = 1.0


class ServiceCore:
    """The state of an executor service.

    Args:
      factory: Makes executors.
      limits: How much clients may have.
      policy: Which leaf computations they may bring.
      clock: Tells the time in seconds.
      client_credentials: What functions dial other servers with.
      reads: Reads sequences that come as references.

    Attributes:
      scope: The rules under which work for clients is done.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        limits: ServiceLimits,
        policy: CarrierPolicy,
        clock: Clock = time.monotonic,
        client_credentials: ClientCredentials | None = None,
        reads: ReadBlocks | None = None,
    ) -> None:
        release_unused_types()
        self.factory = factory
        self.limits = limits
        self.policy = policy
        self.clock = clock
        self.started = clock()
        self.sessions = SessionTable(factory, limits, clock)
        self._inside_leaves = inside = SyncExecutionContext(factory)  # for computations called in leaf functions
        self.isolated = asyncio.Semaphore(limits.max_isolated)  # for child processes
        self.admission = LimitedAdmission(policy, limits)
        self.abandoned = AbandonedWork(
            limits.max_abandoned,
            lambda found: exceeded(limits, "max_abandoned", found, "wait until some of them end"),
        )
        self.scope = self.admission.scope.replace(
            environment=lambda: get_context_stack().install(inside),
            abandoned=self.abandoned,
            client_credentials=client_credentials,
            reads=reads,
        )
        self.running = RunningWork()
        self._sweeper: asyncio.Task[None] | None = None
        self._draining = False
        self._closed = False

    @property
    def max_threads(self) -> int:
        """How many functions run at the same time at most; 0 if that is not known."""
        factory = self.factory
        return (factory.max_threads or 0) if isinstance(factory, ResourceManagingExecutorFactory) else 0

    def drain(self) -> None:
        """Opens no more sessions; those that are open go on."""
        self._draining = True

    def check_takes_clients(self) -> None:
        """Checks that sessions may be opened.

        Raises:
          WorkerUnavailableError: If this server is about to stop.
        """
        if self._draining:
            raise WorkerUnavailableError(
                "Expected a server that takes new sessions, found one that is stopping and lets only those that it has "
                "come to their end; dial another one, or this one later"
            )

    def open(self, cardinalities: CardinalitiesType, lease_seconds: float | None) -> Session:
        """Opens a session.

        Args:
          cardinalities: The numbers of participants.
          lease_seconds: How long it may be silent; `None` for a client that renews nothing.

        Raises:
          WorkerUnavailableError: If this server is about to stop.
          ResourceLimitError: If there are too many sessions, or clients in this one.
        """
        if self._closed:
            raise ClosedError("The service is closing; dial another server")
        self.check_takes_clients()
        clients = cardinalities.get(CLIENTS, 0)
        self.admission.check_clients(clients)
        self.sessions.sweep()
        if lease_seconds is None:
            lease_seconds = self.limits.plain_lease_seconds
        session = self.sessions.open(cardinalities, clients, lease_seconds)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.ensure_future(self._sweep())
        self.work_for(session.id, WorkKind.COMPUTATION)
        return session

    def find(self, executor: ExecutorId) -> Session:
        """Returns a session and renews its lease; the current call works for it, under the rules of this service."""
        session = self.sessions.find(executor.id)
        kind = WorkKind.COMPUTATION if session.closures.worker_index is None else WorkKind.CLOSURE
        self.work_for(session.id, kind, session.closures)
        return session

    def work_for(self, origin: str, kind: WorkKind, *systems: SystemScope) -> None:
        """Makes what the current task does, and what it starts, work for others under the rules of this service.

        Each call is a task of its own.

        Args:
          origin: For whom: a session, or a connection.
          kind: What kind of call it is.
          *systems: What systems add to its scope.
        """
        call = current_scope()
        scope = self.scope.replace(caller=call.caller, origin=origin, kind=kind, progress=call.progress, span=call.span)
        set_scope(scope.adding(*systems) if systems else scope)

    def find_if_there(self, executor: ExecutorId) -> Session | None:
        """Returns a session, if there is one of that id, and renews its lease."""
        return self.sessions.find_if_there(executor.id)

    def end(self, executor: ExecutorId) -> None:
        """Ends a session, if there is one."""
        self.sessions.end(executor.id, "its client has ended it")

    def pull(self, session: Session, value_id: str, progress: ProgressCounts | None = None) -> SharedComputation:
        """Starts to compute a value, counted by `progress` if that is given, or joins in; in what `run` runs.

        Raises:
          StatusError: If there is none of that id.
        """
        pull = session.pull(value_id, progress)
        self.running.watch(pull.progress, session.id)
        return pull

    def packer(self) -> Packer:
        """Returns what packs one message for a client."""
        return Packer(self.limits.chunking.large_bytes)

    async def run(self, session: Session, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work for a session: under its lease, under this service's policy, until the session ends."""
        try:
            with self.sessions.hold(session), telling_path(session.executor):
                return await session.run(work)
        finally:
            work.close()  # it may have been cancelled before it began

    async def _sweep(self) -> None:
        """Ends sessions whose leases run out, as long as there are any."""
        while len(self.sessions):
            due = self.sessions.sweep()
            await asyncio.sleep(_LONGEST_SLEEP if due is None else min(max(due, 0.01), _LONGEST_SLEEP))

    async def close(self) -> None:
        """Ends all sessions. Idempotent."""
        self._closed = True
        for session in self.sessions:
            self.sessions.end(session.id, "this server is closing")
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        self.admission.close()
        self._inside_leaves.close()  # and the factory with it

"""The state shared by the plain executor service and its extensions: sessions, limits, scopes and running work."""

import asyncio
import contextlib
import heapq
import time
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.references import ReadBlocks
from fedstack.computations.codec.stored_values import StoreFolders
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import SystemScope, WorkKind, current_scope, set_scope
from fedstack.computations.types.language import (
    CLIENTS,
    CardinalitiesType,
    ExecutorFactory,
    Type,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.types.type_sizes import count_leaves, count_name_bytes, least_leaves, struct_depth
from fedstack.computations.types.type_structure import recent_types, release_unused_types, type_from_proto
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.contexts.invocation import telling_path
from fedstack.errors import ClosedError, WorkerUnavailableError
from fedstack.executors.concurrency.jobs import AbandonedWork
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.executors.worker.receiving import Admission
from fedstack.foundations.deadline import Deadline
from fedstack.proto.executor_pb2 import ExecutorId
from fedstack.service.executor.held_values import SharedComputation
from fedstack.service.executor.session import Session
from fedstack.service.executor.sessions import Clock, SessionTable
from fedstack.service.host.limits import ServiceLimits, check_sizes, exceeded
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.methods import ServerFacts
from fedstack.transport.wire.frames import RunningClients

_MOST_WORK = 20


class RunningWork:
    """The running work of each session, including work that outlives its session.

    Args:
      abandoned: Knows work that is no longer waited for.
    """

    def __init__(self, abandoned: AbandonedWork) -> None:
        self._abandoned = abandoned
        # Running work keeps its counts alive. When the counts are freed, the work has ended.
        self._sessions: weakref.WeakKeyDictionary[ProgressCounts, str] = weakref.WeakKeyDictionary()

    def watch(self, progress: ProgressCounts, session_id: str) -> None:
        """Records the work of a call for a session, represented by the counts of its progress."""
        self._sessions[progress] = session_id

    def longest(self) -> list[tuple[RunningClients, str]]:
        """Returns the longest-running work, at most 20 entries, each with the id of its session."""
        found = [(work, session) for progress, session in list(self._sessions.items()) for work in progress.work()]
        found += self._abandoned.named()
        return heapq.nlargest(_MOST_WORK, found, key=lambda pair: pair[0].seconds)

    def __repr__(self) -> str:
        return f"<RunningWork of {len(self._sessions)} calls>"


class LimitedAdmission(Admission):
    """Rejects data that exceeds the limits.

    Args:
      policy: The leaf computations that clients may send.
      limits: The limits for clients.
    """

    def __init__(self, policy: CarrierPolicy, limits: ServiceLimits) -> None:
        super().__init__(policy)
        self.scope = self.scope.replace(max_steps=limits.max_steps)
        self._limits = limits

    def check(self, computation: computation_pb2.Computation) -> Sequence[computation_pb2.Computation]:
        self._check_names(computation)
        self.read_type(computation.type)
        return super().check(computation)

    def check_clients(self, clients: int) -> None:
        """Checks the number of clients of a session or phase.

        Raises:
          ResourceLimitError: If the number exceeds the limit.
        """
        if clients > self._limits.max_clients:
            raise exceeded(self._limits, "max_clients", clients, "use more workers")

    def check_size(self, size: int, spare: int = 0) -> None:
        """Checks the size of a value or phase.

        Raises:
          ResourceLimitError: If the size exceeds the limit.
        """
        if size - spare > self._limits.max_value_bytes:
            raise exceeded(self._limits, "max_value_bytes", f"about {size}", "send less data at a time")

    def check_type(self, type_spec: Type) -> None:
        """Checks the type of a client's value.

        Raises:
          ResourceLimitError: If the type has too many tensors, nested structs, or bytes of names.
        """
        check_sizes(self._limits, count_leaves(type_spec), struct_depth(type_spec))
        self._check_names(type_spec.to_proto())

    def read_type(self, proto: computation_pb2.Type) -> Type:
        """Reads the type of a client's value.

        Raises:
          InvalidComputationError: If the message does not describe a type.
          ResourceLimitError: If the type has too many tensors, nested structs, or bytes of names.
        """
        self._check_names(proto)
        check_sizes(self._limits, least_leaves(proto, self._limits.max_leaves), 0)  # a large type takes long to create
        type_spec = type_from_proto(proto)
        check_sizes(self._limits, count_leaves(type_spec), struct_depth(type_spec))
        return type_spec

    def _check_names(self, message: computation_pb2.Type | computation_pb2.Computation) -> None:
        size = message.ByteSize()
        recent_types.received(size)
        if size > self._limits.max_name_bytes:  # a smaller message cannot exceed the limit
            found = count_name_bytes(message, self._limits.max_name_bytes)
            if found > self._limits.max_name_bytes:
                raise exceeded(self._limits, "max_name_bytes", found, "shorten the names")

    @property
    def max_bytes(self) -> int:
        return self._limits.max_value_bytes


_T = TypeVar("_T")
_LONGEST_SLEEP = 1.0


class ServiceCore:
    """The state of an executor service.

    Args:
      factory: Creates the executors.
      limits: The limits for clients.
      policy: The leaf computations that clients may send.
      clock: Returns the time in seconds.
      client_credentials: The credentials with which functions dial other servers.
      reads: Reads sequences that clients send as references.
      stores: The stores of clients' states that work for clients may use, which are closed with the service; `None` for
        none.

    Attributes:
      scope: The scope in which work for clients runs.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        limits: ServiceLimits,
        policy: CarrierPolicy,
        clock: Clock = time.monotonic,
        client_credentials: ClientCredentials | None = None,
        reads: ReadBlocks | None = None,
        stores: StoreFolders | None = None,
    ) -> None:
        release_unused_types()
        self.factory = factory
        self.limits = limits
        self.policy = policy = attrs.evolve(policy)
        self.clock = clock
        self.started = clock()
        self.sessions = SessionTable(factory, limits, clock)
        self._inside_leaves = inside = SyncExecutionContext(factory)  # for computations called in leaf functions
        self.isolated = asyncio.Semaphore(limits.max_isolated)  # limits the number of child processes
        self.admission = LimitedAdmission(policy, limits)
        self.admission.stores = stores
        self.abandoned = AbandonedWork(
            limits.max_abandoned,
            lambda found: exceeded(limits, "max_abandoned", found, "wait until some of these tasks end"),
        )
        self.scope = self.admission.scope.replace(
            environment=lambda: get_context_stack().install(inside),
            abandoned=self.abandoned,
            client_credentials=client_credentials,
            reads=reads,
        )
        self.running = RunningWork(self.abandoned)
        self._sweeper: asyncio.Task[None] | None = None
        self._draining = False
        self._closed = False

    def attach(self, server: ServerFacts) -> None:
        """Refuses JAX exports, whose parser is no sandbox, if strangers can call the server."""
        if not server.knows_its_callers:
            self.policy.jax_exports = False

    @property
    def max_threads(self) -> int:
        """The maximum number of functions that run at the same time; 0 if unknown."""
        factory = self.factory
        return (factory.max_threads or 0) if isinstance(factory, ResourceManagingExecutorFactory) else 0

    def drain(self) -> None:
        """Refuses new sessions; existing sessions continue."""
        self._draining = True

    def check_takes_clients(self) -> None:
        """Checks that the service accepts new sessions.

        Raises:
          WorkerUnavailableError: If this server is stopping.
        """
        if self._draining:
            raise WorkerUnavailableError(
                "The server is stopping and accepts no new sessions; dial another server, or retry later"
            )

    def open(self, cardinalities: CardinalitiesType, lease_seconds: float | None) -> Session:
        """Opens a session.

        Args:
          cardinalities: The number of participants at each placement.
          lease_seconds: How long the client may be silent; `None` for a client that does not renew leases.

        Raises:
          WorkerUnavailableError: If this server is stopping.
          ResourceLimitError: If there are too many sessions, or too many clients in this session.
        """
        if self._closed:
            raise ClosedError("The executor service is closing; dial another server")
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
        """Returns a session and renews its lease. From now on, the current task works for the session."""
        session = self.sessions.find(executor.id)
        kind = WorkKind.COMPUTATION if session.closures.worker_index is None else WorkKind.CLOSURE
        self.work_for(session.id, kind, session.closures)
        return session

    def work_for(self, origin: str, kind: WorkKind, *systems: SystemScope) -> None:
        """Sets the scope of the current task, and of all tasks that it starts, for work on behalf of a client.

        Each call runs in its own task, so this does not affect other calls.

        Args:
          origin: The session or connection of the client.
          kind: The kind of work.
          *systems: Further scopes to add.
        """
        call = current_scope()
        scope = self.scope.replace(caller=call.caller, origin=origin, kind=kind, progress=call.progress, span=call.span)
        set_scope(scope.adding(*systems) if systems else scope)

    def find_if_there(self, executor: ExecutorId) -> Session | None:
        """Returns the session with the given id and renews its lease, or returns `None`."""
        return self.sessions.find_if_there(executor.id)

    def end(self, executor: ExecutorId) -> None:
        """Ends the session with the given id, if it exists."""
        self.sessions.end(executor.id, "its client has ended it")

    def pull(self, session: Session, value_id: str, progress: ProgressCounts | None = None) -> SharedComputation:
        """Starts to compute a value, or joins a running computation of the value.

        The caller must wait for the computation within work that it passes to `run`.

        Args:
          session: The session of the value.
          value_id: The id of the value.
          progress: The counts to which a new computation reports its progress; by default new counts.

        Raises:
          StatusError: If the session has no value with the given id.
        """
        pull = session.pull(value_id, progress)
        self.running.watch(pull.progress, session.id)
        return pull

    def packer(self) -> Packer:
        """Returns a packer for a message to a client."""
        return Packer(self.limits.chunking.large_bytes)

    async def run(self, session: Session, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work for a session, whose lease cannot expire meanwhile. Ending the session cancels the work."""
        try:
            with self.sessions.hold(session), telling_path(session.executor):
                return await session.run(work)
        finally:
            work.close()  # the work may have been cancelled before it started

    async def _sweep(self) -> None:
        """Ends expired sessions periodically, until there are no sessions."""

        def pause() -> float:
            due = self.sessions.sweep()
            return _LONGEST_SLEEP if due is None else min(max(due, 0.01), _LONGEST_SLEEP)

        async for _ in Deadline().attempts(iter(pause, None)):
            if not len(self.sessions):
                break

    async def close(self) -> None:
        """Ends all sessions and closes the factory. Idempotent."""
        self._closed = True
        for session in self.sessions:
            self.sessions.end(session.id, "this server is closing")
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        self.admission.close()
        if self.admission.stores is not None:
            self.admission.stores.close()
        self._inside_leaves.close()  # this also closes the factory

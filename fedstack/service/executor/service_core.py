"""What the two halves of the executor service share: sessions, leases, limits, and what computations may bring."""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.leaves.portability import check_received, leaves_to_load
from fedstack.computations.leaves.work_scope import WorkScope, current_scope, set_scope
from fedstack.computations.types.language import (
    CLIENTS,
    CardinalitiesType,
    ExecutorFactory,
    Type,
    computation_pb2,
    get_context_stack,
)
from fedstack.computations.types.name_sizes import count_name_bytes
from fedstack.computations.types.type_memory import let_go_of_types, recent_types
from fedstack.computations.types.type_sizes import count_leaves, least_leaves, struct_depth
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.contexts.invocation import telling_path
from fedstack.errors import ClosedError, WorkerUnavailableError
from fedstack.executors.concurrency.abandoned_work import AbandonedWork
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.off_loop import sized
from fedstack.proto.executor_pb2 import ExecutorId
from fedstack.service.executor.held_values import SharedComputation
from fedstack.service.executor.running_work import RunningWork
from fedstack.service.executor.sessions import Clock, Session, SessionTable
from fedstack.service.server.limits import ServiceLimits, check_sizes, exceeded
from fedstack.transport.peers.executor_stub import ELEMENTS
from fedstack.transport.wire.packing import Packer
from fedstack.transport.wire.unpacking import Unpacker

_T = TypeVar("_T")
_LONGEST_SLEEP = 1.0
_LOADING_THREADS = 4
# What its dtype and shape add to an array, and names and types to a function.
ARRAY_SPARE_BYTES = 64
FUNCTION_SPARE_BYTES = 1024


class ServiceCore:
    """The state of an executor service.

    Args:
      factory: Makes executors.
      limits: How much clients may have.
      policy: Which leaf computations they may bring.
      clock: Tells the time in seconds.
    """

    def __init__(
        self, factory: ExecutorFactory, limits: ServiceLimits, policy: CarrierPolicy, clock: Clock = time.monotonic
    ) -> None:
        let_go_of_types()
        self.factory = factory
        self.limits = limits
        self.policy = policy
        self.clock = clock
        self.started = clock()
        self.sessions = SessionTable(factory, limits, clock)
        self._inside_leaves = inside = SyncExecutionContext(factory)  # for computations called in leaf functions
        self.isolated = asyncio.Semaphore(limits.max_isolated)  # for child processes
        self._leaves = LoadedLeaves()
        self._loading = LeafThreads(_LOADING_THREADS)
        self.abandoned = AbandonedWork(
            limits.max_abandoned,
            lambda found: exceeded(limits, "max_abandoned", found, "wait until some of them end"),
        )
        self._scope = WorkScope(
            policy=policy,
            max_steps=limits.max_steps,
            leaves=self._leaves,
            environment=lambda: get_context_stack().install(inside),
            abandoned=self.abandoned,
        )
        self.running = RunningWork()
        self._sweeper: asyncio.Task[None] | None = None
        self._draining = False
        self._closed = False

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
            raise ClosedError("Expected an open service, found it closing; dial another server")
        self.check_takes_clients()
        clients = cardinalities.get(CLIENTS, 0)
        self.check_clients(clients)
        self.sessions.sweep()
        if lease_seconds is None:
            lease_seconds = self.limits.plain_lease_seconds
        session = self.sessions.open(cardinalities, clients, lease_seconds)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.ensure_future(self._sweep())
        self._work_for(session)
        return session

    def find(self, executor: ExecutorId) -> Session:
        """Returns a session and renews its lease; the current call works for it, under the rules of this service."""
        session = self.sessions.find(executor.id)
        self._work_for(session)
        return session

    def _work_for(self, session: Session) -> None:
        """Makes what the current task does, and what it starts, work for a session. Each call is a task of its own."""
        of_call = current_scope()
        set_scope(attrs.evolve(self._scope, caller=of_call.caller, origin=session.id, progress=of_call.progress))

    def find_if_there(self, executor: ExecutorId) -> Session | None:
        """Returns a session, if there is one of that id, and renews its lease."""
        return self.sessions.find_if_there(executor.id)

    def end(self, executor: ExecutorId) -> None:
        """Ends a session, if there is one."""
        self.sessions.end(executor.id, "its client has ended it")

    async def admit(self, computation: computation_pb2.Computation, size: int) -> None:
        """Checks what a computation brings, and loads that on a thread: it may import anything, and others wait.

        What cannot be loaded is refused when it is used.

        Args:
          computation: The computation.
          size: Its bytes, or those of a message that it is in.
        """
        leaves = await sized(size, lambda: self._checked(computation))
        if leaves:
            await self._loading.run(lambda: [self._leaves.prepare(leaf) for leaf in leaves])

    def _checked(self, computation: computation_pb2.Computation) -> Sequence[computation_pb2.Computation]:
        """Returns what is to be loaded of a computation, after a look at all that it brings."""
        self._check_names(computation)
        self.read_type(computation.type)
        check_received(computation, self.policy)
        return leaves_to_load(computation, self._leaves)

    def pull(self, session: Session, value_id: str) -> SharedComputation:
        """Starts to compute a value, or joins in; in what `run` runs.

        Raises:
          StatusError: If there is none of that id.
        """
        pull = session.pull(value_id)
        self.running.watch(pull.progress, session.id)
        return pull

    def check_clients(self, clients: int) -> None:
        """Checks the number of clients of a session or phase.

        Raises:
          ResourceLimitError: If it is larger than a client may ask for.
        """
        if clients > self.limits.max_clients:
            raise exceeded(self.limits, "max_clients", clients, "use more workers")

    def check_size(self, size: int, spare: int = 0) -> None:
        """Checks the size of a value or phase.

        Args:
          size: The bytes of its values as they were sent.
          spare: How many of these may be something else, such as dtypes and shapes.

        Raises:
          ResourceLimitError: If it is larger than a client may send.
        """
        if size - spare > self.limits.max_value_bytes:
            raise exceeded(self.limits, "max_value_bytes", f"about {size}", "send less at once")

    def check_type(self, type_spec: Type) -> None:
        """Checks the type of what a client sends.

        Raises:
          ResourceLimitError: If it has too many tensors, structs inside of each other, or bytes of names.
        """
        check_sizes(self.limits, count_leaves(type_spec), struct_depth(type_spec))
        self._check_names(type_spec.to_proto())

    def read_type(self, proto: computation_pb2.Type) -> Type:
        """Returns the type that a client sends.

        Raises:
          InvalidComputationError: If the proto describes no type.
          ResourceLimitError: If it has too many tensors, structs inside of each other, or bytes of names.
        """
        self._check_names(proto)
        check_sizes(self.limits, least_leaves(proto, self.limits.max_leaves), 0)  # to make a large one takes long
        type_spec = type_from_proto(proto)
        check_sizes(self.limits, count_leaves(type_spec), struct_depth(type_spec))
        return type_spec

    def _check_names(self, message: computation_pb2.Type | computation_pb2.Computation) -> None:
        size = message.ByteSize()
        recent_types.received(size)
        if size > self.limits.max_name_bytes:  # a small message has no more of them
            found = count_name_bytes(message, self.limits.max_name_bytes)
            if found > self.limits.max_name_bytes:
                raise exceeded(self.limits, "max_name_bytes", found, "give shorter names")

    def unpacker(self, clients: int | None = None) -> Unpacker:
        """Returns what unpacks one message, within the limits."""
        return Unpacker(max_bytes=self.limits.max_value_bytes, clients=clients)

    def packer(self, session: Session) -> Packer:
        """Returns what packs one message for the client of a session."""
        return Packer(self.limits.chunking.large_bytes, elements=ELEMENTS in session.features)

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
        self._loading.close()
        self._inside_leaves.close()  # and the factory with it

"""Defines sessions that need few calls and support leases and values of any size, on fedstack's services."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import TypeVar

from fedstack.computations.types.language import CardinalitiesType, Type, computation_pb2
from fedstack.errors import RemoteError, WorkerUnavailableError
from fedstack.executors.remote.pending_creations import Pending, PendingCreations, pending
from fedstack.executors.remote.remote_sessions import (
    CarrierRules,
    Computation,
    Made,
    Named,
    PlainSession,
    RemoteSession,
    elements_of,
)
from fedstack.executors.remote.remote_transfers import evaluate, pack_value, start
from fedstack.foundations.deadline import Deadline
from fedstack.foundations.segments import Segment, joined
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.proto.carriers_pb2 import PickledPython
from fedstack.proto.extensions_pb2 import Creation
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.retry import RetryPolicy
from fedstack.transport.wire.connection_errors import never_arrived
from fedstack.transport.wire.parcels import WHOLE_BYTES

_T = TypeVar("_T")
# The maximum size of a value that is held back until a computation needs it, and the limits on all held-back values.
_SMALL_BYTES = WHOLE_BYTES
_MAX_PENDING = 1000
_MAX_PENDING_BYTES = 4 << 20
_LEASE_SECONDS = 60.0


async def open_session(
    stub: ExecutorStub, cardinalities: CardinalitiesType, worker_index: int | None = None
) -> RemoteSession:
    """Performs the handshake with a peer and opens a session, with fedstack's extensions if the peer supports them.

    Args:
      stub: Calls the peer.
      cardinalities: The number of participants by placement.
      worker_index: The index of the peer among the caller's workers. Functions can read this index.
    """
    peer = await stub.handshake()
    counts = [
        plain.Cardinality(placement=computation_pb2.Placement(uri=placement.uri), cardinality=count)
        for placement, count in cardinalities.items()
    ]
    if peer is None:
        response = await stub.get_executor(plain.GetExecutorRequest(cardinalities=counts))
        return PlainSession(stub, response.executor)
    request = extended.OpenSessionRequest(cardinalities=counts, lease_seconds=_LEASE_SECONDS, worker_index=worker_index)
    opened = await stub.open_session(request)
    return ExtendedSession(stub, opened.executor, opened.lease_seconds, peer)


class ExtendedSession(RemoteSession):
    """A session on one of fedstack's services.

    The client chooses the ids of values, so that it can safely repeat a creation. Small values are held back and sent
    with the first call that needs them. Computations are sent immediately, because the peer may reject them or take
    long to load them.
    """

    def __init__(
        self, stub: ExecutorStub, executor: plain.ExecutorId, lease_seconds: float, peer: extended.HandshakeResponse
    ) -> None:
        takes_code = PickledPython.DESCRIPTOR.full_name in peer.leaf_runtimes
        super().__init__(stub, executor, CarrierRules(peer.same_process, takes_code), lease_seconds)
        self._peer = peer
        self._pending = PendingCreations(_MAX_PENDING, _MAX_PENDING_BYTES)
        self._ids = map("{:x}".format, itertools.count(1))
        self._retry = RetryPolicy(attempts=3, first_pause=0.05, longest_pause=0.5)

    @property
    def peer(self) -> extended.HandshakeResponse:
        return self._peer

    def put(self, payload: object, type_spec: Type) -> Made:
        creation = Creation(id=next(self._ids))
        segments = pack_value(creation.value, payload, type_spec, self._peer, self.stub)
        if creation.ByteSize() + sum(map(len, segments)) <= _SMALL_BYTES:
            return self._keep_back(creation, data=joined(segments))
        return self._upload(creation, segments)

    async def _upload(self, creation: Creation, segments: Sequence[Segment]) -> str:
        request = extended.EvaluateRequest(executor=self.executor, creation=[creation])
        with self._forgotten_on_failure(creation.id):
            await self._repeated(lambda: evaluate(self.stub, self._peer, request, segments))
        return creation.id

    async def put_computation(self, computation: Computation) -> str:
        creation = Creation(id=next(self._ids), computation=computation)
        with self._forgotten_on_failure(creation.id):
            await self._send([pending(creation)])
        return creation.id

    def call(self, function: str, argument: str | None) -> Made:
        creation = Creation(id=next(self._ids))
        creation.call.function_ref.id = function  # set in place, because assigning a message copies it
        if argument is not None:
            creation.call.argument_ref.id = argument
        return self._keep_back(creation, (function,) if argument is None else (function, argument))

    def struct(self, members: Named) -> Made:
        struct = Creation.Struct(element=elements_of(members))
        return self._keep_back(Creation(id=next(self._ids), struct=struct), [value for _, value in members])

    def selection(self, source: str, index: int) -> Made:
        selection = Creation.Selection(source_ref=plain.ValueRef(id=source), index=index)
        return self._keep_back(Creation(id=next(self._ids), selection=selection), [source])

    def _keep_back(self, creation: Creation, needs: Sequence[str] = (), data: bytes = b"") -> Made:
        if self._pending.add_if_room(creation, needs, data):
            return creation.id
        return self._send_with_others(creation, needs, data)

    async def _send_with_others(self, creation: Creation, needs: Sequence[str], data: bytes) -> str:
        """Sends a creation together with all creations that are held back, and returns the id of its value.

        If other calls have sent the held-back creations in the meantime, this creation is held back as well.
        """
        if not self._pending.add_if_room(creation, needs, data):
            self._pending.add(creation, needs, data)
            with self._forgotten_on_failure(creation.id):
                await self._send(self._pending.everything_unsent())
        return creation.id

    @contextlib.contextmanager
    def _forgotten_on_failure(self, value: str) -> Generator[None, None, None]:
        """Releases a value if its creation fails or is cancelled in the block, because no caller receives the value."""
        try:
            yield
        except BaseException:
            self.forget(value)
            raise

    async def _send(self, creations: Sequence[Pending]) -> None:
        """Sends creations in a separate call."""
        await self._answered(creations, self._repeated(lambda: self._evaluate(creations)))

    async def _answered(self, creations: Sequence[Pending], call: Awaitable[_T]) -> _T:
        """Returns the result of a call that contains creations, and records whether the creations succeeded."""
        created = False
        try:
            result = await call
            created = True
            return result
        finally:
            self._pending.arrived(creations, created)

    async def _evaluate(self, creations: Sequence[Pending], value: str = "", type_spec: Type | None = None) -> object:
        """Creates values on the peer, and returns the payload of a value.

        Args:
          creations: The values to create.
          value: The id of the value to compute; empty to compute no value.
          type_spec: The type of the computed value.

        Returns:
          The payload of the computed value; `None` if no value was computed.
        """
        messages = [creation.message for creation in creations]
        request = extended.EvaluateRequest(executor=self.executor, creation=messages)
        if value:
            request.value_ref.id = value
        segments = [memoryview(creation.data) for creation in creations if creation.data]
        return await evaluate(self.stub, self._peer, request, segments, type_spec)

    async def _repeated(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Calls a method that creates or computes values, and retries the call if the connection fails.

        The client chooses the ids, so the peer may safely receive the same request twice.
        """
        lost: WorkerUnavailableError | None = None
        try:
            async for _ in Deadline().attempts(self._retry.pauses()):
                try:
                    return await call()
                except WorkerUnavailableError as error:
                    # If the peer is now unreachable, the error of the first attempt is kept, because that attempt may
                    # have crashed the worker.
                    lost = lost if lost is not None and never_arrived(error) else error
            assert lost is not None
            raise lost
        finally:
            del lost  # breaks the reference cycle: the error refers to this frame

    async def compute(self, value: str, type_spec: Type) -> object:
        creations = self._pending.needed_for([value])
        return await self._answered(creations, self._evaluate(creations, value, type_spec))

    async def start(self, values: Mapping[str, Type], waiting: int = 0) -> Mapping[str, Exception | None]:
        creations = self._pending.needed_for(values)
        # The same call releases dropped values, so that the peer stores only a few values of a chain of large values.
        with self._released() as released:
            request = extended.StartRequest(
                executor=self.executor,
                creation=[creation.message for creation in creations],
                value_ref=[plain.ValueRef(id=value) for value in values],
                cancel_ref=[plain.ValueRef(id=value) for value in released],
                waiting=waiting,
            )
            segments = [memoryview(creation.data) for creation in creations if creation.data]
            work = self._repeated(lambda: start(self.stub, self._peer, request, segments))
            return await self._answered(creations, work)

    @contextlib.contextmanager
    def _released(self) -> Generator[Sequence[str], None, None]:
        """Yields the ids of values to release with the call in the block.

        If the call fails, the values are queued again for a later release.
        """
        there, waiting = self._pending.drop(self.take_forgotten())
        for value in waiting:
            self.forget(value)
        try:
            yield there
        except BaseException:
            for value in there:
                self.forget(value)
            raise

    async def stop(self, values: Sequence[str]) -> None:
        there, _ = self._pending.drop(values)
        refs = [plain.ValueRef(id=value) for value in there]
        await start(self.stub, self._peer, extended.StartRequest(executor=self.executor, cancel_ref=refs))

    async def dispose(self, values: Sequence[str]) -> Sequence[str]:
        there, waiting = self._pending.drop(values)
        try:
            if there:
                await super().dispose(there)
        except RemoteError as error:
            if error.code != "NOT_FOUND":  # the peer may never have received some of the values
                raise
        return waiting

    async def renew(self) -> bool:
        response = await self.stub.renew_lease(extended.RenewLeaseRequest(executor=[self.executor]))
        return not response.unknown

"""Holds values in another process, one session per executor: with fedstack's own peers, and with any other."""

import abc
import asyncio
import uuid
from collections.abc import Sequence
from typing import TypeAlias

from fedstack.computations.codec import value_from_proto, value_to_proto
from fedstack.computations.columns import with_columns
from fedstack.computations.language import CardinalitiesType, Type, computation_pb2
from fedstack.computations.travel import portable
from fedstack.errors import ResourceLimitError, WorkerUnavailableError
from fedstack.executors.remote_transfers import Packing, download, pack_value, upload
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.proto.carriers_pb2 import PickledPython
from fedstack.transport.executor_stub import ExecutorStub
from fedstack.transport.retry import RetryPolicy

Computation: TypeAlias = computation_pb2.Computation
Named: TypeAlias = "Sequence[tuple[str | None, str]]"

_SMALL_BYTES = 1 << 20
_QUICK_SECONDS = 1.0
_QUICK_BYTES = 1 << 18
_MAX_MESSAGE = (1 << 31) - 1
_LEASE_SECONDS = 60.0


class RemoteSession(abc.ABC):
    """A session with one peer. Coroutines run on the transport's loop.

    Attributes:
      stub: Calls the peer.
      executor: What the peer calls the session.
      lost: Why it is of no use any more; empty as long as it is.
      lease_seconds: How long it may be silent; `None` if it need not be renewed.
    """

    def __init__(self, stub: ExecutorStub, executor: plain.ExecutorId, lease_seconds: float | None = None) -> None:
        self.stub = stub
        self.executor = executor
        self.lost = ""
        self.lease_seconds = lease_seconds

    @abc.abstractmethod
    def travelling(self, computation: Computation) -> Computation:
        """Returns a computation with carriers that the peer can load."""

    @property
    @abc.abstractmethod
    def travel_key(self) -> object:
        """Tells apart sessions for which `travelling` gives different computations."""

    @abc.abstractmethod
    def pack(self, payload: object, type_spec: Type) -> Packing:
        """Packs a payload, before it is put; where the caller is, since it may take a while."""

    @abc.abstractmethod
    async def put(self, packing: Packing) -> str:
        """Creates a value and returns its id."""

    @abc.abstractmethod
    async def put_computation(self, computation: Computation) -> str:
        """Creates a function, or what a computation yields."""

    @abc.abstractmethod
    async def call(self, function: str, argument: str | None) -> str:
        """Calls a function."""

    @abc.abstractmethod
    async def struct(self, members: Named) -> str:
        """Packs values into a struct."""

    @abc.abstractmethod
    async def selection(self, source: str, index: int) -> str:
        """Selects a member."""

    @abc.abstractmethod
    async def compute(self, value: str, type_spec: Type) -> object:
        """Computes a value and returns its payload."""

    @property
    def peer(self) -> extended.HandshakeResponse | None:
        """What the peer says of itself; `None` from one without extensions."""
        return None

    async def dispose(self, values: Sequence[str]) -> None:
        """Lets go of values."""
        refs = [plain.ValueRef(id=value) for value in values]
        await self.stub.dispose(plain.DisposeRequest(executor=self.executor, value_ref=refs))

    async def renew(self) -> bool:
        """Renews the lease; tells whether the peer still knows the session."""
        return True

    async def end(self) -> None:
        """Ends the session."""
        await self.stub.dispose_executor(plain.DisposeExecutorRequest(executor=self.executor))


async def open_session(stub: ExecutorStub, cardinalities: CardinalitiesType) -> RemoteSession:
    """Shakes hands with a peer and opens a session, with extensions if it has them."""
    peer = await stub.handshake()
    counts = [
        plain.Cardinality(placement=computation_pb2.Placement(uri=placement.uri), cardinality=count)
        for placement, count in cardinalities.items()
    ]
    if peer is None:
        response = await stub.get_executor(plain.GetExecutorRequest(cardinalities=counts))
        return PlainSession(stub, response.executor)
    request = extended.OpenSessionRequest(cardinalities=counts, lease_seconds=_LEASE_SECONDS)
    opened = await stub.open_session(request)
    return ExtendedSession(stub, opened.executor, opened.lease_seconds, peer)


class PlainSession(RemoteSession):
    """A session with a peer that has the executor service only: value by value, each in one message."""

    def travelling(self, computation: Computation) -> Computation:
        if self.stub.keeps_handles:
            return computation
        return portable(computation, allow_by_value=self.stub.sends_code)

    @property
    def travel_key(self) -> object:
        return self.stub.keeps_handles, self.stub.sends_code

    def pack(self, payload: object, type_spec: Type) -> Packing:
        value = value_to_proto(payload, type_spec)
        if value.ByteSize() > _MAX_MESSAGE:
            raise ResourceLimitError(
                f"Expected a value of at most {_MAX_MESSAGE} bytes for {self.stub.address}, which takes it in one "
                f"message, found {value.ByteSize()} bytes of type {type_spec}; create its members one by one, or use a "
                "fedstack worker"
            )
        return Packing(type_spec, value=value)

    async def put(self, packing: Packing) -> str:
        request = plain.CreateValueRequest(executor=self.executor, value=packing.value)
        return (await self.stub.create_value(request)).value_ref.id

    async def put_computation(self, computation: Computation) -> str:
        return await self.put(Packing(None, value=plain.Value(computation=computation)))

    async def call(self, function: str, argument: str | None) -> str:
        request = plain.CreateCallRequest(executor=self.executor, function_ref=plain.ValueRef(id=function))
        if argument is not None:
            request.argument_ref.id = argument
        return (await self.stub.create_call(request)).value_ref.id

    async def struct(self, members: Named) -> str:
        request = plain.CreateStructRequest(executor=self.executor, element=_elements(members))
        return (await self.stub.create_struct(request)).value_ref.id

    async def selection(self, source: str, index: int) -> str:
        request = plain.CreateSelectionRequest(
            executor=self.executor, source_ref=plain.ValueRef(id=source), index=index
        )
        return (await self.stub.create_selection(request)).value_ref.id

    async def compute(self, value: str, type_spec: Type) -> object:
        request = plain.ComputeRequest(executor=self.executor, value_ref=plain.ValueRef(id=value))
        response = await self.stub.compute(request)
        return with_columns(value_from_proto(response.value, type_spec, path="result"), type_spec)


class ExtendedSession(RemoteSession):
    """A session with one of fedstack's own services: ids are chosen here, so a create may be repeated."""

    def __init__(
        self, stub: ExecutorStub, executor: plain.ExecutorId, lease_seconds: float, peer: extended.HandshakeResponse
    ) -> None:
        super().__init__(stub, executor, lease_seconds)
        self._peer = peer
        self._retry = RetryPolicy(attempts=3, first_pause=0.05, longest_pause=0.5)

    @property
    def peer(self) -> extended.HandshakeResponse:
        return self._peer

    def travelling(self, computation: Computation) -> Computation:
        if self._peer.same_process:
            return computation
        return portable(computation, allow_by_value=self._takes_code)

    @property
    def _takes_code(self) -> bool:
        return PickledPython.DESCRIPTOR.full_name in self._peer.leaf_runtimes

    @property
    def travel_key(self) -> object:
        return self._peer.same_process, self._takes_code

    def pack(self, payload: object, type_spec: Type) -> Packing:
        return pack_value(payload, type_spec, self._peer.max_value_bytes)

    async def put(self, packing: Packing) -> str:
        value_id = uuid.uuid4().hex
        typed = packing.typed
        if not packing.segments and typed.ByteSize() <= _SMALL_BYTES:
            await self._create(extended.CreateRequest.Creation(id=value_id, value=typed))
        else:
            header = extended.Upload(executor=self.executor, id=value_id, value=typed)
            await upload(self.stub, header, packing.segments)
        return value_id

    async def put_computation(self, computation: Computation) -> str:
        value_id = uuid.uuid4().hex
        return await self._create(extended.CreateRequest.Creation(id=value_id, computation=computation))

    async def call(self, function: str, argument: str | None) -> str:
        call = extended.CreateRequest.Call(function_ref=plain.ValueRef(id=function))
        if argument is not None:
            call.argument_ref.id = argument
        return await self._create(extended.CreateRequest.Creation(id=uuid.uuid4().hex, call=call))

    async def struct(self, members: Named) -> str:
        struct = extended.CreateRequest.Struct(element=_elements(members))
        return await self._create(extended.CreateRequest.Creation(id=uuid.uuid4().hex, struct=struct))

    async def selection(self, source: str, index: int) -> str:
        selection = extended.CreateRequest.Selection(source_ref=plain.ValueRef(id=source), index=index)
        return await self._create(extended.CreateRequest.Creation(id=uuid.uuid4().hex, selection=selection))

    async def _create(self, creation: extended.CreateRequest.Creation) -> str:
        request = extended.CreateRequest(executor=self.executor, creation=[creation])
        pauses = self._retry.pauses()
        while True:
            try:
                await self.stub.create(request)
                return creation.id
            except WorkerUnavailableError:
                pause = next(pauses, None)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def compute(self, value: str, type_spec: Type) -> object:
        ref = plain.ValueRef(id=value)
        request = extended.ComputeNowRequest(
            executor=self.executor, value_ref=ref, wait_seconds=_QUICK_SECONDS, max_bytes=_QUICK_BYTES
        )
        response = await self.stub.compute_now(request)
        return await download(self.stub, self._peer, self.executor, ref, response, type_spec)

    async def renew(self) -> bool:
        response = await self.stub.renew_lease(extended.RenewLeaseRequest(executor=[self.executor]))
        return not response.unknown


def _elements(members: Named) -> list[plain.CreateStructRequest.Element]:
    return [
        plain.CreateStructRequest.Element(name=name or "", value_ref=plain.ValueRef(id=value))
        for name, value in members
    ]

"""Holds values in one of fedstack's own services: few calls, values of any size, leases."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence

from fedstack.computations.leaves.version_skew import warn_of_differing
from fedstack.computations.types.language import CardinalitiesType, Type, computation_pb2
from fedstack.computations.types.type_structure import least_bytes
from fedstack.errors import RemoteError, WorkerUnavailableError
from fedstack.executors.remote.pending_creations import Creation, PendingCreations
from fedstack.executors.remote.remote_sessions import (
    CarrierRules,
    Computation,
    Made,
    Named,
    PlainSession,
    RemoteSession,
    elements_of,
)
from fedstack.executors.remote.remote_transfers import download, load, pack_value, read_response
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.proto.carriers_pb2 import PickledPython
from fedstack.transport.peers.executor_stub import FEATURES, LOAD, ExecutorStub
from fedstack.transport.peers.retry import RetryPolicy
from fedstack.transport.wire.segments import Segment

# Values up to this size are kept back until something is computed of them, and at most so many, and bytes of them.
_SMALL_BYTES = 64 << 10
_MAX_PENDING = 1000
_MAX_PENDING_BYTES = 1 << 20
_QUICK_SECONDS = 1.0
_QUICK_BYTES = 1 << 18
_LEASE_SECONDS = 60.0


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
    request = extended.OpenSessionRequest(cardinalities=counts, lease_seconds=_LEASE_SECONDS, features=FEATURES)
    opened = await stub.open_session(request)
    return ExtendedSession(stub, opened.executor, opened.lease_seconds, peer)


class ExtendedSession(RemoteSession):
    """A session with one of fedstack's own services.

    Ids are chosen here, so a creation may be repeated. What is small is kept back and goes along with the first call
    that needs it; computations are sent at once, because the peer may find fault with them, and take long to load them.
    """

    def __init__(
        self, stub: ExecutorStub, executor: plain.ExecutorId, lease_seconds: float, peer: extended.HandshakeResponse
    ) -> None:
        takes_code = PickledPython.DESCRIPTOR.full_name in peer.leaf_runtimes
        super().__init__(stub, executor, CarrierRules(peer.same_process, takes_code), lease_seconds)
        self._peer = peer
        self._pending = PendingCreations(_MAX_PENDING, _MAX_PENDING_BYTES)
        self._retry = RetryPolicy(attempts=3, first_pause=0.05, longest_pause=0.5)

    @property
    def peer(self) -> extended.HandshakeResponse:
        return self._peer

    def put(self, payload: object, type_spec: Type) -> Made:
        typed, segments = pack_value(payload, type_spec, self._peer, self.stub)
        if not segments and typed.ByteSize() <= _SMALL_BYTES:
            return self._keep_back(Creation(id=_new_id(), value=typed))
        return self._upload(extended.Upload(executor=self.executor, id=_new_id(), value=typed), segments)

    async def _upload(self, header: extended.Upload, segments: Sequence[Segment]) -> str:
        with self._forgotten_on_failure(header.id):
            await self._repeated(lambda: self.stub.upload_value(header, segments))
        return header.id

    async def put_computation(self, computation: Computation) -> str:
        creation = Creation(id=_new_id(), computation=computation)
        with self._forgotten_on_failure(creation.id):
            await self._send([creation])
        return creation.id

    def call(self, function: str, argument: str | None) -> Made:
        call = extended.CreateRequest.Call(function_ref=plain.ValueRef(id=function))
        if argument is not None:
            call.argument_ref.id = argument
        return self._keep_back(Creation(id=_new_id(), call=call), function, argument or "")

    def struct(self, members: Named) -> Made:
        struct = extended.CreateRequest.Struct(element=elements_of(members))
        return self._keep_back(Creation(id=_new_id(), struct=struct), *(value for _, value in members))

    def selection(self, source: str, index: int) -> Made:
        selection = extended.CreateRequest.Selection(source_ref=plain.ValueRef(id=source), index=index)
        return self._keep_back(Creation(id=_new_id(), selection=selection), source)

    def _keep_back(self, creation: Creation, *needs: str) -> Made:
        if self._pending.add_if_room(creation, needs):
            return creation.id
        return self._send_with_others(creation, needs)

    async def _send_with_others(self, creation: Creation, needs: Sequence[str]) -> str:
        """Sends a creation with all that is kept back, unless others have sent that meanwhile."""
        if not self._pending.add_if_room(creation, needs):
            self._pending.add(creation, needs)
            with self._forgotten_on_failure(creation.id):
                await self._send(self._pending.everything_unsent())
        return creation.id

    @contextlib.contextmanager
    def _forgotten_on_failure(self, value: str) -> Generator[None, None, None]:
        """Lets go of a value whose caller does not get to know it: its creation failed or was cancelled on its way."""
        try:
            yield
        except BaseException:
            self.forget(value)
            raise

    async def _send(self, creations: Sequence[Creation]) -> None:
        """Sends creations in a call of their own."""
        request = extended.CreateRequest(executor=self.executor, creation=creations)
        created = False
        try:
            await self._repeated(lambda: self._create(request))
            created = True
        finally:
            self._pending.arrived(creations, created)

    async def _create(self, request: extended.CreateRequest) -> None:
        brings_functions = any(creation.HasField("computation") for creation in request.creation)
        if brings_functions and LOAD in self._peer.features:
            response = await load(self.stub, self._peer, request)
        else:
            response = await self.stub.create(request)
        warn_of_differing(response.differing_module, self.stub.address)

    async def _repeated(self, call: Callable[[], Awaitable[None]]) -> None:
        """Makes a call that creates something, again if it fails on its way: with ids of ours it may come twice."""
        pauses = self._retry.pauses()
        while True:
            try:
                return await call()
            except WorkerUnavailableError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def compute(self, value: str, type_spec: Type) -> object:
        creations = self._pending.needed_for([value])
        if least_bytes(type_spec) <= _QUICK_BYTES:
            response = await self._compute_now(value, creations)
            if response.HasField("value"):
                return read_response(response, type_spec)
        elif creations:
            await self._send(creations)
        return await download(self.stub, self._peer, self.executor, plain.ValueRef(id=value), type_spec)

    async def _compute_now(self, value: str, creations: Sequence[Creation]) -> extended.ComputeNowResponse:
        """Creates what is missing and asks for a value: the answer is empty if that is large or takes long."""
        request = extended.ComputeNowRequest(
            executor=self.executor,
            value_ref=plain.ValueRef(id=value),
            wait_seconds=_QUICK_SECONDS,
            max_bytes=_QUICK_BYTES,
            creation=creations,
        )
        created = False
        try:
            response = await self.stub.compute_now(request)
            created = True
        finally:
            self._pending.arrived(creations, created)
        return response

    async def dispose(self, values: Sequence[str]) -> Sequence[str]:
        there, waiting = self._pending.drop(values)
        try:
            if there:
                await super().dispose(there)
        except RemoteError as error:
            if error.code != "NOT_FOUND":  # some of them may never have come there
                raise
        return waiting

    async def renew(self) -> bool:
        response = await self.stub.renew_lease(extended.RenewLeaseRequest(executor=[self.executor]))
        return not response.unknown


def _new_id() -> str:
    return uuid.uuid4().hex

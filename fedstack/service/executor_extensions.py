"""Serves what fedstack's own clients can do beyond the executor service: leases, chosen ids, values of any size."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from fedstack._version import __version__
from fedstack.computations.language import Type
from fedstack.computations.leaf_runtimes import known_carriers
from fedstack.computations.type_structure import contains_function, type_from_proto
from fedstack.errors import InvalidValueError
from fedstack.executors.progress import ProgressCounts, current_progress
from fedstack.executors.resource_factory import ResourceManagingExecutorFactory
from fedstack.proto import extensions_pb2 as messages
from fedstack.proto.executor_pb2 import ExecutorId
from fedstack.service import held_values
from fedstack.service.call_counts import CallCounts
from fedstack.service.executor_group import cardinalities_of, parsed
from fedstack.service.phase_service import run_phase
from fedstack.service.received_frames import receive_value
from fedstack.service.server_facts import ServerFacts
from fedstack.service.service_core import ARRAY_SPARE_BYTES, FUNCTION_SPARE_BYTES, ServiceCore
from fedstack.service.sessions import Session, check_new_id
from fedstack.transport.executor_stub import PROTOCOL, process_digest
from fedstack.transport.frames import data_frames, header_frame, heartbeat_frame
from fedstack.transport.methods import DownloadMethod, ExchangeMethod, Method, UnaryMethod, UploadMethod
from fedstack.transport.packing import Packer

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)
Frames = AsyncIterator[bytes]


class ExecutorExtensions:
    """The methods of `fedstack.v1.ExecutorExtensions`.

    Args:
      core: The sessions, and the rules for them.
    """

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self.call_counts: CallCounts | None = None
        self.server_facts: ServerFacts | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods by name."""
        return {
            "Handshake": _unary(messages.HandshakeRequest, self.handshake),
            "OpenSession": _unary(messages.OpenSessionRequest, self.open_session),
            "RenewLease": _unary(messages.RenewLeaseRequest, self.renew_lease),
            "Create": _unary(messages.CreateRequest, self.create),
            "UploadValue": UploadMethod(self.upload_value),
            "ComputeNow": _unary(messages.ComputeNowRequest, self.compute_now),
            "DownloadValue": DownloadMethod(self.download_value),
            "RunPhase": ExchangeMethod(self.run_phase),
            "GetStatus": _unary(messages.GetStatusRequest, self.get_status),
        }

    async def handshake(self, request: messages.HandshakeRequest) -> messages.HandshakeResponse:
        """Tells what this server is."""
        self._core.check_takes_clients()  # who is told so here does not count on this server
        policy, limits = self._core.policy, self._core.limits
        return messages.HandshakeResponse(
            protocol=PROTOCOL,
            version=__version__,
            same_process=bool(request.nonce) and request.process_digest == process_digest(request.nonce),
            phases=isinstance(self._core.factory, ResourceManagingExecutorFactory),
            leaf_runtimes=[name for name in known_carriers() if policy.python_code or "PickledPython" not in name],
            allowed_modules=policy.modules,
            python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
            max_value_bytes=limits.max_value_bytes,
            heartbeat_seconds=limits.heartbeat_seconds,
            asks_for_token=self.server_facts is not None and self.server_facts.asks_for_token,
        )

    async def open_session(self, request: messages.OpenSessionRequest) -> messages.OpenSessionResponse:
        """Opens a session with a lease."""
        longest = self._core.limits.lease_seconds
        lease = min(request.lease_seconds, longest) if request.lease_seconds > 0 else longest
        session = self._core.open(cardinalities_of(request.cardinalities), lease)
        return messages.OpenSessionResponse(executor=ExecutorId(id=session.id), lease_seconds=lease)

    async def renew_lease(self, request: messages.RenewLeaseRequest) -> messages.RenewLeaseResponse:
        """Renews leases."""
        unknown = [executor for executor in request.executor if not self._core.sessions.renew(executor.id)]
        return messages.RenewLeaseResponse(unknown=unknown)

    async def create(self, request: messages.CreateRequest) -> messages.CreateResponse:
        """Creates values under chosen ids."""
        await self._create_all(self._core.find(request.executor), request.creation)
        return messages.CreateResponse()

    async def _create_all(self, session: Session, creations: Iterable[messages.CreateRequest.Creation]) -> None:
        for creation in creations:
            check_new_id(creation.id)
            if session.has(creation.id):
                continue
            size = 0
            if creation.HasField("value"):
                size = creation.value.value.ByteSize()
                self._core.check_size(size, ARRAY_SPARE_BYTES)
            elif creation.HasField("computation"):
                size = creation.computation.ByteSize()
                self._core.check_size(size, FUNCTION_SPARE_BYTES)
            session.check_room(size)
            created = await self._created(session, creation)
            if not session.has(creation.id):  # the same call may have come twice
                session.add(created, size, creation.id)

    async def _created(self, session: Session, creation: messages.CreateRequest.Creation) -> Any:
        executor = session.executor
        kind = creation.WhichOneof("kind")
        if kind == "value":
            unpacker = self._core.unpacker(held_values.clients_of(executor))
            type_spec = _type_of_value(creation.value)
            payload = unpacker.unpack(creation.value.value, type_spec)
            if unpacker.buffers:
                raise InvalidValueError("Expected a whole value, found one whose bytes are to follow; use UploadValue")
            unpacker.finish()
            return await held_values.create_known(executor, payload, type_spec)
        if kind == "computation":
            await self._core.admit(creation.computation)
            return await held_values.create_computation(executor, creation.computation)
        if kind == "call":
            call = creation.call
            argument = session.find(call.argument_ref.id) if call.HasField("argument_ref") else None
            return await held_values.create_call(executor, session.find(call.function_ref.id), argument)
        if kind == "struct":
            members = [(element.name, session.find(element.value_ref.id)) for element in creation.struct.element]
            return await held_values.create_struct(executor, members)
        if kind == "selection":
            source = session.find(creation.selection.source_ref.id)
            return await executor.create_selection(source, creation.selection.index)
        raise InvalidValueError("Expected something to create, found an empty creation")

    async def upload_value(self, frames: Frames) -> bytes:
        """Creates a value of any size."""
        upload, read_all = await receive_value(frames, messages.Upload)
        session = self._core.find(upload.executor)
        check_new_id(upload.id)

        async def receive() -> None:
            type_spec = _type_of_value(upload.value)
            unpacker = self._core.unpacker(held_values.clients_of(session.executor))
            payload = unpacker.unpack(upload.value.value, type_spec)
            size = upload.value.value.ByteSize() + sum(map(len, unpacker.buffers))
            self._core.check_size(size, ARRAY_SPARE_BYTES)
            session.check_room(size)
            await read_all(unpacker)
            if not session.has(upload.id):
                created = await held_values.create_known(session.executor, payload, type_spec)
                session.add(created, size, upload.id)

        await self._core.run(session, receive())
        return messages.CreateResponse().SerializeToString()

    async def compute_now(self, request: messages.ComputeNowRequest) -> messages.ComputeNowResponse:
        """Computes a value that is soon there and small."""
        session = self._core.find(request.executor)
        await self._create_all(session, request.creation)
        value_id = request.value_ref.id
        known = held_values.known_payload(session.find(value_id))
        if known is not None:
            response = self._packed(known[0], known[1])
            return messages.ComputeNowResponse() if response.ByteSize() > request.max_bytes else response
        return await self._core.run(session, self._compute_now(session, request))

    async def _compute_now(self, session: Session, request: messages.ComputeNowRequest) -> messages.ComputeNowResponse:
        value_id = request.value_ref.id
        pull = session.pull(value_id)
        seconds = request.wait_seconds if request.wait_seconds > 0 else 0.0  # NaN is not
        if not await pull.wait(min(seconds, self._core.limits.heartbeat_seconds)):
            return messages.ComputeNowResponse()
        response = self._packed(pull.result(), session.find(value_id).type_signature)
        if response.ByteSize() > request.max_bytes:
            return messages.ComputeNowResponse()
        session.delivered(value_id)
        return response

    def _packed(self, payload: object, type_spec: Type) -> messages.ComputeNowResponse:
        """Returns a small value as a response, and an empty one for a value that is large."""
        packer = Packer(self._core.limits.chunking.large_bytes)
        response = messages.ComputeNowResponse()
        packer.pack(response.value, payload, type_spec, "result")
        return messages.ComputeNowResponse() if packer.segments else response

    async def download_value(self, content: bytes) -> AsyncIterator[bytes]:
        """Computes a value of any size."""
        request = parsed(messages.DownloadRequest, content)
        session = self._core.find(request.executor)
        value_id = request.value_ref.id

        async def compute() -> object:
            pull = session.pull(value_id)
            await pull.wait()
            return pull.result()

        work = asyncio.ensure_future(self._core.run(session, compute()))
        async for beat in self._beats(work, ProgressCounts()):
            yield beat
        packer = Packer(self._core.limits.chunking.large_bytes)
        response = messages.Download()
        packer.pack(response.value, work.result(), session.find(value_id).type_signature, "result")
        yield header_frame(response)
        for frame in data_frames(packer.segments, self._core.limits.chunking.chunk_bytes):
            yield frame
        session.delivered(value_id)

    async def run_phase(self, frames: Frames) -> AsyncIterator[bytes]:
        """Runs a client phase."""
        progress = ProgressCounts()

        async def receive_and_run() -> tuple[messages.PhaseResponse, Packer]:
            current_progress.set(progress)  # of this task only
            request, read_all = await receive_value(frames, messages.PhaseRequest)
            session = self._core.find(request.executor)
            return await self._core.run(session, run_phase(self._core, session, request, read_all))

        work = asyncio.ensure_future(receive_and_run())
        async for beat in self._beats(work, progress):
            yield beat
        response, packer = work.result()
        yield header_frame(response)
        for frame in data_frames(packer.segments, self._core.limits.chunking.chunk_bytes):
            yield frame

    async def _beats(self, work: "asyncio.Future[_T]", progress: ProgressCounts) -> AsyncIterator[bytes]:
        """Yields a heartbeat now and then until work is done, and cancels it when nobody listens any more."""
        work.add_done_callback(held_values.look_at)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=self._core.limits.heartbeat_seconds)
                if not work.done():
                    yield heartbeat_frame(progress.done, progress.running, progress.failures)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    async def get_status(self, request: messages.GetStatusRequest) -> messages.GetStatusResponse:
        """Tells what this server holds and has done."""
        return self.status()

    def status(self) -> messages.GetStatusResponse:
        """Returns what this server holds and has done."""
        response = messages.GetStatusResponse(version=__version__)
        response.uptime_seconds = self._core.clock() - self._core.started
        for session in self._core.sessions:
            response.session.add(
                id=session.id[:8],
                clients=session.clients,
                values=len(session),
                bytes=session.bytes,
                lease_seconds_left=self._core.sessions.seconds_left(session.id),
            )
            response.values += len(session)
            response.bytes += session.bytes
            response.running += session.running
        for method, code, count in self.call_counts or ():
            response.calls.add(method=method, code=code, count=count)
        left = self.server_facts.seconds_until_stop if self.server_facts is not None else None
        if left is not None:
            response.seconds_until_stop = left
        return response


def _type_of_value(value: messages.TypedValue) -> Type:
    type_spec = type_from_proto(value.type)
    if contains_function(type_spec):
        raise InvalidValueError(
            f"Expected a value without functions in it, found one of type {type_spec}; create the functions as "
            "computations, and put them and the rest into a struct"
        )
    return type_spec


def _unary(request: type[_M], handle: Callable[[_M], Awaitable[Message]]) -> UnaryMethod:
    async def run(content: bytes) -> bytes:
        return (await handle(parsed(request, content))).SerializeToString()

    return UnaryMethod(run)

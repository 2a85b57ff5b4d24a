"""Defines the stub that calls the executor service and fedstack's extensions to it, with one method per call."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar, cast

from google.protobuf.message import Message

from fedstack._version import __version__
from fedstack.computations.leaves.leaf_runtimes import PROCESS
from fedstack.errors import ProtocolVersionError, RemoteError
from fedstack.foundations.error_text import name_text
from fedstack.foundations.segments import Segment
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.service_stub import CONTROL_SECONDS, ServiceStub
from fedstack.transport.wire.frames import Chunking, Heartbeat
from fedstack.transport.wire.parcels import Incoming, Parcel, ParcelFile

# The version of the protocol. Clients and servers reject peers that use another version.
PROTOCOL = 1
EXECUTOR_GROUP = "tensorflow_federated.v0.ExecutorGroup"
EXTENSIONS = "fedstack.v1.ExecutorExtensions"
STATUS = "fedstack.v1.ServerStatus"
# The time, in seconds, within which a peer responds or announces a response.
SOON_SECONDS = 1.0

Answer: TypeAlias = AbstractAsyncContextManager[Incoming]
_M = TypeVar("_M", bound=Message)


class ExecutorStub(ServiceStub):
    """A stub for the executor service of a peer and its extensions.

    Args:
      connection: The connection to the peer.
      extensions: Whether to use fedstack's own extensions if the peer supports them.
      sends_code: Whether a peer without extensions accepts Python functions by value.
      keeps_handles: Whether a peer without extensions runs in this process, and finds Python functions by handle.
      control_seconds: The time limit, in seconds, of a control call, which only transfers data.
      chunking: The sizes at which data is sent in chunks.
    """

    _PEER = "the worker"

    def __init__(
        self,
        connection: Connection,
        *,
        extensions: bool = True,
        sends_code: bool = False,
        keeps_handles: bool = False,
        control_seconds: float = CONTROL_SECONDS,
        chunking: Chunking | None = None,
    ) -> None:
        super().__init__(connection, control_seconds=control_seconds, chunking=chunking)
        self.sends_code = sends_code
        self.keeps_handles = keeps_handles
        self._extensions = extensions

    async def handshake(self) -> extended.HandshakeResponse | None:
        """Returns the peer's description of itself, or `None` if the peer has only the plain executor service.

        Raises:
          ProtocolVersionError: If the peer uses another version of the protocol.
        """
        if not self._extensions:
            return None
        nonce = secrets.token_bytes(16)
        request = extended.HandshakeRequest(
            protocol=PROTOCOL, version=__version__, nonce=nonce, process_digest=process_digest(nonce)
        )
        try:
            response = await self._extended("Handshake", request, extended.HandshakeResponse)
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            return None
        check_protocol(response.protocol, response.version, self.address)
        return response

    async def get_executor(self, request: plain.GetExecutorRequest) -> plain.GetExecutorResponse:
        """Requests an executor.

        Raises:
          RemoteError: If the peer has no executor service. The address is then likely to be that of another server.
        """
        try:
            return await self._plain("GetExecutor", request, plain.GetExecutorResponse)
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            said = str(error).removeprefix(f"The call to {self.address} failed with ")
            raise RemoteError(
                f"Expected an executor service at {self.address}, found a gRPC server without this service ({said}); "
                "correct the host and port",
                code=error.code,
            ) from error

    async def create_value(self, request: plain.CreateValueRequest) -> plain.CreateValueResponse:
        """Creates a value. If the value is a computation, which the peer must load, there is no time limit.

        Raises:
          DeadlineExceededError: If the peer does not answer, or its health service stops answering.
        """
        if request.value.HasField("computation"):
            return await self.call_while_alive(f"/{EXECUTOR_GROUP}/CreateValue", request, plain.CreateValueResponse)
        return await self._plain("CreateValue", request, plain.CreateValueResponse)

    async def create_call(self, request: plain.CreateCallRequest) -> plain.CreateCallResponse:
        """Calls a function on the peer."""
        return await self._plain("CreateCall", request, plain.CreateCallResponse)

    async def create_struct(self, request: plain.CreateStructRequest) -> plain.CreateStructResponse:
        """Packs values into a struct."""
        return await self._plain("CreateStruct", request, plain.CreateStructResponse)

    async def create_selection(self, request: plain.CreateSelectionRequest) -> plain.CreateSelectionResponse:
        """Selects a member of a struct."""
        return await self._plain("CreateSelection", request, plain.CreateSelectionResponse)

    async def compute(self, request: plain.ComputeRequest) -> plain.ComputeResponse:
        """Computes a value. There is no time limit while the peer's health service, if it has one, answers.

        Raises:
          DeadlineExceededError: If the health service stops answering.
        """
        return await self.call_while_alive(f"/{EXECUTOR_GROUP}/Compute", request, plain.ComputeResponse)

    async def dispose(self, request: plain.DisposeRequest) -> None:
        """Releases values."""
        await self._plain("Dispose", request, plain.DisposeResponse)

    async def dispose_executor(self, request: plain.DisposeExecutorRequest) -> None:
        """Releases an executor and its values."""
        await self._plain("DisposeExecutor", request, plain.DisposeExecutorResponse)

    async def open_session(self, request: extended.OpenSessionRequest) -> extended.OpenSessionResponse:
        """Requests an executor with a lease."""
        return await self._extended("OpenSession", request, extended.OpenSessionResponse)

    async def renew_lease(self, request: extended.RenewLeaseRequest) -> extended.RenewLeaseResponse:
        """Renews leases."""
        return await self._extended("RenewLease", request, extended.RenewLeaseResponse)

    async def get_status(self) -> extended.GetStatusResponse:
        """Returns the status of the server: its sessions, running work and call statistics."""
        return await self.call(f"/{STATUS}/GetStatus", extended.GetStatusRequest(), extended.GetStatusResponse)

    def evaluate(
        self, request: extended.EvaluateRequest, segments: Sequence[Segment], heartbeat_seconds: float
    ) -> Awaitable[Parcel | Answer]:
        """Creates values, and computes one of them on the peer."""
        soon = self._control_seconds + SOON_SECONDS
        return self.ask(f"/{EXTENSIONS}/Evaluate", request, segments, heartbeat_seconds, soon_seconds=soon)

    def start(
        self, request: extended.StartRequest, segments: Sequence[Segment], heartbeat_seconds: float
    ) -> Awaitable[Parcel | Answer]:
        """Creates values, and starts computing some of them."""
        soon = self._control_seconds + SOON_SECONDS
        return self.ask(f"/{EXTENSIONS}/Start", request, segments, heartbeat_seconds, soon_seconds=soon)

    async def update(self, request: extended.UpdateRequest, segments: Sequence[Segment]) -> None:
        """Replaces a value on the peer."""
        await self.upload(f"/{EXTENSIONS}/Update", request, segments, extended.UpdateResponse)

    def run_phase(
        self,
        request: extended.PhaseRequest,
        segments: Sequence[Segment],
        heartbeat_seconds: float,
        on_heartbeat: Callable[[Heartbeat], None] = lambda beat: None,
        sent: Callable[[], None] = lambda: None,
        file: ParcelFile | None = None,
    ) -> Answer:
        """Runs a client phase on the peer; see `exchange`."""
        path = f"/{EXTENSIONS}/RunPhase"
        return self.exchange(path, request, segments, heartbeat_seconds, on_heartbeat, sent=sent, file=file)

    async def shorten_phase(self, request: extended.ShortenPhaseRequest) -> extended.ShortenPhaseResponse:
        """Asks for the last clients of a running phase."""
        return await self._extended("ShortenPhase", request, extended.ShortenPhaseResponse)

    async def find_stores(self, request: extended.FindStoresRequest) -> extended.FindStoresResponse:
        """Asks which stores of clients' states the peer has."""
        return await self._extended("FindStores", request, extended.FindStoresResponse)

    async def _plain(self, method: str, request: Message, response: type[_M]) -> _M:
        return await self.call(f"/{EXECUTOR_GROUP}/{method}", request, response)

    async def _extended(self, method: str, request: Message, response: type[_M], seconds: float | None = None) -> _M:
        return await self.call(f"/{EXTENSIONS}/{method}", request, response, seconds)


def with_protocol(message: _M) -> _M:
    """Sets the protocol version and release of this process in a message, and returns the message."""
    said = cast(Any, message)
    said.protocol, said.version = PROTOCOL, __version__
    return message


def check_protocol(protocol: int, version: str, peer: str) -> None:
    """Checks the versions that a peer reports.

    Args:
      protocol: The version of the protocol that the peer uses.
      version: The version of fedstack that the peer runs.
      peer: The address of the peer, or its name in error messages.

    Raises:
      ProtocolVersionError: If the peer uses another version of the protocol.
    """
    if protocol != PROTOCOL:
        raise ProtocolVersionError(
            f"Expected protocol {PROTOCOL} of fedstack {__version__}, found protocol {protocol} of fedstack "
            f"{name_text(version)} at {peer}; install the same release of fedstack in both processes"
        )


def process_digest(nonce: bytes) -> bytes:
    """Returns a digest of a nonce and this process's identity.

    A peer compares the digest with its own to determine whether it runs in the same process as the caller. The digest
    does not reveal the identity.
    """
    return hashlib.sha256(nonce + PROCESS.encode()).digest()

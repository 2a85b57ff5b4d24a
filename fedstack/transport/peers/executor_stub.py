"""Speaks the executor service and its extensions: a method per call, messages in and messages out."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedstack._version import __version__
from fedstack.computations.leaves.leaf_runtimes import PROCESS
from fedstack.errors import (
    DeadlineExceededError,
    FedstackError,
    InvalidValueError,
    ProtocolVersionError,
    RemoteError,
    WorkerUnavailableError,
)
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.transport.peers.connection import Connection
from fedstack.transport.wire.frames import Chunking

PROTOCOL = 1
EXECUTOR_GROUP = "tensorflow_federated.v0.ExecutorGroup"
EXTENSIONS = "fedstack.v1.ExecutorExtensions"
# What this release can do beyond the first one with extensions: both sides say so.
ELEMENTS = "elements"
LOAD = "load"
ISOLATE = "isolate"
FEATURES = (ELEMENTS, LOAD, ISOLATE)
CONTROL_SECONDS = 10.0
_GOODBYE_SECONDS = 5.0

_M = TypeVar("_M", bound=Message)


class ExecutorStub:
    """Calls one peer's executor service.

    Args:
      connection: The way to the peer.
      extensions: Whether to ask for fedstack's own extensions at all.
      sends_code: Whether a peer that cannot be asked takes Python functions by value.
      keeps_handles: Whether such a peer is in this process, and finds Python functions here.
      control_seconds: How long a call may take that only hands something over, in seconds.
      chunking: What is sent in chunks.
      loss: Tells whether the peer is known to have ended, by the error to raise then.

    Attributes:
      out_of_reach: Whether the peer was, when something was last asked of it.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        extensions: bool = True,
        sends_code: bool = False,
        keeps_handles: bool = False,
        control_seconds: float = CONTROL_SECONDS,
        chunking: Chunking | None = None,
        loss: Callable[[], FedstackError | None] = lambda: None,
    ) -> None:
        self.connection = connection
        self.out_of_reach = False
        self.chunking = chunking or Chunking()
        self.loss = loss
        self._goodbyes: set[asyncio.Task[None]] = set()
        self.sends_code = sends_code
        self.keeps_handles = keeps_handles
        self._extensions = extensions
        self._control_seconds = control_seconds

    @property
    def address(self) -> str:
        """The peer's address."""
        return self.connection.address

    @property
    def is_gone(self) -> bool:
        """Whether the peer is known to have ended, and not to come back."""
        loss = self.loss()
        return loss is not None and not (isinstance(loss, WorkerUnavailableError) and loss.comes_back)

    async def handshake(self) -> extended.HandshakeResponse | None:
        """Returns what the peer is, or `None` if it has the plain executor service only.

        Raises:
          ProtocolVersionError: If the peers have no version of the protocol in common.
        """
        if not self._extensions:
            return None
        nonce = secrets.token_bytes(16)
        request = extended.HandshakeRequest(
            protocol=PROTOCOL, version=__version__, nonce=nonce, process_digest=process_digest(nonce)
        )
        try:
            response = await self._extended("Handshake", request, extended.HandshakeResponse())
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            return None
        if response.protocol != PROTOCOL:
            raise ProtocolVersionError(
                f"Expected protocol {PROTOCOL} of fedstack {__version__}, found protocol {response.protocol} of "
                f"fedstack {response.version} at {self.address}; install the same release on both sides"
            )
        return response

    async def get_executor(self, request: plain.GetExecutorRequest) -> plain.GetExecutorResponse:
        """Asks for an executor.

        Raises:
          RemoteError: If the peer has no executors, and is likely another server than was meant.
        """
        try:
            return await self._plain("GetExecutor", request, plain.GetExecutorResponse())
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            said = str(error).removeprefix(f"Expected an answer from {self.address}, found ")
            raise RemoteError(
                f"Expected an executor service at {self.address}, found a gRPC server without one ({said}); correct "
                "host and port",
                code=error.code,
            ) from error

    async def create_value(self, request: plain.CreateValueRequest) -> plain.CreateValueResponse:
        """Creates a value; one that is a computation however long it takes the peer to load that, as `compute` does.

        Raises:
          DeadlineExceededError: If it does not answer, or not any more.
        """
        if request.value.HasField("computation"):
            return await self._watched("CreateValue", request, plain.CreateValueResponse())
        return await self._plain("CreateValue", request, plain.CreateValueResponse())

    async def create_call(self, request: plain.CreateCallRequest) -> plain.CreateCallResponse:
        """Calls a function."""
        return await self._plain("CreateCall", request, plain.CreateCallResponse())

    async def create_struct(self, request: plain.CreateStructRequest) -> plain.CreateStructResponse:
        """Packs values into a struct."""
        return await self._plain("CreateStruct", request, plain.CreateStructResponse())

    async def create_selection(self, request: plain.CreateSelectionRequest) -> plain.CreateSelectionResponse:
        """Selects a member."""
        return await self._plain("CreateSelection", request, plain.CreateSelectionResponse())

    async def compute(self, request: plain.ComputeRequest) -> plain.ComputeResponse:
        """Computes a value, however long it takes, while the peer's health service answers, if it has one.

        Raises:
          DeadlineExceededError: If it does not answer any more.
        """
        return await self._watched("Compute", request, plain.ComputeResponse())

    async def _watched(self, method: str, request: Message, response: _M) -> _M:
        path = f"/{EXECUTOR_GROUP}/{method}"
        call = asyncio.ensure_future(self.connection.unary(path, request.SerializeToString(), None))
        watch = asyncio.ensure_future(self._watch_health())
        try:
            await asyncio.wait([call, watch], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                watch.result()
            return self._parsed(await call, response, path)
        finally:
            call.cancel()
            watch.cancel()
            await asyncio.gather(call, watch, return_exceptions=True)

    async def _watch_health(self) -> None:
        """Raises when the peer's health service, if it has one, is silent or cannot be reached."""
        while True:
            await asyncio.sleep(self._control_seconds)
            try:
                await self.connection.unary("/grpc.health.v1.Health/Check", b"", self._control_seconds)
            except (DeadlineExceededError, WorkerUnavailableError):
                raise
            except FedstackError:
                await asyncio.Event().wait()  # it answers, and knows nothing of health: keep-alive has to do

    async def dispose(self, request: plain.DisposeRequest) -> None:
        """Lets go of values."""
        await self._plain("Dispose", request, plain.DisposeResponse())

    async def dispose_executor(self, request: plain.DisposeExecutorRequest) -> None:
        """Lets go of an executor and its values."""
        await self._plain("DisposeExecutor", request, plain.DisposeExecutorResponse())

    async def open_session(self, request: extended.OpenSessionRequest) -> extended.OpenSessionResponse:
        """Asks for an executor with a lease."""
        return await self._extended("OpenSession", request, extended.OpenSessionResponse())

    async def renew_lease(self, request: extended.RenewLeaseRequest) -> extended.RenewLeaseResponse:
        """Renews leases."""
        return await self._extended("RenewLease", request, extended.RenewLeaseResponse())

    async def create(self, request: extended.CreateRequest) -> None:
        """Creates values under chosen ids."""
        await self._extended("Create", request, extended.CreateResponse())

    def load(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """Creates values as `create` does, however long it takes the peer to load them; yields frames.

        Args:
          request: A `CreateRequest`.
        """
        return self.connection.exchange(f"/{EXTENSIONS}/Load", [request])

    async def compute_now(self, request: extended.ComputeNowRequest) -> extended.ComputeNowResponse:
        """Computes a value if that is soon done."""
        timeout = self._control_seconds + request.wait_seconds
        return await self._extended("ComputeNow", request, extended.ComputeNowResponse(), timeout)

    async def get_status(self) -> extended.GetStatusResponse:
        """Returns what the server holds and has done."""
        return await self._extended("GetStatus", extended.GetStatusRequest(), extended.GetStatusResponse())

    async def upload_value(self, frames: Iterable[bytes], timeout: float) -> None:
        """Creates a value of any size."""
        path = f"/{EXTENSIONS}/UploadValue"
        self._parsed(await self.connection.upload(path, frames, timeout), extended.CreateResponse(), path)

    def download_value(self, request: extended.DownloadRequest) -> AsyncGenerator[bytes, None]:
        """Computes a value of any size; yields frames."""
        return self.connection.exchange(f"/{EXTENSIONS}/DownloadValue", [request.SerializeToString()])

    def run_phase(self, frames: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Runs a client phase; yields frames."""
        return self.connection.exchange(f"/{EXTENSIONS}/RunPhase", frames)

    async def _plain(self, method: str, request: Message, response: _M) -> _M:
        return await self._call(f"/{EXECUTOR_GROUP}/{method}", request, response, self._control_seconds)

    async def _extended(self, method: str, request: Message, response: _M, timeout: float | None = None) -> _M:
        return await self._call(f"/{EXTENSIONS}/{method}", request, response, timeout or self._control_seconds)

    async def _call(self, path: str, request: Message, response: _M, timeout: float) -> _M:
        content = request.SerializeToString()
        # A large message of a plain peer takes its time: a megabyte a second is slow for any network.
        content = await self.connection.unary(path, content, timeout + len(content) / 1e6)
        return self._parsed(content, response, path)

    def _parsed(self, content: bytes, response: _M, path: str) -> _M:
        try:
            response.MergeFromString(content)
        except DecodeError as error:
            raise InvalidValueError(
                f"Expected a {response.DESCRIPTOR.name} from {self.address}, found {len(content)} other bytes; in "
                f"answer to {path}; check that an executor service listens there"
            ) from error
        return response

    def before_closing(self, task: "asyncio.Task[None]") -> None:
        """Lets a task that says goodbye to the peer come to its end before the connection is closed."""
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        if self._goodbyes:
            await asyncio.wait(set(self._goodbyes), timeout=_GOODBYE_SECONDS)
        await self.connection.close()

    def __repr__(self) -> str:
        return f"<ExecutorStub of {self.address}>"


def process_digest(nonce: bytes) -> bytes:
    """Returns what shows to whoever knows the identity of this process that the sender knows it too."""
    return hashlib.sha256(nonce + PROCESS.encode()).digest()

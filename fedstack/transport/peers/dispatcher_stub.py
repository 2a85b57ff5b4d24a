"""Defines the stub that calls the dispatcher of a data service."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from google.protobuf.message import Message

from fedstack.errors import RemoteError
from fedstack.foundations.segments import Segment
from fedstack.proto import data_service_pb2 as messages
from fedstack.transport.peers.executor_stub import check_protocol, with_protocol
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Incoming

DISPATCHER = "fedstack.v1.DataDispatcher"
# The interval at which a dispatcher sends heartbeats while it sends a definition.
_HEARTBEAT_SECONDS = 5.0

_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")


class DispatcherStub(ServiceStub):
    """A stub for a dispatcher. Its coroutines run on the transport's loop.

    All requests are idempotent: a repeated request receives the same response.
    """

    _PEER = "the dispatcher"

    async def register(
        self, request: messages.RegisterDatasetRequest, definition: Segment
    ) -> messages.DatasetDescription:
        """Registers a dataset.

        Args:
          request: The message, which states the size of the definition in bytes.
          definition: The definition of the dataset, which is sent with the message.
        """
        return await self._known(
            self.upload(f"/{DISPATCHER}/Register", request, [definition], messages.DatasetDescription)
        )

    async def describe(self, request: messages.DescribeDatasetRequest) -> messages.DatasetDescription:
        """Describes a registered dataset.

        Raises:
          InvalidValueError: If no dataset has the requested id. The message lists some existing ids.
          ProtocolVersionError: If the dispatcher uses another version of the protocol.
        """
        with_protocol(request)
        response = await self._unary("Describe", request, messages.DatasetDescription)
        check_protocol(response.protocol, response.version, self.address)
        return response

    @contextlib.asynccontextmanager
    async def define(self, request: messages.DescribeDatasetRequest) -> AsyncGenerator[Incoming, None]:
        """Fetches the definition of a dataset. The header is a `DatasetDescription` with the number of bytes."""
        with_protocol(request)
        async with self.download(f"/{DISPATCHER}/Define", request, _HEARTBEAT_SECONDS) as incoming:
            yield incoming

    async def open_pass(self, request: messages.OpenPassRequest) -> messages.OpenPassResponse:
        """Joins a pass over a dataset."""
        return await self._unary("OpenPass", request, messages.OpenPassResponse)

    async def take(self, request: messages.TakeRequest) -> messages.TakeResponse:
        """Reports the ranges that have been read, and requests further ranges.

        The call may take as long as `request.wait_seconds` allows, in addition to the time limit of a control call.
        """
        waits = request.wait_seconds if request.wait_seconds > 0.0 else 0.0
        return await self._unary("Take", request, messages.TakeResponse, self._control_seconds + waits)

    async def release(self, request: messages.ReleasePassRequest) -> messages.ReleasePassResponse:
        """Leaves a pass over a dataset."""
        return await self._unary("Release", request, messages.ReleasePassResponse)

    async def attend(self, request: messages.AttendRequest) -> messages.AttendResponse:
        """Reports that a data worker is present, or that it is leaving.

        Raises:
          ProtocolVersionError: If the dispatcher uses another version of the protocol.
        """
        with_protocol(request)
        response = await self._unary("Attend", request, messages.AttendResponse)
        check_protocol(response.protocol, response.version, self.address)
        return response

    async def list_workers(self) -> messages.ListWorkersResponse:
        """Lists the data workers that are present."""
        return await self._unary("ListWorkers", messages.ListWorkersRequest(), messages.ListWorkersResponse)

    async def _unary(self, method: str, request: Message, response: type[_M], seconds: float | None = None) -> _M:
        return await self._known(self.call(f"/{DISPATCHER}/{method}", request, response, seconds))

    async def _known(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            raise RemoteError(
                f"Expected the dispatcher of a data service at {self.address}, found a server without a dispatcher; "
                "correct the host and port, or start the server with `fedstack serve --data-dispatcher`",
                code=error.code,
            ) from error

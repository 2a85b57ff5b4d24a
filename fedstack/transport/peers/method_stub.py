"""Speaks the service of registered methods."""

from collections.abc import Awaitable, Sequence

from fedstack.errors import RemoteError
from fedstack.proto import methods_pb2
from fedstack.transport.peers.executor_stub import SOON_SECONDS, Answer
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Parcel
from fedstack.transport.wire.segments import Segment

METHODS = "fedstack.v1.Methods"


class MethodStub(ServiceStub):
    """Calls the registered methods of one peer. Its coroutines run on the transport's loop."""

    async def list(
        self, request: methods_pb2.ListMethodsRequest, seconds: float | None = None
    ) -> methods_pb2.ListMethodsResponse:
        """Describes the methods.

        Raises:
          RemoteError: If the peer has none, and is likely another server than was meant.
        """
        try:
            response = await self.call(f"/{METHODS}/List", request, methods_pb2.ListMethodsResponse, seconds)
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            raise RemoteError(
                f"Expected a server with methods to call at {self.address}, found one without; correct host and port, "
                "or register methods there",
                code=error.code,
            ) from error
        self.connection.learn(response.features)
        return response

    def invoke(
        self, request: methods_pb2.InvokeRequest, segments: Sequence[Segment], heartbeat_seconds: float
    ) -> Awaitable[Parcel | Answer]:
        """Calls a method."""
        soon = self._control_seconds + SOON_SECONDS
        return self.ask(f"/{METHODS}/Invoke", request, segments, heartbeat_seconds, soon_seconds=soon)

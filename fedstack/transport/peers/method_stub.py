"""Defines the stub that calls registered methods."""

from collections.abc import Awaitable, Sequence

from fedstack._version import __version__
from fedstack.errors import RemoteError
from fedstack.foundations.segments import Segment
from fedstack.proto import methods_pb2
from fedstack.transport.peers.executor_stub import PROTOCOL, SOON_SECONDS, Answer, check_protocol
from fedstack.transport.peers.service_stub import ServiceStub
from fedstack.transport.wire.parcels import Parcel

METHODS = "fedstack.v1.Methods"
_INVOKE = f"/{METHODS}/Invoke"


class MethodStub(ServiceStub):
    """A stub for the registered methods of a peer. Its coroutines run on the transport's loop."""

    async def list(self, *, with_calls: bool = False, seconds: float | None = None) -> methods_pb2.ListMethodsResponse:
        """Returns descriptions of the registered methods.

        Args:
          with_calls: Whether to include statistics about the number and duration of calls.
          seconds: The time limit; by default that of a control call.

        Raises:
          ProtocolVersionError: If the peer uses another version of the protocol.
          RemoteError: If the peer has no service for methods. The address is then likely to be that of another server.
        """
        request = methods_pb2.ListMethodsRequest(with_calls=with_calls, protocol=PROTOCOL, version=__version__)
        try:
            response = await self.call(f"/{METHODS}/List", request, methods_pb2.ListMethodsResponse, seconds)
        except RemoteError as error:
            if error.code != "UNIMPLEMENTED":
                raise
            raise RemoteError(
                f"Expected a server with registered methods at {self.address}, found a server without methods; correct "
                "the host and port, or register methods on the server",
                code=error.code,
            ) from error
        check_protocol(response.protocol, response.version, self.address)
        return response

    @property
    def soon_seconds(self) -> float:
        """The time limit, in seconds, until the peer responds to a call or announces a response."""
        return self._control_seconds + SOON_SECONDS

    def invoke(
        self, request: methods_pb2.InvokeRequest, segments: Sequence[Segment], heartbeat_seconds: float
    ) -> Awaitable[Parcel | Answer]:
        """Calls a registered method."""
        return self.ask(_INVOKE, request, segments, heartbeat_seconds, soon_seconds=self.soon_seconds)

    def invoke_blocking(
        self, request: methods_pb2.InvokeRequest, segments: Sequence[Segment], heartbeat_seconds: float, seconds: float
    ) -> Parcel | Answer | None:
        """Calls a registered method and blocks the calling thread.

        Args:
          request: The request message.
          segments: The segments to send with the message.
          heartbeat_seconds: The interval at which the peer sends heartbeats.
          seconds: The time limit until the peer responds or announces a response; 0 for the default limit.

        Returns:
          The response, or `None` if the caller has to use `invoke` instead.
        """
        soon = min(seconds or self.soon_seconds, self.soon_seconds)
        return self.ask_blocking(_INVOKE, request, segments, heartbeat_seconds, soon)

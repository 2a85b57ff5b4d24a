"""Calls the service of registered methods."""

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
    """Calls the registered methods of one peer. Its coroutines run on the transport's loop."""

    async def list(self, *, with_calls: bool = False, seconds: float | None = None) -> methods_pb2.ListMethodsResponse:
        """Describes the methods.

        Args:
          with_calls: Whether to include how often they were called, and how long that took.
          seconds: How long it may take.

        Raises:
          ProtocolVersionError: If the peer speaks another version of the protocol.
          RemoteError: If the peer has no methods, and is likely the wrong server.
        """
        request = methods_pb2.ListMethodsRequest(with_calls=with_calls, protocol=PROTOCOL, version=__version__)
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
        check_protocol(response.protocol, response.version, self.address)
        return response

    @property
    def soon_seconds(self) -> float:
        """How many seconds it may take until the peer answers a call, or announces an answer."""
        return self._control_seconds + SOON_SECONDS

    def invoke(
        self, request: methods_pb2.InvokeRequest, segments: Sequence[Segment], heartbeat_seconds: float
    ) -> Awaitable[Parcel | Answer]:
        """Calls a method."""
        return self.ask(_INVOKE, request, segments, heartbeat_seconds, soon_seconds=self.soon_seconds)

    def invoke_blocking(
        self, request: methods_pb2.InvokeRequest, segments: Sequence[Segment], heartbeat_seconds: float, seconds: float
    ) -> Parcel | Answer | None:
        """Calls a method on the caller's thread; returns `None` if only `invoke` works.

        Args:
          request: The message.
          segments: The segments sent with it.
          heartbeat_seconds: How often the peer sends a heartbeat.
          seconds: How long it may take until the peer answers, or announces an answer; 0 for the usual limit.
        """
        soon = min(seconds or self.soon_seconds, self.soon_seconds)
        return self.ask_blocking(_INVOKE, request, segments, heartbeat_seconds, soon)

"""Defines the interface of services: methods by name, which receive and return messages and parcels.

This module does not depend on gRPC. A server registers the methods of a service under their paths, and a test may call
them directly.
"""

import abc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from fedstack.foundations.deadline import Deadline
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Incoming, Parcel

Unary: TypeAlias = Callable[[bytes], Awaitable[bytes]]
# Heartbeats, followed by one or more parcels. The code after a yielded parcel runs once the parcel has been sent.
Answers: TypeAlias = AsyncIterator[Heartbeat | Parcel]
Upload: TypeAlias = Callable[[Incoming], Awaitable[bytes]]
Download: TypeAlias = Callable[[bytes], Answers]
Exchange: TypeAlias = Callable[[Incoming], Answers]
Stream: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


@attrs.frozen
class UnaryMethod:
    """A method that receives one message and returns one message."""

    handle: Unary


@attrs.frozen
class UploadMethod:
    """A method that receives a parcel and returns one message."""

    handle: Upload


@attrs.frozen
class DownloadMethod:
    """A method that receives one message and returns parcels: a single parcel unless its callers expect more."""

    handle: Download


@attrs.frozen
class ExchangeMethod:
    """A method that receives a parcel and returns parcels: a single parcel unless its callers expect more."""

    handle: Exchange


@attrs.frozen
class StreamMethod:
    """A method that receives and returns streams of messages, for services defined elsewhere, such as gRPC's own."""

    handle: Stream


Method: TypeAlias = UnaryMethod | UploadMethod | DownloadMethod | ExchangeMethod | StreamMethod


class ServerFacts:
    """Facts about a server, which its services receive in `Service.attach`.

    Args:
      asks_for_token: Whether calls require a token.
      asks_for_certificate: Whether callers must present a certificate.
      is_local: Whether only processes of this machine can call the server.
      clock: A function that returns the time in seconds.

    Attributes:
      target: The address to dial from this machine; empty until the server listens.
    """

    def __init__(
        self,
        *,
        asks_for_token: bool = False,
        asks_for_certificate: bool = False,
        is_local: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asks_for_token = asks_for_token
        self.asks_for_certificate = asks_for_certificate
        self.is_local = is_local
        self.target = ""
        self._clock = clock
        self._stop = Deadline(None, clock)

    @property
    def knows_its_callers(self) -> bool:
        """Whether callers have a token or a certificate, or are processes of this machine."""
        return self.is_local or self.asks_for_token or self.asks_for_certificate

    def stops_within(self, seconds: float) -> None:
        """Records that running calls have `seconds` left. If called repeatedly, the earliest end applies."""
        left = self._stop.left
        if left is None or seconds < left:
            self._stop = Deadline(seconds, self._clock)

    @property
    def seconds_until_stop(self) -> float | None:
        """The number of seconds that running calls have left; `None` if the server is not stopping."""
        return self._stop.left

    def __repr__(self) -> str:
        left = self.seconds_until_stop
        return f"<ServerFacts {'with' if self.asks_for_token else 'without'} tokens, {left} s until it stops>"


class Service(abc.ABC):
    """A service that a server can host.

    To fail a call, a method raises one of fedstack's errors or a `StatusError`. The task of a method is cancelled when
    its client disconnects.
    """

    @property
    @abc.abstractmethod
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods by name, grouped by the full names of gRPC services such as `fedstack.v1.ExecutorExtensions`."""

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """The files that describe the gRPC services for reflection, in addition to those in the default pool."""
        return ()

    @property
    def runs_code(self) -> bool:
        """Whether clients may send arbitrary code. If so, a server accepts only clients that it can identify."""
        return False

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        """The open sessions of clients and their remaining times, for checks that no session is left open."""
        return ()

    async def report(self, status: GetStatusResponse) -> None:  # noqa: B027
        """Adds the service's state and statistics to the status of its server."""

    def attach(self, server: ServerFacts) -> None:  # noqa: B027
        """Called once with information about the server, before the service receives a call."""

    def started(self) -> None:  # noqa: B027
        """Called on the server's loop once the server can be dialed."""

    def drain(self) -> None:  # noqa: B027
        """Stops accepting new clients. Existing clients can continue. Idempotent."""

    async def handed_over(self) -> None:  # noqa: B027
        """Waits, after `drain`, until clients have fetched data that would be lost with this server, or have left."""

    async def close(self) -> None:  # noqa: B027
        """Ends all work and releases all resources. Idempotent."""

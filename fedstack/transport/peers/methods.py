"""Defines services for their servers and callers: methods by name, messages and parcels in and out.

Nothing here depends on gRPC. A server registers the methods under their paths; a test may call them directly.
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
# Heartbeats, then one or several parcels; code after a yielded parcel runs once the parcel has been sent.
Answers: TypeAlias = AsyncIterator[Heartbeat | Parcel]
Upload: TypeAlias = Callable[[Incoming], Awaitable[bytes]]
Download: TypeAlias = Callable[[bytes], Answers]
Exchange: TypeAlias = Callable[[Incoming], Answers]
Stream: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


@attrs.frozen
class UnaryMethod:
    """One message in, one out."""

    handle: Unary


@attrs.frozen
class UploadMethod:
    """A parcel in, one message out."""

    handle: Upload


@attrs.frozen
class DownloadMethod:
    """One message in, parcels out: a single parcel unless its callers expect more."""

    handle: Download


@attrs.frozen
class ExchangeMethod:
    """A parcel in, parcels out: a single parcel unless its callers expect more."""

    handle: Exchange


@attrs.frozen
class StreamMethod:
    """Messages in, messages out: for services defined elsewhere, such as gRPC's own."""

    handle: Stream


Method: TypeAlias = UnaryMethod | UploadMethod | DownloadMethod | ExchangeMethod | StreamMethod


class ServerFacts:
    """Facts that a service learns about its server (`Service.attach`).

    Args:
      asks_for_token: Whether calls must bring a token.
      asks_for_certificate: Whether callers must show a certificate.
      clock: Returns the time in seconds.

    Attributes:
      target: The address to dial from this machine; empty before the server listens.
    """

    def __init__(
        self,
        *,
        asks_for_token: bool = False,
        asks_for_certificate: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asks_for_token = asks_for_token
        self.asks_for_certificate = asks_for_certificate
        self.target = ""
        self._clock = clock
        self._stop = Deadline(None, clock)

    def stops_within(self, seconds: float) -> None:
        """Records that running calls have `seconds` left; the shortest of several times counts."""
        left = self._stop.left
        if left is None or seconds < left:
            self._stop = Deadline(seconds, self._clock)

    @property
    def seconds_until_stop(self) -> float | None:
        """How many seconds running calls have left; `None` if the server is not about to stop."""
        return self._stop.left

    def __repr__(self) -> str:
        left = self.seconds_until_stop
        return f"<ServerFacts {'with' if self.asks_for_token else 'without'} tokens, {left} s until it stops>"


class Service(abc.ABC):
    """A service that a server can serve.

    A method raises one of fedstack's errors, or `StatusError`, to fail its call; its task is cancelled when the client
    goes away.
    """

    @property
    @abc.abstractmethod
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods by the full names of their gRPC services, such as `fedstack.v1.ExecutorExtensions`."""

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """Describes the gRPC services for reflection, in addition to the files in the default pool."""
        return ()

    @property
    def runs_code(self) -> bool:
        """Whether clients may send code that can do anything; a server then admits only clients that it knows."""
        return False

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        """The sessions kept for clients, and for how long, for checks that nothing is left over."""
        return ()

    async def report(self, status: GetStatusResponse) -> None:  # noqa: B027
        """Adds the service's state and statistics to the status of its server."""

    def attach(self, server: ServerFacts) -> None:  # noqa: B027
        """Called once with the facts of the server, before any call arrives."""

    def started(self) -> None:  # noqa: B027
        """Called on the server's loop once the server can be dialled."""

    def drain(self) -> None:  # noqa: B027
        """Takes no new clients from now on; existing clients continue. Idempotent."""

    async def handed_over(self) -> None:  # noqa: B027
        """Returns, after `drain`, once clients have fetched what they would lose with this server, or are gone."""

    async def close(self) -> None:  # noqa: B027
        """Ends all work and frees everything. Idempotent."""

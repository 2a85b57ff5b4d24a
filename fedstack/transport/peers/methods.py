"""Says what a service is to whoever serves or calls it: methods by name, messages and parcels in and out.

Nothing here knows gRPC. A server registers the methods under their paths; a test may call them right away.
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
# Heartbeats, and then a parcel, or several; what is after one in the method runs when it has been sent.
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
    """One message in, parcels out: one, where its callers expect no more."""

    handle: Download


@attrs.frozen
class ExchangeMethod:
    """A parcel in, parcels out: one, where its callers expect no more."""

    handle: Exchange


@attrs.frozen
class StreamMethod:
    """Messages in, messages out: for services that others have defined, such as gRPC's own."""

    handle: Stream


Method: TypeAlias = UnaryMethod | UploadMethod | DownloadMethod | ExchangeMethod | StreamMethod


class ServerFacts:
    """What a service gets to know of the server that serves it (`Service.attach`).

    Args:
      asks_for_token: Whether calls must bring a token.
      asks_for_certificate: Whether callers must show a certificate.
      clock: Tells the time in seconds.

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
        """Notes that running calls have so many seconds; of several times the shortest counts."""
        left = self._stop.left
        if left is None or seconds < left:
            self._stop = Deadline(seconds, self._clock)

    @property
    def seconds_until_stop(self) -> float | None:
        """How long running calls have at most, in seconds; `None` if the server is not about to stop."""
        return self._stop.left

    def __repr__(self) -> str:
        left = self.seconds_until_stop
        return f"<ServerFacts {'with' if self.asks_for_token else 'without'} tokens, {left} s until it stops>"


class Service(abc.ABC):
    """What a server can be given to serve.

    A method raises one of fedstack's errors, or `StatusError`, to fail its call; its task is cancelled when the client
    goes away.
    """

    @property
    @abc.abstractmethod
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods by the full names of their gRPC services, such as `fedstack.v1.ExecutorExtensions`."""

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """Describes the gRPC services for reflection, beside the files that are in the default pool."""
        return ()

    @property
    def runs_code(self) -> bool:
        """Whether clients may bring code that can do anything; a server lets in none then that it does not know."""
        return False

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        """What is kept for clients, and how long, for whoever sees that nothing is left."""
        return ()

    async def report(self, status: GetStatusResponse) -> None:  # noqa: B027
        """Adds what it holds and has done to the status of its server."""

    def attach(self, server: ServerFacts) -> None:  # noqa: B027
        """Is told once of the server that serves this, before any call comes."""

    def started(self) -> None:  # noqa: B027
        """Is told, on the server's loop, that the server can be dialled."""

    def drain(self) -> None:  # noqa: B027
        """Takes no new clients from now on; those that are there go on. Idempotent."""

    async def handed_over(self) -> None:  # noqa: B027
        """Returns, after `drain`, when clients have fetched what they would lose with this server, or are gone."""

    async def close(self) -> None:  # noqa: B027
        """Ends all work and frees everything. Idempotent."""

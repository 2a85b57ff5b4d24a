"""Says what a service is to whoever serves or calls it: methods by name, bytes in and bytes out.

Nothing here knows gRPC. A server registers the methods under their paths; a test may call them right away.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

import attrs
from google.protobuf.descriptor_pb2 import FileDescriptorProto

Unary: TypeAlias = Callable[[bytes], Awaitable[bytes]]
Upload: TypeAlias = Callable[[AsyncIterator[bytes]], Awaitable[bytes]]
Download: TypeAlias = Callable[[bytes], AsyncIterator[bytes]]
Exchange: TypeAlias = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


@attrs.frozen
class UnaryMethod:
    """One message in, one out."""

    handle: Unary


@attrs.frozen
class UploadMethod:
    """A stream of messages in, one out."""

    handle: Upload


@attrs.frozen
class DownloadMethod:
    """One message in, a stream of messages out."""

    handle: Download


@attrs.frozen
class ExchangeMethod:
    """A stream in, a stream out."""

    handle: Exchange


Method: TypeAlias = UnaryMethod | UploadMethod | DownloadMethod | ExchangeMethod


class Service(Protocol):
    """What a server can be given to serve.

    A method raises one of fedstack's errors, or `StatusError`, to fail its call; its task is cancelled when the client
    goes away.
    """

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        """The methods by the full names of their gRPC services, such as `fedstack.v1.ExecutorExtensions`."""
        ...

    @property
    def descriptors(self) -> tuple[FileDescriptorProto, ...]:
        """Describes the gRPC services for reflection, beside the files that are in the default pool."""
        ...

    async def close(self) -> None:
        """Ends all work and frees everything. Idempotent."""
        ...


@runtime_checkable
class Drains(Protocol):
    """A service that can let the clients that it has come to their end."""

    def drain(self) -> None:
        """Takes no new clients from now on. Idempotent."""
        ...

"""Defines what a stub needs of the way to a peer: calls by path, messages and parcels in and out."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from fedstack.transport.wire.parcels import Parcel, Piece


class Channel(Protocol):
    """What is used of a `grpc.Channel`, so that others can speak of one without importing gRPC."""

    def unary_unary(self, method: str) -> object:
        """Returns what calls a method with one message there and one back."""
        ...

    def stream_unary(self, method: str) -> object:
        """Returns what calls a method with a stream there and one message back."""
        ...

    def stream_stream(self, method: str) -> object:
        """Returns what calls a method with a stream there and one back."""
        ...

    def subscribe(self, callback: Callable[[Any], None], try_to_connect: bool | None = False) -> None:
        """Calls back with the state of the channel as it is and whenever it changes, and may ask it to dial."""
        ...

    def unsubscribe(self, callback: Callable[[Any], None]) -> None:
        """Calls back no more."""
        ...


class Connection(Protocol):
    """A way to one peer. Its coroutines run on the transport's loop (`io_loop`).

    All of them raise fedstack's errors: the one that the peer raised, `WorkerUnavailableError` if it cannot be reached,
    `DeadlineExceededError` if it does not answer in time.
    """

    @property
    def address(self) -> str:
        """The peer's address, for messages."""
        ...

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        """Sends one message and returns the answer.

        Args:
          path: The method, as in `/package.Service/Method`.
          request: The message.
          timeout: How long it may take, in seconds; `None` for as long as it takes.
        """
        ...

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        """Sends a parcel and returns the answer."""
        ...

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        """Sends one message and yields the parcel that comes back: heartbeats, its header, its bytes.

        Closing the generator ends the call.
        """
        ...

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        """Sends a parcel and yields the one that comes back, which may begin while the first is on its way.

        Closing the generator ends the call.
        """
        ...

    async def check_alive(self, seconds: float) -> bool:
        """Asks whether the peer is alive. Returns `False` if there is no asking it, at any time.

        Raises:
          DeadlineExceededError: If it says nothing for so many seconds.
          WorkerUnavailableError: If it cannot be reached.
        """
        ...

    async def wait_ready(self, timeout: float) -> None:
        """Returns when the peer can be reached.

        Raises:
          WorkerUnavailableError: If it cannot within `timeout` seconds; the message has the last cause.
        """
        ...

    @property
    def redials(self) -> bool:
        """Whether `redial` can look at any time; if not, only waiting tells that the peer is back."""
        ...

    async def redial(self, timeout: float) -> bool:
        """Tells whether the peer can be reached now, whatever was so before; dials anew if it can and could not.

        Args:
          timeout: How long to look, in seconds.
        """
        ...

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        ...

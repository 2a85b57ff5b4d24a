"""Defines the interface of the connections that stubs use to send messages and parcels to methods of a peer."""

import abc
import asyncio
from collections.abc import AsyncGenerator
from typing import ClassVar, Literal, TypeAlias

from fedstack.errors import FedstackError, InvalidValueError, WorkerUnavailableError
from fedstack.transport.peers.io_loop import IoLoop, io_loop
from fedstack.transport.wire.connection_errors import BROKEN_OFF, never_arrived
from fedstack.transport.wire.parcels import (
    JOIN,
    SUFFIX,
    Parcel,
    Piece,
    fits_whole,
    join_request,
    read_whole,
    write_whole,
)

# How to reach a peer: over a stream if it offers one that can be reached and otherwise over gRPC, or one of the two.
Transport: TypeAlias = Literal["auto", "grpc", "stream"]
_TRANSPORTS = ("auto", "grpc", "stream")


def check_transport(transport: object) -> None:
    """Checks the name of a transport.

    Raises:
      InvalidValueError: If there is no such transport.
    """
    if transport not in _TRANSPORTS:
        raise InvalidValueError(f"Expected transport to be one of {', '.join(_TRANSPORTS)}, found {transport!r}")


class Connection(abc.ABC):
    """A connection to a peer. Its coroutines, and all background work for the peer, run on the loop of `io`.

    Its methods raise fedstack's errors: the error that the peer raised, `WorkerUnavailableError` if the peer cannot be
    reached, or `DeadlineExceededError` if the peer does not answer in time.
    """

    sends_wholes: ClassVar[bool] = False
    """Whether a parcel may be sent as a single message. For a small call, this takes half as long as a stream."""

    @property
    def io(self) -> IoLoop:
        """The loop of the connection: the transport's loop, except for connections within this process."""
        return io_loop

    @property
    def passes_files(self) -> bool:
        """Whether the peer takes files in memory with parcels; see `ParcelFile`."""
        return False

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The address of the peer, for error messages."""

    @abc.abstractmethod
    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        """Sends one message and returns the response.

        Args:
          path: The path of the method, such as `/package.Service/Method`.
          request: The message to send.
          timeout: The time limit in seconds; `None` for no limit.
        """

    @abc.abstractmethod
    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        """Sends a parcel and returns the response; see `unary`."""

    @abc.abstractmethod
    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        """Sends one message and yields the pieces of the response: heartbeats, and each parcel's header and bytes.

        The peer sends only a few pieces ahead of the consumer. Closing the generator ends the call.
        """

    @abc.abstractmethod
    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        """Sends a parcel and yields the pieces of the response, which may start during the upload; see `download`."""

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        """Sends a parcel and returns the response.

        A small and quick call takes one message in each direction if the transport supports it.

        Args:
          path: The path of the method.
          parcel: The parcel to send.
          timeout: The time limit, in seconds, until the peer responds or announces a response.
          who: The name of the peer in error messages.

        Returns:
          The parcel of the response if it was received as one message, otherwise a generator like that of `exchange`.
        """
        if not (self.sends_wholes and fits_whole(parcel)):
            return self.exchange(path, parcel)
        return self._read(path, await self.unary_soon(path + SUFFIX, write_whole(parcel), timeout, who))

    def ask_blocking(
        self, path: str, parcel: Parcel, timeout: float, who: str
    ) -> Parcel | AsyncGenerator[Piece, None] | None:
        """Like `ask`, but blocks the calling thread, which must not be the thread of the loop.

        Returns:
          The same as `ask`, or `None` if the transport does not support blocking calls or has not sent the parcel. In
          this case, the caller can use `ask`.
        """
        answer = None
        if fits_whole(parcel):
            answer = self.unary_blocking(path + SUFFIX, write_whole(parcel), timeout, who)
        return None if answer is None else self._read(path, answer)

    def _read(self, path: str, answer: bytes) -> Parcel | AsyncGenerator[Piece, None]:
        whole = read_whole(answer)
        if isinstance(whole, Parcel):
            return whole
        return self._joined(f"{path.rpartition('/')[0]}/{JOIN}", join_request(whole))

    async def _joined(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        pieces = self.download(path, request)
        try:
            async for piece in pieces:
                yield piece
        except WorkerUnavailableError as error:
            if never_arrived(error):  # the peer has received the call, but not this request for its response
                error.causes = {self.address: BROKEN_OFF.found}
            raise
        finally:
            await pieces.aclose()

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        """Like `unary`, but without a deadline in the transport. Requires a connection with `sends_wholes`.

        A deadline in the transport would expire while this process itself is suspended, even if the response has
        already been received.

        Args:
          path: The path of the method.
          request: The message to send.
          seconds: The time limit until the response is received.
          who: The name of the peer in error messages.
        """
        raise NotImplementedError

    def unary_blocking(self, path: str, request: bytes, seconds: float, who: str) -> bytes | None:
        """Like `unary_soon`, but blocks the calling thread. Returns `None` if unsupported or not connected."""
        return None

    @abc.abstractmethod
    async def wait_ready(self, seconds: float) -> None:
        """Waits until the peer can be reached.

        Raises:
          WorkerUnavailableError: If the peer cannot be reached within `seconds`. The message states the last reason.
        """

    @property
    def can_look(self) -> bool:
        """Whether `look` detects immediately that a peer is reachable again. If not, detection takes some time."""
        return True

    async def look(self, seconds: float) -> bool:
        """Returns whether the peer can be reached now, despite earlier failures. If so, later calls reach the peer.

        Args:
          seconds: The time limit of the check.
        """
        try:
            await self.wait_ready(seconds)
        except FedstackError:
            return False
        return True

    async def check_alive(self, seconds: float) -> bool:
        """Checks that the peer is alive.

        Returns:
          `True` if the peer has answered; `False` if the peer does not support such checks.

        Raises:
          DeadlineExceededError: If the peer does not answer within `seconds`.
          WorkerUnavailableError: If the peer cannot be reached.
        """
        return False

    async def until_draining(self) -> None:
        """Waits until the peer reports that it accepts no new clients. Never returns if the peer cannot report this.

        Raises:
          WorkerUnavailableError: If the peer can no longer be reached.
        """
        await asyncio.Event().wait()

    def loss(self) -> FedstackError | None:
        """Returns the error to raise if the peer is known to have ended; `None` if it may be alive.

        Either the peer's supervisor or the connection may report that the peer has ended.
        """
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Closes the connection. Idempotent."""

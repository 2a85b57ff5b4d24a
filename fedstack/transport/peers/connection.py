"""Defines the connections that stubs use: calls by path, messages and parcels in and out."""

import abc
import asyncio
from collections.abc import AsyncGenerator
from typing import ClassVar

from fedstack.errors import FedstackError, WorkerUnavailableError
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


class Connection(abc.ABC):
    """A connection to one peer. Its coroutines run on the loop of `io`, as does everything that maintains the peer.

    All of them raise fedstack's errors: the error that the peer raised, `WorkerUnavailableError` if it cannot be
    reached, or `DeadlineExceededError` if it does not answer in time.
    """

    sends_wholes: ClassVar[bool] = False
    """Whether a parcel may be sent as one message, which costs a small call half as much as a stream."""

    @property
    def io(self) -> IoLoop:
        """The loop: the transport's, except for connections that never leave this process."""
        return io_loop

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The peer's address, for error messages."""

    @abc.abstractmethod
    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        """Sends one message and returns the answer.

        Args:
          path: The method, as in `/package.Service/Method`.
          request: The message.
          timeout: How long it may take, in seconds; `None` for no limit.
        """

    @abc.abstractmethod
    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        """Sends a parcel and returns the answer."""

    @abc.abstractmethod
    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        """Sends one message and yields the answer: heartbeats, and the header and the bytes of each parcel.

        The peer sends only a few pieces ahead of the consumer. Closing the generator ends the call.
        """

    @abc.abstractmethod
    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        """Sends a parcel and yields the answer, possibly while the parcel is still being sent; see `download`."""

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        """Sends a parcel, and returns the parcel in the answer, or a generator of the answer, as `exchange` does.

        A small and quick call takes one message each way, if the transport supports it.

        Args:
          path: The method.
          parcel: The parcel to send.
          timeout: How long it may take until the peer answers, or announces an answer, in seconds.
          who: The peer's name in the error.
        """
        if not (self.sends_wholes and fits_whole(parcel)):
            return self.exchange(path, parcel)
        return self._read(path, await self.unary_soon(path + SUFFIX, write_whole(parcel), timeout, who))

    def ask_blocking(
        self, path: str, parcel: Parcel, timeout: float, who: str
    ) -> Parcel | AsyncGenerator[Piece, None] | None:
        """Does the same as `ask`, blocking the calling thread, which must not be the loop's.

        Returns:
          `None` if the transport does not support it, or nothing has left this process; then use `ask`.
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
            if never_arrived(error):  # but the call has arrived: only the request for its answer has not
                error.causes = {self.address: BROKEN_OFF.found}
            raise
        finally:
            await pieces.aclose()

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        """Does the same as `unary`, without a deadline in the transport; for connections with `sends_wholes`.

        Such a deadline would pass if this process itself was stalled, although the answer is already here.

        Args:
          path: The method.
          request: The message.
          seconds: How long it may take until the answer is here.
          who: The peer's name in the error.
        """
        raise NotImplementedError

    def unary_blocking(self, path: str, request: bytes, seconds: float, who: str) -> bytes | None:
        """Does the same as `unary_soon` on the caller's thread; returns `None` if unsupported or not connected."""
        return None

    @abc.abstractmethod
    async def wait_ready(self, seconds: float) -> None:
        """Returns once the peer can be reached.

        Raises:
          WorkerUnavailableError: If it cannot be reached within `seconds`; the message has the last cause.
        """

    @property
    def can_look(self) -> bool:
        """Whether `look` finds a peer as soon as it is back; if not, only waiting for a while shows it."""
        return True

    async def look(self, seconds: float) -> bool:
        """Returns whether the peer can be reached now, whatever its state before; if so, later calls reach it.

        Args:
          seconds: How long to look.
        """
        try:
            await self.wait_ready(seconds)
        except FedstackError:
            return False
        return True

    async def check_alive(self, seconds: float) -> bool:
        """Checks that the peer is alive. Returns `False` if it can never be asked.

        Raises:
          DeadlineExceededError: If it is silent for `seconds`.
          WorkerUnavailableError: If it cannot be reached.
        """
        return False

    async def until_draining(self) -> None:
        """Returns once the peer reports that it takes no new clients; never if the peer cannot report it.

        Raises:
          WorkerUnavailableError: If it can no longer be reached.
        """
        await asyncio.Event().wait()

    def loss(self) -> FedstackError | None:
        """Returns the error to raise for a peer that is known to have ended; `None` for a peer that may be alive.

        The source may be the peer's supervisor or the connection.
        """
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the connection. Idempotent."""

"""Defines what a stub needs of the way to a peer: calls by path, messages and parcels in and out."""

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
    """A way to one peer. Its coroutines run on one loop, that of `io`; so does all that looks after the peer.

    All of them raise fedstack's errors: the one that the peer raised, `WorkerUnavailableError` if it cannot be reached,
    `DeadlineExceededError` if it does not answer in time.
    """

    sends_wholes: ClassVar[bool] = False
    """Whether a parcel may travel as one message, which costs a small call half of what a stream does."""

    @property
    def io(self) -> IoLoop:
        """The loop: the transport's, but for connections that have nothing to do with the world outside."""
        return io_loop

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The peer's address, for messages."""

    @abc.abstractmethod
    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        """Sends one message and returns the answer.

        Args:
          path: The method, as in `/package.Service/Method`.
          request: The message.
          timeout: How long it may take, in seconds; `None` for as long as it takes.
        """

    @abc.abstractmethod
    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        """Sends a parcel and returns the answer."""

    @abc.abstractmethod
    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        """Sends one message and yields what comes back: heartbeats, and the header and the bytes of each parcel.

        What nobody asks for the peer sends no more than a few pieces of. Closing the generator ends the call.
        """

    @abc.abstractmethod
    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        """Sends a parcel and yields what comes back, perhaps while the first is on its way; see `download`."""

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        """Sends a parcel, and returns the one that comes back; or where it will come from, as `exchange` does.

        What is small and quick takes one message each way, where a transport has such a thing.

        Args:
          path: The method.
          parcel: What to send.
          timeout: How long it may take until the peer answers, or says that it will, in seconds.
          who: What the error calls the peer.
        """
        if not (self.sends_wholes and fits_whole(parcel)):
            return self.exchange(path, parcel)
        return self._read(path, await self.unary_soon(path + SUFFIX, write_whole(parcel), timeout, who))

    def ask_blocking(
        self, path: str, parcel: Parcel, timeout: float, who: str
    ) -> Parcel | AsyncGenerator[Piece, None] | None:
        """Does what `ask` does on the thread of the caller, which waits: any but that of the loop.

        Returns:
          `None` where a transport has no such thing, or nothing has left this process; then `ask` will do.
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
            if never_arrived(error):  # but the call has arrived: only the question for its answer did not
                error.causes = {self.address: BROKEN_OFF.found}
            raise
        finally:
            await pieces.aclose()

    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        """Does what `unary` does, without a deadline of the transport's; for those with `sends_wholes`.

        Such a deadline passes where this process was held up itself, with the answer already here.

        Args:
          path: The method.
          request: The message.
          seconds: How long it may take until the answer is here.
          who: What the error calls the peer.
        """
        raise NotImplementedError

    def unary_blocking(self, path: str, request: bytes, seconds: float, who: str) -> bytes | None:
        """Does what `unary_soon` does on the caller's thread; `None` where there is no such thing, or no connection."""
        return None

    @abc.abstractmethod
    async def wait_ready(self, seconds: float) -> None:
        """Returns when the peer can be reached.

        Raises:
          WorkerUnavailableError: If it cannot within so many seconds; the message has the last cause.
        """

    @property
    def can_look(self) -> bool:
        """Whether `look` finds a peer that is back at any time; if not, it shows only after a while of waiting."""
        return True

    async def look(self, seconds: float) -> bool:
        """Returns whether the peer can be reached now, whatever was so before; calls that follow reach it then.

        Args:
          seconds: How long to look.
        """
        try:
            await self.wait_ready(seconds)
        except FedstackError:
            return False
        return True

    async def check_alive(self, seconds: float) -> bool:
        """Asks whether the peer is alive. Returns `False` if there is no asking it, at any time.

        Raises:
          DeadlineExceededError: If it says nothing for so many seconds.
          WorkerUnavailableError: If it cannot be reached.
        """
        return False

    async def until_draining(self) -> None:
        """Returns when the peer says that it takes no new clients; never where there is no telling.

        Raises:
          WorkerUnavailableError: If it cannot be reached any more.
        """
        await asyncio.Event().wait()

    def loss(self) -> FedstackError | None:
        """Returns the error to raise for a peer that is known to have ended, and `None` for one that may be there.

        However that is known: from what supervises it, or from the way to it.
        """
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the connection. Idempotent."""

"""Asks in one message what is small, and is answered in one."""

import abc
from collections.abc import AsyncGenerator

from fedstack.transport.peers.connection import Connection
from fedstack.transport.wire.parcels import Parcel, Piece
from fedstack.transport.wire.wholes import JOIN, SUFFIX, fits_whole, join_request, read_whole, write_whole


class WholeConnection(Connection):
    """A connection that has a call of one message each way, beside those of streams."""

    async def ask(self, path: str, parcel: Parcel, timeout: float, who: str) -> Parcel | AsyncGenerator[Piece, None]:
        if not fits_whole(parcel):
            return self.exchange(path, parcel)
        return self._answer(path, await self.unary_soon(path + SUFFIX, write_whole(parcel), timeout, who))

    def ask_blocking(
        self, path: str, parcel: Parcel, timeout: float, who: str
    ) -> Parcel | AsyncGenerator[Piece, None] | None:
        if not fits_whole(parcel):
            return None
        answer = self.unary_blocking(path + SUFFIX, write_whole(parcel), timeout, who)
        return None if answer is None else self._answer(path, answer)

    def _answer(self, path: str, answer: bytes) -> Parcel | AsyncGenerator[Piece, None]:
        whole = read_whole(answer)
        if isinstance(whole, Parcel):
            return whole
        return self.download(f"{path.rpartition('/')[0]}/{JOIN}", join_request(whole))

    @abc.abstractmethod
    async def unary_soon(self, path: str, request: bytes, seconds: float, who: str) -> bytes:
        """Does what `unary` does, without a deadline of gRPC's.

        That passes where this process was held up itself, with the answer already here.

        Args:
          path: The method.
          request: The message.
          seconds: How long it may take until the answer is here.
          who: What the error calls the peer.
        """

    def unary_blocking(self, path: str, request: bytes, seconds: float, who: str) -> bytes | None:
        """Does what `unary_soon` does on the caller's thread; `None` where there is no such thing, or no connection."""
        return None

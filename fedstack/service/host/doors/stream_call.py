"""Reads the request of a call over a stream, and sends its answers."""

import time
from collections.abc import AsyncIterator

from fedstack.errors import InvalidValueError
from fedstack.service.host.calls.call_table import Task
from fedstack.service.host.calls.incoming_call import IncomingCall, Route, copied, end_answers, too_slow
from fedstack.transport.peers.methods import Answers
from fedstack.transport.stream.layout import parcel_bytes
from fedstack.transport.stream.loop_exchange import LoopExchange, TimeLimit
from fedstack.transport.wire.bodies import Body
from fedstack.transport.wire.frames import heartbeat_content
from fedstack.transport.wire.parcels import Incoming, Parcel, Piece, incoming_of
from fedstack.transport.wire.status import Code


class StreamCall(IncomingCall):
    """A call over a stream.

    Args:
      route: The route of the call.
      task: The task that runs the call.
      peer: The caller in gRPC's notation.
      exchange: The exchange of the call.
    """

    def __init__(self, route: Route, task: Task, peer: str, exchange: LoopExchange) -> None:
        super().__init__(route, task, peer)
        self._exchange = exchange
        self._has_request = True

    def incoming(self) -> Incoming:
        parcel = self._exchange.next_at_once()
        if parcel is None:
            return super().incoming()
        self._has_request = False
        self.bytes_received = self._exchange.bytes_received
        return incoming_of(parcel, copied)

    async def only_message(self, name: str) -> bytes:
        piece = await self._request()
        if not isinstance(piece, Parcel) or piece.segments:
            raise InvalidValueError(f"Expected one message for {name}, found a parcel with arrays; send one message")
        return piece.header

    async def send_parcels(self, answers: Answers) -> None:
        try:
            async for answer in answers:
                if isinstance(answer, Parcel):
                    self.bytes_sent += parcel_bytes(answer)
                    await self._exchange.send(answer)
                else:
                    self._exchange.beat(heartbeat_content(answer))
        finally:
            await end_answers(answers)

    async def answer(self, message: bytes) -> None:
        """Sends the only answer of a call."""
        await self._exchange.send(Parcel(message))

    async def fail(self, code: Code, message: str, details: bytes | None = None) -> None:
        self._exchange.end(int(code), message, details or b"")

    async def _read(self) -> bytes | None:
        return await self.only_message(self.method or "") if self._has_request else None

    async def _write(self, message: bytes) -> None:
        self.bytes_sent += len(message)
        await self._exchange.send(Parcel(message, is_last=False))

    async def _pieces(self) -> AsyncIterator[Piece]:
        piece = await self._request()
        yield piece
        if not isinstance(piece, Parcel):
            body = await self._exchange.next()
            assert isinstance(body, Body)
            seconds = self._seconds
            if seconds is not None:
                body.limit_silence(seconds, lambda: too_slow(seconds, "next"))
            yield body
            self.bytes_received = self._exchange.bytes_received

    async def _request(self) -> Piece:
        """Returns the first piece of the request, which is the only one unless data follow."""
        self._has_request = False
        parcel = self._exchange.next_at_once()
        if parcel is not None:
            self.bytes_received = self._exchange.bytes_received
            return parcel
        seconds = self._seconds
        limit = (
            None
            if seconds is None
            else TimeLimit(self._exchange, seconds, lambda: too_slow(seconds, "next"), of_silence=True)
        )
        self._silent[self.task] = time.monotonic()  # until a large header is here
        try:
            piece = await self._exchange.next()
        finally:
            self._silent.pop(self.task, None)
            if limit is not None:
                limit.end()
        assert piece is not None
        self.bytes_received = self._exchange.bytes_received
        return piece

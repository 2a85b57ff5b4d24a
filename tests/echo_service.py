"""A service with a method of each kind, for tests of servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from fedstack.transport.peers.methods import (
    Answers,
    DownloadMethod,
    ExchangeMethod,
    Method,
    ServerFacts,
    Service,
    StreamMethod,
    UnaryMethod,
    UploadMethod,
)
from fedstack.transport.wire.frames import Heartbeat
from fedstack.transport.wire.parcels import Incoming, Parcel

ECHO = "fedstack.test.Echo"


class EchoService(Service):
    """Answers with what it gets; `Fail` raises what the test says, `Hold` waits until the test lets it go.

    Its events are for the loop that it is served on.
    """

    def __init__(self, error: Callable[[], BaseException] = ZeroDivisionError) -> None:
        self.server: ServerFacts | None = None
        self.error = error
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.done = asyncio.Event()
        self.ended: list[str] = []
        self.closed = 0

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {
            ECHO: {
                "Unary": UnaryMethod(self.unary),
                "Upload": UploadMethod(self.upload),
                "Download": DownloadMethod(self.download),
                "Exchange": ExchangeMethod(self.exchange),
                "Stream": StreamMethod(self.stream),
                "Fail": UnaryMethod(self.fail),
                "Hold": UnaryMethod(self.hold),
                "HoldStream": StreamMethod(self.hold_stream),
            }
        }

    def attach(self, server: ServerFacts) -> None:
        self.server = server

    async def close(self) -> None:
        self.closed += 1

    async def unary(self, request: bytes) -> bytes:
        return request

    async def upload(self, incoming: Incoming) -> bytes:
        return await whole(incoming)

    async def download(self, request: bytes) -> Answers:
        yield Heartbeat(done=1)
        yield parcel_of(request)

    async def exchange(self, incoming: Incoming) -> Answers:
        yield parcel_of(await whole(incoming))

    async def stream(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def fail(self, request: bytes) -> bytes:
        raise self.error()

    async def hold(self, request: bytes) -> bytes:
        self.entered.set()
        try:
            await self.release.wait()
            self.ended.append("released")
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.done.set()
        return request

    async def hold_stream(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield b"begun"
        yield await self.hold(await anext(requests))


def parcel_of(content: bytes, chunk_bytes: int = 1000) -> Parcel:
    """Returns a parcel whose header says how much is in it."""
    return Parcel(b"%d" % len(content), [memoryview(content)], chunk_bytes)


async def whole(incoming: Incoming) -> bytes:
    """Returns what is in such a parcel."""
    content = bytearray(int(await incoming.header()))
    await incoming.read_into([memoryview(content)])
    return bytes(content)

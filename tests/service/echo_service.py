"""A service with a method of each kind, for tests of servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from fedstack.transport.peers.methods import (
    DownloadMethod,
    ExchangeMethod,
    Method,
    Server,
    Service,
    UnaryMethod,
    UploadMethod,
)

ECHO = "fedstack.test.Echo"


class EchoService(Service):
    """Answers with what it gets; `Fail` raises what the test says, `Hold` waits until the test lets it go.

    Its events are for the loop that it is served on.
    """

    def __init__(self, error: Callable[[], BaseException] = ZeroDivisionError) -> None:
        self.server: Server | None = None
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
                "Fail": UnaryMethod(self.fail),
                "Hold": UnaryMethod(self.hold),
                "HoldStream": DownloadMethod(self.hold_stream),
            }
        }

    def attach(self, server: Server) -> None:
        self.server = server

    async def close(self) -> None:
        self.closed += 1

    async def unary(self, request: bytes) -> bytes:
        return request

    async def upload(self, requests: AsyncIterator[bytes]) -> bytes:
        return b"".join([request async for request in requests])

    async def download(self, request: bytes) -> AsyncIterator[bytes]:
        for byte in request:
            yield bytes([byte])

    async def exchange(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
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

    async def hold_stream(self, request: bytes) -> AsyncIterator[bytes]:
        yield b"begun"
        yield await self.hold(request)

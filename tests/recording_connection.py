"""A connection in memory that keeps what goes over it, and fails or holds calls when a test says so."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from google.protobuf.message import Message

from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.wire.frames import Data, Header, parse_frame

STREAMS = {
    "Load": "CreateRequest",
    "UploadValue": "Upload",
    "RunPhase": "PhaseRequest",
    "DownloadValue": "DownloadRequest",
}


class Sent:
    """One call: its method, its request, and how many bytes each of its messages had."""

    def __init__(self, method: str, frames: list[bytes]) -> None:
        self.method = method
        self.sizes = [len(frame) for frame in frames]
        content = frames[0]
        if method in ("UploadValue", "RunPhase"):
            header = parse_frame(content)
            assert isinstance(header, Header)
            content = header.content
        name = STREAMS.get(method, f"{method}Request")
        module = executor_pb2 if hasattr(executor_pb2, name) else extensions_pb2
        self.request: Message = getattr(module, name).FromString(content)

    def __repr__(self) -> str:
        return f"<{self.method} {self.request}>"


class RecordingConnection(InMemoryConnection):
    """Keeps all calls but the handshake.

    Attributes:
      sent: The calls.
      received: For each call by method, the sizes of the messages that came back.
      fail: Errors by method: the next calls raise them instead of reaching the service.
      lose: Errors by method: the next calls raise them after the service has done its work.
    """

    def __init__(self, service) -> None:
        super().__init__(service)
        self.sent: list[Sent] = []
        self.received: list[tuple[str, list[int]]] = []
        self.fail: dict[str, list[Exception]] = {}
        self.lose: dict[str, list[Exception]] = {}
        self.gates: dict[str, asyncio.Event] = {}

    @property
    def methods(self) -> list[str]:
        return [call.method for call in self.sent]

    def of(self, method: str) -> list[Sent]:
        return [call for call in self.sent if call.method == method]

    async def _note(self, path: str, frames: list[bytes]) -> str:
        method = path.rpartition("/")[2]
        if method != "Handshake":
            self.sent.append(Sent(method, frames))
        if method in self.gates:
            await self.gates[method].wait()
        if self.fail.get(method):
            raise self.fail[method].pop(0)
        return method

    def _done(self, method: str, sizes: list[int]) -> None:
        self.received.append((method, sizes))
        if self.lose.get(method):
            raise self.lose[method].pop(0)

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        method = await self._note(path, [request])
        answer = await super().unary(path, request, timeout)
        self._done(method, [len(answer)])
        return answer

    async def upload(self, path: str, frames: Iterable[bytes], timeout: float | None) -> bytes:
        whole = list(frames)
        method = await self._note(path, whole)
        answer = await super().upload(path, whole, timeout)
        self._done(method, [len(answer)])
        return answer

    async def exchange(self, path: str, frames: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
        whole = list(frames)
        method = await self._note(path, whole)
        sizes: list[int] = []
        answers = super().exchange(path, whole)
        try:
            async for answer in answers:
                if isinstance(parse_frame(answer), (Header, Data)):
                    sizes.append(len(answer))
                yield answer
        finally:
            await answers.aclose()
        self._done(method, sizes)

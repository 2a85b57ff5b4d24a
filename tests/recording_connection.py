"""A connection in memory that keeps what goes over it, and fails or holds calls when a test says so."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.protobuf.message import Message

from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.methods import Answers, DownloadMethod, ExchangeMethod, Method
from fedstack.transport.wire.parcels import Parcel, Piece, frames_of


class Sent:
    """One call: its method, its request, and how many bytes each of its messages would have by wire."""

    def __init__(self, method: str, content: bytes, sizes: list[int]) -> None:
        self.method = method
        self.sizes = sizes
        name = "PhaseRequest" if method == "RunPhase" else f"{method}Request"
        module = executor_pb2 if hasattr(executor_pb2, name) else extensions_pb2
        self.request: Message = getattr(module, name).FromString(content)

    def __repr__(self) -> str:
        return f"<{self.method} {self.request}>"


def sizes_of(parcel: Parcel) -> list[int]:
    return [len(frame) for frame in frames_of(parcel)]


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

    async def _note(self, path: str, content: bytes, sizes: list[int]) -> str:
        method = path.rpartition("/")[2]
        if method != "Handshake":
            self.sent.append(Sent(method, content, sizes))
        if method in self.gates:
            await self.gates[method].wait()
        if self.fail.get(method):
            raise self.fail[method].pop(0)
        return method

    def _find(self, path: str) -> Method:
        method = super()._find(path)
        if isinstance(method, (DownloadMethod, ExchangeMethod)):
            handle: Callable[[Any], Answers] = method.handle
            return type(method)(lambda request: self._noted(path, handle(request)))
        return method

    async def _noted(self, path: str, answers: Answers) -> Answers:
        async for answer in answers:
            if isinstance(answer, Parcel):
                self.received.append((path.rpartition("/")[2], sizes_of(answer)))
            yield answer

    def _end(self, method: str) -> None:
        if self.lose.get(method):
            raise self.lose[method].pop(0)

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        method = await self._note(path, request, [len(request)])
        answer = await super().unary(path, request, timeout)
        self.received.append((method, [len(answer)]))
        self._end(method)
        return answer

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        method = await self._note(path, parcel.header, sizes_of(parcel))
        answer = await super().upload(path, parcel, timeout)
        self.received.append((method, [len(answer)]))
        self._end(method)
        return answer

    async def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        method = await self._note(path, request, [len(request)])
        async with contextlib.aclosing(super().download(path, request)) as pieces:
            async for piece in pieces:
                yield piece
        self._end(method)

    async def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        method = await self._note(path, parcel.header, sizes_of(parcel))
        async with contextlib.aclosing(super().exchange(path, parcel)) as pieces:
            async for piece in pieces:
                yield piece
        self._end(method)

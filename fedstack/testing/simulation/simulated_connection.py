"""Connects stubs to a simulated worker, over the simulated network."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from fedstack.errors import ClosedError, DeadlineExceededError
from fedstack.foundations.segments import joined
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.simulation.simulated_caller import SimulatedCaller
from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.testing.simulation.simulated_worker import SimulatedWorker
from fedstack.transport.peers.connection import Connection
from fedstack.transport.peers.io_loop import IoLoop
from fedstack.transport.wire.connection_errors import NOT_LISTENING
from fedstack.transport.wire.parcels import Parcel, Piece


class SimulatedConnection(Connection):
    """A connection to a simulated worker over the simulated network.

    Args:
      worker: The worker to call.
      network: The simulated network.
      caller: The calling process. Its faults affect its calls: a crash fails them, for example. By default the caller
        is a process without faults.
    """

    def __init__(
        self, worker: SimulatedWorker, network: SimulatedNetwork, caller: SimulatedWorker | None = None
    ) -> None:
        self._worker = worker
        self._network = network
        self._leave = _always if caller is None else SimulatedCaller(caller, worker, network).leave
        self._closed = False

    @property
    def io(self) -> IoLoop:
        """The loop of the simulation."""
        return self._network.io

    @property
    def address(self) -> str:
        """The address of the worker."""
        return self._worker.address

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        return await self._call(path, lambda memory: memory.unary(path, request, None), timeout)

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        sent = _copy_of(parcel)
        return await self._call(path, lambda memory: memory.upload(path, sent, None), timeout)

    async def _call(
        self, path: str, handle: Callable[[InMemoryConnection], Awaitable[bytes]], timeout: float | None
    ) -> bytes:
        self._check_open()
        # Not `asyncio.wait_for`, whose `TimeoutError` could not be distinguished from a `TimeoutError` of the call.
        call = asyncio.ensure_future(self._made(_name(path), handle))
        try:
            await asyncio.wait([call], timeout=timeout)
            if call.done():
                await self._leave()
                return call.result()
            raise DeadlineExceededError(
                f"Expected a response of {self.address} to {_name(path)} within {timeout} seconds, found none"
            )
        finally:
            call.cancel()

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        self._check_open()
        return self._pieces(self._worker.stream(_name(path), lambda memory: memory.download(path, request)))

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        self._check_open()
        sent = _copy_of(parcel)
        return self._pieces(self._worker.stream(_name(path), lambda memory: memory.exchange(path, sent)))

    async def _made(self, name: str, handle: Callable[[InMemoryConnection], Awaitable[bytes]]) -> bytes:
        await self._leave()
        return await self._worker.call(name, handle)

    async def _pieces(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
        try:
            await self._leave()
            async for piece in pieces:
                await self._leave()
                yield piece
        finally:
            await pieces.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                f"The connection to {self.address} is closed; create a new context, client or coordinator"
            )

    async def wait_ready(self, seconds: float) -> None:
        self._check_open()
        waiting = asyncio.ensure_future(self._reached())
        try:
            await asyncio.wait([waiting], timeout=seconds)
            if not waiting.done():
                raise NOT_LISTENING.error_at(self.address)
        finally:
            waiting.cancel()

    async def _reached(self) -> None:
        await self._leave()
        await self._worker.reachable()

    async def check_alive(self, seconds: float) -> bool:
        async def nothing(_: InMemoryConnection) -> bytes:
            return b""

        await self._call("/health/Check", nothing, seconds)
        return True

    async def until_draining(self) -> None:
        self._check_open()
        await self._leave()
        await self._worker.until_draining()

    async def close(self) -> None:
        self._closed = True


async def _always() -> None:
    pass


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _copy_of(parcel: Parcel) -> Parcel:
    """Returns a copy of a parcel, so that the sender can change its memory while the copy is in transit."""
    return Parcel(parcel.header, [memoryview(joined([segment])) for segment in parcel.segments], parcel.chunk_bytes)

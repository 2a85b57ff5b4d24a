"""A worker of a simulation: services that crash and start anew, and the way of messages to them and back."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from fedstack.errors import FedstackError
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.transport.peers.io_loop import start_apart
from fedstack.transport.peers.methods import Method, Service
from fedstack.transport.wire.connection_errors import BROKEN_OFF, NOT_LISTENING
from fedstack.transport.wire.frames import Data
from fedstack.transport.wire.parcels import Piece

_T = TypeVar("_T")
# After how long gRPC finds out that a connection leads nowhere.
KEEPALIVE_SECONDS = 10.0
# How much of an answer a worker sends before anybody takes it.
_PIECES_ON_THE_WAY = 4


class _Together(Service):
    """Several services as one."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    @property
    def methods(self) -> Mapping[str, Mapping[str, Method]]:
        return {name: methods for service in self._services for name, methods in service.methods.items()}

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        return [session for service in self._services for session in service.sessions]

    def started(self) -> None:
        for service in self._services:
            service.started()

    async def close(self) -> None:
        for service in self._services:
            await service.close()


class Incarnation:
    """What a worker is between a start and a crash.

    Attributes:
      service: What it serves.
      memory: Calls that.
      ended: Is done once it has crashed.
    """

    def __init__(self, services: Sequence[Service], address: str, ended: "asyncio.Future[None]") -> None:
        self.service = _Together(services)
        self.memory = InMemoryConnection(self.service, address)
        self.ended = ended
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order, and not as a set has it

    def begin(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Runs work here, as a server does: with nothing of the caller's."""
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # nobody may ask for it, and asyncio would complain

    async def crash(self) -> None:
        """Ends everything at once; what is left to be freed is freed without anybody noticing."""
        self.ended.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await self.service.close()


class SimulatedWorker:
    """A worker, and the way to it.

    Args:
      network: Decides about messages.
      address: What it is called.
      make_services: Makes what it serves, each time that it starts.

    Attributes:
      incarnation: What it is now; `None` after a crash.
      starts: How often it was started.
      is_parted: Whether the way to it is cut.
      is_stalled: Whether it stands still.
    """

    def __init__(self, network: SimulatedNetwork, address: str, make_services: Callable[[], Sequence[Service]]) -> None:
        self.address = address
        self.incarnation: Incarnation | None = None
        self.starts = 0
        self._network = network
        self._make_services = make_services
        self.is_parted = False
        self.is_stalled = False
        self._crashes: dict[asyncio.Task[None], None] = {}

    @property
    def sessions(self) -> Sequence[GetStatusResponse.Session]:
        """What its services keep for clients."""
        return () if self.incarnation is None else self.incarnation.service.sessions

    # What happens to it.

    def start(self) -> None:
        """Starts it, if it does not run."""
        if self.incarnation is None:
            ended: asyncio.Future[None] = self._network.io.loop.create_future()
            self.starts += 1
            self.incarnation = Incarnation(self._make_services(), self.address, ended)
            self.incarnation.service.started()
            self._change(f"start {self.starts}")

    def crash(self) -> None:
        """Ends it, as a loss of power does."""
        incarnation, self.incarnation = self.incarnation, None
        if incarnation is not None:
            self.is_stalled = False
            self._change("crash")
            task = start_apart(incarnation.crash())
            self._crashes[task] = None
            task.add_done_callback(lambda ended: self._crashes.pop(ended, None))

    def part(self) -> None:
        """Cuts the way to it. Nobody is told: messages do not come, and neither does anything else."""
        if not self.is_parted:
            self.is_parted = True
            self._change("parted")

    def heal(self) -> None:
        """Restores the way to it; what was on the way arrives, unless its sender has given up."""
        if self.is_parted:
            self.is_parted = False
            self._change("healed")

    def stall(self) -> None:
        """Lets it stand still; calls go on to arrive."""
        if not self.is_stalled and self.incarnation is not None:
            self.is_stalled = True
            self._change("stalled")

    def resume(self) -> None:
        """Lets it go on."""
        if self.is_stalled:
            self.is_stalled = False
            self._change("resumed")

    def _change(self, what: str) -> None:
        self._network.change(f"{self.address} {what}")

    # The way to it.

    async def reachable(self) -> None:
        """Returns when a connection to it can be made."""
        while self.is_parted or self.is_stalled or self.incarnation is None:
            await asyncio.shield(self._network.changed)
        await asyncio.sleep(self._network.delay())

    async def way(self) -> None:
        """Returns when a message has made its way, in either direction.

        Raises:
          WorkerUnavailableError: If it will not.
        """
        await asyncio.sleep(self._network.delay())
        until = self._network.io.time() + KEEPALIVE_SECONDS
        while self.is_parted:
            await asyncio.wait([self._network.changed], timeout=until - self._network.io.time())
            if self._network.io.time() >= until:
                raise self.broken_off()

    async def call(self, what: str, handle: Callable[[InMemoryConnection], Awaitable[_T]]) -> _T:
        """Makes a call that has one answer, there and back.

        Raises:
          WorkerUnavailableError: If either way is cut.
        """
        note = _Call(self._network, self.address, what)
        task: asyncio.Task[_T] | None = None
        try:
            incarnation = await self._arrived(note)
            task = incarnation.begin(self._handled(handle, incarnation))
            if self._network.happens(self._network.faults.doubled_rate):
                note.say("doubled")
                incarnation.begin(self._handled(handle, incarnation, self._network.delay()))
            await asyncio.wait([task, incarnation.ended], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.broken_off()
            await self.way()
            if incarnation.ended.done() or self._network.happens(self._network.faults.answer_lost_rate):
                raise self.broken_off()
            answer = await task
            note.say("answered")
            return answer
        except asyncio.CancelledError:
            note.say("cancelled")
            self._cancel_later(task)
            raise
        except Exception as error:
            note.say(f"failed with {type(error).__name__}")
            self._cancel_later(task)
            raise

    async def stream(
        self, what: str, handle: Callable[[InMemoryConnection], AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """Makes a call that is answered in pieces; see `call`."""
        note = _Call(self._network, self.address, what)
        task: asyncio.Task[None] | None = None
        try:
            incarnation = await self._arrived(note)
            pieces: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(_PIECES_ON_THE_WAY)
            task = incarnation.begin(self._pump(handle(incarnation.memory), pieces))
            if self._network.happens(self._network.faults.doubled_rate):
                note.say("doubled")
                incarnation.begin(self._pump(handle(incarnation.memory), asyncio.Queue()))
            while True:
                coming = asyncio.ensure_future(pieces.get())
                try:
                    await asyncio.wait([coming, incarnation.ended], return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise self.broken_off()
                finally:
                    coming.cancel()
                piece = coming.result()
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    break
                await self.way()
                yield piece
            if self._network.happens(self._network.faults.answer_lost_rate):
                raise self.broken_off()
            note.say("answered")
        except Exception as error:
            note.say(f"failed with {type(error).__name__}")
            raise
        finally:
            self._cancel_later(task)

    async def _arrived(self, note: "_Call") -> Incarnation:
        """Returns where a request has arrived."""
        note.say("sent")
        await self.way()
        if self._network.happens(self._network.faults.lost_rate):
            raise self.broken_off()
        if self.incarnation is None:
            raise NOT_LISTENING.error_at(self.address)
        return self.incarnation

    async def _handled(
        self, handle: Callable[[InMemoryConnection], Awaitable[_T]], incarnation: Incarnation, delay: float = 0.0
    ) -> _T:
        if delay:
            await asyncio.sleep(delay)
        await self._awake()
        answer = await handle(incarnation.memory)
        await self._awake()
        return answer

    async def _pump(self, pieces: AsyncGenerator[Piece, None], into: "asyncio.Queue[Piece | Exception | None]") -> None:
        try:
            await self._awake()
            async for piece in pieces:
                await self._awake()
                # The memory is the sender's again when it is asked for the next piece.
                await into.put(Data(memoryview(bytes(piece.data))) if isinstance(piece, Data) else piece)
            await into.put(None)
        except Exception as error:
            await into.put(error)
        finally:
            await pieces.aclose()

    async def _awake(self) -> None:
        while self.is_stalled:
            await asyncio.shield(self._network.changed)

    def _cancel_later(self, task: "asyncio.Task[Any] | None") -> None:
        """Lets the worker know, after a while, that nobody waits for its answer any more."""
        if task is not None and not task.done():
            self._network.io.loop.call_later(self._network.delay(), task.cancel)

    def broken_off(self) -> FedstackError:
        """Returns the error of a call whose connection ended."""
        return BROKEN_OFF.error_at(self.address)

    def __repr__(self) -> str:
        state = "down" if self.incarnation is None else "stalled" if self.is_stalled else "up"
        return f"<SimulatedWorker {self.address} {state}{', parted' if self.is_parted else ''}>"


@attrs.define
class _Call:
    """What is written down of a call."""

    network: SimulatedNetwork
    address: str
    what: str
    number: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.number = self.network.number()

    def say(self, what: str) -> None:
        self.network.say(f"#{self.number} {self.what} at {self.address}: {what}")

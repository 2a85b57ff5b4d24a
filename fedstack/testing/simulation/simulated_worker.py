"""A simulated worker: services that crash and restart, and the paths of messages to and from the services."""

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
# The time after which gRPC detects a dead connection.
KEEPALIVE_SECONDS = 10.0
# The maximum number of pieces of a response that a worker has sent and the caller has not received yet.
_PIECES_ON_THE_WAY = 4


class _Together(Service):
    """Combines several services into one."""

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

    def drain(self) -> None:
        for service in self._services:
            service.drain()

    async def close(self) -> None:
        for service in self._services:
            await service.close()


class Incarnation:
    """The process of a worker between a start and a crash.

    Attributes:
      service: The services of the worker, combined into one.
      memory: A connection that calls `service` directly.
      ended: A future that is done once the process has crashed.
      is_draining: Whether the process accepts no new clients, because it is about to end.
    """

    def __init__(self, services: Sequence[Service], address: str, ended: "asyncio.Future[None]") -> None:
        self.service = _Together(services)
        self.memory = InMemoryConnection(self.service, address)
        self.ended = ended
        self.is_draining = False
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dictionary keeps the order of the tasks, a set does not

    def begin(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Starts a task in this process. As on a server, the task does not inherit the caller's context variables."""
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._end)
        return task

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; asyncio would log it otherwise

    async def crash(self) -> None:
        """Cancels all tasks at once, then closes the services so that they free their resources."""
        self.ended.set_result(None)
        for task in list(self._tasks):
            task.cancel()
        await self.service.close()


class SimulatedWorker:
    """A simulated worker, and the network path to it.

    Args:
      network: The network, which decides the fate of each message.
      address: The address of the worker.
      make_services: Returns the services of the worker. It is called at each start.

    Attributes:
      incarnation: The current process of the worker; `None` after a crash.
      starts: The number of starts so far.
      is_parted: Whether the network path to the worker is cut.
      is_stalled: Whether the worker is stalled.
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
        """The sessions that the worker's services hold for clients."""
        return () if self.incarnation is None else self.incarnation.service.sessions

    # Starts and faults of the worker.

    def start(self) -> None:
        """Starts the worker, if it is not running."""
        if self.incarnation is None:
            ended: asyncio.Future[None] = self._network.io.loop.create_future()
            self.starts += 1
            self.incarnation = Incarnation(self._make_services(), self.address, ended)
            self.incarnation.service.started()
            self._change(f"start {self.starts}")

    def crash(self) -> None:
        """Ends the worker's process abruptly, as a power loss does."""
        incarnation, self.incarnation = self.incarnation, None
        if incarnation is not None:
            self.is_stalled = False
            self._change("crash")
            task = start_apart(incarnation.crash())
            self._crashes[task] = None
            task.add_done_callback(lambda ended: self._crashes.pop(ended, None))

    def drain(self) -> Incarnation | None:
        """Lets the worker accept no new clients, as a stop does at first; returns the process that drains, if any."""
        if self.incarnation is None or self.incarnation.is_draining:
            return None
        self.incarnation.is_draining = True
        self.incarnation.service.drain()
        self._change("draining")
        return self.incarnation

    def part(self) -> None:
        """Cuts the network path to the worker silently: no messages are delivered, and no errors are raised."""
        if not self.is_parted:
            self.is_parted = True
            self._change("parted")

    def heal(self) -> None:
        """Restores the network path to the worker. Delayed messages arrive, unless their senders have given up."""
        if self.is_parted:
            self.is_parted = False
            self._change("healed")

    def stall(self) -> None:
        """Stalls the worker. Calls still arrive, but are not handled."""
        if not self.is_stalled and self.incarnation is not None:
            self.is_stalled = True
            self._change("stalled")

    def resume(self) -> None:
        """Resumes a stalled worker."""
        if self.is_stalled:
            self.is_stalled = False
            self._change("resumed")

    def _change(self, what: str) -> None:
        self._network.change(f"{self.address} {what}")

    # The network path to the worker.

    async def reachable(self) -> None:
        """Waits until a connection to the worker can be established."""
        while self.is_parted or self.is_stalled or self.incarnation is None:
            await asyncio.shield(self._network.changed)
        await asyncio.sleep(self._network.delay(self.address))

    async def until_draining(self) -> None:
        """Waits until the news that the worker is draining have arrived.

        Raises:
          WorkerUnavailableError: If the worker is down, or ends meanwhile.
        """
        incarnation = self.incarnation
        if incarnation is None:
            raise NOT_LISTENING.error_at(self.address)
        while not incarnation.is_draining or self.is_stalled:
            await asyncio.shield(self._network.changed)
            if self.incarnation is not incarnation:
                raise self.broken_off()
        await self.way()

    async def way(self) -> None:
        """Waits while a message is in transit, in either direction.

        Raises:
          WorkerUnavailableError: If the path stays cut for `KEEPALIVE_SECONDS`.
        """
        await asyncio.sleep(self._network.delay(self.address))
        until = self._network.io.time() + KEEPALIVE_SECONDS
        while self.is_parted:
            await asyncio.wait([self._network.changed], timeout=until - self._network.io.time())
            if self._network.io.time() >= until:
                raise self.broken_off()

    async def call(self, what: str, handle: Callable[[InMemoryConnection], Awaitable[_T]]) -> _T:
        """Calls the worker and returns its response, which is a single message.

        Args:
          what: The name of the call in the trace.
          handle: Passes the call to the worker's services.

        Raises:
          WorkerUnavailableError: If the worker is down or crashes, or the request or the response is lost.
        """
        note = _Call(self._network, self.address, what)
        task: asyncio.Task[_T] | None = None
        try:
            incarnation = await self._arrived(note)
            task = incarnation.begin(self._handled(handle, incarnation))
            if self._network.happens(self._network.faults.doubled_rate, "double", self.address):
                note.say("doubled")
                incarnation.begin(self._handled(handle, incarnation, self._network.delay(self.address)))
            await asyncio.wait([task, incarnation.ended], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.broken_off()
            await self.way()
            if incarnation.ended.done() or self._network.happens(
                self._network.faults.answer_lost_rate, "lose answer", self.address
            ):
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
        """Calls the worker and yields the pieces of its response; see `call`."""
        note = _Call(self._network, self.address, what)
        task: asyncio.Task[None] | None = None
        try:
            incarnation = await self._arrived(note)
            pieces: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(_PIECES_ON_THE_WAY)
            task = incarnation.begin(self._pump(handle(incarnation.memory), pieces))
            if self._network.happens(self._network.faults.doubled_rate, "double", self.address):
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
            if self._network.happens(self._network.faults.answer_lost_rate, "lose answer", self.address):
                raise self.broken_off()
            note.say("answered")
        except Exception as error:
            note.say(f"failed with {type(error).__name__}")
            raise
        finally:
            self._cancel_later(task)

    async def _arrived(self, note: "_Call") -> Incarnation:
        """Returns the process of the worker at which a request has arrived.

        Raises:
          WorkerUnavailableError: If the request is lost, or the worker is down.
        """
        note.say("sent")
        await self.way()
        if self._network.happens(self._network.faults.lost_rate, "lose request", self.address):
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
                # The data is copied, because the sender may reuse its memory once the next piece is requested.
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
        """Cancels the handling of a call on the worker, after the delay of a message."""
        if task is not None and not task.done():
            self._network.io.loop.call_later(self._network.delay(self.address), task.cancel)

    def broken_off(self) -> FedstackError:
        """Returns the error for a call whose connection was broken."""
        return BROKEN_OFF.error_at(self.address)

    def __repr__(self) -> str:
        state = "down" if self.incarnation is None else "stalled" if self.is_stalled else "up"
        return f"<SimulatedWorker {self.address} {state}{', parted' if self.is_parted else ''}>"


@attrs.define
class _Call:
    """The record of a call in the trace."""

    network: SimulatedNetwork
    address: str
    what: str
    number: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.number = self.network.number()

    def say(self, what: str) -> None:
        self.network.say(f"#{self.number} {self.what} at {self.address}: {what}")

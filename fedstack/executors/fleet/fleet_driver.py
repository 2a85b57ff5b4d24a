"""Does what a fleet decides: asks workers on the transport's loop, lets callers wait, and tells of losses."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence

from fedstack.errors import ResourceLimitError
from fedstack.executors.fleet.asking import Asker, listening, loss_of, worker_of
from fedstack.executors.fleet.fleet import Fleet
from fedstack.executors.fleet.fleet_observer import FleetObserver, FleetObservers
from fedstack.executors.fleet.waits import GiveUp, LookFor, Pause, Use, Wait, closed_error
from fedstack.executors.fleet.worker import State, Worker
from fedstack.foundations.number_checks import check_number
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop, io_loop
from fedstack.transport.wire.connection_errors import listed

_logger = logging.getLogger(__name__)
# How long a caller waits without a word about it; longer than it takes to find out why a worker is away.
_QUIET_SECONDS = 2.5


class FleetDriver:
    """A set of workers that come and go, for callers on any loop. Only this speaks to their connections.

    Workers are asked from the first use on, and until this is closed or dropped; connections end with their stubs then.

    Args:
      stubs: Calls each of them. They are closed with this.
      connect_seconds: How long to wait for the first that is ready.
      clock: Returns the time in seconds; by default that of the loop.
    """

    def __init__(
        self,
        stubs: Sequence[ExecutorStub],
        connect_seconds: float = 10.0,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_number("connect_seconds", connect_seconds, endless=True)
        self._io: IoLoop = stubs[0].io if stubs else io_loop
        self._fleet = Fleet(connect_seconds, clock or self._io.time)
        self._asker = Asker(self._fleet, self._io, self._step)
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order, unlike a set: who waits longest wakes first
        self._observers = FleetObservers()
        self._has_announced = False
        self._closed = False
        for stub in stubs:
            self._fleet.add(worker_of(stub, supervised=False))

    @property
    def io(self) -> IoLoop:
        """The loop where their connections are."""
        return self._io

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All workers that there are."""
        return self._fleet.workers

    # For callers.

    async def ready(self) -> list[Worker]:
        """Returns the workers that are ready, one at least; waits for it if need be.

        Raises:
          NoWorkersError: If none is, within the time to connect; the message has all addresses and causes.
          FedstackError: If none will be, however long one waits: a wrong token will not become right.
        """
        return await self._io.run(self._ready())

    def by_room(self, workers: Sequence[Worker]) -> tuple[list[Worker], list[Worker]]:
        """Returns those workers that may have room for a session, and those that lately had none."""
        by_room: tuple[list[Worker], list[Worker]] = [], []
        for worker in workers:
            by_room[self._fleet.is_full(worker)].append(worker)
        return by_room

    # What is learned of workers. From any thread; it holds for all calls that follow.

    def add(self, stub: ExecutorStub, *, supervised: bool = False) -> Worker:
        """Adds a worker, which is asked at once.

        Args:
          stub: Calls it.
          supervised: Whether the caller says when it is `lost` and when it has `returned`, so that it is not searched
            for.
        """
        if self._closed:
            raise closed_error()
        worker = worker_of(stub, supervised=supervised)
        self._post(lambda: self._fleet.add(worker))
        return worker

    def remove(self, worker: Worker) -> None:
        """Stops using a worker. What runs there goes on; its connection ends with its stub."""
        self._post(lambda: self._fleet.remove(worker))

    def lost(self, worker: Worker, error: Exception) -> Exception:
        """Records that a worker was found away; it is looked after until it is back. Returns the best cause known."""
        loss = loss_of(worker)
        found, for_good = (error, False) if loss is None else (loss.error, loss.for_good)
        self._post(lambda: self._fleet.lost(worker, found, for_good=for_good))
        return found

    def returned(self, worker: Worker) -> None:
        """Records that a worker is said to be there again."""
        self._post(lambda: self._fleet.returned(worker))

    def full(self, worker: Worker, refusal: ResourceLimitError) -> None:
        """Records that a worker has no room for a session."""

        def note() -> None:
            if self._fleet.full(worker, refusal) and len(self.workers) > 1:  # else the caller gets it as an error
                _logger.warning("Doing without the worker at %s: %s", worker.address, refusal)

        self._post(note)

    def has_room(self, worker: Worker) -> None:
        """Records that a worker has made room for a session."""
        if worker.refusal is not None:
            self._post(lambda: self._fleet.has_room(worker))

    def subscribe(self, observer: FleetObserver) -> Callable[[], None]:
        """Tells an observer what becomes of workers from now on; returns what ends that.

        Losses that a source of workers knows of, such as the end of a pool's process, are told without any call. An
        observer that raises is told nothing more.
        """
        end = self._observers.add(observer)
        self._post(lambda: None)  # from here on the workers are looked after
        return end

    def close(self, users: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Closes the connections. Idempotent; waits for it where that blocks no event loop.

        Args:
          users: End what uses the connections, on the transport's loop. Calls may go on: they end with their sessions,
            which the workers would keep for a while if the connections were closed first.
        """
        if not self._closed:
            self._closed = True
            self._io.finish(self._close(users))

    def _post(self, event: Callable[[], object]) -> None:
        """Lets an event happen on the transport's loop, in the order in which this is called."""

        def happen() -> None:
            event()
            self._step()

        self._io.loop.call_soon_threadsafe(happen, context=contextvars.Context())

    # On the transport's loop, from here on.

    async def _ready(self) -> list[Worker]:
        self._look()
        wait = Wait(self._fleet)
        timer = asyncio.get_running_loop().call_later(
            _QUIET_SECONDS, self._announce, wait.seconds, context=contextvars.Context()
        )
        try:
            return await self._decided(wait)
        finally:
            timer.cancel()

    def _announce(self, seconds: float) -> None:
        """Says that a caller waits, once until a worker is ready."""
        if self._fleet.ready or self._has_announced or seconds <= _QUIET_SECONDS:
            return
        self._has_announced = True
        causes = {worker.address: worker.cause_after(_QUIET_SECONDS) for worker in self.workers}
        _logger.warning(
            "No worker is ready; waiting for the first for up to %g s (connect_seconds):%s", seconds, listed(causes)
        )

    async def _decided(self, wait: Wait) -> list[Worker]:
        has_looked = True
        while True:
            match wait.decide():
                case Use() | GiveUp() if not has_looked:
                    has_looked = True
                case Use(workers):
                    return workers
                case GiveUp(error):
                    try:
                        raise error
                    finally:
                        del error  # its frames have this one
                case LookFor(workers):
                    for worker in await listening(workers):
                        self._fleet.returned(worker)
                case Pause(seconds):
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters[waiter] = None
                    try:
                        await asyncio.wait([waiter], timeout=seconds)
                    finally:
                        del self._waiters[waiter]
                    if waiter.done():
                        # Workers that become ready one by one wake us as often as there are workers, so a look at all
                        # of them has time until the pauses or the wait are over.
                        has_looked = False
                        continue
            self._look()

    def _look(self) -> None:
        self._asker.look()
        self._step()

    def _step(self) -> None:
        """Does what the fleet has decided after events."""
        self._asker.step(watches=bool(self._observers) and not self._closed)
        changes = self._fleet.take_changes()
        for change in changes:
            if change.after is State.READY:
                self._has_announced = False
                _logger.debug("The worker at %s is ready", change.worker.address)
            elif change.after is State.WRONG and len(self.workers) > 1:  # else the caller gets it as an error
                _logger.warning("Doing without the worker at %s: %s", change.worker.address, change.cause)
            self._observers.tell(change)
        if changes:
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _close(self, users: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._fleet.close()
        self._wake()
        await asyncio.gather(self._asker.end(), *(end() for end in users), return_exceptions=True)
        for worker in self.workers:
            await worker.stub.close()

    def __repr__(self) -> str:
        return f"<FleetDriver over {self._fleet!r}>"

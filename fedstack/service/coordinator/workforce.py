"""Defines the workers of a coordinator: members of a fleet in other processes, or executors in this process."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, cast

from fedstack.computations.leaves.work_scope import WorkKind, current_scope
from fedstack.computations.types.language import CLIENTS, Executor, ExecutorFactory, ExecutorValue, RetryableError
from fedstack.errors import InvalidValueError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.base.verb_executor import pull
from fedstack.executors.base.verb_values import VerbValue
from fedstack.executors.concurrency.coroutines import gather
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.executors.remote.workers import Worker
from fedstack.executors.remote.workers import Workers as Fleet
from fedstack.executors.remote_executor import RemoteExecutor
from fedstack.executors.resource_factory import borrow
from fedstack.foundations.traceback_filter import drop_outcome
from fedstack.foundations.value_text import describe
from fedstack.membership.membership_observer import MembershipObserver
from fedstack.membership.silence import SilenceWatch
from fedstack.service.coordinator.calls.closures import WorkerState
from fedstack.service.coordinator.driver import Driver
from fedstack.service.coordinator.scheduler import Scheduler
from fedstack.service.coordinator.workers import CoordinatedWorker, Outcomes, ValueHandle
from fedstack.service.executor.session import ClosureScope
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.connection import Transport
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

Workers: TypeAlias = "WorkerTargets | ExecutorFactory | Sequence[ExecutorFactory]"
# The number of values of one worker that are disposed of in one call.
_DISPOSE_BATCH = 500


class RemoteWorker(CoordinatedWorker):
    """A worker in another process.

    Args:
      state: See `CoordinatedWorker`.
      driver: See `CoordinatedWorker`.
      stub: The stub that calls the worker. The stub stays open when this object is closed.
    """

    def __init__(self, state: WorkerState, driver: Driver, stub: ExecutorStub) -> None:
        super().__init__(state, driver)
        self._stub = stub
        self._watch = SilenceWatch(stub, self._ask, self._hear)

    def _make_executor(self, clients: int) -> Executor:
        executor = RemoteExecutor(self._stub, _DISPOSE_BATCH)
        executor.worker_index = self.state.index
        executor.set_cardinalities({CLIENTS: clients} if clients else {})
        return executor

    def _close_executor(self, executor: Executor) -> None:
        cast(RemoteExecutor, executor).close()

    @contextlib.contextmanager
    def _in_use(self, clients: int) -> Generator[Executor, None, None]:
        with self._watch.while_in_use(), super()._in_use(clients) as executor:
            yield executor

    async def _started(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        remote, started = cast(RemoteExecutor, executor), cast("Sequence[VerbValue]", values)
        outcomes = await remote.start(started, self._scheduler.waiting)
        self._watch.heard()
        return {**outcomes}

    async def _stopped(self, handles: Sequence[ValueHandle]) -> None:
        for executor in {handle.executor: None for handle in handles}:
            values = [cast(VerbValue, handle.value) for handle in handles if handle.executor is executor]
            await cast(RemoteExecutor, executor).stop(values)

    async def _ask(self) -> None:
        """For each session in use, sends the worker the number of waiting closures, and waits for the answer."""
        used = [cast(RemoteExecutor, entry.executor) for entry in self._entries.values() if entry.users]
        await gather([executor.start((), self._scheduler.waiting) for executor in used])

    def _hear(self, is_silent: bool) -> None:
        self._driver.tell(self._scheduler.silent, self.state, is_silent)

    def close(self) -> None:
        self._watch.close()
        super().close()


class LocalWorker(CoordinatedWorker):
    """A worker that consists of executors in this process.

    Args:
      state: See `CoordinatedWorker`.
      driver: See `CoordinatedWorker`.
      factory: Creates the executors.
    """

    def __init__(self, state: WorkerState, driver: Driver, factory: ExecutorFactory) -> None:
        super().__init__(state, driver)
        self._factory = factory
        self._scope = current_scope().replace(kind=WorkKind.CLOSURE).adding(ClosureScope(state.index, {}))
        self._tasks: dict[ExecutorValue, asyncio.Task[object]] = {}
        self._give_back: dict[Executor, Callable[[], None]] = {}

    def _make_executor(self, clients: int) -> Executor:
        executor, self._give_back[executor] = borrow(self._factory, {CLIENTS: clients} if clients else {})
        return executor

    def _close_executor(self, executor: Executor) -> None:
        """Returns the executor to its factory, which may have other users."""
        self._give_back.pop(executor)()

    async def _started(self, executor: Executor, values: Sequence[ExecutorValue]) -> Outcomes:
        with self._scope.entered():
            tasks = {value: self._tasks.get(value) or asyncio.ensure_future(pull(value)) for value in values}
        self._tasks.update(tasks)
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        outcomes: dict[ExecutorValue, Exception | None] = {}
        for value, task in tasks.items():
            if task.done():
                self._tasks.pop(value, None)
                error = asyncio.CancelledError() if task.cancelled() else task.exception()
                if isinstance(error, RetryableError):
                    raise error
                outcomes[value] = error if isinstance(error, Exception) else None
        return outcomes

    async def _stopped(self, handles: Sequence[ValueHandle]) -> None:
        for handle in handles:
            if (task := self._tasks.get(handle.value)) is not None:
                task.cancel()

    def close(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.add_done_callback(drop_outcome)
            task.cancel()
        super().close()


class RemoteDriver(Driver, MembershipObserver[Worker]):
    """Drives the workers of a fleet.

    Args:
      scheduler: See `Driver`.
      fleet: The workers. The driver closes the fleet when it ends.
      source: An object that keeps the workers alive, such as a pool.
    """

    def __init__(self, scheduler: Scheduler, fleet: Fleet, source: object = None) -> None:
        super().__init__(scheduler, fleet.io)
        self._fleet = fleet
        self._source = source  # keeps a pool alive, since an unreferenced pool ends its processes
        self._by_member: dict[Worker, CoordinatedWorker] = {}
        self._indices = {worker: index for index, worker in enumerate(fleet.members)}
        self._unsubscribe = fleet.subscribe(self)

    async def _worker_there(self) -> None:
        await self._fleet.ready()

    def _replace(self, worker: CoordinatedWorker, error: Exception) -> None:
        member = next((member for member, found in self._by_member.items() if found is worker), None)
        if member is None:
            return
        del self._by_member[member]
        if isinstance(error, StaleSessionError) and member.is_ready:
            self.ready(member)  # the worker is reachable, but has lost its values
        else:
            self._fleet.lost(member, error)

    async def _end_workers(self) -> None:
        self._unsubscribe()
        self._fleet.close()

    def ready(self, member: Worker) -> None:
        if member not in self._by_member and not self.closed:
            index = self._indices.setdefault(member, len(self._indices))
            state = WorkerState(index, member.address, member.features.threads)
            self._by_member[member] = worker = RemoteWorker(state, self, member.stub)
            self.add(worker)

    def draining(self, member: Worker) -> None:
        if member in self._by_member:
            self.tell(self.scheduler.drain, self._by_member[member].state)

    def lost(self, member: Worker, error: Exception) -> None:
        if member in self._by_member:
            self.lose(self._by_member[member], error)

    def removed(self, member: Worker) -> None:
        self.lost(member, WorkerUnavailableError(f"The worker at {member.address} has been removed"))


class LocalDriver(Driver):
    """Drives executors in this process.

    Args:
      scheduler: See `Driver`.
      factories: One factory of executors for each worker.
    """

    def __init__(self, scheduler: Scheduler, factories: Sequence[ExecutorFactory]) -> None:
        super().__init__(scheduler, io_loop)
        self._factories = factories
        for index in range(len(factories)):
            self.loop.loop.call_soon_threadsafe(self._add, index)

    def _add(self, index: int) -> None:
        if not self.closed:
            self.add(LocalWorker(WorkerState(index, f"worker {index}"), self, self._factories[index]))

    async def _worker_there(self) -> None:
        """Returns immediately, because a local worker is replaced as soon as it is lost."""

    def _replace(self, worker: CoordinatedWorker, error: Exception) -> None:
        self._add(worker.state.index)

    async def _end_workers(self) -> None:
        """Does nothing: the factories belong to the caller."""


def driver_of(
    workers: Workers,
    credentials: ClientCredentials | None,
    connect_seconds: float,
    make_scheduler: Callable[..., Scheduler],
    transport: Transport = "auto",
) -> Driver:
    """Returns a driver for the workers that a user has specified.

    Args:
      workers: Addresses, pools or clusters; or executor factories.
      credentials: The certificates and the token to use if the workers are addresses.
      connect_seconds: How long to wait while no worker is reachable, in seconds.
      make_scheduler: Creates the driver's scheduler, given a `clock`.
      transport: How to reach addresses.

    Raises:
      InvalidValueError: If there are no workers, or if `workers` mixes factories with other workers.
    """
    listed = cast("Sequence[object]", workers if isinstance(workers, (list, tuple)) else [workers])
    factories = [one for one in listed if isinstance(one, ExecutorFactory)]
    if factories:
        if len(factories) < len(listed):
            raise InvalidValueError(
                f"Expected either executor factories or workers in other processes, found both in {describe(workers)}; "
                "create one coordinator for each kind"
            )
        return LocalDriver(make_scheduler(clock=io_loop.time), factories)
    stubs = make_stubs(cast(WorkerTargets, workers), credentials, transport)
    if not stubs:
        raise InvalidValueError("Expected at least one worker, found none; pass an address such as 'localhost:8000'")
    fleet = Fleet([Worker(stub) for stub in stubs], connect_seconds)
    return RemoteDriver(make_scheduler(clock=fleet.io.time), fleet, workers)

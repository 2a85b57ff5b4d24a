"""Runs the actions that a scheduler requests, and reports events to the scheduler.

Callers on any thread (`scheduled_calls.py`), workers, and the code that adds and removes workers all use the scheduler,
and hold a lock while they do. The scheduler responds with actions, which the driver runs on its loop. The driver
delegates most actions to a worker.
"""

import abc
import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from fedstack.computations.types.language import RetryableError
from fedstack.errors import ClosedError, FedstackError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.concurrency.coroutines import raised_again
from fedstack.foundations.deadline import Deadline, let_others_run
from fedstack.foundations.traceback_filter import consume_exception, without_own_frames
from fedstack.service.coordinator.calls.closures import (
    Action,
    AskAgain,
    Closure,
    Fetch,
    Leave,
    Notify,
    RunClosures,
    Search,
    Stop,
    WorkerState,
)
from fedstack.service.coordinator.scheduler import Scheduler
from fedstack.transport.peers.io_loop import IoLoop, start_apart
from fedstack.transport.wire.connection_errors import never_arrived

if TYPE_CHECKING:
    from fedstack.service.coordinator.workers import CoordinatedWorker

_P = ParamSpec("_P")


class Driver(abc.ABC):
    """Runs the actions that one coordinator's scheduler requests.

    Args:
      scheduler: The scheduler.
      loop: The event loop on which the driver and its workers run.

    Attributes:
      scheduler: The scheduler; hold `lock` while you use it.
      lock: The lock that protects the scheduler.
      loop: The event loop.
      closed: Whether the driver has ended.
    """

    def __init__(self, scheduler: Scheduler, loop: IoLoop) -> None:
        self.scheduler = scheduler
        self.lock = threading.Lock()
        self.loop = loop
        self.closed = False
        self._woken = False
        self._dropped: deque[Closure] = deque()
        self._workers: dict[WorkerState, CoordinatedWorker] = {}
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, unlike a set
        self._search: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abc.abstractmethod
    async def _worker_there(self) -> None:
        """Waits until a worker is likely to be ready soon; raises an error if waiting any longer is pointless."""

    @abc.abstractmethod
    def _replace(self, worker: "CoordinatedWorker", error: Exception) -> None:
        """Arranges for a lost worker to be replaced as soon as it is reachable again."""

    @abc.abstractmethod
    async def _end_workers(self) -> None:
        """Releases the resources that the workers share."""

    # For callers on any thread.

    def check_open(self) -> None:
        """Checks that closures can still run.

        Raises:
          ClosedError: If the driver has ended.
        """
        if self.closed:
            raise ClosedError(
                "The coordinator is closed; create a new coordinator, and fetch its values before you close it"
            )

    def wake(self) -> None:
        """Schedules `turn` on the loop unless it is already scheduled."""
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self.turn)

    def drop(self, closure: Closure) -> None:
        """Records that no caller has a handle to a closure anymore. Safe in finalizers, because it takes no lock."""
        self._dropped.append(closure)
        self.wake()

    # Events of workers.

    def add(self, worker: "CoordinatedWorker") -> None:
        """Adds a worker."""
        if self.closed:
            worker.close()
            return
        self._workers[worker.state] = worker
        self.tell(self.scheduler.add_worker, worker.state)

    def lose(self, worker: "CoordinatedWorker", error: Exception) -> None:
        """Removes a lost worker."""
        if self._workers.pop(worker.state, None) is None:
            return
        error = without_own_frames(error)
        with self.lock:
            self.scheduler.lose_worker(worker.state, error, at_work=_ended_at_work(error))
        worker.close()
        if not self.closed:
            self._replace(worker, error)
        self.turn()

    def tell(self, event: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Reports an event to the scheduler, and runs the actions that follow."""
        with self.lock:
            event(*args, **kwargs)
        self.turn()

    # Actions.

    def turn(self, own: WorkerState | None = None) -> Sequence[Closure]:
        """Runs the actions that the scheduler has decided on.

        Args:
          own: The worker whose closures the caller runs itself, if any.

        Returns:
          The closures to run on `own`.
        """
        self._woken = False
        with self.lock:
            while self._dropped:
                closure = self._dropped.popleft()
                for state in self.scheduler.drop(closure):
                    if (worker := self._workers.get(state)) is not None:
                        worker.stop_fetching(closure)
            actions = self.scheduler.actions()
            woken = [future for future, condition in self._waiting.items() if condition()]
        for future in woken:
            if not future.done():
                future.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        follow: Sequence[Closure] = ()
        for action in actions:
            if isinstance(action, RunClosures) and action.worker is own:
                follow = action.closures
            else:
                self._perform(action)
        return follow

    def _perform(self, action: Action) -> None:
        match action:
            case Notify(callbacks):
                for callback in callbacks:
                    callback()
            case RunClosures(worker, closures):
                self._workers[worker].run(closures)
            case Stop(worker, closures):
                self._workers[worker].stop(closures)
            case Fetch(worker, closures):
                self._workers[worker].fetch(closures)
            case Leave(worker):
                reason = f"The worker at {worker.name} is stopping; its values have been fetched to this process"
                self.lose(self._workers[worker], WorkerUnavailableError(reason))
            case Search():
                if self._search is None and not self.closed:
                    self._search = start_apart(self._look())
            case AskAgain(seconds):
                self._timer = asyncio.get_running_loop().call_later(seconds, self.turn)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Starts a task that is cancelled when this driver ends."""
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(consume_exception)
        return task

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition on the scheduler holds or the driver has ended."""
        with self.lock:
            if self.closed or condition():
                return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = lambda: self.closed or condition()
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    async def changed(self, closure: Closure) -> None:
        """Waits until a closure has ended, or until fetching its value has succeeded or failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def callback() -> None:
            if not future.done():
                future.set_result(None)

        closure.callbacks[callback] = None
        try:
            await future
        finally:
            closure.callbacks.pop(callback, None)

    async def payload_of(self, closure: Closure) -> object:
        """Returns the payload of a closure's value. Rebuilds the value if it was lost. Keeps no copy of the payload.

        Raises:
          Exception: The error that the closure raised.
          ClosureCancelledError: If the closure was cancelled.
        """
        # Mark the value as used. Otherwise, if its last user has ended, it would be dropped as soon as it is rebuilt.
        self.tell(self.scheduler.use, closure)
        try:
            while True:
                while not closure.has_ended:
                    await self.changed(closure)
                if closure.copy is not None:
                    return closure.copy[0]
                if closure.error is not None:
                    raise raised_again(closure.error)
                self.check_open()
                for state, handle in list(closure.held.items()):
                    if (worker := self._workers.get(state)) is None:
                        continue
                    try:
                        return await handle.payload()
                    except RetryableError as error:
                        self.lose(worker, error)
                    except Exception:
                        if not state.lost:  # ignore errors of lost workers, since another worker may have the value
                            raise
                self.tell(self.scheduler.need, closure)
                await let_others_run()  # so that many attempts in a row never block the loop
        finally:
            self.tell(self.scheduler.unuse, closure)

    async def _look(self) -> None:
        """Waits until a worker is available. Fails all closures if waiting any longer is pointless."""
        try:
            async for _ in Deadline().attempts(itertools.repeat(0.01)):
                if self._workers or self.closed:  # it may take a moment until a ready worker is added
                    break
                await self._worker_there()
        except FedstackError as error:
            self.tell(self.scheduler.gave_up, without_own_frames(error))
        finally:
            self._search = None
            self.wake()  # the new worker may already be lost, so that the scheduler has to search again

    async def end(self) -> None:
        """Cancels all remaining work and ends all workers. Idempotent; never raises."""
        if self.closed:
            return
        self.closed = True
        self.tell(self.scheduler.end)
        workers = list(self._workers.values())
        self._workers.clear()
        tasks = [*self._tasks, *([] if self._search is None else [self._search])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        for worker in workers:
            worker.close()
        await self._end_workers()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._workers)} workers, {self.scheduler.unfinished} closures>"


def _ended_at_work(error: Exception) -> bool:
    """Returns whether a lost worker may have been crashed by the work that it was running.

    Returns `False` if the server was restarted before the work began, or if no call reached the worker.
    """
    if isinstance(error, StaleSessionError):
        return False
    return not (isinstance(error, FedstackError) and never_arrived(error))

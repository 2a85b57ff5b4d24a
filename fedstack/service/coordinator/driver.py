"""Does what a scheduler decides, and tells it what happens.

The scheduler is asked under a lock, by callers on any thread (`scheduled_calls.py`), by workers, and by whatever adds
and loses these. What follows comes out of it as actions, which are done in turns on the loop, most of them by a worker.
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
    Run,
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
    """Does what the scheduler of one coordinator decides, on a loop.

    Args:
      scheduler: Decides.
      loop: Where everything runs.

    Attributes:
      scheduler: As above; to be asked while `lock` is held.
      lock: Is held while the scheduler is asked.
      loop: As above.
      closed: Whether nothing runs any more.
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
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, unlike a set
        self._search: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abc.abstractmethod
    async def _worker_there(self) -> None:
        """Returns when there may be a worker soon; raises when it is no use to wait any longer."""

    @abc.abstractmethod
    def _replace(self, worker: "CoordinatedWorker", error: Exception) -> None:
        """Adds another worker for one that is lost, when it is there again."""

    @abc.abstractmethod
    async def _end_workers(self) -> None:
        """Ends what workers need."""

    # For callers on any thread.

    def check_open(self) -> None:
        """Checks that closures can still run.

        Raises:
          ClosedError: After the end.
        """
        if self.closed:
            raise ClosedError(
                "The coordinator is closed; make a new one, and fetch values before the end of the old one"
            )

    def wake(self) -> None:
        """Has `turn` called soon."""
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self.turn)

    def drop(self, closure: Closure) -> None:
        """Notes that no caller has a handle to a closure any more. Safe in finalizers: it takes no lock."""
        self._dropped.append(closure)
        self.wake()

    # What happens at workers.

    def add(self, worker: "CoordinatedWorker") -> None:
        """There is another worker."""
        if self.closed:
            worker.close()
            return
        self._workers[worker.state] = worker
        self.tell(self.scheduler.add_worker, worker.state)

    def lose(self, worker: "CoordinatedWorker", error: Exception) -> None:
        """A worker is gone."""
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
        """Lets an event happen at the scheduler, and does what follows from it."""
        with self.lock:
            event(*args, **kwargs)
        self.turn()

    # What follows from it.

    def turn(self, own: WorkerState | None = None) -> Sequence[Closure]:
        """Does what the scheduler has decided after events.

        Args:
          own: Where the caller itself runs what is to run there.

        Returns:
          That.
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
            if isinstance(action, Run) and action.worker is own:
                follow = action.closures
            else:
                self._perform(action)
        return follow

    def _perform(self, action: Action) -> None:
        match action:
            case Notify(callbacks):
                for callback in callbacks:
                    callback()
            case Run(worker, closures):
                self._workers[worker].run(closures)
            case Stop(worker, closures):
                self._workers[worker].stop(closures)
            case Fetch(worker, closures):
                self._workers[worker].fetch(closures)
            case Leave(worker):
                reason = f"The worker at {worker.name} is stopping; what it had made is here"
                self.lose(self._workers[worker], WorkerUnavailableError(reason))
            case Search():
                if self._search is None and not self.closed:
                    self._search = start_apart(self._look())
            case AskAgain(seconds):
                self._timer = asyncio.get_running_loop().call_later(seconds, self.turn)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Starts something that ends with this, at the latest."""
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(consume_exception)
        return task

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when something is true of the scheduler, or nothing runs any more."""
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
        """Returns when a closure has ended, or its value was brought here or could not be."""
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
        """Returns the payload of a closure's value, which is rebuilt if it was lost. It does not stay here.

        Raises:
          Exception: What the closure has raised.
          ClosureCancelledError: If it was cancelled.
        """
        # In use meanwhile: a value that is rebuilt for this would be dropped as it comes, if its last user has ended.
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
                        if not state.lost:  # else what it says does not count, and there may be another
                            raise
                self.tell(self.scheduler.need, closure)
                await let_others_run()  # whatever comes of it
        finally:
            self.tell(self.scheduler.unuse, closure)

    async def _look(self) -> None:
        """Waits for a worker, for closures that have none."""
        try:
            async for _ in Deadline().attempts(itertools.repeat(0.01)):
                if self._workers or self.closed:  # one that is there is added in a moment
                    break
                await self._worker_there()
        except FedstackError as error:
            self.tell(self.scheduler.gave_up, without_own_frames(error))
        finally:
            self._search = None
            self.wake()  # there may be no worker again

    async def end(self) -> None:
        """Cancels what is left to do, and ends all workers. Idempotent; never raises."""
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
    """Returns whether a worker may have been ended by what it ran: it was there when that began."""
    if isinstance(error, StaleSessionError):
        return False
    return not (isinstance(error, FedstackError) and never_arrived(error))

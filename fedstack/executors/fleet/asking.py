"""Finds out whether workers are there: all that a fleet asks of stubs and their connections."""

import asyncio
import contextvars
import math
import weakref
from collections.abc import Callable, Sequence

import attrs

from fedstack.errors import FedstackError
from fedstack.executors.fleet.fleet import FIRST_PAUSE, LONGEST_PAUSE, Fleet
from fedstack.executors.fleet.worker import Features, State, Worker
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import IoLoop, start_apart

# How long it may take to find out whether a worker that was away listens now.
_LOOK_SECONDS = 0.5
# How often to look for losses as long as there are observers.
_WATCH_SECONDS = 0.1


@attrs.frozen
class Loss:
    """What is known of a worker that is away.

    Attributes:
      error: The error to raise for it.
      for_good: Whether it does not come back.
    """

    error: FedstackError
    for_good: bool


class Asker:
    """Asks the workers of a fleet if they are there, when the fleet says so. Used on the transport's loop.

    Args:
      fleet: The workers. It hears what they answer.
      io: The transport's loop.
      go_on: A method to call when it has heard something, or it is time to look or to ask again; it calls `step`.
        Asking ends once the object of that method is gone.
    """

    def __init__(self, fleet: Fleet, io: IoLoop, go_on: Callable[[], None]) -> None:
        self._fleet = fleet
        self._go_on = weakref.WeakMethod(go_on)
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looked = -math.inf
        weakref.finalize(self, _abandon, self._tasks, io).atexit = False

    def step(self, *, watches: bool = False) -> None:
        """Asks the workers that are due, and stops asking those that need not be asked any more.

        Args:
          watches: Whether to look for losses now and then though no worker is to be asked.
        """
        if watches and self._seconds_to_look() <= 0:
            self.look()
        for worker in self._fleet.take_at_rest():
            if (task := self._tasks.pop(worker, None)) is not None:
                task.cancel()
        for worker in self._fleet.due():
            self._tasks[worker] = start_apart(_ask(worker, weakref.WeakMethod(self.heard)))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._fleet.seconds_to_due()
        if watches:
            seconds = min(self._seconds_to_look(), math.inf if seconds is None else seconds)
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, _call, self._go_on, context=contextvars.Context())

    def _seconds_to_look(self) -> float:
        return self._looked + _WATCH_SECONDS - self._fleet.clock()

    def look(self) -> None:
        """Finds out, without asking them, which workers are known to have ended; this takes time for each of them."""
        self._looked = self._fleet.clock()
        for worker in self._fleet.workers:
            loss = loss_of(worker)
            # Of one that was found again this may be old; its answer will tell.
            if loss is not None and (loss.for_good or worker.state is not State.BACK):
                self._fleet.lost(worker, loss.error, for_good=loss.for_good)

    def heard(self, worker: Worker, answer: Features | Exception) -> None:
        """A worker that was being asked has answered or failed; called by the task that has asked it."""
        if self._tasks.get(worker) is not asyncio.current_task():
            return  # cancelled, and what it awaited ended at the same time
        del self._tasks[worker]
        loss = loss_of(worker)
        if isinstance(answer, Features):
            self._fleet.answered(worker, answer)
        elif loss is not None and loss.for_good:
            self._fleet.lost(worker, loss.error, for_good=True)
        else:
            self._fleet.failed(worker, answer if loss is None else loss.error)
        _call(self._go_on)

    async def end(self) -> None:
        """Stops asking, and returns once that is done. The fleet is closed before."""
        tasks = list(self._tasks.values())
        self.step()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(worker: Worker, heard: "weakref.WeakMethod[Callable[[Worker, Features | Exception], None]]") -> None:
    """Asks a worker whether it is there. This refers to that worker only, and so keeps nothing else alive."""
    answer: Features | Exception
    try:
        answer = await _answer_of(worker)
    except Exception as error:
        answer = error.with_traceback(None)  # its frames would be kept as long as the worker is away
    hear = heard()
    if hear is not None:
        hear(worker, answer)


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    """Calls a method of something if that is still there."""
    found = method()
    if found is not None:
        found()


def _abandon(tasks: dict[Worker, "asyncio.Task[None]"], io: IoLoop) -> None:
    """Asks no more for a fleet that is gone; a finalizer."""

    def end() -> None:
        for task in tasks.values():
            task.cancel()

    io.call_soon(end)


def worker_of(stub: ExecutorStub, *, supervised: bool) -> Worker:
    """Returns a worker that a stub calls."""
    return Worker(stub, supervised, can_look=stub.connection.can_look)


async def _answer_of(worker: Worker) -> Features:
    """Returns what a worker says of itself, once it can be reached.

    Raises:
      FedstackError: If it cannot be, or is of no use.
    """
    while True:
        await worker.stub.connection.wait_ready(LONGEST_PAUSE)
        peer = await worker.stub.handshake()
        loss = loss_of(worker)
        if loss is None:
            break
        if loss.for_good:
            raise loss.error
        await asyncio.sleep(FIRST_PAUSE)  # it was started anew, which is not known everywhere yet
    if peer is None:
        return Features()
    searches = peer.isolates and not peer.same_process
    return Features(peer.phases, searches=searches, threads=peer.threads or None)


def loss_of(worker: Worker) -> Loss | None:
    """Returns what is known of a worker's end without asking it; `None` if nothing is."""
    error = worker.stub.loss()
    return None if error is None else Loss(error, worker.stub.is_gone)


async def listening(workers: Sequence[Worker]) -> list[Worker]:
    """Returns those of some workers that can be reached now, whatever was so before."""
    found = await asyncio.gather(*(worker.stub.connection.look(_LOOK_SECONDS) for worker in workers))
    return [worker for worker, listens in zip(workers, found) if listens]

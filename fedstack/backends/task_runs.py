"""Runs the clients of one worker as a series of tasks, for engines whose tasks have a single answer.

What has been handed in after a task is not lost with the worker, and clients whose tasks have not been queued can move
to other workers. A task costs some time of its own, so tasks are made from the measured time of clients: each takes at
least fifty times as long as it costs. A function that has not been measured runs in one task per worker.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

import attrs

from fedstack.computations.plan.program import Program
from fedstack.errors import FedstackError
from fedstack.executors.base.hand_ins import (
    END,
    SECONDS_PER_BYTE,
    Contribution,
    HandIn,
    Headway,
    estimated_rate,
    kept_until,
)
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.composing_executor import LOSSES
from fedstack.executors.concurrency.coroutines import end_all
from fedstack.foundations.caches import made_once

# The next task is queued at the engine while a task runs.
_QUEUED = 2
_TIMES_ITS_COST = 50
# A task has this many times as many clients as a worker runs at the same time, so that its last clients run together.
_TIMES_AT_ONCE = 4


@attrs.define(eq=False)
class TaskPace:
    """The measured speed of a program in tasks, of which the last measurement counts.

    Attributes:
      seconds: The time of a task divided by its number of clients, in seconds; `None` before the first measurement.
      at_once: The number of clients that a worker has run at the same time.
      result_bytes: The size of the result of a task, in bytes.
    """

    seconds: float | None = None
    at_once: int = 1
    result_bytes: int = 0

    def note(self, clients: int, seconds: float, at_once: int) -> None:
        """Records how long a task has run."""
        if clients:
            self.seconds, self.at_once = max(seconds / clients, 1e-9), max(1, at_once)

    def clients_per_task(self, left: int, cost: float) -> int:
        """Returns the number of clients of the next task.

        Args:
          left: The number of clients that are left.
          cost: The time that a task costs in addition to the time to send its result, in seconds.
        """
        if self.seconds is None:
            return left
        cost += self.result_bytes * SECONDS_PER_BYTE
        least = max(math.ceil(_TIMES_ITS_COST * cost / self.seconds), _TIMES_AT_ONCE * self.at_once)
        return left if left < 2 * least else least


@made_once
def task_pace_of(program: Program) -> TaskPace:
    """Returns the pace of a program, which all phases that run the program share."""
    return TaskPace()


class TaskRun:
    """One series of tasks.

    Args:
      run: Runs a task for some clients.
      pace: The pace of the clients.
      clients: The clients of the worker.
      hand_in: Receives the results of all tasks but the last.
      cost: The time that a task costs, in seconds.
    """

    def __init__(
        self,
        run: Callable[[range], Awaitable[PhaseResult]],
        pace: TaskPace,
        clients: range,
        hand_in: HandIn,
        cost: float,
    ) -> None:
        self._run = run
        self._pace = pace
        self._hand_in = hand_in
        self._cost = cost
        self._next = clients.start
        self._stop = clients.stop
        self._done = 0
        self._begun = time.monotonic()
        self._tasks: dict[asyncio.Task[PhaseResult], range] = {}

    async def run(self) -> Contribution:
        """Runs all tasks, and returns the contribution of the last one that ends.

        Raises:
          FedstackError: If a task fails. If several clients fail, the error is that of the first.
        """
        self._hand_in.begun(self.leave)
        try:
            while True:
                self._queue()
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task, part in [(task, part) for task, part in self._tasks.items() if task.done()]:
                    await self._raise_first(task, part)
                    del self._tasks[task]
                    self._done += len(part)
                    if not self._tasks and self._next >= self._stop:
                        return part, task.result()
                    self._hand_in.take(part, task.result())
        except BaseException as error:
            await end_all(list(self._tasks), error)
            raise
        finally:
            self._tasks.clear()

    async def leave(self, rate: float) -> Headway | None:
        """Leaves clients whose tasks have not been queued to another worker; see `Leave`."""
        if rate == END:
            return None  # a task that runs cannot be asked what it has finished
        if rate > 0:
            running = sum(map(len, self._tasks.values()))
            own = estimated_rate(self._done, running, time.monotonic() - self._begun, rate)
            self._stop = kept_until(range(self._next, self._stop), running, own, rate)
        return Headway(self._stop, self._done)

    def _queue(self) -> None:
        """Queues tasks while clients are left."""
        while self._next < self._stop and len(self._tasks) < _QUEUED:
            left = self._stop - self._next
            part = range(self._next, self._next + self._pace.clients_per_task(left, self._cost))
            self._next = part.stop
            self._hand_in.reached(part.stop)
            self._tasks[asyncio.ensure_future(self._run(part))] = part

    async def _raise_first(self, failed: "asyncio.Task[PhaseResult]", part: range) -> None:
        """Raises the error of a task, or that of a task with earlier clients, which may still be running."""
        error = failed.exception()
        if error is None:
            return
        if isinstance(error, FedstackError) and not isinstance(error, LOSSES):
            for task, other in list(self._tasks.items()):
                if other.start < part.start:
                    del self._tasks[task]
                    self._hand_in.take(other, await task)
        raise error

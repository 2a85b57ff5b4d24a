"""An engine in this process: threads run tasks, and a test says what happens to them."""

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import fedstack
from fedstack.backends.backend import Backend
from fedstack.backends.backend_executor import BackendExecutorFactory
from fedstack.backends.task_phases import Task
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import NoWorkersError


class ThreadBackend(Backend):
    """Runs tasks on threads, from bytes to bytes.

    A worker runs all of its clients in one task, because tests count tasks: on a busy machine, more would pay.

    Args:
      workers: How many there are.
      before: Called before each task with its place, how many tasks came before it, and the task.
    """

    task_seconds = 1e6

    def __init__(self, workers: int, before: Callable[[str, int, Task], None] = lambda *_: None) -> None:
        self.workers = [f"thread {index}" for index in range(workers)]
        self.tasks: list[Task] = []
        self.shared: list[list[np.ndarray]] = []
        self.is_closed = False
        self._before = before
        self._threads = ThreadPoolExecutor(max(1, workers))

    async def places(self) -> list[str]:
        if not self.workers:
            raise NoWorkersError("No thread is left")
        return list(self.workers)

    async def run(self, place, task, heard):
        self.tasks.append(task)
        self._before(place, len(self.tasks) - 1, task)
        sent = pickle.dumps((task.function, task.arguments))
        return await asyncio.wrap_future(self._threads.submit(_called, sent))

    async def share(self, arrays):
        self.shared.append(arrays)
        return arrays

    def close(self) -> None:
        self._threads.shutdown()
        self.is_closed = True


def _called(sent: bytes) -> object:
    function, arguments = pickle.loads(sent)
    return pickle.loads(pickle.dumps(function(*arguments)))


def context_over(backend: Backend, **options) -> SyncExecutionContext:
    """Returns a context that does not wait long between attempts."""
    policy = fedstack.RetryPolicy(attempts=4, first_pause=0.01)
    return SyncExecutionContext(BackendExecutorFactory(backend, **options), retry_policy=policy)

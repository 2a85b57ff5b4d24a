"""Runs tasks in a pool of processes that the user has: any executor of `concurrent.futures`."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from fedstack.backends.backend import Backend, Task
from fedstack.transport.peers.loop_calls import arrival
from fedstack.transport.wire.frames import Heartbeat


class PoolBackend(Backend):
    """A pool of workers that take whatever is next: a place is a share of them, and no worker in particular."""

    def __init__(self, executor: Executor, num_workers: int | None = None) -> None:
        self._executor = executor
        self._num_workers = num_workers

    async def places(self) -> Sequence[str]:
        count = self._num_workers or 1
        return [f"worker {index + 1} of {count}" for index in range(count)]

    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        future: Future[object] = self._executor.submit(task.function, *task.arguments)
        try:
            await arrival(future)
        except BaseException:
            future.cancel()
            raise
        return future.result()

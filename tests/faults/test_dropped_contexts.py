"""Contexts and executors that are dropped without `close()`: nothing of them is left, here or at the worker."""

import asyncio
import gc
import socket
import threading
from collections.abc import Callable

import numpy as np
import psutil
import pytest
from fault_leaves import FLOATS, doubled_sum, failing_sum
from fault_stacks import eventually, status_of, stub_to
from processes import WALL, Fleet, WorkerProcess

import fedstack
from fedstack.errors import LeafError
from fedstack.executors import RemoteExecutor
from fedstack.transport.peers.io_loop import io_loop

pytestmark = pytest.mark.slow

MANY = 50
A_FEW = 5  # a context waits a second for a worker that is away


def sync_context(*targets: str) -> None:
    with fedstack.use_context(fedstack.create_sync_remote_execution_context(targets)):
        assert doubled_sum([1, 2, 3]) == 12


def async_context(*targets: str) -> None:
    async def run() -> None:
        with fedstack.use_context(fedstack.create_async_remote_execution_context(targets)):
            assert await doubled_sum([1, 2, 3]) == 12

    asyncio.run(run())


def context_that_is_never_used(*targets: str) -> None:
    fedstack.create_sync_remote_execution_context(targets)


def context_whose_call_fails(*targets: str) -> None:
    with fedstack.use_context(fedstack.create_sync_remote_execution_context(targets)):
        with pytest.raises(LeafError):
            failing_sum([1, 2, 3])


def executor(*targets: str) -> None:
    async def run() -> None:
        remote = RemoteExecutor(stub_to(targets[0]))
        remote.set_cardinalities({})
        value = await remote.create_value(np.zeros(100_000, np.float32), FLOATS)
        assert np.shape(await value.compute()) == (100_000,)

    asyncio.run(run())


def executor_without_extensions(*targets: str) -> None:
    async def run() -> None:
        remote = RemoteExecutor(stub_to(targets[0], extensions=False))
        remote.set_cardinalities({})
        assert await (await remote.create_value(np.int32(3), np.int32)).compute() == 3

    asyncio.run(run())


def tasks() -> int:
    """Counts what goes on on the transport's loop."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return io_loop.run_sync(count(), WALL)


def what_is_there() -> tuple[int, int, int]:
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds(), tasks()


@pytest.mark.long
@pytest.mark.parametrize(
    "use",
    [
        sync_context,
        async_context,
        context_that_is_never_used,
        context_whose_call_fails,
        executor,
        executor_without_extensions,
    ],
)
@pytest.mark.parametrize("count_away", [0, 1], ids=["", "one worker is away"])
def test_many_that_are_dropped_leave_nothing_behind(fleet: Fleet, use: Callable[..., None], count_away: int) -> None:
    worker = fleet.start()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        targets = [worker.target, *[f"127.0.0.1:{nobody.getsockname()[1]}"] * count_away]
        use(*targets)  # what is made once in a process stays
        nobody_is_left(worker)
        before = what_is_there()
        for _ in range(A_FEW if count_away else MANY):
            use(*targets)
        nobody_is_left(worker)
        eventually(lambda: all(now <= then for now, then in zip(what_is_there(), before)))


def nobody_is_left(worker: WorkerProcess) -> None:
    """Returns when the worker has no sessions, and nobody here looks after any."""

    def look() -> bool:
        gc.collect()
        return not status_of(worker.target).session and not tasks()

    eventually(look)

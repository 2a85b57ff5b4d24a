"""Workers whose system starts no more threads, and clients that cancel work which does not end."""

import asyncio
import sys
from typing import Any

import numpy as np
import pytest
from fault_leaves import FLOATS, allow_threads, double, visit
from fault_stacks import Door, executor_at, status_of
from processes import WALL, Fleet
from test_cancelled_work import VISITOR, cancel, until

from fedstack.errors import ResourceLimitError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor

LOADING_THREADS = 4


async def called(executor: RemoteExecutor, function: Any, argument: object, type_spec: object) -> Any:
    """Returns a call of a function that the executor has, which nobody has computed yet."""
    return await executor.create_call(function, await executor.create_value(argument, type_spec))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of threads")
async def test_a_worker_without_room_for_threads_is_unavailable_until_there_is_room(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    with executor_at(worker.target) as executor:
        allow, wait = await executor.create_value(allow_threads), await executor.create_value(visit)
        asked = await called(executor, allow, np.int32(0), np.int32)
        assert await asyncio.wait_for(asked.compute(), WALL) == 0
        # The only thread that the functions have waits, and is given up.
        stuck = asyncio.ensure_future((await called(executor, wait, (door.port, 0.5), VISITOR)).compute())
        await until(lambda: len(door.visitors) == 1, stuck)
        await cancel(stuck)
        for _ in range(4):
            refused = await called(executor, allow, np.int32(0), np.int32)
            with pytest.raises(WorkerUnavailableError, match="start another thread.*try again, or use another worker"):
                await asyncio.wait_for(refused.compute(), WALL)
        await until(lambda: status_of(worker.target).running == 0)
        # It comes back, and does what is still to be done, although it is the only one.
        door.open()
        await until(lambda: status_of(worker.target).abandoned_threads == 0)
        many = [await called(executor, wait, (door.port, 0.5), VISITOR) for _ in range(3)]
        assert len(await asyncio.wait_for(asyncio.gather(*(one.compute() for one in many)), WALL)) == 3
        asked = await called(executor, allow, np.int32(1), np.int32)
        assert await asyncio.wait_for(asked.compute(), WALL) == 1
        assert status_of(worker.target).threads >= 1


async def test_a_client_that_cancels_what_does_not_end_gets_no_more_threads_than_the_limit_says(
    fleet: Fleet, door: Door
) -> None:
    worker = fleet.start(threads=2, max_abandoned=3)
    with executor_at(worker.target) as executor, executor_at(worker.target) as other:
        wait, add = await executor.create_value(visit), await other.create_value(double)
        for number in range(12):
            call = asyncio.ensure_future((await called(executor, wait, (door.port, 0.5), VISITOR)).compute())
            if number < 5:
                await until(lambda number=number: len(door.visitors) == number + 1, call)
                await cancel(call)
                await until(lambda number=number: status_of(worker.target).abandoned_threads == number + 1)
            else:
                with pytest.raises(ResourceLimitError, match="at most 3 tasks .*, found 5; .* --max-abandoned"):
                    await asyncio.wait_for(call, WALL)
        await until(lambda: status_of(worker.target).running == 0)
        found = status_of(worker.target)
        assert (found.busy_threads, found.abandoned_threads) == (5, 5)
        # Others are told so too, and what needs no thread goes on.
        kept = await other.create_value(np.ones(100_000, np.float32), FLOATS)
        assert len(await kept.compute()) == 100_000
        with pytest.raises(ResourceLimitError, match="--max-abandoned"):
            await asyncio.wait_for((await called(other, add, np.int32(4), np.int32)).compute(), WALL)
        door.open()
        await until(lambda: status_of(worker.target).abandoned_threads == 0)
        assert await asyncio.wait_for((await called(other, add, np.int32(4), np.int32)).compute(), WALL) == 8
    assert len(door.visitors) == 5


async def test_what_was_asked_for_before_the_limit_was_reached_is_not_begun_beyond_it(fleet: Fleet, door: Door) -> None:
    worker = fleet.start(threads=2, max_abandoned=3)
    with executor_at(worker.target) as executor:
        wait = await executor.create_value(visit)
        calls = [
            asyncio.ensure_future((await called(executor, wait, (door.port, 0.5), VISITOR)).compute())
            for _ in range(40)
        ]
        await until(lambda: status_of(worker.target).running == 40)
        for call in calls:
            call.cancel()
            await asyncio.sleep(0.005)
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WALL)
        assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, ResourceLimitError}
        await until(lambda: status_of(worker.target).running == 0)
        assert len(door.visitors) <= 5
        assert status_of(worker.target).threads <= 5 + LOADING_THREADS
        door.open()
        await until(lambda: status_of(worker.target).abandoned_threads == 0)

"""Workers that are started anew at once, on the same port: what they held is gone, and clients find out."""

import asyncio
from typing import Any

import numpy as np
import pytest
from fault_leaves import FLOATS, double, doubled_sum, mean_wobble
from fault_stacks import context_over, eventually, executor_at, locally, status_of
from processes import WALL, Fleet
from tcp_proxy import Proxies

from fedstack.computations.types.language import RetryableError
from fedstack.errors import StaleSessionError, WorkerUnavailableError
from fedstack.transport.peers.io_loop import io_loop


async def beyond_the_broken_connection(work: Any) -> Any:
    """Awaits what `work` returns, again as long as it only finds out that the old connection is gone."""
    while True:
        try:
            return await asyncio.wait_for(work(), WALL)
        except WorkerUnavailableError:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("extensions", [True, False], ids=["fedstack's own peer", "plain peer"])
async def test_values_of_before_are_stale_and_can_be_created_again(fleet: Fleet, extensions) -> None:
    worker = fleet.start(extensions=extensions)
    with executor_at(worker.target) as executor:
        function = await executor.create_value(double)
        argument = await executor.create_value(np.int32(21), np.int32)
        result = await executor.create_call(function, argument)
        pair = await executor.create_struct([argument, result])
        assert await result.compute() == 42
        fleet.restart(worker, extensions=extensions)
        uses = [
            result.compute,
            lambda: executor.create_call(function, argument),
            lambda: executor.create_struct([argument, result]),
            lambda: executor.create_selection(pair, 0),
        ]
        for use in uses:
            with pytest.raises(StaleSessionError, match="again") as caught:
                await beyond_the_broken_connection(use)
            assert isinstance(caught.value, RetryableError)
        again = await beyond_the_broken_connection(lambda: executor.create_value(double))
        result = await executor.create_call(again, await executor.create_value(np.int32(4), np.int32))
        assert await result.compute() == 8


@pytest.mark.parametrize("extensions", [True, False], ids=["fedstack's own peer", "plain peer"])
async def test_an_old_id_is_never_the_id_of_somebody_elses_value(fleet: Fleet, extensions) -> None:
    worker = fleet.start(extensions=extensions)
    with executor_at(worker.target) as executor, executor_at(worker.target) as other:
        old = [await executor.create_value(np.float32(number), np.float32) for number in range(20)]
        assert [await value.compute() for value in old] == [float(number) for number in range(20)]
        fleet.restart(worker, extensions=extensions)
        new = await beyond_the_broken_connection(lambda: other.create_value(np.float32(-1), np.float32))
        new = [await other.create_value(np.float32(-1), np.float32) for _ in range(40)] + [new]
        assert [await value.compute() for value in new] == [-1.0] * 41
        for value in old:
            with pytest.raises(StaleSessionError):
                await value.compute()
        assert await (await executor.create_value(np.float32(5), np.float32)).compute() == 5


async def test_a_call_in_flight_does_not_survive_the_restart(fleet: Fleet, proxies: Proxies) -> None:
    worker = fleet.start()
    proxy = proxies.before(worker.target)
    with executor_at(proxy.target) as executor:
        value = await executor.create_value(np.zeros(1000, np.float32), FLOATS)
        await value.compute()
        is_held = proxy.hold_after("down", 0)
        computing = asyncio.ensure_future(value.compute())
        assert await asyncio.to_thread(is_held.wait, WALL)
        fleet.restart(worker)
        proxy.cut()
        with pytest.raises(WorkerUnavailableError):
            await asyncio.wait_for(computing, WALL)
        with pytest.raises(StaleSessionError):
            await beyond_the_broken_connection(value.compute)


@pytest.mark.long
def test_contexts_do_not_notice_that_workers_were_restarted_between_rounds(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start()]
    numbers = [0.1 * number for number in range(11)]
    expected = locally(mean_wobble, numbers)
    with context_over([worker.target for worker in workers]):
        for _ in range(4):
            assert mean_wobble(numbers).tobytes() == expected.tobytes()
            workers[0] = fleet.restart(workers[0])
            assert mean_wobble(numbers).tobytes() == expected.tobytes()
            workers = [fleet.restart(worker) for worker in workers]


async def test_a_creation_whose_answer_is_lost_is_sent_again_and_is_the_same_creation(
    fleet: Fleet, proxies: Proxies
) -> None:
    worker = fleet.start()
    proxy = proxies.before(worker.target)
    with executor_at(proxy.target) as executor:
        await executor.create_value(double)
        await asyncio.to_thread(eventually, lambda: status_of(worker.target).values == 1)
        is_held = proxy.hold_after("down", 0)
        creating = asyncio.ensure_future(executor.create_value(double))
        await asyncio.to_thread(eventually, lambda: status_of(worker.target).values == 2)
        assert await asyncio.to_thread(is_held.wait, WALL)
        proxy.cut()
        function = await asyncio.wait_for(creating, WALL)
        assert status_of(worker.target).values == 2
        assert _creations(worker.target) == 3
        result = await executor.create_call(function, await executor.create_value(np.int32(4), np.int32))
        assert await result.compute() == 8


def _creations(target: str) -> int:
    return sum(calls.count for calls in status_of(target).calls if calls.method.endswith("/Evaluate"))


async def test_executors_find_out_by_themselves_that_a_session_is_lost(fleet: Fleet) -> None:
    """The renewal of the lease tells, without a call."""
    worker = fleet.start(lease_seconds=2.0)
    with executor_at(worker.target) as executor:
        value = await executor.create_value(np.int32(1), np.int32)
        await value.compute()
        fleet.restart(worker, lease_seconds=2.0)
        await asyncio.to_thread(eventually, lambda: value.session.lost)
        assert "restarted" in value.session.lost
        assert io_loop.run_sync(executor.stub.handshake(), WALL) is not None
        with pytest.raises(StaleSessionError, match="started anew|restarted"):
            await executor.create_selection(value, 0)


def test_a_round_in_the_midst_of_restarts_comes_to_its_end(fleet: Fleet) -> None:
    worker = fleet.start()
    with context_over([worker.target], connect_seconds=WALL):
        for number in range(3):
            worker = fleet.restart(worker)
            assert doubled_sum([number, 1]) == 2 * number + 2

"""Tasks of a cluster that die, freeze and come back at their addresses, and clients that are there first."""

import asyncio
from typing import Any

import numpy as np
import psutil
import pytest
from fault_leaves import double, doubled_sum, mean_wobble
from fault_stacks import Background, eventually, executor_at, locally
from free_ports import free_port
from processes import WALL, Fleet

import fedstack
from fedstack.computations.types.language import CLIENTS, RetryableError
from fedstack.errors import DeadlineExceededError, StaleSessionError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.service import ClusterSpec

NUMBERS = [0.1 * number for number in range(11)]


@pytest.fixture
def cluster() -> dict[str, list[str]]:
    return {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}


def connected(spec: ClusterSpec, index: int, **options: Any) -> RemoteExecutor:
    executor = RemoteExecutor.connect(spec.task_address("worker", index), **options)
    executor.set_cardinalities({CLIENTS: 0})
    return executor


async def test_a_handle_of_a_task_that_was_restarted_at_its_port_is_an_error_and_never_another_value(
    fleet: Fleet, cluster: dict[str, list[str]]
) -> None:
    spec = ClusterSpec(cluster)
    for _ in range(5):
        task = fleet.start_task(cluster, "worker", 0)
        async with connected(spec, 0) as executor, connected(spec, 0) as other:
            old = [await executor.create_value(np.float32(number), np.float32) for number in range(20)]
            assert [await value.compute() for value in old] == [float(number) for number in range(20)]
            task.kill()
            task = fleet.start_task(cluster, "worker", 0)  # within milliseconds: all is imported
            new = [await retried(lambda: other.create_value(np.float32(-1), np.float32)) for _ in old * 2]
            assert {float(await value.compute()) for value in new} == {-1.0}
            for value in old:
                with pytest.raises(RetryableError) as caught:
                    await value.compute()
                assert isinstance(caught.value, (StaleSessionError, WorkerUnavailableError))
            assert await (await retried(lambda: executor.create_value(np.float32(5), np.float32))).compute() == 5
        task.kill()


async def retried(work: Any) -> Any:
    """Awaits what `work` returns, again as long as it only finds out that what was there is gone."""
    while True:
        try:
            return await asyncio.wait_for(work(), WALL)
        except (WorkerUnavailableError, StaleSessionError):
            await asyncio.sleep(0.01)


def test_rounds_go_on_when_a_task_is_killed_and_when_it_is_back(fleet: Fleet, cluster: dict[str, list[str]]) -> None:
    tasks = [fleet.start_task(cluster, "worker", index) for index in range(2)]
    expected = locally(mean_wobble, NUMBERS)
    with fedstack.create_sync_remote_execution_context(ClusterSpec(cluster)):
        assert mean_wobble(NUMBERS).tobytes() == expected.tobytes()
        tasks[1].kill()
        assert mean_wobble(NUMBERS).tobytes() == expected.tobytes()
        tasks[1] = fleet.start_task(cluster, "worker", 1)
        tasks[0].kill()
        assert mean_wobble(NUMBERS).tobytes() == expected.tobytes()


async def test_a_call_at_a_frozen_task_fails_and_the_task_is_used_again_once_it_thaws(
    fleet: Fleet, cluster: dict[str, list[str]]
) -> None:
    task = fleet.start_task(cluster, "worker", 0)
    with executor_at(task.target, control_seconds=1.0) as executor:
        value = await executor.create_value(np.int32(3), np.int32)
        assert await value.compute() == 3
        task.stop()
        with pytest.raises((DeadlineExceededError, WorkerUnavailableError)):
            await asyncio.wait_for(value.compute(), WALL)
        task.wake()
        assert await retried(value.compute) == 3


def test_a_client_that_is_there_first_waits_for_its_cluster(fleet: Fleet, cluster: dict[str, list[str]]) -> None:
    def first() -> Any:
        with fedstack.create_sync_remote_execution_context(ClusterSpec(cluster), connect_seconds=WALL):
            return doubled_sum([1, 2, 3])

    waiting = Background(first)
    fleet.start_task(cluster, "worker", 1)  # one of two is enough
    assert waiting.result() == 12


async def test_an_executor_that_is_there_first_waits_for_its_task(fleet: Fleet, cluster: dict[str, list[str]]) -> None:
    executor = connected(ClusterSpec(cluster), 0, connect_seconds=WALL)
    creating = asyncio.ensure_future(executor.create_value(double))
    await asyncio.sleep(0)
    await asyncio.to_thread(fleet.start_task, cluster, "worker", 0)
    called = await executor.create_call(await creating, await executor.create_value(np.int32(4), np.int32))
    assert await called.compute() == 8
    executor.close()


def test_a_client_of_a_cluster_that_stays_away_is_told_so(cluster: dict[str, list[str]]) -> None:
    with fedstack.create_sync_remote_execution_context(ClusterSpec(cluster), connect_seconds=0.2):
        with pytest.raises(WorkerUnavailableError) as caught:
            doubled_sum([1, 2, 3])
    assert all(address in str(caught.value) for address in cluster["worker"])


def test_the_end_of_a_forked_child_leaves_the_server_to_its_parent(fleet: Fleet) -> None:
    in_child, in_parent, result = fleet.start_client("fork_beside_server").listen()["answer"]
    assert in_child == "<Server of task 0 of job 'worker', stopped>"
    assert in_parent.startswith("<Server of task 0 of job 'worker', at grpc://127.0.0.1:")
    assert float(result) == float(locally(mean_wobble, [0.1, 0.2, 0.3]))


@pytest.mark.long
def test_two_hundred_clients_leave_nothing_behind(fleet: Fleet, cluster: dict[str, list[str]]) -> None:
    task = fleet.start_task(cluster, "worker", 0)
    processes = psutil.Process(), psutil.Process(task.pid)

    async def come_and_go() -> None:
        async with connected(ClusterSpec(cluster), 0) as executor:
            assert await (await executor.create_value(np.int32(3), np.int32)).compute() == 3

    async def many(count: int) -> None:
        for _ in range(count // 20):
            await asyncio.gather(*(come_and_go() for _ in range(20)))

    def held() -> list[int]:
        return [count for process in processes for count in (process.num_fds(), process.num_threads())]

    asyncio.run(asyncio.wait_for(many(40), WALL))  # what there is one of for all
    before = held()
    asyncio.run(asyncio.wait_for(many(200), WALL))
    eventually(lambda: all(now <= then + 5 for now, then in zip(held(), before)))

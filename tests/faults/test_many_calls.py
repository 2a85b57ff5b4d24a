"""Very many calls at once, and clients that are killed one after the other for a minute."""

import asyncio
import time
from collections import Counter

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import MODEL, double, mean_wobble
from fault_stacks import Background, context_over, eventually, executor_at, locally, status_of
from processes import Fleet
from tcp_proxy import Proxies

from fedstack.computations.types.language import ExecutorValue
from fedstack.errors import DeadlineExceededError, WorkerUnavailableError

NUMBERS = [0.1 * number for number in range(9)]


@pytest.mark.long
@pytest.mark.parametrize("times", [20, pytest.param(100, marks=pytest.mark.soak)])
async def test_thousands_of_calls_at_once_through_one_executor_are_all_right(fleet: Fleet, times: int) -> None:
    worker = fleet.start(heartbeat_seconds=5.0)
    with executor_at(worker.target, control_seconds=60.0) as executor:
        values = [await executor.create_value(np.int32(number), np.int32) for number in range(100)]
        calls = [value.compute() for _ in range(times) for value in values]
        results = await asyncio.wait_for(asyncio.gather(*calls), 100)
        assert results == [*range(100)] * times
        ends = Counter({calls.method: calls.count for calls in status_of(worker.target).calls if calls.code == "OK"})
        others = [calls.code for calls in status_of(worker.target).calls if calls.code != "OK"]
    assert ends["fedstack.v1.ExecutorExtensions/Evaluate"] == 100 * times
    assert others == []


@pytest.mark.long
@pytest.mark.parametrize("extensions", [True, False], ids=["fedstack's own peer", "plain peer"])
async def test_very_many_values_are_created_called_and_computed_side_by_side(fleet: Fleet, extensions) -> None:
    worker = fleet.start(heartbeat_seconds=5.0)
    many = 1500 if extensions else 500
    with executor_at(worker.target, control_seconds=60.0, extensions=extensions) as executor:
        function = await executor.create_value(double)

        async def create(number: int) -> ExecutorValue:
            argument = await executor.create_value(np.int32(number), np.int32)
            return await executor.create_call(function, argument)

        values = await asyncio.wait_for(asyncio.gather(*map(create, range(many))), 100)
        results = await asyncio.wait_for(asyncio.gather(*[value.compute() for value in values]), 100)
        assert results == [2 * number for number in range(many)]
        calls = status_of(worker.target).calls
    assert {call.code for call in calls} == {"OK"}
    if extensions:
        # The function goes out in a call of its own; beyond a thousand, so does what is kept back.
        evaluations = sum(call.count for call in calls if call.method.endswith("/Evaluate"))
        assert many + 2 <= evaluations <= many + 6


@pytest.mark.slow
def test_many_contexts_and_threads_share_a_worker(fleet: Fleet) -> None:
    worker = fleet.start(heartbeat_seconds=5.0)
    expected = locally(mean_wobble, NUMBERS)

    def rounds() -> bool:
        with context_over([worker.target], control_seconds=60.0):
            return all(mean_wobble(NUMBERS) == expected for _ in range(10))

    running = [Background(rounds) for _ in range(20)]
    assert all(work.result(100) for work in running)
    eventually(lambda: not status_of(worker.target).session)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_client_killed_every_second_for_a_minute_disturbs_nobody(fleet: Fleet, caplog) -> None:
    worker = fleet.start(lease_seconds=3.0)
    expected = locally(mean_wobble, NUMBERS)
    most_sessions = 0
    with context_over([worker.target]):
        for _ in range(60):
            begun = time.monotonic()
            client = fleet.start_client("run_rounds", target=worker.target)
            assert client.listen() == {"told": "round"}
            while time.monotonic() - begun < 1.0:
                assert mean_wobble(NUMBERS) == expected
            client.kill()
            most_sessions = max(most_sessions, len(status_of(worker.target).session))
        eventually(lambda: len(status_of(worker.target).session) == 1, 10)
        status = status_of(worker.target)
        assert (status.values, status.bytes, status.running) == (0, 0, 0)
        assert mean_wobble(NUMBERS) == expected
    assert most_sessions <= 8  # those whose leases have not run out yet, and ours
    assert caplog.records == []


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_worker_killed_every_second_for_a_minute_costs_no_round(fleet: Fleet) -> None:
    workers = [fleet.start(heartbeat_seconds=5.0), fleet.start()]
    expected = locally(mean_wobble, NUMBERS)
    rounds = 0
    with context_over([worker.target for worker in workers], connect_seconds=20.0):
        for number in range(60):
            begun = time.monotonic()
            workers[number % 2] = fleet.restart(workers[number % 2])
            while time.monotonic() - begun < 1.0:
                assert Background(lambda: mean_wobble(NUMBERS)).result() == expected
                rounds += 1
    assert rounds > 60


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_large_value_to_a_peer_that_has_fallen_silent_fails_within_two_minutes(
    fleet: Fleet, proxies: Proxies
) -> None:
    """Its deadline grows with its size; long before that the connection notices that nobody answers its pings."""
    proxy = proxies.before(fleet.start(heartbeat_seconds=5.0).target)
    with executor_at(proxy.target) as executor:
        await executor.create_value(double)
        proxy.fall_silent()
        large = np.ones((60, *MODEL.shape), np.float32)
        creating = executor.create_value(large, fl.TensorType(np.float32, [60, *MODEL.shape]))
        with pytest.raises((WorkerUnavailableError, DeadlineExceededError)):
            await asyncio.wait_for(creating, 120)

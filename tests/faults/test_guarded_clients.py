"""Clients that end their process, where failures of clients are tolerated, and where workers are not started again."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fault_leaves import steps, sum_of_those_left
from fault_stacks import Background, context_over, eventually
from serving import served
from watching import Diary

import fedstack
from fedstack import ClientFailure, ClientFailures, observe
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import ClientLeftOutError, LeafError, TooManyClientFailuresError
from fedstack.observe import ClientFailed, ClientsChanged, ClientsRetried
from fedstack.service.pool.worker_pool import local_worker_pool

pytestmark = pytest.mark.slow

CLIENTS = 40
ENDING = {3: -2, 8: -1, 9: -2, 21: -2, 22: -2, 39: -2}


@pytest.fixture
def start() -> Iterator[Callable[..., list[str]]]:
    """Starts workers that nobody starts again, and returns their addresses."""
    with contextlib.ExitStack() as stack:
        folder = {"PYTHONPATH": str(Path(__file__).parent)}

        def start(count: int, threads: int) -> list[str]:
            options = ("--allow-module", "fault_leaves", "--threads", threads)
            return [stack.enter_context(served(*options, environment=folder)).target for _ in range(count)]

        yield start


def values(changed: dict[int, int]) -> list[int]:
    return [changed.get(client, client) for client in range(CLIENTS)]


def bits(found) -> list[bytes]:
    mean, joined, largest, each = found
    left = [value for value in each if not isinstance(value, ClientFailure)]
    return [np.asarray(value).tobytes() for value in (mean, joined, largest, *left)]


def gone(found) -> dict[int, str]:
    return {one.client: str(one.error) for one in found[3] if isinstance(one, ClientFailure)}


def locally(changed: dict[int, int]):
    """Runs the clients in this process. Those that would end it raise instead."""
    raising = dict.fromkeys(changed, -1)
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        return steps(values(raising))


def test_clients_that_end_their_process_are_left_out_and_a_worker_is_left(start) -> None:
    workers, diary = start(3, threads=2), Diary()
    policy, expected = ClientFailures(tolerate=len(ENDING)), bits(locally(ENDING))
    with context_over(workers, client_failures=policy), observe.add_observer(diary):
        found = Background(lambda: steps(values(ENDING))).result()
        assert bits(found) == expected
        assert set(gone(found)) == set(ENDING)
        for client, error in gone(found).items():
            what = "raised ValueError" if client == 8 else "crashed its process with exit status 3"
            assert f"'step_or_end' {what}" in error
            assert f"at client {client}" in error
        assert {one.client: one.worker in workers for one in diary.of(ClientFailed)} == dict.fromkeys(ENDING, True)
        changes = diary.of(ClientsChanged)
        eventually(lambda: sum(one.done for one in changes) == CLIENTS - len(ENDING))
        assert sum(one.failed for one in changes) == len(ENDING)
        again = Background(lambda: steps(values({}))).result()
        assert bits(again) == bits(locally({})), "a worker is left"


def test_more_than_the_policy_tolerates_are_named_in_one_error(start) -> None:
    workers = start(3, threads=2)
    policy = ClientFailures(tolerate=len(ENDING) - 1)
    with context_over(workers, client_failures=policy):
        with pytest.raises(TooManyClientFailuresError, match="6 failures among 40 clients") as caught:
            Background(lambda: steps(values(ENDING))).result()
    assert set(caught.value.failures) == set(ENDING)


def test_without_a_policy_a_client_ends_one_worker_and_is_named(start) -> None:
    workers = start(3, threads=1)
    with context_over(workers):
        with pytest.raises(LeafError, match=r"'step_or_end' crashed its process with exit status 3; at client 14"):
            Background(lambda: steps(values({14: -2}))).result()
        found = Background(lambda: steps(values({}))).result()
    assert bits(found) == bits(locally({})), "two workers are left"


def test_a_worker_is_left_although_all_workers_meet_clients_that_end_them_at_once(start) -> None:
    changed = dict.fromkeys(range(0, CLIENTS, 8), -2)
    workers = start(3, threads=4)
    with context_over(workers, client_failures=ClientFailures()):
        total, found = Background(lambda: sum_of_those_left(values(changed))).result()
    assert total == sum(set(range(CLIENTS)) - set(changed))
    assert {one.client for one in found if isinstance(one, ClientFailure)} == set(changed)


def test_workers_of_a_pool_are_started_again_and_the_clients_are_left_out() -> None:
    policy = ClientFailures()
    with local_worker_pool(2) as pool:
        with fedstack.create_sync_remote_execution_context(pool, client_failures=policy):
            found = steps(values(ENDING))
    assert bits(found) == bits(locally(ENDING))
    assert set(gone(found)) == set(ENDING)


def test_a_client_whose_process_is_killed_each_time_is_left_out(start) -> None:
    workers = start(2, threads=1)
    with context_over(workers, client_failures=ClientFailures()):
        found = Background(lambda: steps(values({5: -3}))).result()
    assert set(gone(found)) == {5}
    assert "SIGKILL" in gone(found)[5]
    assert bits(found) == bits(locally({5: -3}))


@pytest.mark.fedstack_leak_check(False)  # processes of the standard library
@pytest.mark.parametrize("changed", [{3: -2, 8: -1}, {3: -2, 8: -1, 11: -2, 20: -2, 36: -2}])
def test_a_pool_of_processes_leaves_out_clients_that_end_it(changed: dict[int, int]) -> None:
    made: list[ProcessPoolExecutor] = []

    def make() -> ProcessPoolExecutor:
        made.append(ProcessPoolExecutor(2))
        return made[-1]

    diary = Diary()
    factory = fedstack.pool_executor_factory(make)
    with SyncExecutionContext(factory, client_failures=ClientFailures()), observe.add_observer(diary):
        found = steps(values(changed))
    assert bits(found) == bits(locally(changed))
    assert set(gone(found)) == set(changed)
    assert diary.of(ClientsRetried)
    for pool in made:
        pool.shutdown()


def test_a_phase_ends_without_a_slow_client_in_a_child_process_too(start) -> None:
    changed = {3: -2, 8: -1, 9: -2, 39: -4}  # the first worker ends, and a child of the second is left
    workers = start(2, threads=4)
    with context_over(workers, client_failures=ClientFailures(enough=28)):
        found = Background(lambda: steps(values(changed))).result()
    late = {one.client for one in found[3] if isinstance(one, ClientFailure) and type(one.error) is ClientLeftOutError}
    assert 39 in late, "the slow client was waited for"
    assert set(gone(found)) == {3, 8, 9, *late}
    assert bits(found) == bits(locally(dict.fromkeys(gone(found), -1)))


@pytest.mark.fedstack_leak_check(False)  # processes of the standard library
def test_a_pool_of_processes_does_not_wait_for_slow_clients() -> None:
    slow = {5: -4, 30: -4}
    with ProcessPoolExecutor(2) as pool:
        factory = fedstack.pool_executor_factory(pool)
        with SyncExecutionContext(factory, client_failures=ClientFailures(enough=CLIENTS - len(slow))):
            found = steps(values(slow))
        for process in list(pool._processes.values()):
            process.kill()
    assert set(gone(found)) == set(slow), "the slow clients were waited for"
    assert bits(found) == bits(locally(slow))

"""Phases that end once enough clients are done."""

import concurrent.futures
import contextlib
import threading

import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from mixed_folds import FLOAT, mixed, reported

import fedstack
from fedstack import ClientFailure, ClientFailures
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import ClientLeftOutError, InvalidValueError, TooManyClientFailuresError
from fedstack.executors.concurrency.progress import ProgressCounts

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)
WALL = 60
# Functions travel to the workers of these tests as handles. Clients wait if their values say so.
waits = threading.Event()


@pytest.fixture(scope="module", autouse=True)
def servers():
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@pytest.fixture(autouse=True)
def end_waits():
    waits.clear()
    yield
    waits.set()


@fedstack.python_computation([INT], FLOAT)
def waiting(x):
    if x < 0:
        assert waits.wait(WALL), "the test has forgotten its clients"
    if x == 1000:
        raise KeyError("this client fails")
    return np.float32(np.sin(x))


@fedstack.python_computation([FLOAT, FLOAT], FLOAT)
def below(x, mean):
    return mean - x


@fl.federated_computation(INTS)
def fold(xs):
    kept = fl.federated_map(waiting, xs)
    mean = fl.federated_broadcast(fl.federated_mean(kept))
    rest = fl.federated_map(below, (kept, mean))
    return (
        fl.federated_sum(kept),
        fl.federated_aggregate(kept, np.float32(0.3), mixed, mixed, reported),
        fl.federated_sum(rest),
        rest,
    )


@fedstack.python_computation([INT], INT)
def below_1000(x):
    if x >= 1000:
        raise KeyError("this client fails")
    return x


@fl.federated_computation(INTS)
def smallest(xs):
    kept = fl.federated_map(below_1000, xs)
    return fl.federated_min(kept), kept


STACKS = {
    "local": fedstack.local_executor_factory,
    "two workers": lambda: remote_stacks.in_memory_workers(2),
    "five workers": lambda: remote_stacks.in_memory_workers(5),
    "workers that are lost": remote_stacks.lossy_workers,
}


def context_over(stack: str, policy: ClientFailures, **options) -> SyncExecutionContext:
    retries = fedstack.RetryPolicy(attempts=1000, first_pause=0.001, longest_pause=0.01)
    return SyncExecutionContext(STACKS[stack](**options), client_failures=policy, retry_policy=retries)


def bits(found) -> list[bytes]:
    *totals, rest = found
    left = [value for value in rest if not isinstance(value, ClientFailure)]
    return [np.asarray(value).tobytes() for value in (*totals, *left)]


def late_among(found) -> dict[int, int]:
    """Returns in which phase clients were late."""
    return {one.client: one.phase for one in found[-1] if isinstance(one, ClientFailure)}


@pytest.mark.fedstack_leak_check(False)  # clients wait on threads that have been given up
@pytest.mark.parametrize("stack", STACKS)
def test_a_phase_does_not_wait_for_clients_once_enough_are_done(stack: str) -> None:
    # Slow clients keep their threads when their worker is lost, because that is this process.
    slow = {8} if stack == "workers that are lost" else {0, 7, 8, 9, 30}
    values = [-client - 1 if client in slow else client for client in range(40)]
    policy = ClientFailures(enough=40 - len(slow), tolerate=0)
    with context_over(stack, policy), fedstack.client_outcomes() as outcomes:
        found = fold(values)
    assert late_among(found).keys() >= slow
    first = [one for one in outcomes if one.phase == 0]
    kinds = {one.client: one.kind for one in first}
    assert {client for client, kind in kinds.items() if kind == "late"} == set(late_among(found))
    assert len(kinds) == 40
    assert all(isinstance(one.error, ClientLeftOutError) for one in first if one.kind == "late")
    waits.set()
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
        again = fold(values)
    assert bits(again) == bits(found)
    assert late_among(again) == late_among(found)


@pytest.mark.parametrize("stack", STACKS)
def test_a_phase_that_needs_all_clients_waits_for_all(stack: str) -> None:
    values = [*range(20)]
    with fedstack.create_sync_local_execution_context():
        expected = bits(fold(values))
    for enough in (1.0, 20, 50):
        with context_over(stack, ClientFailures(enough=enough)):
            assert bits(fold(values)) == expected


@pytest.mark.parametrize("stack", ["local", "two workers"])
def test_clients_that_fail_are_not_among_those_that_are_enough(stack: str) -> None:
    values = [1000 if client in (1, 2, 3) else client for client in range(10)]
    with context_over(stack, ClientFailures(enough=8)), fedstack.client_outcomes() as outcomes:
        found = fold(values)
    assert late_among(found) == {1: 0, 2: 0, 3: 0}
    assert not outcomes.of_kind("late")
    with context_over(stack, ClientFailures(enough=8, tolerate=2)):
        with pytest.raises(TooManyClientFailuresError, match="3 failures among 10 clients"):
            fold(values)


def test_late_clients_count_towards_the_least_number_of_clients() -> None:
    values = [-1, -2, *range(8)]
    with context_over("two workers", ClientFailures(enough=0.8, min_clients=9)):
        with pytest.raises(TooManyClientFailuresError, match="min_clients=9"):
            fold(values)


@pytest.mark.parametrize(("enough", "clients", "wanted"), [(0.8, 10, 8), (0.81, 10, 9), (0.29, 100, 29), (3, 10, 3)])
def test_a_share_is_that_of_the_clients_that_take_part(enough: float, clients: int, wanted: int) -> None:
    assert ClientFailures(enough=enough).enough_of(clients) == wanted


@pytest.mark.parametrize("enough", [0, -1, 0.0, 1.5, float("nan"), True, "2"])
def test_what_is_no_share_and_no_number_of_clients_is_refused(enough: object) -> None:
    with pytest.raises(InvalidValueError, match="enough"):
        ClientFailures(enough=enough)


@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack != "workers that are lost"])
def test_clients_whose_second_try_has_not_run_when_a_phase_ends_are_late(stack: str) -> None:
    lock, tried = threading.Lock(), set[int]()

    @fedstack.python_computation([INT], INT)
    def flaky(x):
        with lock:
            is_first = int(x) not in tried
            tried.add(int(x))
        if x % 3 == 0 and is_first:
            raise ConnectionResetError("the first time")
        if x % 3 == 1:
            assert waits.wait(WALL)
        return x

    @fl.federated_computation(INTS)
    def total(xs):
        kept = fl.federated_map(flaky, xs)
        return fl.federated_sum(kept), kept

    with context_over(stack, ClientFailures(enough=10, retries=1, tolerate=0)):
        with fedstack.client_outcomes() as outcomes:
            total([*range(30)])
    assert not outcomes.of_kind("failed")
    assert len(outcomes.of_kind("done")) >= 10


@pytest.mark.parametrize("stack", [stack for stack in STACKS if stack != "workers that are lost"])
def test_progress_counts_clients_that_are_late_or_absent_in_the_same_way_everywhere(stack: str) -> None:
    counts = ProgressCounts()
    values = [-client - 1 if client in (3, 8) else client for client in range(20)]
    with context_over(stack, ClientFailures(enough=18)) as context:
        with context.with_options(progress=lambda _: contextlib.nullcontext(counts)):
            found = fold(values)
    late = len(late_among(found))
    assert counts.total == 20 + 20 - sum(phase == 0 for phase in late_among(found).values())
    assert (counts.done, counts.running, counts.failures) == (counts.total - late, 0, late)


@pytest.mark.fedstack_leak_check(False)  # processes of the standard library
def test_a_pool_makes_up_for_clients_that_fail_in_one_of_its_tasks() -> None:
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        factory = fedstack.pool_executor_factory(pool)
        with SyncExecutionContext(factory, client_failures=ClientFailures(enough=10, min_clients=10)):
            total, kept = smallest([1000] * 10 + [*range(10)])
    assert total == 0
    assert [isinstance(one, ClientFailure) for one in kept] == [True] * 10 + [False] * 10

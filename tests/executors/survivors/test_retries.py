"""Clients that fail and run again, elsewhere if there is another place."""

import contextlib
import threading
import time
from collections import Counter

import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mixed_folds import FLOAT, mixed, reported

import fedstack
from fedstack import ClientFailure, ClientFailures
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import InvalidValueError, TooManyClientFailuresError
from fedstack.executors.concurrency.progress import ProgressCounts

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)
# How often each client still fails before it succeeds. Functions travel to the workers of these tests as handles.
flaky: Counter[int] = Counter()
calls: Counter[int] = Counter()
lock = threading.Lock()
# Clients that wait for each other, so that no worker takes the other one's part meanwhile.
together: dict[int, threading.Barrier] = {}
targets: list[str] = []
# Clients then run alone from the start, so that each try is one call.
ALONE = {"client_seconds": 60.0}


@pytest.fixture(scope="module", autouse=True)
def servers():
    remote_stacks.start_servers()
    targets.extend(remote_stacks.start_server() for _ in range(2))
    yield
    remote_stacks.stop_servers()


@fedstack.python_computation([INT], FLOAT)
def once_more(x):
    with lock:
        calls[int(x)] += 1
        flaky[int(x)] -= 1
        fails = flaky[int(x)] >= 0
        barrier = together.pop(int(x), None)
    if barrier is not None:
        barrier.wait(60)
    if fails:
        raise ConnectionResetError(f"at {x}")
    return np.float32(np.sin(x))


@fl.federated_computation(INTS)
def fold(xs):
    kept = fl.federated_map(once_more, xs)
    return (
        fl.federated_mean(kept),
        fl.federated_sum(kept),
        fl.federated_aggregate(kept, np.float32(0.3), mixed, mixed, reported),
        kept,
    )


STACKS = {
    "local": fedstack.local_executor_factory,
    "two workers": lambda: remote_stacks.in_memory_workers(2),
    "two servers": lambda: remote_stacks.workers(targets),
    "five workers": lambda: remote_stacks.in_memory_workers(5),
    "workers that are lost": remote_stacks.lossy_workers,
}


def context_over(stack: str, policy: ClientFailures) -> SyncExecutionContext:
    retries = fedstack.RetryPolicy(attempts=1000, first_pause=0.001, longest_pause=0.01)
    return SyncExecutionContext(STACKS[stack](), client_failures=policy, retry_policy=retries)


def told(found) -> tuple[list[bytes], list[int]]:
    *totals, kept = found
    left = [value for value in kept if not isinstance(value, ClientFailure)]
    bits = [np.asarray(value).tobytes() for value in (*totals, *left)]
    return bits, [client for client, value in enumerate(kept) if isinstance(value, ClientFailure)]


def begin(times: dict[int, int]) -> None:
    calls.clear()
    flaky.clear()
    flaky.update(times)


def until_both_servers_run_clients() -> None:
    """A server that is connected to late joins a later phase, and so does one in reserve after earlier losses."""
    begin({})  # a client that fails would run at both
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with fedstack.client_outcomes() as outcomes:
            fold([*range(16)])
        if len({one.worker for one in outcomes}) == 2:
            return
    raise AssertionError("one server has no clients")


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize("stack", STACKS)
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(0, 2), st.data())
def test_clients_that_succeed_in_the_end_count_as_if_they_had_never_failed(stack, clients, retries, data) -> None:
    often = data.draw(st.dictionaries(st.integers(0, clients - 1), st.sampled_from([*range(retries + 1), 10**6])))
    for_good = sorted(client for client, times in often.items() if times > retries)
    begin(dict.fromkeys(for_good, 10**6))
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(min_clients=0)):
        expected, failed = told(fold([*range(clients)]))
    assert failed == for_good
    begin(often)
    with context_over(stack, ClientFailures(min_clients=0, retries=retries)):
        assert told(fold([*range(clients)])) == (expected, for_good)
    if stack != "workers that are lost":
        for client in range(clients):  # in each try, a client may run together with others before it runs alone
            tries = 1 + min(often.get(client, 0), retries)
            assert tries <= calls[client] <= 2 * tries


@pytest.mark.fedstack_leak_check(False)  # the servers live as long as the tests of this module
def test_a_client_runs_again_on_another_worker() -> None:
    with context_over("two servers", ClientFailures(retries=1, **ALONE)):
        until_both_servers_run_clients()
        begin({3: 1, 12: 1})
        for clients in ((0, 8), (7, 15)):  # the first and the last of each server
            together.update(dict.fromkeys(clients, threading.Barrier(2)))
        with fedstack.client_outcomes() as outcomes:
            fold([*range(16)])
    worker = {one.client: one.worker for one in outcomes}
    assert {one.kind for one in outcomes} == {"done"}
    assert worker[0] != worker[15]
    assert (worker[3], worker[12]) == (worker[15], worker[0])


def test_a_client_that_fails_again_has_failed_with_its_last_error() -> None:
    begin({5: 10})
    with context_over("two workers", ClientFailures(retries=2, tolerate=0, **ALONE)):
        with pytest.raises(TooManyClientFailuresError, match="1 failure among 9 clients") as caught:
            fold([*range(9)])
    assert set(caught.value.failures) == {5}
    assert calls[5] == 3


@pytest.mark.parametrize("stack", ["local", "two workers"])
def test_a_client_that_takes_too_long_does_not_run_again(stack: str) -> None:
    waits = threading.Event()
    begun: list[int] = []

    @fedstack.python_computation([INT], INT)
    def waiting(x):
        begun.append(int(x))
        if x == 2:
            waits.wait(60)
        return x

    @fl.federated_computation(INTS)
    def total(xs):
        return fl.federated_sum(fl.federated_map(waiting, xs))

    try:
        with context_over(stack, ClientFailures(retries=3, client_seconds=0.2)):
            assert total([1, 2, 3]) == 4
        assert begun.count(2) == 1
    finally:
        waits.set()


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["local", "two workers"])
def test_very_many_clients_that_fail_run_again_too(stack: str) -> None:
    begin(dict.fromkeys(range(0, 1000, 2), 1))
    with context_over(stack, ClientFailures(retries=1)):
        *_, kept = fold([*range(1000)])
    assert not any(isinstance(one, ClientFailure) for one in kept)
    assert 1500 <= calls.total() <= 2500


def test_progress_counts_a_client_once() -> None:
    counts = ProgressCounts()
    begin({**dict.fromkeys(range(0, 40, 3), 1), 5: 9})
    with SyncExecutionContext(
        STACKS["two workers"](),
        client_failures=ClientFailures(retries=1),
        progress=lambda _: contextlib.nullcontext(counts),
    ):
        fold([*range(40)])
    assert (counts.total, counts.done, counts.running, counts.failures) == (40, 39, 0, 1)


@pytest.mark.parametrize("retries", [-1, 1.5, True, "2"])
def test_the_number_of_retries_is_a_whole_number(retries: object) -> None:
    with pytest.raises(InvalidValueError, match="retries"):
        ClientFailures(retries=retries)

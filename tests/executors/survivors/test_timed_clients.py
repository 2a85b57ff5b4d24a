"""Clients that take longer than allowed."""

import contextlib
import threading
import time

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack import ClientFailure, ClientFailures
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import ClientTimeoutError, ResourceLimitError, TooManyClientFailuresError
from fedstack.executors.base.timed_calls import TimedCalls, TooLate
from fedstack.executors.concurrency.jobs import AbandonedWork
from fedstack.executors.concurrency.leaf_threads import LeafThreads, without_threads
from fedstack.executors.survivors.ending import Ending
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)
# Long enough for a busy machine, since what is late waits for the test.
SECONDS = 2.0


class Gate:
    """Where clients wait until the test lets them go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.threads: list[threading.Thread] = []

    def wait(self) -> None:
        self.threads.append(threading.current_thread())
        assert self.opened.wait(60)


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


def waiting_at(gate: Gate, *late: int):
    @fedstack.python_computation([INT], INT)
    def waits(x):
        if x in late:
            gate.wait()
        if x < 0:
            raise ValueError("negative")
        return x

    @fl.federated_computation(INTS)
    def total(xs):
        found = fl.federated_map(waits, xs)
        return fl.federated_sum(found), found

    return total


@pytest.mark.parametrize("threads", [1, None])
def test_a_client_that_takes_too_long_is_left_out(gate: Gate, threads: int | None) -> None:
    policy = ClientFailures(client_seconds=SECONDS)
    total = waiting_at(gate, 3)
    with fedstack.create_sync_local_execution_context(client_failures=policy, max_concurrent_clients=threads):
        found, each = total([1, -2, 3, 4, 5])
        assert found == 10
        assert isinstance(each[2], ClientFailure)
        assert isinstance(each[2].error, ClientTimeoutError)
        assert str(each[2].error).startswith("'waits' took longer than client_seconds=2 at client 2; allow more time")
        assert "raised ValueError" in str(each[1].error)
        assert gate.threads[0] is not threading.current_thread()
        gate.opened.set()


def test_late_clients_are_named_in_the_error(gate: Gate) -> None:
    policy = ClientFailures(client_seconds=0.2, tolerate=0)
    with fedstack.create_sync_local_execution_context(client_failures=policy):
        with pytest.raises(TooManyClientFailuresError, match="client 0: ClientTimeoutError in 'waits'"):
            waiting_at(gate, 1)([1, 2])
        gate.opened.set()


def test_a_debugger_has_time(gate: Gate) -> None:
    policy = ClientFailures(client_seconds=0.001)
    here = []

    @fedstack.python_computation([INT], INT)
    def slow(x):
        here.append(threading.current_thread())
        time.sleep(0.05)
        return x

    @fl.federated_computation(INTS)
    def total(xs):
        return fl.federated_sum(fl.federated_map(slow, xs))

    with fedstack.create_sync_local_execution_context(client_failures=policy, debug=True):
        assert total([1, 2]) == 3
    assert set(here) == {threading.current_thread()}


@pytest.mark.parametrize("seconds", [0, -1.0, "1", float("nan"), True])
def test_a_limit_is_a_positive_number(seconds: object) -> None:
    with pytest.raises(fedstack.errors.InvalidValueError, match="client_seconds"):
        ClientFailures(client_seconds=seconds)


def test_the_time_of_each_client_is_its_own(gate: Gate) -> None:
    total = waiting_at(gate, 5)
    policy = ClientFailures(client_seconds=SECONDS)
    with fedstack.create_sync_local_execution_context(client_failures=policy), fedstack.client_outcomes() as outcomes:
        total([1, 2, 5, 3])
    late = [one for one in outcomes if one.kind == "late"]
    assert [(one.client, one.seconds >= SECONDS) for one in late] == [(2, True)]
    assert all(one.seconds < late[0].seconds for one in outcomes if one.kind == "done")


@contextlib.contextmanager
def calls_on(threads: LeafThreads, seconds: float):
    """Yields a function that makes calls on other threads."""
    timed = TimedCalls[object](threads, seconds)
    with contextlib.closing(timed), timed.lent() as make:
        yield make


def test_calls_run_on_another_thread_that_is_replaced_when_one_is_late(gate: Gate) -> None:
    threads = LeafThreads(1)
    with calls_on(threads, SECONDS) as make:
        first = make(threading.get_ident)
        assert make(threading.get_ident) == first != threading.get_ident()
        with pytest.raises(ValueError, match="as it is"):
            make(lambda: (_ for _ in ()).throw(ValueError("as it is")))
        with pytest.raises(TooLate):
            make(gate.wait)
        assert make(threading.get_ident) != first
    gate.opened.set()
    threads.close()


def test_one_block_after_the_other_runs_on_the_same_thread() -> None:
    threads = LeafThreads(2)
    timed = TimedCalls[object](threads, 60.0)
    with contextlib.closing(timed):
        with timed.lent() as make:
            first = make(threading.get_ident)
        with timed.lent() as make:
            assert make(threading.get_ident) == first
            with timed.lent() as another:
                assert another(threading.get_ident) != first
    threads.close()


def test_threads_that_make_no_calls_are_not_missed_by_other_phases(gate: Gate) -> None:
    threads = LeafThreads(2)
    with contextlib.closing(TimedCalls[object](threads, 60.0)) as resting:
        with resting.lent() as make, resting.lent() as another:
            assert len({make(threading.get_ident), another(threading.get_ident)}) == 2
        # Both threads of the pool now rest, and their phase goes on.
        with calls_on(threads, 60.0) as make:
            assert threads.submit(lambda: make(lambda: "made")).result(timeout=60) == "made"
    await_until(lambda: "<LeafThreads 2 threads" in repr(threads))
    begun = [threads.submit(gate.wait) for _ in range(3)]
    await_until(lambda: len(gate.threads) == 2)
    assert sum(job.running() for job in begun) == 2
    threads.close()


def test_calls_are_interrupted_when_a_phase_ends(gate: Gate) -> None:
    threads, ending = LeafThreads(1), Ending(1)
    timed = TimedCalls[object](threads, None, ending)
    with contextlib.closing(timed), timed.lent() as make, pytest.raises(TooLate):
        make(lambda: (ending.done(), gate.wait()))
    gate.opened.set()
    threads.close()


@pytest.mark.fedstack_leak_check(False)  # clients wait on threads that have been given up
def test_too_many_late_clients_of_several_calls_end_a_call(gate: Gate) -> None:
    total = waiting_at(gate, *range(1, 7))
    core = ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(max_abandoned=2))
    factory = fedstack.remote_executor_factory([ExecutorStub(InMemoryConnection(core, "a"))])
    policy = ClientFailures(client_seconds=0.2)
    with SyncExecutionContext(factory, client_failures=policy), pytest.raises(ResourceLimitError, match="at most 2 "):
        for _ in range(50):  # at the latest when all threads are abandoned
            assert total([1, 2, 3, 4, 5, 6, 7, 8])[0] == 15
    gate.opened.set()
    io_loop.run_sync(core.close())


def test_too_many_late_calls_end_the_work(gate: Gate) -> None:
    threads = LeafThreads(1)
    abandoned = AbandonedWork(1, lambda count: ResourceLimitError(f"{count} threads are on abandoned work"))
    with fedstack.computations.leaves.work_scope.current_scope().replace(abandoned=abandoned).entered():
        with pytest.raises(ResourceLimitError, match="on abandoned work"), calls_on(threads, 0.1) as make:
            for _ in range(3):
                with pytest.raises(TooLate):
                    make(gate.wait)
    gate.opened.set()
    threads.close()


def test_without_threads_there_is_no_limit() -> None:
    with without_threads(), calls_on(LeafThreads(1), 0.0) as make:
        assert make(threading.get_ident) == threading.get_ident()

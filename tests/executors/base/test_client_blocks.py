"""How many clients run at once: waiting ones on many threads from the first call on, computing ones on one per core."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.bound_operation import BoundOperation
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import Program, ProgramStep, Slot
from fedstack.computations.plan.tasks import Phase
from fedstack.contexts import SyncExecutionContext
from fedstack.executors.base.client_blocks import ClientBlocks
from fedstack.executors.base.phase_sink import PhaseSink
from fedstack.executors.concurrency.measurements import HelperTrial, Measurements
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.meeting import LIMIT_SECONDS, Meeting
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

AT_ONCE = 32  # by default, with up to 8 cores


@contextlib.contextmanager
def workers(count: int) -> Iterator[SyncExecutionContext]:
    """Runs the block's computations at services of this process, which have threads of their own."""
    services = [ExecutorService(fedstack.local_executor_factory()) for _ in range(count)]
    stubs = [ExecutorStub(InMemoryConnection(service)) for service in services]
    with SyncExecutionContext(fedstack.remote_executor_factory(stubs)) as context, fedstack.use_context(context):
        yield context
    for service in services:
        io_loop.run_sync(service.close())


@contextlib.contextmanager
def locally(**options: Any) -> Iterator[Any]:
    with fedstack.create_sync_local_execution_context(**options) as context, fedstack.use_context(context):
        yield context


def at_clients(function: Callable[[Any], Any]) -> Callable[[list[int]], Any]:
    leaf = fedstack.python_computation([np.int32], np.int32)(function)
    return fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))(lambda x: fl.federated_map(leaf, x))


def meeting_of(clients: int) -> Callable[[list[int]], Any]:
    """Returns a computation whose clients go on when all of them have begun."""
    meeting = Meeting(*range(clients))

    def arrive(x: Any) -> Any:
        meeting.arrive(int(x))
        return x

    return at_clients(arrive)


class Clock:
    """Stands for the `time` module: what this process is busy with is the test's."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self, busy_until: float = float("inf")) -> None:
        self.asked = 0
        self.busy_until = busy_until

    def process_time(self) -> float:
        """Counts two calls a look."""
        self.asked += 1
        return time.perf_counter() if self.asked <= self.busy_until else 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("fedstack.executors.concurrency.measurements.time", made)
    return made


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstack.executors.base.client_blocks.CORES", 2)


class Running:
    """Counts the clients that run at once, each of which waits for something."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._wait = wait
        self.now = self.most = 0

    def __call__(self, x: Any) -> Any:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._wait()
        with self._lock:
            self.now -= 1
        return x


def test_a_second_thread_that_does_not_pay_is_tried_later_each_time_and_one_that_pays_again_at_once() -> None:
    measured = Measurements()
    found: list[int] = []
    for pays in (False, False, False, *[False] * 10, True, False):
        measured.note_helper(pays)
        found.append(measured.runs_without_helpers)
    assert found == [2, 4, 8, 16, 32, *[64] * 8, 0, 2]


@pytest.mark.parametrize(
    ("clients", "seconds", "cpu", "expected"),
    [
        (7, 1.0, 1.0, None),  # too few clients to tell
        (100, 0.004, 0.004, None),  # too short a time
        (10, 0.012, 0.0, True),  # who waits for files gains, too
        (10, 0.020, 0.011, False),  # who waits for the interpreter lock computes for half of the time
        (10, 0.020, 0.019, True),  # the machine is slower than it was when a client was measured
    ],
)
def test_a_helper_is_of_use_if_clients_take_less_time_or_more_cores_compute(clients, seconds, cpu, expected):
    trial = HelperTrial()
    trial.add(clients, seconds, cpu)
    assert trial.is_of_use(alone=0.001, workers=2) is expected


@pytest.mark.parametrize(
    ("stack", "clients"),
    [(locally, AT_ONCE), (lambda: workers(1), AT_ONCE), (lambda: workers(2), 2 * AT_ONCE)],
    ids=["locally", "1 worker", "2 workers"],
)
def test_clients_that_wait_run_side_by_side_in_the_first_call(stack: Any, clients: int) -> None:
    with stack():
        assert meeting_of(clients)(list(range(clients))) == list(range(clients))


async def test_clients_that_wait_run_side_by_side_in_the_first_call_of_an_asynchronous_context() -> None:
    with fedstack.create_async_local_execution_context() as context, fedstack.use_context(context):
        assert await meeting_of(AT_ONCE)(list(range(AT_ONCE))) == list(range(AT_ONCE))


def test_clients_that_wait_after_they_have_loaded_something_run_side_by_side_too(clock: Clock, two_cores: None) -> None:
    clock.busy_until = 10
    with locally():
        assert meeting_of(AT_ONCE)(list(range(AT_ONCE))) == list(range(AT_ONCE))


def test_clients_that_have_been_seen_to_wait_run_side_by_side_while_the_process_is_busy(
    monkeypatch: pytest.MonkeyPatch, two_cores: None
) -> None:
    barrier = threading.Barrier(AT_ONCE)

    @at_clients
    def meet(x: Any) -> Any:
        time.sleep(0.02)  # so that there is work for as many threads
        barrier.wait(LIMIT_SECONDS)
        return x

    with locally():
        meet(list(range(AT_ONCE)))
        busy = Clock()  # with something else, such as the inputs of other clients
        monkeypatch.setattr("fedstack.executors.concurrency.measurements.time", busy)
        assert meet(list(range(AT_ONCE))) == list(range(AT_ONCE))


@pytest.mark.parametrize("cores", [None, 1])  # of the machine's two
def test_clients_that_compute_never_run_on_more_threads_than_they_have_cores(
    clock: Clock, two_cores: None, cores: int | None
) -> None:
    def compute() -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while clock.asked < 10:
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)

    running = Running(compute)
    with attrs.evolve(current_scope(), cores=cores).entered(), locally():
        at_clients(running)(list(range(20)))
    assert running.most <= (cores or 2)


@pytest.mark.parametrize("is_seen", [True, False], ids=["waiting for a core", "waiting for the interpreter lock"])
def test_clients_that_compute_do_not_count_as_waiting_when_other_programs_have_the_cores(
    clock: Clock, two_cores: None, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    clock.busy_until = 0  # as if this process got no core
    if not is_seen:
        monkeypatch.setattr("fedstack.executors.concurrency.measurements._is_runnable", lambda thread: False)

    def compute() -> None:
        end, deadline = time.monotonic() + 0.05, time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end or clock.asked < 10:
            assert time.monotonic() < deadline

    running = Running(compute)
    with locally():
        at_clients(running)(list(range(20)))
    assert running.most <= 2


def test_clients_that_take_little_and_run_in_columns_use_a_second_thread(two_cores: None) -> None:
    threads: set[int] = set()

    @fedstack.python_computation([np.float32], np.float32, vectorized=True)
    def compute(column: Any) -> Any:
        threads.add(threading.get_ident())
        for _ in range(500):
            column = np.sin(column)
        return column

    mean = fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))(
        lambda x: fl.federated_mean(fl.federated_map(compute, x))
    )
    values, end = np.zeros(50_000, np.float32), time.monotonic() + LIMIT_SECONDS
    with locally():
        while len(threads) < 2:
            assert time.monotonic() < end
            mean(values)


def test_clients_that_wait_never_run_on_more_threads_than_allowed() -> None:
    barrier = threading.Barrier(3)
    running = Running(lambda: barrier.wait(LIMIT_SECONDS))
    with locally(max_concurrent_clients=3):
        at_clients(running)(list(range(30)))
    assert running.most == 3


async def test_whoever_looks_whether_more_threads_pay_takes_none_from_other_work(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstack.executors.base.client_blocks.CORES", 1)
    begun, end = threading.Event(), threading.Event()

    @at_clients
    def wait(x: Any) -> Any:
        begun.set()
        assert end.wait(LIMIT_SECONDS)
        return x

    @fedstack.python_computation([np.int32], np.int32)
    def let_go(x: Any) -> Any:
        end.set()
        return x

    with fedstack.create_async_local_execution_context(max_concurrent_clients=2):
        waiting = asyncio.ensure_future(wait([1, 2, 3]))
        assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
        assert await let_go(4) == 4
        assert await waiting == [1, 2, 3]


class SlowToStart(BoundOperation):
    """An operation of which a call takes long to start."""

    prefers_columns = True
    least_seconds = 0.008


def test_the_last_blocks_of_functions_that_take_long_to_start_are_shorter_so_that_workers_end_together() -> None:
    program = Program((), (), (ProgramStep(SlowToStart(), None, 0),), (Slot(0),), 1)
    blocks = ClientBlocks(program, [], range(1000), PhaseSink(Phase(program, (), (), ()), []))
    blocks.measured.seconds_per_call = 0.001
    blocks._next = 990
    assert blocks._block_size() == 16
    blocks._expected = 2  # ten clients are left for two workers
    assert blocks._block_size() == 2
    blocks._next = 998
    assert blocks._block_size() == 2  # a quarter of the time that a call should take

"""Real workers on loopback that come and go: who waits for them, and who is told of losses."""

import asyncio
import contextlib
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

import attrs
import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from fake_members import AWAY

import fedstack
from fedstack.backends.remote_contexts import remote_executor_factory
from fedstack.backends.workers_backend import WorkersBackend
from fedstack.errors import ClosedError, NoWorkersError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.executors.remote.worker_stubs import make_stubs
from fedstack.executors.remote.workers import Worker
from fedstack.membership import membership, reaching, waits
from fedstack.membership.member import MemberState
from fedstack.membership.membership import Membership
from fedstack.membership.membership_observer import MembershipObserver
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

pytestmark = pytest.mark.slow

WALL = 20.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the first worker that is ready wait for the others, however busy the machine is."""
    monkeypatch.setattr(waits, "_SETTLE_SECONDS", WALL)


def serving(port: int = 0) -> ServerThread:
    return ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory())], port=port))


@pytest.fixture
def targets() -> Iterator[list[str]]:
    """Two workers."""
    with serving() as first, serving() as second:
        yield [first.target, second.target]


@contextlib.contextmanager
def driver_over(*targets: str, **options: object) -> Iterator[Membership]:
    driver = Membership([Worker(stub) for stub in make_stubs(targets, None)], **options)
    try:
        yield driver
    finally:
        driver.close()


@attrs.define(eq=False)
class Diary(MembershipObserver):
    """Writes down what it is told."""

    entries: list[tuple[str, str]] = attrs.field(factory=list)
    errors: list[Exception] = attrs.field(factory=list)
    news: threading.Condition = attrs.field(factory=threading.Condition)

    def _note(self, what: str, worker: Worker) -> None:
        with self.news:
            self.entries.append((what, worker.address))
            self.news.notify_all()

    def ready(self, worker: Worker) -> None:
        self._note("ready", worker)

    def draining(self, worker: Worker) -> None:
        self._note("draining", worker)

    def lost(self, worker: Worker, error: Exception) -> None:
        self.errors.append(error)
        self._note("lost", worker)

    def removed(self, worker: Worker) -> None:
        self._note("removed", worker)

    async def until(self, what: str, *workers: Worker) -> None:
        wanted = {(what, worker.address) for worker in workers}

        def wait() -> bool:
            with self.news:
                return self.news.wait_for(lambda: wanted <= set(self.entries), WALL)

        assert await asyncio.to_thread(wait)


@fedstack.python_computation(np.int64, np.int64)
def square(number: int) -> int:
    return number * number


async def called(function: object, worker: Worker, number: int) -> object:
    """A single call at a worker, as a coordinator makes them."""
    with contextlib.closing(RemoteExecutor(worker.stub)) as remote:
        remote.set_cardinalities({})
        callee, argument = await remote.create_value(function), await remote.create_value(number, np.int64)
        return await (await remote.create_call(callee, argument)).compute()


async def squared(worker: Worker, number: int) -> object:
    return await called(square, worker, number)


async def waiting(driver: Membership) -> "asyncio.Task[list[Worker]]":
    """Returns a call of `ready` that waits."""
    work = asyncio.ensure_future(driver.ready())
    done, _ = await asyncio.wait([work], timeout=0.05)
    assert not done
    return work


@pytest.mark.long
async def test_a_loss_is_told_once_however_it_is_found_out_and_so_is_the_return() -> None:
    diary = Diary()
    with serving() as thread:
        port = int(thread.target.rpartition(":")[2])
        driver = Membership([Worker(*make_stubs([thread.target], None))], connect_seconds=2.0)
        driver.subscribe(diary)
        (worker,) = await driver.ready()
        assert diary.entries == [("ready", worker.address)]
    try:
        with pytest.raises(WorkerUnavailableError) as caught:
            await squared(worker, 3)
        driver.lost(worker, caught.value)
        driver.lost(worker, AWAY)
        with pytest.raises(NoWorkersError, match="The worker is not ready"):
            await driver.ready()
        assert [what for what, _ in diary.entries if what != "draining"] == ["ready", "lost"]
        assert len(diary.errors) == 1
        diary.entries.clear()
        with serving(port):
            await diary.until("ready", worker)
            assert await driver.ready() == [worker]
            assert await squared(worker, 4) == 16
        assert diary.entries[0] == ("ready", worker.address)  # and it may have been seen to drain
    finally:
        driver.close()


async def test_a_caller_who_waits_gets_the_worker_that_comes_back() -> None:
    with serving() as thread:
        port = int(thread.target.rpartition(":")[2])
        driver = Membership([Worker(*make_stubs([thread.target], None))], connect_seconds=WALL)
        (worker,) = await driver.ready()
    try:
        driver.lost(worker, AWAY)
        late = await waiting(driver)
        with serving(port):
            assert await asyncio.wait_for(late, WALL) == [worker]
            assert await squared(worker, 5) == 25
    finally:
        driver.close()


@pytest.mark.parametrize("transport", ["stream", "grpc"])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_draining_worker_completes_its_work_and_gets_no_more_until_another_is_started_there(
    targets: list[str], tmp_path: Path, at_once: bool, transport: Literal["stream", "grpc"]
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "open"

    @fedstack.python_computation(np.int64, np.int64)
    def waits(number: int) -> int:
        begun.touch()
        while not gate.exists():
            time.sleep(0.01)
        return number

    with serving() as draining:
        port = int(draining.target.rpartition(":")[2])
        driver = Membership([Worker(stub) for stub in make_stubs([targets[0], draining.target], None, transport)])
        first, second = await driver.ready()
        driver.subscribe(diary := Diary())
        running = asyncio.ensure_future(called(waits, second, 7))
        await asyncio.to_thread(await_until, begun.exists)
        stopping = asyncio.ensure_future(asyncio.to_thread(draining.stop, WALL))
        await diary.until("draining", second)
        assert await driver.ready() == [first]
        gate.touch()
        assert await running == 7
        await stopping
    try:
        if not at_once:
            await diary.until("lost", second)  # by its end alone: no call was made there
        with serving(port):
            await diary.until("ready", second)
            assert [what for what, _ in diary.entries] == ["draining", "lost", "ready"]
            assert await driver.ready() == [first, second]
    finally:
        driver.close()


async def test_workers_come_and_go(targets: list[str]) -> None:
    diary = Diary()
    with driver_over(targets[0]) as driver:
        driver.subscribe(diary)
        (worker,) = await driver.ready()
        (stub,) = make_stubs(targets[1], None)
        added = driver.add(Worker(stub))
        assert await driver.ready() == [worker, added]
        driver.remove(added)
        assert await squared(added, 6) == 36  # what runs there goes on
        assert await driver.ready() == [worker]
        assert added.state is MemberState.REMOVED
        assert diary.entries == [("ready", targets[0]), ("ready", targets[1]), ("removed", targets[1])]


async def test_a_caller_who_waits_for_a_worker_that_is_removed_gets_the_one_that_is_added(targets: list[str]) -> None:
    with serving() as thread:
        away = thread.target
    with driver_over(away, connect_seconds=WALL) as driver:
        late = await waiting(driver)
        driver.remove(driver.members[0])
        (stub,) = make_stubs(targets[0], None)
        added = driver.add(Worker(stub))
        assert await asyncio.wait_for(late, WALL) == [added]


async def test_a_fleet_may_begin_without_workers(targets: list[str]) -> None:
    with driver_over() as driver:
        late = await waiting(driver)
        (stub,) = make_stubs(targets[0], None)
        added = driver.add(Worker(stub))
        assert await asyncio.wait_for(late, WALL) == [added]
    with (
        driver_over(connect_seconds=0.1) as driver,
        pytest.raises(NoWorkersError, match="found none within 0.1 s; add a worker"),
    ):
        await driver.ready()


@pytest.fixture
def in_memory_stub() -> ExecutorStub:
    service = ExecutorService(fedstack.local_executor_factory())
    return ExecutorStub(InMemoryConnection(service))


async def test_a_supervisor_says_of_its_workers_when_they_are_lost_and_when_they_are_back(
    in_memory_stub: ExecutorStub,
) -> None:
    with driver_over(connect_seconds=2.0) as driver:
        diary = Diary()
        driver.subscribe(diary)
        worker = driver.add(Worker(in_memory_stub, supervised=True))
        assert await driver.ready() == [worker]
        driver.lost(worker, WorkerUnavailableError("the actor has died"))
        with pytest.raises(NoWorkersError, match="the actor has died"):
            await driver.ready()  # though it would answer if it were asked
        driver.returned(worker)
        assert await driver.ready() == [worker]
        assert [what for what, _ in diary.entries] == ["ready", "lost", "ready"]


async def test_the_end_of_a_pools_process_is_told_with_its_cause() -> None:
    diary = Diary()
    with local_worker_pool(1, respawn=False) as pool, driver_over() as driver:
        driver.subscribe(diary)
        (stub,) = make_stubs(pool, None)
        worker = driver.add(Worker(stub))
        assert await driver.ready() == [worker]
        pool._workers[0].process.kill()
        await diary.until("lost", worker)
        with pytest.raises(NoWorkersError, match="The worker process has ended") as caught:
            await driver.ready()
        assert caught.value.is_final
        assert [str(error).partition("; ")[0] for error in diary.errors] == [
            f"The worker at {worker.address} is not running: the worker process with pid {pool.pids[0]} "
            "ended with signal 9 (SIGKILL)"
        ]


@pytest.mark.long
async def test_an_observer_hears_of_a_process_that_ends_and_is_started_anew_while_nobody_calls() -> None:
    diary = Diary()
    with local_worker_pool(1) as pool, driver_over() as driver:
        (stub,) = make_stubs(pool, None)
        worker = driver.add(Worker(stub))
        driver.subscribe(diary)
        await diary.until("ready", worker)
        diary.entries.clear()
        pool._workers[0].process.kill()
        await diary.until("lost", worker)
        await diary.until("ready", worker)
        assert [what for what, _ in diary.entries] == ["lost", "ready"]
        assert str(diary.errors[0]).endswith("; retry when it has been restarted")
        assert await driver.ready() == [worker]
        assert await squared(worker, 7) == 49


async def test_workers_are_told_apart_by_whether_they_have_room(targets: list[str]) -> None:
    with driver_over(*targets) as driver:
        first, second = await driver.ready()
        driver.full(first, ResourceLimitError("no room"))
        assert await driver.ready() == [first, second]
        assert driver.by_room([first, second]) == ([second], [first])
        driver.full(second, ResourceLimitError("no room either"))
        await driver.ready()
        assert driver.by_room([first, second]) == ([], [first, second])
        driver.has_room(first)
        await driver.ready()
        assert driver.by_room([first, second]) == ([first], [second])


async def test_an_observer_that_raises_is_told_nothing_more(
    targets: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(Diary):
        def ready(self, worker: Worker) -> None:
            super().ready(worker)
            raise ValueError("not today")

    with driver_over() as driver:
        raising, diary = Raising(), Diary()
        driver.subscribe(raising)
        end = driver.subscribe(diary)
        for target in targets:  # now, as they may be ready at once
            driver.add(Worker(make_stubs(target, None)[0]))
        await driver.ready()
        await diary.until("ready", *driver.members)
        assert len(raising.entries) == 1
        assert len(diary.entries) == 2
        (record,) = caplog.records
        assert (
            " raised ValueError: not today; it is removed and receives no further changes of workers"
            in record.getMessage()
        )
        end()
        driver.remove(driver.members[0])
        await driver.ready()
        assert len(diary.entries) == 2


async def test_closing_ends_the_wait_of_callers(targets: list[str]) -> None:
    driver = Membership([])
    late = await waiting(driver)
    driver.close()
    with pytest.raises(ClosedError, match="Expected open connections to the workers, found closed ones"):
        await late
    with pytest.raises(ClosedError):
        await driver.ready()
    with pytest.raises(ClosedError):
        driver.add(Worker(make_stubs(targets[0], None)[0]))


async def test_a_fleet_that_nobody_refers_to_asks_nobody() -> None:
    class Silent(InMemoryConnection):
        asked = threading.Event()
        cancelled = threading.Event()

        async def wait_ready(self, timeout: float) -> None:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

    connection = Silent(ExecutorService(fedstack.local_executor_factory()))
    driver = Membership([])
    driver.add(Worker(ExecutorStub(connection)))
    assert await asyncio.to_thread(connection.asked.wait, WALL)
    found = weakref.ref(driver)
    del driver
    gc.collect()
    assert found() is None
    assert await asyncio.to_thread(connection.cancelled.wait, WALL)


def test_phases_are_spread_over_the_workers_that_there_are_now(targets: list[str]) -> None:
    with serving() as third:
        every = [*targets, third.target]
        stubs = dict(zip(every, make_stubs(every, None)))
        factory = remote_executor_factory([stubs[targets[0]]])
        backend = cast(WorkersBackend, factory.backend)
        context = fedstack.contexts.SyncExecutionContext(factory)

        @fl.federated_computation(fl.FederatedType(np.int64, fl.CLIENTS))
        def squares(values):
            return fl.federated_sum(fl.federated_map(square, values))

        def clients_at(target: str) -> list[int]:
            status = io_loop.run_sync(stubs[target].get_status())
            return [session.clients for session in status.session]

        with context, fedstack.use_context(context):
            assert squares(list(range(6))) == 55
            assert clients_at(targets[0]) == [6]
            added = [backend.workers.add(Worker(stubs[target])) for target in every[1:]]
            assert squares(list(range(6))) == 55
            assert list(map(clients_at, every)) == [[2], [2], [2]]
            backend.workers.remove(added[0])
            assert squares(list(range(6))) == 55
            assert [clients_at(target) for target in (every[0], every[2])] == [[3], [3]]
            gc.collect()
            while clients_at(targets[1]):  # its session ends when nothing runs there any more
                time.sleep(0.01)


async def test_callers_who_wait_for_a_worker_are_told_once_for_how_long_and_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaching, "QUIET_SECONDS", 0.01)
    with serving() as thread:
        target = thread.target
    with driver_over(target, connect_seconds=0.3) as driver:
        outcomes = await asyncio.gather(*(driver.ready() for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [NoWorkersError] * 3
        (record,) = caplog.records
        said = f"Waiting for the first ready worker for at most 0.3 s:\n  {target}: "
        assert record.getMessage().startswith(said)


async def test_a_caller_who_need_not_wait_hears_nothing(
    targets: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaching, "QUIET_SECONDS", 0.0)
    with driver_over(*targets) as driver:
        await driver.ready()
        caplog.clear()
        await driver.ready()
        assert not caplog.records


async def test_a_worker_that_goes_is_missed_once_and_one_that_is_back_is_told(
    targets: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="fedstack.membership")
    with serving() as third:
        target = third.target
        driver = Membership([Worker(stub) for stub in make_stubs([*targets, target], None)])
        await driver.ready()
    now = 0.0
    monkeypatch.setattr(driver._members, "clock", lambda: driver.io.time() + now)
    try:
        lost = driver.members[2]
        driver.lost(lost, WorkerUnavailableError("it has ended"))
        await_until(lambda: lost.state is MemberState.AWAY, WALL)
        await driver.ready()
        assert not caplog.records, "whose clients ran on it is told"
        now = 11.0
        for _ in range(2):
            assert len(await driver.ready()) == 2
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert told[0].startswith(f"Continuing without the worker at {target} until it answers: ")
        with serving(int(target.rpartition(":")[2])):
            await_until(lambda: lost.is_ready and len(caplog.records) == 2, WALL)
        assert caplog.records[1].getMessage() == f"The worker at {target} is ready"
        assert caplog.records[1].levelname == "INFO"
    finally:
        driver.close()


async def test_a_worker_that_is_away_is_missed_while_a_call_runs(
    targets: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as third:
        nobody = third.target
    monkeypatch.setattr(membership, "_TELL_SECONDS", 0.2)
    with driver_over(targets[0], nobody) as driver:
        await driver.ready()
        await_until(lambda: f"Continuing without the worker at {nobody} until it answers: " in caplog.text, WALL)


async def test_a_worker_that_never_came_is_missed_once_there_was_time_to_start_it(
    targets: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as third:
        nobody = third.target
    now = 0.0
    with driver_over(targets[0], nobody, connect_seconds=10.0) as driver:
        monkeypatch.setattr(driver._members, "clock", lambda: driver.io.time() + now)
        await driver.ready()
        await_until(lambda: driver.members[1].state is MemberState.AWAY, WALL)
        await driver.ready()
        assert not caplog.records
        now = 11.0
        for _ in range(2):
            await driver.ready()
        (record,) = caplog.records
        assert record.getMessage().startswith(f"Continuing without the worker at {nobody} until it answers: ")

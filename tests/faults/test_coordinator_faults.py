"""What becomes of scheduled calls when workers are killed, stopped, started anew, or not there at all."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from await_until import await_until
from free_ports import free_port
from freezing import freeze
from serving import Server, served

import fedstack
from fedstack.errors import LostWorkersError, StaleSessionError, WorkerUnavailableError
from fedstack.service.coordinator import ClusterCoordinator, as_completed, current_worker_index

pytestmark = pytest.mark.slow

OPTIONS = ("--allow-python-code",)


def _square() -> Callable[[int], int]:
    def square(number: int) -> int:
        time.sleep(0.02)
        return number * number

    return square  # it goes by value: workers do not have this module


square = _square()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with served(*OPTIONS, "--port", free_port()) as first, served(*OPTIONS) as second:
        yield [first, second]


def coordinator_of(servers: list[Server], **options: object) -> ClusterCoordinator:
    return ClusterCoordinator([server.target for server in servers], **options)  # type: ignore[arg-type]


def test_a_worker_that_is_killed_costs_only_what_it_ran_and_held(servers: list[Server]) -> None:
    runs: list[int] = []
    with coordinator_of(servers) as coordinator:
        counter = coordinator.variable(np.zeros(300, np.int32))

        def counted(number: int) -> int:
            one = np.zeros(300, np.int32)
            one[number] = 1
            counter.assign_add(one)
            return square(number)

        values = [coordinator.schedule(counted, (number,)) for number in range(300)]
        for count, _ in enumerate(as_completed(values), 1):
            if count == 100:
                servers[0].process.kill()
                break
        coordinator.join(timeout=60.0)
        runs = counter.read_value().tolist()
        in_flight = sum(runs) - 300
        assert 0 <= in_flight <= 8
        assert max(runs) <= 2
        assert [int(value) for value in coordinator.fetch(values, timeout=60.0)] == [n * n for n in range(300)]
        again = counter.read_value().tolist()
        assert max(again) <= 3
        assert sum(again) - sum(runs) <= 100 + 8  # those that it held, each once


@pytest.mark.long
def test_a_value_of_a_worker_that_was_started_anew_is_rebuilt(servers: list[Server]) -> None:
    port = servers[0].target.rpartition(":")[2]
    with coordinator_of(servers[:1]) as coordinator:
        first = coordinator.schedule(lambda: np.arange(5.0))
        coordinator.join(timeout=20.0)
        kept = coordinator.schedule(lambda: 1, repeatable=False)
        coordinator.join(timeout=20.0)
        servers[0].process.kill()
        servers[0].process.wait()
        with served(*OPTIONS, "--port", port):
            assert first.get(timeout=20.0).sum() == 10.0
            with pytest.raises(WorkerUnavailableError, match="repeatable=False"):
                kept.get(timeout=20.0)
            assert coordinator.schedule(lambda x: float(x.sum()), (first,)).get(timeout=20.0) == 10.0


@pytest.mark.long
def test_a_worker_that_is_stopped_is_done_without_and_comes_back(
    servers: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    with coordinator_of(servers) as coordinator:
        assert coordinator.schedule(square, (3,)).get(timeout=20.0) == 9
        freeze(servers[0].process.pid)
        try:
            values = [coordinator.schedule(square, (number,)) for number in range(60)]
            for count, _ in enumerate(as_completed(values, timeout=15.0), 1):  # in 20 s it would count as lost
                if count == 60 - 8:
                    break
            await_until(
                lambda: f"{servers[0].target} has not answered for 2 s; it receives no further calls" in caplog.text
            )
        finally:
            os.kill(servers[0].process.pid, signal.SIGCONT)
        coordinator.join(timeout=60.0)
        assert [int(value) for value in coordinator.fetch(values, timeout=20.0)] == [n * n for n in range(60)]


@pytest.mark.long
def test_a_returning_worker_gets_work_again(servers: list[Server]) -> None:
    port = servers[0].target.rpartition(":")[2]

    def index() -> int:
        time.sleep(0.02)
        return current_worker_index()

    with coordinator_of(servers) as coordinator:
        servers[0].process.kill()
        servers[0].process.wait()
        assert set(coordinator.fetch([coordinator.schedule(index) for _ in range(20)], timeout=20.0)) == {1}
        with served(*OPTIONS, "--port", port):
            await_until(lambda: 0 in coordinator.fetch([coordinator.schedule(index) for _ in range(20)], timeout=20.0))


@pytest.mark.long
def test_what_each_worker_has_of_its_own_begins_anew_where_a_worker_was_lost(servers: list[Server]) -> None:
    port = servers[0].target.rpartition(":")[2]
    with coordinator_of(servers[:1]) as coordinator:
        iterator = iter(coordinator.create_per_worker_dataset(lambda: range(100)))
        for expected in range(3):
            assert coordinator.schedule(next, (iterator,)).get(timeout=20.0) == expected
        servers[0].process.kill()
        servers[0].process.wait()
        with served(*OPTIONS, "--port", port):
            for expected in range(3):
                assert coordinator.schedule(next, (iterator,)).get(timeout=20.0) == expected


@pytest.mark.long
def test_a_call_that_ends_its_workers_fails_and_the_others_are_right(caplog: pytest.LogCaptureFixture) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with fedstack.service.local_worker_pool(2) as pool, ClusterCoordinator(pool, on_error="continue") as coordinator:
        good = [coordinator.schedule(square, (number,)) for number in range(20)]
        bad = coordinator.schedule(die)
        good += [coordinator.schedule(square, (number,)) for number in range(20, 40)]
        with pytest.raises(LostWorkersError, match="4 workers were lost while they ran 'die'"):
            bad.get(timeout=60.0)
        with pytest.raises(LostWorkersError):
            coordinator.join(timeout=60.0)
        assert [int(value) for value in coordinator.fetch(good, timeout=60.0)] == [n * n for n in range(40)]
    assert len([one for one in caplog.records if "(SIGKILL); restarting it" in one.message]) <= 4


def test_without_any_worker_calls_fail_after_the_time_that_was_given() -> None:
    address = f"127.0.0.1:{free_port()}"
    with ClusterCoordinator(address, connect_seconds=0.5) as coordinator:
        value = coordinator.schedule(square, (1,))
        with pytest.raises(WorkerUnavailableError, match=address):
            coordinator.join(timeout=20.0)
        with pytest.raises(WorkerUnavailableError, match=address):
            value.get(timeout=20.0)


def test_a_client_may_come_before_its_worker() -> None:
    port = free_port()
    with ClusterCoordinator(f"127.0.0.1:{port}") as coordinator:
        value = coordinator.schedule(square, (3,))
        with served(*OPTIONS, "--port", port):
            assert value.get(timeout=20.0) == 9


@pytest.mark.long
def test_dropped_results_are_dropped_by_workers(servers: list[Server]) -> None:
    @fedstack.python_computation([], np.int32)
    def three() -> int:
        return 3

    with coordinator_of(servers) as coordinator:
        for _ in range(10_000):
            coordinator.schedule(three)
        coordinator.join(timeout=60.0)
        stubs = [fedstack.executors.RemoteExecutor.connect(server.target) for server in servers]
        from fedstack.transport.peers.io_loop import io_loop

        def live() -> int:
            return sum(io_loop.run_sync(stub.stub.get_status()).values for stub in stubs)

        await_until(lambda: live() < 100)
        for stub in stubs:
            stub.close()


@pytest.mark.long
def test_a_variable_whose_server_was_started_anew_is_an_error_and_new_ones_are_made_there() -> None:
    from fedstack.service import ClusterSpec

    port = free_port()
    with served(*OPTIONS) as worker, served(*OPTIONS, "--port", port) as holder:
        spec = ClusterSpec({"worker": [worker.target], "ps": [holder.target]})
        with ClusterCoordinator(spec) as coordinator:
            variable = coordinator.variable(1)
            coordinator.schedule(lambda counter: counter.assign_add(2), (variable,)).get(timeout=20.0)
            assert variable.read_value() == 3
            holder.process.kill()
            holder.process.wait()
            with pytest.raises(WorkerUnavailableError):
                variable.read_value()
            with served(*OPTIONS, "--port", port):
                with pytest.raises(
                    StaleSessionError, match="The variable on the server at .* is gone: the server was restarted"
                ):
                    variable.read_value()
                again = coordinator.variable(5)  # that one is gone, and there may be others
                coordinator.schedule(lambda counter: counter.assign_add(2), (again,)).get(timeout=20.0)
                assert again.read_value() == 7

"""Variables: state that functions of workers and the coordinator's program read and change."""

import asyncio
import threading
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import ClosedError, FedstackError, InvalidValueError, TypeMismatchError, WorkerUnavailableError
from fedstack.service import ClusterSpec, Server
from fedstack.service.coordinator import AsyncClusterCoordinator, ClusterCoordinator
from fedstack.testing import SimulatedCluster
from fedstack.transport.grpc.grpc_connection import GrpcConnection


@pytest.fixture(scope="module")
def pool() -> Iterator[object]:
    with fedstack.service.local_worker_pool(2) as workers:
        yield workers


@pytest.fixture(params=["local", "workers"])
def coordinator(request: pytest.FixtureRequest, pool: object) -> Iterator[ClusterCoordinator]:
    if request.param == "workers":
        with ClusterCoordinator(pool) as made:
            yield made
        return
    with fedstack.local_executor_factory() as first, fedstack.local_executor_factory() as second:
        with ClusterCoordinator([first, second]) as made:
            yield made


def test_a_variable_is_read_and_changed(coordinator: ClusterCoordinator) -> None:
    variable = coordinator.variable(1.5)
    assert variable.read_value() == 1.5
    variable.assign_add(2.0)
    variable.assign_sub(0.5)
    assert variable.read_value() == 3.0
    variable.assign(7.0)
    assert variable.read_value() == 7.0


def test_a_variable_may_be_a_struct_of_arrays_of_any_size(coordinator: ClusterCoordinator) -> None:
    type_spec = fl.to_type({"w": (np.float32, [300, 1000]), "n": np.int8})
    variable = coordinator.variable({"w": np.ones((300, 1000), np.float32), "n": 127}, type_spec)
    variable.assign_add({"w": np.full((300, 1000), 2, np.float32), "n": 1})
    found = variable.read_value()
    assert found["w"].dtype == np.float32
    assert (found["w"] == 3.0).all()
    assert found["n"] == -128  # integers wrap


def test_the_example_of_the_original_gives_its_numbers(coordinator: ClusterCoordinator) -> None:
    total = coordinator.variable(0)

    def worker_fn(iterator):
        value = next(iterator)
        total.assign_add(value)
        return value

    per_worker_dataset = coordinator.create_per_worker_dataset(lambda: [3] * 10)
    per_worker_iterator = iter(per_worker_dataset)
    remote_value = coordinator.schedule(worker_fn, args=(per_worker_iterator,))
    assert remote_value.fetch() == 3
    for _ in range(4):
        coordinator.schedule(worker_fn, args=(per_worker_iterator,))
    coordinator.join()
    assert total.read_value() == 15


def test_of_many_changes_at_the_same_time_none_is_lost(coordinator: ClusterCoordinator) -> None:
    variable = coordinator.variable(0)

    def count(counter):
        for _ in range(5):
            counter.assign_add(1)

    threads = [threading.Thread(target=count, args=(variable,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        coordinator.schedule(count, (variable,))
    coordinator.join()
    for thread in threads:
        thread.join()
    assert variable.read_value() == 220


def test_values_that_do_not_fit_are_refused(coordinator: ClusterCoordinator) -> None:
    variable, flag = coordinator.variable(np.zeros(3, np.float32)), coordinator.variable(True)
    for change in (variable.assign, variable.assign_add):
        with pytest.raises(
            TypeMismatchError, match=r"Expected shape \[3\] of float32\[3\], found shape \[4\]; at value"
        ):
            change(np.zeros(4, np.float32))
    with pytest.raises(TypeMismatchError, match="Expected numbers to add at value, found bool"):
        flag.assign_add(True)
    flag.assign(False)
    assert not flag.read_value()
    with pytest.raises(TypeMismatchError, match="initial_value"):
        coordinator.variable("text", np.float32)


def test_the_initial_value_is_taken_as_it_is_then(coordinator: ClusterCoordinator) -> None:
    array = np.zeros(3, np.float32)
    variable = coordinator.variable(array)
    array[:] = 1
    assert variable.read_value().tolist() == [0.0, 0.0, 0.0]


def test_a_variable_ends_with_its_coordinator() -> None:
    with fedstack.local_executor_factory() as factory, ClusterCoordinator(factory) as coordinator:
        variable = coordinator.variable(1)
    with pytest.raises(FedstackError):
        variable.read_value()
    with pytest.raises(ClosedError):
        coordinator.variable(1)


def test_variables_are_awaited_by_programs_with_an_event_loop() -> None:
    async def use() -> None:
        with fedstack.local_executor_factory() as factory:
            async with AsyncClusterCoordinator(factory) as coordinator:
                variable = await coordinator.variable(1)
                await variable.assign_add(2)
                await variable.assign_sub(1)
                value = await coordinator.schedule(lambda counter: counter.assign_add(10), (variable,))
                await value
                assert await variable.read_value() == 12
                await variable.assign(5)
                assert await variable.read_value() == 5

    asyncio.run(use())


def test_an_initial_value_may_be_made_by_a_function(coordinator: ClusterCoordinator) -> None:
    assert coordinator.variable(lambda: 3.0).read_value() == 3.0
    with pytest.raises(ZeroDivisionError):
        coordinator.variable(lambda: 1 / 0)


@pytest.mark.parametrize("where", ["local", "workers"])
def test_functions_change_a_captured_variable_of_an_asynchronous_coordinator(pool: object, where: str) -> None:
    async def use() -> None:
        with fedstack.local_executor_factory() as factory:
            async with AsyncClusterCoordinator(factory if where == "local" else pool) as coordinator:
                variable = await coordinator.variable(1)

                def count():
                    variable.assign_add(2)
                    return variable.read_value()

                values = [await coordinator.schedule(count) for _ in range(5)]
                assert max(await coordinator.fetch(values)) == 11
                assert await variable.read_value() == 11

    asyncio.run(use())


def test_a_task_that_is_to_hold_a_variable_is_waited_for_as_workers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    wait_ready = GrpcConnection.wait_ready

    async def recorded(connection: GrpcConnection, seconds: float) -> None:
        waited.append(seconds)
        await wait_ready(connection, seconds)

    monkeypatch.setattr(GrpcConnection, "wait_ready", recorded)
    spec = ClusterSpec({"worker": ["localhost:1"], "ps": ["localhost:2"]})
    with ClusterCoordinator(spec, connect_seconds=0.125) as coordinator:
        with pytest.raises(WorkerUnavailableError, match="no server is listening"):
            coordinator.variable(1)
    assert any(0.12 < seconds <= 0.125 for seconds in waited)  # the worker is waited for as well


@pytest.mark.parametrize("wrong", [None, {1, 2}, object()], ids=["nothing", "a set", "an object"])
def test_an_initial_value_without_a_type_is_refused(coordinator: ClusterCoordinator, wrong: object) -> None:
    with pytest.raises(InvalidValueError, match="Expected an initial value whose type can be inferred, found"):
        coordinator.variable(wrong)


def test_a_value_that_is_not_here_is_no_initial_value(coordinator: ClusterCoordinator) -> None:
    with pytest.raises(InvalidValueError, match="whose type can be inferred, found RemoteValue"):
        coordinator.variable(coordinator.schedule(lambda: 1))


def test_simulated_workers_have_no_variables() -> None:
    async def program(cluster: SimulatedCluster) -> None:
        async with AsyncClusterCoordinator(cluster.stubs()) as coordinator:
            with pytest.raises(InvalidValueError, match="Simulated workers cannot use variables.*return the new state"):
                await coordinator.variable(1)

    SimulatedCluster().run(program)


@pytest.mark.long
def test_a_task_of_the_job_for_them_holds_variables(pool: object) -> None:
    with Server({"ps": ["127.0.0.1:0"]}, "ps", 0) as server:
        address = server.target.removeprefix("grpc://")
        spec = ClusterSpec({"worker": list(pool.targets), "ps": [address]})  # type: ignore[attr-defined]
        with ClusterCoordinator(spec, pool.credentials) as coordinator:  # type: ignore[attr-defined]
            variable = coordinator.variable(1)
            assert address in repr(variable)


def test_the_first_variables_may_be_made_at_the_same_time() -> None:
    async def use() -> None:
        with fedstack.local_executor_factory() as factory:
            async with AsyncClusterCoordinator([factory]) as coordinator:
                variables = await asyncio.gather(*[coordinator.variable(number) for number in range(8)])
                assert [await variable.read_value() for variable in variables] == list(range(8))
                assert len({repr(variable) for variable in variables}) == 1

    asyncio.run(use())


@pytest.mark.long
def test_variables_are_made_at_the_same_time_at_a_task_that_was_started_anew(pool: object) -> None:
    async def use() -> None:
        server = Server({"ps": ["127.0.0.1:0"]}, "ps", 0)
        address = server.target.removeprefix("grpc://")
        spec = ClusterSpec({"worker": list(pool.targets), "ps": [address]})  # type: ignore[attr-defined]
        async with AsyncClusterCoordinator(spec, pool.credentials) as coordinator:  # type: ignore[attr-defined]
            await coordinator.variable(1)
            await asyncio.to_thread(server.stop, 0)
            with Server({"ps": [address]}, "ps", 0):
                variables = await asyncio.gather(*[coordinator.variable(number) for number in range(8)])
                assert [await variable.read_value() for variable in variables] == list(range(8))

    asyncio.run(use())

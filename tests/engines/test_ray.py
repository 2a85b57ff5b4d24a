"""Client work in actors of Ray."""

import asyncio
import os
import socket
import subprocess
import threading

import federated_language as fl
import numpy as np
import pytest
import ray
from ray_calls import average, checked, inputs, is_running, numbers, processes, same, wait_until

import fedstack
from benchmarks.ray_rounds import _bytes_put
from fedstack.backends.ray_cluster.ray_backend import RayBackend
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import get_context_stack
from fedstack.errors import InvalidValueError, LeafError
from fedstack.observe import Observer, PhaseEnded, add_observer

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def two():
    context = fedstack.create_sync_ray_execution_context(num_workers=2, resources_per_worker={"CPU": 0.5})
    yield context
    context.close()


@pytest.fixture(scope="module")
def expected():
    with fedstack.create_sync_local_execution_context():
        return average(*inputs(37))


@pytest.mark.long
def test_the_result_has_the_bits_of_the_local_stack(two, expected) -> None:
    with fedstack.use_context(two):
        assert average(*inputs(37)).tobytes() == expected.tobytes()


def test_clients_run_in_the_processes_of_the_actors(two) -> None:
    with fedstack.use_context(two):
        found = processes(numbers(10))
    assert len(set(found)) == 2
    assert os.getpid() not in found


async def test_an_async_context_runs_calls_side_by_side() -> None:
    context = fedstack.create_async_ray_execution_context(num_workers=1, resources_per_worker={"CPU": 0.5})
    async with context:
        found = await asyncio.gather(*(checked(numbers(count)) for count in (3, 5, 7)))
    assert found == [3, 10, 21]


def test_an_error_names_client_function_line_and_node(two) -> None:
    with fedstack.use_context(two), pytest.raises(LeafError) as caught:
        checked(numbers(20))
    assert caught.value.client_index == 7
    assert "'not_seven' raised ValueError: it is 7; at client 7" in str(caught.value)
    assert 'raise ValueError("it is 7")' in str(caught.value)
    assert f"at {socket.gethostname()}, process" in str(caught.value.__cause__)


def test_what_a_user_keeps_of_a_result_is_no_memory_of_the_object_store(two) -> None:
    _, rows = inputs(4)
    with fedstack.use_context(two):
        kept = same(rows)
    assert [row.tobytes() for row in kept] == [row.tobytes() for row in rows]
    for row in kept:
        while isinstance(row.base, np.ndarray):
            row = row.base
        assert row.base is None


def test_observers_hear_of_phases_at_actors(two) -> None:
    class Watching(Observer):
        def __init__(self) -> None:
            self.places = set()

        def observe(self, event) -> None:
            if isinstance(event, PhaseEnded):
                self.places.add(event.worker)

    watching = Watching()
    with fedstack.use_context(two), add_observer(watching):
        average(*inputs(8))
    assert sum("actor" in place for place in watching.places) == 2


def test_explain_names_the_actors(two) -> None:
    with fedstack.use_context(two):
        average(*inputs(2))
        told = str(fedstack.explain(two, num_clients=4))
    assert "2 Ray workers, 2 ready" in told


@pytest.mark.long
def test_partial_results_are_merged_in_a_tree_of_actors(monkeypatch, expected) -> None:
    fetched = []
    fetch = RayBackend.fetch

    async def noted(self, content):
        fetched.append(content)
        return await fetch(self, content)

    monkeypatch.setattr(RayBackend, "fetch", noted)
    options = {"num_workers": 5, "resources_per_worker": {"CPU": 0.5}, "max_fanout": 2}
    with fedstack.create_sync_ray_execution_context(**options):
        assert average(*inputs(37)).tobytes() == expected.tobytes()
        assert len(fetched) == 2
        assert checked(numbers(7)) == 21
        with pytest.raises(LeafError, match="at client 7"):
            checked(numbers(20))


def test_what_all_clients_get_is_put_into_the_object_store_once_and_a_range_where_it_goes(two) -> None:
    wide = fl.FederatedType(fl.TensorType(np.float64, [100_000]), fl.CLIENTS)

    @fedstack.python_computation([wide.member, wide.member], np.float64)
    def inner_product(model, row):
        return float(model @ row)

    @fl.federated_computation(fl.FederatedType(wide.member, fl.SERVER), wide)
    def products(model, rows):
        return fl.federated_sum(fl.federated_map(inner_product, (fl.federated_broadcast(model), rows)))

    model, rows = np.ones(100_000), [np.full(100_000, float(row)) for row in range(4)]
    with fedstack.use_context(two):
        products(model, rows)
        before = _bytes_put(ray)
        assert products(model, rows) == 600_000
    assert model.nbytes * 5 <= _bytes_put(ray) - before < model.nbytes * 5.5


@fedstack.python_computation([np.int32], np.int32)
def cores(_):
    return current_scope().cores


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def most_cores(numbers):
    return fl.federated_max(fl.federated_map(cores, numbers))


def test_as_many_functions_compute_at_the_same_time_as_an_actor_has_cpus_and_one_at_least(two) -> None:
    with fedstack.use_context(two):
        assert most_cores(numbers(3)) == 1


def test_a_forked_child_leaves_the_actors_to_its_parent(two) -> None:
    with fedstack.use_context(two):
        before = set(processes(numbers(4)))
        subprocess.run(["true"], preexec_fn=lambda: None, check=True)
        assert set(processes(numbers(4))) == before


def test_a_closed_context_leaves_no_actor_behind() -> None:
    with fedstack.create_sync_ray_execution_context(num_workers=2, resources_per_worker={"CPU": 0.5}):
        found = set(processes(numbers(4)))
    wait_until(lambda: not any(map(is_running, found)), "the actors have ended")


@pytest.mark.long
def test_actors_have_the_resources_and_the_environment_that_they_are_given() -> None:
    @fedstack.python_computation([np.int32], np.str_)
    def told(_):
        return f"{os.environ['OF_CLIENTS']}, GPU {os.environ['CUDA_VISIBLE_DEVICES']}"

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def of_all(numbers):
        return fl.federated_map(told, numbers)

    def free() -> list[float]:
        found = ray.available_resources()
        return [found.get("CPU", 0), found.get("GPU", 0)]

    options = {"placement": "PACK", "runtime_env": {"env_vars": {"OF_CLIENTS": "seven"}}}
    needs = {"CPU": 3, "GPU": 0.5}
    with fedstack.create_sync_ray_execution_context(num_workers=1, resources_per_worker=needs, **options):
        assert of_all(numbers(2)) == [b"seven, GPU 0"] * 2
        assert most_cores(numbers(2)) == 3
        wait_until(lambda: free() == [0, 0.5], "three CPUs and half of a GPU are taken")
    wait_until(lambda: free() == [3, 1], "they are given back")


@pytest.mark.long
@pytest.mark.parametrize(("limit", "count"), [({}, 2), ({"max_workers": 1}, 1)])
def test_as_many_actors_start_as_there_is_room_for_and_no_more_than_allowed(limit, count) -> None:
    with fedstack.create_sync_ray_execution_context(resources_per_worker={"CPU": 1.5}, **limit) as context:
        assert len(set(processes(numbers(6)))) == count
        assert f"{count} Ray worker{'s' if count > 1 else ''}, {count} ready" in repr(context)


def test_a_context_over_ray_can_be_made_the_default_of_a_thread() -> None:
    found: list[str] = []

    def install(make) -> None:
        make(num_workers=2)
        found.append(repr(get_context_stack().current))

    for make in (fedstack.set_sync_ray_execution_context, fedstack.set_async_ray_execution_context):
        thread = threading.Thread(target=install, args=(make,))
        thread.start()
        thread.join()
    assert [("Async" in told, "RayBackend of 0 Ray workers" in told) for told in found] == [(False, True), (True, True)]


def test_options_that_cannot_be_right_are_refused() -> None:
    for options, found in (
        ({"num_workers": 0}, "Expected num_workers of at least 1, found 0"),
        ({"num_workers": "many"}, "Expected num_workers to be a number, or 'auto' for num_workers, found"),
        ({"placement": "WIDE"}, "Expected placement to be 'SPREAD', 'PACK', a placement group or a scheduling"),
        ({"resources_per_worker": {"gpu": 1}}, "Expected 'GPU' in resources_per_worker, found 'gpu'"),
        ({"resources_per_worker": {"CPU": -1}}, "resources_per_worker"),
        ({"placement": 3}, "a placement group or a scheduling strategy of Ray, found int 3"),
        ({"resources_per_worker": {1: 1}}, "Expected the keys of resources_per_worker to be strings, found int 1"),
        ({"runtime_env": "x"}, "Expected runtime_env to be a dict, found str 'x'"),
        (
            {"runtime_env": {"working_dir": "/no/such/dir"}},
            "Ray rejects the runtime_env: /no/such/dir is not a valid path; fix",
        ),
        ({"resources_per_worker": 3}, "Expected resources_per_worker to be a dict, found"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            fedstack.ray_executor_factory(**options)
        assert found in str(caught.value)
    with pytest.raises(TypeError, match="found workers; "):
        fedstack.create_sync_ray_execution_context(workers=2)

"""Python functions as closures: what they get, what they return, and what each worker has of its own."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import fedstack
from fedstack.errors import CarrierError, ContextError, InvalidValueError, LeafError, TypeMismatchError
from fedstack.service.coordinator import ClusterCoordinator, PerWorkerValues, current_worker_index


@fedstack.python_computation([np.float32], np.float32)
def double(x):
    return 2 * x


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


def test_a_function_gets_its_arguments_as_they_are(coordinator: ClusterCoordinator) -> None:
    def describe(*args, **kwargs):
        return repr((args, kwargs))

    value = coordinator.schedule(describe, (1, 0.1, "text", [None, {"a": (1, 2)}]), {"key": b"bytes"})
    assert value.get() == b"((1, 0.1, 'text', [None, {'a': (1, 2)}]), {'key': b'bytes'})"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (3, 3),
        (0.5, 0.5),
        ("text", b"text"),
        ({"a": 1, "b": {"c": 2.0}}, {"a": 1, "b": {"c": 2.0}}),
        ((1, (2, 3)), (1, (2, 3))),
        (np.bool_(True), True),
    ],
)
def test_what_a_function_returns_is_fetched(coordinator: ClusterCoordinator, given: object, expected: object) -> None:
    value = coordinator.schedule(lambda: given)
    assert value.get() == expected
    assert value.get() == expected


@pytest.mark.parametrize("size", [0, 10, 1_000_000])
def test_arrays_of_any_size_come_back_with_their_dtype(coordinator: ClusterCoordinator, size: int) -> None:
    found = coordinator.schedule(lambda: {"a": np.arange(size, dtype=np.int64), "b": np.float64(2)}).get()
    assert found["a"].dtype == np.int64
    assert found["b"].dtype == np.float64
    assert np.array_equal(found["a"], np.arange(size))
    found["a"][:] = 0  # it is the caller's


def test_a_result_without_a_type_is_an_error(coordinator: ClusterCoordinator) -> None:
    with pytest.raises(TypeMismatchError, match="Expected a result of '<lambda>' with a type of the language"):
        coordinator.schedule(lambda: object()).get()


def test_values_of_other_calls_are_found_at_any_depth(coordinator: ClusterCoordinator) -> None:
    a = coordinator.schedule(double, (1.0,))
    b = coordinator.schedule(lambda: np.arange(3.0))

    def add(tree, *, more):
        return float(tree["deep"][0] + tree["deep"][1].sum() + more)

    total = coordinator.schedule(add, ({"deep": [a, b]},), {"more": a})
    assert total.get() == 2.0 + 3.0 + 2.0
    assert coordinator.schedule(double, (total,)).get() == 14.0


def test_a_value_that_does_not_fit_a_computation_is_an_error_there(coordinator: ClusterCoordinator) -> None:
    vector = coordinator.schedule(lambda: np.arange(3.0))
    with pytest.raises(TypeMismatchError, match=r"Expected float32, found float64\[3\]; at arg"):
        coordinator.schedule(double, (vector,)).get()


def test_errors_name_the_function_and_its_lines(coordinator: ClusterCoordinator) -> None:
    def divide(x):
        return 1 / x

    with pytest.raises(LeafError, match=r"(?s)'divide' raised ZeroDivisionError: division by zero.*return 1 / x"):
        coordinator.schedule(divide, (0,)).get()


def test_what_belongs_to_this_process_is_refused_at_once(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(CarrierError, match="Pickling the arguments of '<lambda>' raised TypeError: cannot pickle"):
        coordinator.schedule(lambda lock: None, (threading.Lock(),))
    with pytest.raises(TypeMismatchError, match="give it as an argument|Expected"):
        coordinator.schedule(double, (object(),))
    assert value.get() == 1


def test_a_function_knows_which_worker_runs_it(coordinator: ClusterCoordinator) -> None:
    def index():
        time.sleep(0.01)
        return current_worker_index()

    assert set(coordinator.fetch([coordinator.schedule(index) for _ in range(20)])) == {0, 1}
    with pytest.raises(ContextError, match="schedule it"):
        current_worker_index()


def test_each_worker_has_its_own_iterator_which_one_closure_uses_at_a_time(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(range(100)))
    assert isinstance(iterator, PerWorkerValues)

    def take(numbers):
        first = next(numbers)
        time.sleep(0.001)
        return current_worker_index(), first, next(numbers)

    found = coordinator.fetch([coordinator.schedule(take, (iterator,)) for _ in range(20)])
    for worker in {0, 1}:
        numbers = sorted(int(n) for index, *both in found for n in both if index == worker)
        assert numbers == list(range(len(numbers)))
    assert all(second == first + 1 for _, first, second in found)


def test_each_worker_makes_its_own_value_once(coordinator: ClusterCoordinator) -> None:
    counter = coordinator.create_per_worker_value(lambda: [0])

    def count(box):
        box[0] += 1
        return current_worker_index(), box[0]

    found = coordinator.fetch([coordinator.schedule(count, (counter,)) for _ in range(30)])
    for worker in {index for index, _ in found}:
        counts = sorted(int(number) for index, number in found if index == worker)
        assert counts == list(range(1, len(counts) + 1))


def test_datasets_that_end_are_refused_and_iterators_belong_to_workers(coordinator: ClusterCoordinator) -> None:
    with pytest.raises(InvalidValueError, match="iterated over again and again"):
        coordinator.create_per_worker_dataset(iter([1, 2]))
    with pytest.raises(InvalidValueError, match="iterated over again and again"):
        coordinator.create_per_worker_dataset(3)
    with pytest.raises(NotImplementedError, match="scheduled function"):
        next(iter(coordinator.create_per_worker_dataset([1])))


def test_the_end_of_an_iterator_is_an_error_of_its_function(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset([]))
    with pytest.raises(LeafError, match="StopIteration"):
        coordinator.schedule(lambda numbers: next(numbers), (iterator,)).get()

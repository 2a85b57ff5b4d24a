"""Python functions as closures: what they get, what they return, and what each worker has of its own."""

import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fedstack
from fedstack.errors import (
    CarrierError,
    ClosureCancelledError,
    ContextError,
    DeadlineExceededError,
    InvalidComputationError,
    InvalidValueError,
    LeafError,
    StaleSessionError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.service.coordinator import ClusterCoordinator, PerWorkerValues, current_worker_index
from fedstack.service.data import Dataset, DispatchServer, WorkerServer, distribute


@fedstack.python_computation([np.float32], np.float32)
def double(x):
    return 2 * x


@fedstack.python_computation([np.int64], np.int64)
def twice(x):
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


def test_a_decorated_function_gets_what_its_decorator_takes(coordinator: ClusterCoordinator) -> None:
    def with_greeting(function):
        @functools.wraps(function)
        def greets(name):
            return function("hello", name)

        return greets

    @with_greeting
    def said(greeting, name):
        return f"{greeting} {name}"

    assert coordinator.schedule(said, ("you",)).get() == b"hello you"
    with pytest.raises(TypeMismatchError, match="'said'"):
        coordinator.schedule(said, ("hello", "you"))


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
        (2**40, 2**40),
        (-(2**63), -(2**63)),
        (1e300, 1e300),
        ([1, 0.1, {"a": np.float32(2)}], (1, 0.1, {"a": np.float32(2)})),
    ],
)
def test_what_a_function_returns_is_fetched(coordinator: ClusterCoordinator, given: object, expected: object) -> None:
    value = coordinator.schedule(lambda: given)
    assert value.get() == expected
    assert value.get() == expected


def test_pythons_own_numbers_stay_such_and_numpy_keeps_its_types(coordinator: ClusterCoordinator) -> None:
    given = {"i": 3, "f": 0.1, "n": np.int32(4), "deep": (2**40, np.float64(0.1), True)}
    value = coordinator.schedule(lambda: given)
    again = coordinator.schedule(lambda found: found, (value,))
    for found in coordinator.fetch([value, again]):
        members = [found["i"], found["f"], found["n"], *found["deep"]]
        assert list(map(type, members)) == [int, float, np.int32, int, np.float64, np.bool_]
        assert members == [3, 0.1, 4, 2**40, 0.1, True]


def test_pythons_own_numbers_fit_parameters_of_any_size_that_has_room_for_them(coordinator: ClusterCoordinator) -> None:
    assert coordinator.schedule(double, (coordinator.schedule(lambda: 0.5),)).get() == 1.0


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (1, "Expected float32, found int 1; at arg"),
        (1e300, "Expected a value in the range of float32, found 1e.300; at arg"),
        (np.float64(1), "Expected float32, found float64"),
    ],
)
def test_no_other_numbers_do(coordinator: ClusterCoordinator, number: object, reason: str) -> None:
    with pytest.raises(TypeMismatchError, match=reason):
        coordinator.schedule(double, (coordinator.schedule(lambda: number),)).get()


@pytest.mark.parametrize("size", [0, 10, 1_000_000])
def test_arrays_of_any_size_come_back_with_their_dtype(coordinator: ClusterCoordinator, size: int) -> None:
    found = coordinator.schedule(lambda: {"a": np.arange(size, dtype=np.int64), "b": np.float64(2)}).get()
    assert found["a"].dtype == np.int64
    assert found["b"].dtype == np.float64
    assert np.array_equal(found["a"], np.arange(size))
    found["a"][:] = 0  # it is the caller's


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (range(3), r"found range range\(0, 3\) at result; return a list of the elements"),
        ({"a": [1, {"b": {1}}]}, r"found set .1. at result.a\[1\].b; return a list of the elements"),
        ([1, None], r"found None at result\[1\]; return None only as the whole result"),
        ([{1: 2}], r"found list \[.1: 2.\] at result; use strings as dictionary keys"),
        (object(), r"found object <object.* at result; return the object's content as numbers, strings or arrays"),
        ({"a": 2**63}, r"found int 9223372036854775808 at result.a; return larger integers as floats or strings"),
    ],
)
def test_a_result_without_a_type_is_an_error(coordinator: ClusterCoordinator, wrong: object, found: str) -> None:
    with pytest.raises(
        TypeMismatchError, match="Expected '<lambda>' to return a value with a type of the language.*" + found
    ):
        coordinator.schedule(lambda: wrong).get()


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
    with pytest.raises(TypeMismatchError, match=r"Expected float32, found an array float64\[3\]; at arg"):
        coordinator.schedule(double, (vector,)).get()


def test_errors_name_the_function_and_its_lines(coordinator: ClusterCoordinator) -> None:
    def divide(x):
        return 1 / x

    with pytest.raises(LeafError, match=r"(?s)'divide' raised ZeroDivisionError: division by zero.*return 1 / x"):
        coordinator.schedule(divide, (0,)).get()


def test_errors_of_what_a_worker_makes_have_the_users_own_lines_alone(coordinator: ClusterCoordinator) -> None:
    def make():
        return 1 / 0

    value = coordinator.create_per_worker_value(make)
    with pytest.raises(LeafError, match="'<lambda>' raised ZeroDivisionError: division by zero") as caught:
        coordinator.schedule(lambda made: made, (value,)).get()
    assert "return 1 / 0" in str(caught.value)
    assert "contextlib" not in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
        ClosureCancelledError,
        DeadlineExceededError,
        StaleSessionError,
        WorkerUnavailableError,
    ],
)
def test_what_a_function_raises_ends_nothing_but_its_call(
    coordinator: ClusterCoordinator, kind: type[BaseException]
) -> None:
    def ends():
        raise kind

    kept = coordinator.schedule(lambda: 1)
    coordinator.join(30)
    for function in (ends, fedstack.python_computation([], np.int32)(ends)):
        value = coordinator.schedule(function)
        with pytest.raises(LeafError, match=f"'ends' raised {kind.__name__}"):
            value.get(30)
        with pytest.raises(LeafError):
            coordinator.join(30)
    assert repr(kept).startswith("<RemoteValue of '<lambda>': ready at"), "its worker was not lost"
    assert kept.get(30) == 1


def test_coroutine_functions_are_refused_at_once(coordinator: ClusterCoordinator) -> None:
    async def later(x):
        return x

    with pytest.raises(InvalidComputationError, match="found the coroutine function 'later'; define it without async"):
        coordinator.schedule(later, (1,))
    coordinator.join()


def test_what_belongs_to_this_process_is_refused_at_once(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda: 1)
    with pytest.raises(CarrierError, match="Pickling the arguments of '<lambda>' raised TypeError: cannot pickle"):
        coordinator.schedule(lambda lock: None, (threading.Lock(),))
    with pytest.raises(TypeMismatchError, match="pass it as an argument|Expected"):
        coordinator.schedule(double, (object(),))
    assert value.get() == 1


def test_a_function_knows_which_worker_runs_it(coordinator: ClusterCoordinator) -> None:
    def index():
        time.sleep(0.01)
        return current_worker_index()

    found: set[int] = set()
    limit = time.monotonic() + 20.0
    while found != {0, 1}:  # a loaded machine may give all to one for a while
        assert time.monotonic() < limit
        found |= set(coordinator.fetch([coordinator.schedule(index) for _ in range(20)]))
    with pytest.raises(ContextError, match="schedule the function"):
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
    with pytest.raises(InvalidValueError, match="iterated over repeatedly"):
        coordinator.create_per_worker_dataset(iter([1, 2]))
    with pytest.raises(InvalidValueError, match="iterated over repeatedly"):
        coordinator.create_per_worker_dataset(3)
    with pytest.raises(NotImplementedError, match="scheduled function"):
        next(iter(coordinator.create_per_worker_dataset([1])))


def test_the_end_of_an_iterator_is_an_error_of_its_function(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset([]))
    with pytest.raises(LeafError, match="StopIteration"):
        coordinator.schedule(lambda numbers: next(numbers), (iterator,)).get()


def test_a_dataset_as_an_argument_is_the_workers_own(coordinator: ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(lambda: [1, 2, 3])
    sums = [coordinator.schedule(lambda numbers: sum(numbers), (dataset,)) for _ in range(4)]
    assert coordinator.fetch(sums) == [6] * 4


@pytest.mark.parametrize(
    "source",
    [Dataset.range(0, 100, 2), Dataset.range(100).map(twice), lambda: Dataset.range(100).map(twice)],
    ids=["it", "mapped", "made"],
)
def test_a_dataset_of_the_data_service_is_a_source_too(coordinator: ClusterCoordinator, source: Any) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(source))
    found = [coordinator.schedule(next, (iterator,)).get() for _ in range(4)]
    assert set(found) <= {0, 2, 4, 6}


def numbers_of(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def test_a_distributed_dataset_is_a_source_too_and_workers_that_share_a_job_share_its_elements(
    coordinator: ClusterCoordinator,
) -> None:
    with DispatchServer() as dispatcher, WorkerServer(port=0, dispatcher_address=dispatcher.target):
        shared = Dataset.range(40).batch(4).apply(distribute("distributed_epoch", dispatcher, job_name="shared"))
        iterator = iter(coordinator.create_per_worker_dataset(shared))
        shares = [coordinator.schedule(numbers_of, (iterator,)) for _ in range(4)]
        assert sorted(number for share in coordinator.fetch(shares) for number in share) == list(range(40))
        whole = coordinator.create_per_worker_dataset(
            Dataset.range(9).apply(distribute("distributed_epoch", dispatcher))
        )
        assert coordinator.schedule(sum, (whole,)).get() == sum(range(9))


def test_a_dataset_that_goes_on_from_a_cursor_stays_here(coordinator: ClusterCoordinator) -> None:
    with DispatchServer() as dispatcher, WorkerServer(port=0, dispatcher_address=dispatcher.target):
        exactly = functools.partial(distribute, "distributed_epoch", dispatcher, guarantee="exactly_once")
        elements = iter(Dataset.range(40).apply(exactly()))
        next(elements)
        resumed = Dataset.range(40).apply(exactly(resume=elements.cursor()))
        elements.close()
        with pytest.raises(CarrierError, match="resumes from a cursor"):
            iter(coordinator.create_per_worker_dataset(resumed))


def test_what_workers_have_is_refused_where_it_is_captured(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset([1]))
    value = coordinator.schedule(lambda: 1)

    def take():
        return next(iterator)

    def inner():
        return [each + value for each in (1, 2)]

    for function, variable in ((take, "iterator"), (inner, "value")):
        with pytest.raises(
            InvalidValueError,
            match=f"as {variable!r}, but .* passed as an argument; write schedule.{function.__name__}, args=",
        ):
            coordinator.schedule(function)
    with pytest.raises(CarrierError, match="pass it as an argument"):
        coordinator.create_per_worker_value([value])
    assert value.get() == 1


@pytest.mark.parametrize("wrap", [set, frozenset, iter, lambda values: dict(enumerate(values)).values()])
def test_only_what_has_places_for_values_is_fetched(coordinator: ClusterCoordinator, wrap: Any) -> None:
    value = coordinator.schedule(lambda: 1)
    expected = r"Expected handles in lists, tuples or dictionaries, found .* at structure.a"
    with pytest.raises(InvalidValueError, match=expected):
        coordinator.fetch({"a": [wrap([value])]})
    assert coordinator.fetch({"a": [value, "text", {3}.__class__]}) == {"a": [1, "text", set]}

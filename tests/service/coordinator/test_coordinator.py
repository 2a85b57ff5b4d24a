"""What a coordinator does with calls and their values, over executors of this process and over workers."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import (
    ClosedError,
    ClosureCancelledError,
    DeadlineExceededError,
    ForeignValueError,
    InvalidValueError,
    LeafError,
    TypeMismatchError,
)
from fedstack.service.coordinator import AsyncClusterCoordinator, ClusterCoordinator, cancelled

WALL = 30.0


@fedstack.python_computation([np.float32], np.float32)
def double(x):
    return 2 * x


@fedstack.python_computation([np.float32, np.float32], np.float32)
def subtract(x, y):
    return x - y


@fedstack.python_computation([], np.int32)
def three():
    return 3


@fedstack.python_computation([np.float32], np.float32)
def fail(x):
    raise ValueError("no")


@fedstack.python_computation([np.float32], np.float32)
def sleep(x):
    time.sleep(float(x))
    return x


@fedstack.python_computation([np.str_], np.float32)
def held(gate):
    while not os.path.exists(gate):
        time.sleep(0.005)
    return 1.0


@fedstack.python_computation([(np.int32, [None])], (np.int32, [None]))
def reverse(x):
    return x[::-1]


POINT = fl.StructType([("x", np.float32), ("inner", fl.StructType([("y", np.float32)]))])


@fedstack.python_computation([POINT], np.float32)
def norm(point):
    return point.x + point.inner.y


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(values)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS), fl.FederatedType(np.float32, fl.SERVER))
def mean_and(values, other):
    return fl.federated_mean(values), other


@pytest.fixture(scope="module")
def pool() -> Iterator[object]:
    with fedstack.service.local_worker_pool(2) as workers:
        yield workers


@pytest.fixture(params=["local", "workers"])
def workers(request: pytest.FixtureRequest, pool: object) -> Iterator[object]:
    if request.param == "workers":
        yield pool
        return
    with fedstack.local_executor_factory() as first, fedstack.local_executor_factory() as second:
        yield [first, second]


@pytest.fixture
def coordinator(workers: object) -> Iterator[ClusterCoordinator]:
    with ClusterCoordinator(workers) as made:
        yield made


class Gate:
    """Holds up what calls `held` with its path until it is opened, at the latest when the test ends."""

    def __init__(self, path: Path) -> None:
        self.path = os.fsencode(path)

    def open(self) -> None:
        Path(os.fsdecode(self.path)).touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "open")
    yield made
    made.open()


def test_a_call_gives_a_value_that_is_fetched(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(double, (3.0,))
    assert value.get() == value.fetch() == 6.0
    assert value.done()
    assert "ready" in repr(value)


def test_values_are_arguments_anywhere_in_a_structure(coordinator: ClusterCoordinator) -> None:
    a, b = coordinator.schedule(double, (1.0,)), coordinator.schedule(double, (2.0,))
    assert coordinator.schedule(subtract, (a, 10.0)).get() == -8.0
    assert coordinator.schedule(subtract, (10.0, b)).get() == 6.0
    assert coordinator.schedule(norm, ({"x": a, "inner": {"y": b}},)).get() == 6.0


def test_a_structure_is_fetched_as_a_whole(coordinator: ClusterCoordinator) -> None:
    a, b = coordinator.schedule(double, (1.0,)), coordinator.schedule(double, (2.0,))
    assert coordinator.fetch({"a": a, "others": [b, (a, "text")], "n": None}) == {
        "a": 2.0,
        "others": [4.0, (2.0, "text")],
        "n": None,
    }


def test_all_of_many_calls_come_to_their_end(coordinator: ClusterCoordinator) -> None:
    values = [coordinator.schedule(double, (float(number),)) for number in range(200)]
    coordinator.join()
    assert coordinator.done()
    assert coordinator.fetch(values) == [2.0 * number for number in range(200)]


def test_arguments_that_change_later_do_not_matter(coordinator: ClusterCoordinator) -> None:
    array = np.arange(3, dtype=np.int32)
    value = coordinator.schedule(reverse, (array,))
    array[:] = 7
    assert value.get().tolist() == [2, 1, 0]


def test_a_fetched_array_belongs_to_whoever_fetched_it(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(reverse, (np.arange(3, dtype=np.int32),))
    value.get()[:] = 7
    assert value.get().tolist() == [2, 1, 0]


def test_federated_computations_are_scheduled_too(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(mean, ([1.0, 2.0, 6.0],))
    assert value.get() == 3.0
    assert coordinator.schedule(mean, ([1.0, 2.0],)).get() == 1.5
    # The value goes from executors for three clients to those for two.
    assert coordinator.schedule(mean_and, ([1.0, 2.0], value)).get() == (1.5, 3.0)
    with pytest.raises(TypeMismatchError, match="Expected float32, found float32@SERVER"):
        coordinator.schedule(double, (value,))


def test_arguments_that_do_not_fit_are_refused_at_once(coordinator: ClusterCoordinator) -> None:
    vector = coordinator.schedule(reverse, (np.zeros(2, np.int32),))
    with pytest.raises(TypeMismatchError, match=r"arg\[0\]"):
        coordinator.schedule(subtract, (vector, 1.0))
    with pytest.raises(
        TypeMismatchError, match=r"parameters \['x', 'y'\] of 'subtract', found 1 by position and \['z'\]"
    ):
        coordinator.schedule(subtract, (1.0,), {"z": 1.0})
    with pytest.raises(TypeMismatchError, match="Expected no arguments for 'three', found 1"):
        coordinator.schedule(three, (1.0,))
    assert coordinator.schedule(subtract, (1.0,), {"y": 3.0}).get() == -2.0
    with pytest.raises(TypeMismatchError, match="Expected a computation or a Python function"):
        coordinator.schedule(3)
    coordinator.join()


def test_an_error_is_raised_once_and_the_rest_is_cancelled(coordinator: ClusterCoordinator) -> None:
    bad = coordinator.schedule(fail, (1.0,))
    with pytest.raises(LeafError, match="'fail' raised ValueError: no") as caught:
        bad.get()
    with pytest.raises(LeafError, match="'fail' raised ValueError: no") as caught:
        coordinator.schedule(double, (1.0,))
    assert [type(error) for error in caught.value.errors] == [LeafError]
    coordinator.join()
    assert coordinator.done()
    assert coordinator.schedule(double, (1.0,)).get() == 2.0


def test_what_is_queued_behind_an_error_is_cancelled(coordinator: ClusterCoordinator, gate: Gate) -> None:
    first = coordinator.schedule(held, (gate.path,))
    coordinator.schedule(fail, (first,))
    after = [coordinator.schedule(sleep, (0.1,)) for _ in range(1000)]
    gate.open()
    with pytest.raises(LeafError):
        coordinator.join()
    with pytest.raises(ClosureCancelledError):
        after[-1].get()


def test_errors_in_arguments_of_arguments_are_those_of_the_call(coordinator: ClusterCoordinator, gate: Gate) -> None:
    value = coordinator.schedule(held, (gate.path,))
    for function in (fail, double, double):
        value = coordinator.schedule(function, (value,))
    gate.open()
    with pytest.raises(LeafError, match="'fail' raised ValueError: no"):
        value.get()
    with pytest.raises(LeafError) as caught:
        coordinator.join()
    assert len(caught.value.errors) == 1


def test_others_go_on_after_an_error_if_they_are_to(workers: object) -> None:
    with ClusterCoordinator(workers, on_error="continue") as coordinator:
        values = [coordinator.schedule(fail if number == 3 else double, (1.0,)) for number in range(10)]
        with pytest.raises(LeafError):
            coordinator.join()
        assert [value.get() for number, value in enumerate(values) if number != 3] == [2.0] * 9


def test_a_call_that_is_cancelled_with_others_says_which_one_failed(
    coordinator: ClusterCoordinator, gate: Gate
) -> None:
    slow = coordinator.schedule(held, (gate.path,))
    failed = coordinator.schedule(fail, (1.0,))
    with pytest.raises(LeafError):
        failed.get(WALL)
    with pytest.raises(ClosureCancelledError, match="'held' was cancelled, because the call of 'fail' failed"):
        slow.get(WALL)
    gate.open()
    with pytest.raises(LeafError):
        coordinator.join(timeout=WALL)


def test_one_call_can_be_cancelled(coordinator: ClusterCoordinator, gate: Gate) -> None:
    slow, other = coordinator.schedule(held, (gate.path,)), coordinator.schedule(double, (1.0,))
    assert slow.cancel()
    with pytest.raises(ClosureCancelledError, match="'held' was cancelled$"):
        slow.get()
    assert other.get() == 2.0
    gate.open()
    coordinator.join(timeout=WALL)


@pytest.mark.parametrize(("seconds", "timeout"), [(0.1, None), (WALL, 0.1)])
def test_a_function_that_does_not_end_does_not_keep_an_error_back(
    coordinator: ClusterCoordinator, gate: Gate, monkeypatch: pytest.MonkeyPatch, seconds: float, timeout: float | None
) -> None:
    monkeypatch.setattr(cancelled, "CANCELLED_SECONDS", seconds)
    coordinator.schedule(held, (gate.path,))
    failed = coordinator.schedule(fail, (1.0,))
    with pytest.raises(LeafError):
        failed.get(WALL)
    with pytest.raises(LeafError, match="'fail' raised ValueError: no"):
        coordinator.join(timeout=timeout)
    assert coordinator.schedule(double, (1.0,)).get() == 2.0
    gate.open()
    coordinator.join(timeout=WALL)


def test_waiting_has_an_end_when_one_is_given(coordinator: ClusterCoordinator, gate: Gate) -> None:
    slow = coordinator.schedule(held, (gate.path,))
    for waits in (lambda: slow.get(0.05), lambda: coordinator.join(0.05), lambda: coordinator.fetch(slow, 0.05)):
        with pytest.raises(DeadlineExceededError):
            waits()
    assert not coordinator.done()


def test_small_results_can_be_brought_home_as_they_come(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(double, (1.0,), prefetch=True)
    coordinator.join()
    assert value.closure.copy == (2.0,)


def test_a_value_of_another_coordinator_is_refused(workers: object, coordinator: ClusterCoordinator) -> None:
    with ClusterCoordinator(workers) as other:
        value = other.schedule(double, (1.0,))
        with pytest.raises(ForeignValueError, match="from another coordinator"):
            coordinator.schedule(double, (value,))
        with pytest.raises(ForeignValueError, match="from another coordinator"):
            coordinator.schedule(lambda values: values, ([value],))


def test_a_coordinator_is_closed_with_work_left(workers: object) -> None:
    with ClusterCoordinator(workers, max_running=2) as coordinator:
        values = [coordinator.schedule(sleep, (0.3,)) for _ in range(20)]
    with pytest.raises(ClosureCancelledError):
        values[-1].get()
    with pytest.raises(ClosedError, match="closed"):
        coordinator.schedule(double, (1.0,))


def test_scheduling_waits_where_there_is_no_room(workers: object) -> None:
    with ClusterCoordinator(workers, max_queued=3) as coordinator:
        values = [coordinator.schedule(sleep, (0.01,)) for _ in range(20)]
        coordinator.join()
        assert all(value.done() for value in values)


def test_everything_can_be_awaited(workers: object, gate: Gate) -> None:
    async def use() -> None:
        async with AsyncClusterCoordinator(workers, max_queued=5) as coordinator:
            values = [await coordinator.schedule(double, (float(number),)) for number in range(20)]
            assert await values[3] == 6.0
            assert await asyncio.gather(*values[:3]) == [0.0, 2.0, 4.0]
            assert await coordinator.fetch({"last": values[-1]}) == {"last": 38.0}
            await coordinator.join()
            assert await coordinator.done()
            slow = await coordinator.schedule(held, (gate.path,))
            with pytest.raises(DeadlineExceededError):
                await coordinator.join(0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_of(slow), 0.05)
            gate.open()

    asyncio.run(use())


async def _of(value: object) -> object:
    return await value  # type: ignore[misc]


def test_bad_options_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="on_error"):
        ClusterCoordinator("localhost:1", on_error="ignore")
    with pytest.raises(InvalidValueError, match="at least one worker"):
        ClusterCoordinator([])
    with contextlib.suppress(InvalidValueError):
        ClusterCoordinator([fedstack.local_executor_factory(), "localhost:1"])


@pytest.mark.parametrize(
    ("option", "wrong", "expected"),
    [
        ("max_queued", 0, "of at least 1, found 0"),
        ("max_queued", "many", "to be a whole number of at least 1, found str 'many'"),
        ("max_running", 0, "of at least 1, found 0"),
        ("max_running", None, "to be a whole number of at least 1, found None"),
        ("connect_seconds", -1.0, "of at least 0, found -1.0"),
        ("connect_seconds", float("nan"), "of at least 0, found nan"),
    ],
)
def test_numbers_with_which_nothing_would_ever_run_are_refused(option: str, wrong: object, expected: str) -> None:
    options: dict[str, Any] = {option: wrong}
    with fedstack.local_executor_factory() as factory:
        with pytest.raises(InvalidValueError, match=f"Expected {option} .*{expected}"):
            ClusterCoordinator(factory, **options)


def test_a_value_that_was_not_fetched_before_the_end_is_an_error_and_holds_nothing_up(workers: object) -> None:
    with ClusterCoordinator(workers) as coordinator:
        left, fetched = coordinator.schedule(double, (1.0,)), coordinator.schedule(double, (2.0,))
        coordinator.join(WALL)
        assert fetched.fetch(WALL) == 4
    with pytest.raises(ClosedError, match="fetch its values before"):
        left.fetch(WALL)
    assert fetched.fetch(WALL) == 4  # that one is here
    with ClusterCoordinator(workers) as another:
        assert another.schedule(double, (3.0,)).fetch(WALL) == 6


def test_fetch_takes_values_of_other_coordinators(workers: object) -> None:
    with ClusterCoordinator(workers) as coordinator, ClusterCoordinator(workers) as other:
        values = [coordinator.schedule(double, (1.0,)), other.schedule(double, (2.0,))]
        assert coordinator.fetch(values, WALL) == [2, 4]


def test_where_others_go_on_only_join_raises(workers: object) -> None:
    with ClusterCoordinator(workers, on_error="continue") as coordinator:
        failed = coordinator.schedule(fail, (1.0,))
        with pytest.raises(LeafError):
            failed.fetch(WALL)
        assert coordinator.done()
        assert coordinator.schedule(double, (1.0,)).fetch(WALL) == 2
        with pytest.raises(LeafError):
            coordinator.join(WALL)
        coordinator.join(WALL)


@pytest.mark.parametrize("args", [3, "a", np.arange(3)], ids=str)
def test_arguments_that_are_no_tuple_are_refused(coordinator: ClusterCoordinator, args: object) -> None:
    with pytest.raises(TypeMismatchError, match=r"Expected args to be a tuple or list, found"):
        coordinator.schedule(double, args)  # type: ignore[arg-type]

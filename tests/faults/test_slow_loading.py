"""Functions that take long to load, or fail to: others at the same worker notice nothing of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import double, doubled_sum, wait_at
from fault_stacks import Background, Door, context_over, eventually, executor_at, status_of
from processes import WALL, Fleet

import fedstack
from fedstack.errors import CarrierError, DeadlineExceededError
from fedstack.executors import RemoteExecutor

# How long an executor of a test waits for what is to be there at once.
CONTROL_SECONDS = 1.0
CLIENT_INTS = fl.FederatedType(np.int32, fl.CLIENTS)


class Loads:
    """Calls a function when it is loaded, and is what that returns."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


def adds(loaded: object) -> Any:
    """Returns a function that goes by value, with something that is loaded along with it."""

    @fedstack.python_computation([np.int32], np.int32)
    def add_one(x):
        return x + 1 if loaded is not NotImplemented else x

    return add_one


def sum_of(function: Any) -> Any:
    @fl.federated_computation(CLIENT_INTS)
    def total(xs):
        return fl.federated_sum(fl.federated_map(function, xs))

    return total


def aggregate_by(function: Any) -> Any:
    """A function of the server's side of an aggregation, which workers accumulate with."""

    @fl.federated_computation(CLIENT_INTS)
    def total(xs):
        @fl.federated_computation(np.int32, np.int32)
        def accumulate(left, right):
            return function(right)

        @fl.federated_computation(np.int32)
        def report(value):
            return value

        return fl.federated_aggregate(xs, 0, accumulate, accumulate, report)

    return total


@pytest.mark.parametrize(("computation", "expected"), [(sum_of, 5), (aggregate_by, 3)])
def test_others_are_served_while_a_function_of_a_phase_is_loaded(
    fleet: Fleet, door: Door, computation: Any, expected: int
) -> None:
    worker = fleet.start()
    slow = computation(adds(Loads(wait_at, door.port)))
    with context_over([worker.target]):
        running = Background(lambda: slow([1, 2]))
        door.wait_for(running, worker.pid)
        with context_over([worker.target]):
            assert doubled_sum([1, 2, 3]) == 12
        assert len(status_of(worker.target).session) >= 1
        assert not running.ended
        door.open()
        assert running.result() == expected


@pytest.mark.long
@pytest.mark.parametrize("extensions", [True, False])
async def test_a_function_may_take_longer_to_load_than_a_call_may_that_hands_something_over(
    fleet: Fleet, door: Door, extensions: bool
) -> None:
    """And so long the executor's own other calls go on, those of others, and the renewal of leases."""
    worker = fleet.start(lease_seconds=CONTROL_SECONDS)

    async def double_at(executor: RemoteExecutor) -> object:
        function = await executor.create_value(double)
        result = await executor.create_call(function, await executor.create_value(np.int32(4), np.int32))
        return await asyncio.wait_for(result.compute(), WALL)

    options = {"control_seconds": CONTROL_SECONDS, "extensions": extensions, "sends_code": True}
    with executor_at(worker.target, **options) as one, executor_at(worker.target, **options) as other:
        creating = asyncio.ensure_future(one.create_value(adds(Loads(wait_at, door.port))))
        await asyncio.to_thread(eventually, lambda: worker.pid in door.visitors or creating.done())
        assert await double_at(other) == await double_at(one) == 8
        await asyncio.wait([creating], timeout=2.5 * CONTROL_SECONDS)
        assert not creating.done()
        assert await double_at(one) == 8
        door.open()
        result = await one.create_call(await creating, await one.create_value(np.int32(4), np.int32))
        assert await asyncio.wait_for(result.compute(), WALL) == 5
    assert len(door.visitors) == 1


@pytest.mark.long
@pytest.mark.parametrize("extensions", [True, False])
async def test_a_worker_that_freezes_while_it_loads_a_function_is_given_up(
    fleet: Fleet, door: Door, extensions: bool
) -> None:
    worker = fleet.start()
    options = {"control_seconds": CONTROL_SECONDS, "extensions": extensions, "sends_code": True}
    with executor_at(worker.target, **options) as executor:
        creating = asyncio.ensure_future(executor.create_value(adds(Loads(wait_at, door.port))))
        await asyncio.to_thread(eventually, lambda: worker.pid in door.visitors or creating.done())
        worker.stop()
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(creating, WALL)


def test_a_function_is_loaded_once_for_many_rounds(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    door.open()
    with context_over([worker.target]):
        total = sum_of(adds(Loads(wait_at, door.port)))
        for number in range(5):
            assert total([number, 0]) == number + 2
    assert len(door.visitors) == 1


def fail_to_load() -> None:
    raise ModuleNotFoundError("No module named 'missing'")


def end_to_load() -> None:
    raise SystemExit("not here")


@pytest.mark.parametrize(
    ("fails", "text"),
    [(fail_to_load, "ModuleNotFoundError: No module named 'missing'"), (end_to_load, "SystemExit: not here")],
)
def test_a_function_that_cannot_be_loaded_is_refused_and_nothing_else_happens(
    fleet: Fleet, fails: Callable[[], None], text: str
) -> None:
    worker = fleet.start()
    total = sum_of(adds(Loads(fails)))
    with context_over([worker.target]):
        for _ in range(2):
            with pytest.raises(CarrierError, match="Loading .* raised") as caught:
                Background(lambda: total([1, 2])).result()
            assert text in str(caught.value)
        assert doubled_sum([1, 2]) == 6

"""What users of TensorFlow's coordinator saw: each row of that table, with what they see here."""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.errors import CarrierError, ClosureCancelledError, LeafError, TypeMismatchError
from fedstack.leaves import CarrierPolicy
from fedstack.observe import Event, Observer, RpcEnded, add_observer
from fedstack.proto.extensions_pb2 import StartRequest
from fedstack.service import ExecutorService, GrpcServer, ServerThread
from fedstack.service.coordinator import AsyncClusterCoordinator, ClusterCoordinator
from fedstack.transport.peers.executor_stub import ExecutorStub

WALL = 30.0
MEGABYTE = 1 << 20


@fedstack.python_computation([], np.int32)
def three():
    return 3


@fedstack.python_computation([np.int32], np.int32)
def fail(x):
    raise ValueError("UNAVAILABLE: Socket closed, /job:worker/task:0")


@fedstack.python_computation([np.str_], np.int32)
def held(gate):
    while not os.path.exists(gate):
        threading.Event().wait(0.005)
    return 1


@fedstack.python_computation([np.int32], (np.uint8, [None]))
def large(_):
    return np.zeros(8 * MEGABYTE, np.uint8)


@fedstack.python_computation([[(np.uint8, [None]), np.str_]], np.int32)
def size_when_open(pair):
    while not os.path.exists(pair[1]):
        threading.Event().wait(0.005)
    return pair[0].size


def test_defaults_are_those_that_are_promised() -> None:
    parameters = inspect.signature(ClusterCoordinator).parameters
    found = {name: parameters[name].default for name in ("max_queued", "max_running", "connect_seconds", "on_error")}
    assert found == {"max_queued": 262_144, "max_running": 8, "connect_seconds": 30.0, "on_error": "cancel"}


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ((1, 2, 3), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'x'"),
        ((1,), {"z": 2}, "unexpected keyword argument 'z'"),
    ],
    ids=["many", "few", "unknown"],
)
def test_arguments_that_a_function_does_not_take_are_refused_at_once(
    coordinator: ClusterCoordinator, args: tuple[int, ...], kwargs: dict[str, int], reason: str
) -> None:
    def added(x: int, y: int = 1) -> int:
        return x + y

    with pytest.raises(TypeMismatchError, match=rf"parameters \['x', 'y'\] of 'added'.*{reason}"):
        coordinator.schedule(added, args, kwargs)
    assert coordinator.schedule(added, (1,), {"y": 3}).get(WALL) == 4
    coordinator.join(WALL)


def test_functions_that_do_not_tell_their_parameters_are_scheduled(coordinator: ClusterCoordinator) -> None:
    assert coordinator.schedule(max, (3, 5)).get(WALL) == 5


@pytest.mark.parametrize("ask", ["schedule", "join", "done"])
def test_each_of_three_raises_an_error_once_and_schedules_nothing(coordinator: ClusterCoordinator, ask: str) -> None:
    bad = coordinator.schedule(fail, (1,))
    for _ in range(2):  # fetching it does not count as having been told
        with pytest.raises(LeafError, match="'fail' raised ValueError"):
            bad.get(WALL)
    asks: dict[str, Callable[[], object]] = {
        "schedule": lambda: coordinator.schedule(three),
        "join": lambda: coordinator.join(WALL),
        "done": coordinator.done,
    }
    with pytest.raises(LeafError, match="'fail' raised ValueError"):
        asks[ask]()
    assert coordinator.done(), "nothing was scheduled"
    coordinator.join(WALL)


def test_a_structure_with_a_failed_value_raises_the_error_of_that(coordinator: ClusterCoordinator) -> None:
    good, bad = coordinator.schedule(three), coordinator.schedule(fail, (1,))
    with pytest.raises(LeafError, match="'fail' raised ValueError"):
        coordinator.fetch({"good": good, "bad": [bad]}, WALL)


def test_the_error_of_a_structure_is_the_one_that_has_cancelled_its_other_calls(
    coordinator: ClusterCoordinator, gate: Path
) -> None:
    cancelled = coordinator.schedule(held, (str(gate),))
    bad = coordinator.schedule(fail, (1,))
    with pytest.raises(LeafError, match="'fail' raised ValueError"):
        coordinator.fetch([cancelled, bad], WALL)
    with pytest.raises(ClosureCancelledError):
        coordinator.fetch([cancelled], WALL)


def test_what_errors_say_makes_no_lost_worker_of_them() -> None:
    runs: list[int] = []

    @fedstack.python_computation([], np.int32)
    def counted():
        runs.append(1)
        raise TypeError("UNAVAILABLE: /job:worker/replica:0/task:0 aborted")

    with fedstack.local_executor_factory() as factory, ClusterCoordinator(factory, on_error="continue") as coordinator:
        with pytest.raises(LeafError, match="TypeError: UNAVAILABLE"):
            coordinator.schedule(counted).get(WALL)
        assert runs == [1]
        assert coordinator.schedule(three).get(WALL) == 3


def test_all_errors_are_in_the_one_that_is_raised(gate: Path) -> None:
    with fedstack.local_executor_factory() as factory, ClusterCoordinator(factory, on_error="continue") as coordinator:
        first = coordinator.schedule(held, (str(gate),))
        for _ in range(2):
            coordinator.schedule(fail, (first,))
        coordinator.schedule(three)
        gate.touch()
        with pytest.raises(LeafError) as caught:
            coordinator.join(WALL)
        assert [type(error) for error in caught.value.errors] == [LeafError, LeafError]  # type: ignore[attr-defined]


def test_variables_and_coordinators_are_not_made_inside_of_datasets(coordinator: ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(lambda: [coordinator.variable(1)])
    with pytest.raises(CarrierError, match="This ClusterCoordinator cannot be copied or pickled"):
        iter(dataset)


def test_a_value_tells_what_has_become_of_it(gate: Path) -> None:
    with (
        fedstack.local_executor_factory() as factory,
        ClusterCoordinator(factory, max_running=1, on_error="continue") as coordinator,
    ):
        first = coordinator.schedule(held, (str(gate),))
        queued = coordinator.schedule(three)
        waiting, bad = coordinator.schedule(fail, (first,)), coordinator.schedule(fail, (first,))
        await_until(lambda: "running" in repr(first))
        assert repr(queued) == "<RemoteValue of 'three': queued>"
        assert repr(waiting) == "<RemoteValue of 'fail': waiting for its arguments>"
        waiting.cancel()
        assert repr(waiting).startswith("<RemoteValue of 'fail': cancelled: The call of 'fail' was cancelled")
        gate.touch()
        with pytest.raises(LeafError):
            coordinator.join(WALL)
        assert repr(queued) == "<RemoteValue of 'three': ready at worker 0>"
        assert repr(bad).startswith("<RemoteValue of 'fail': failed: 'fail' raised ValueError: UNAVAILABLE")
        with pytest.raises(ClosureCancelledError):
            waiting.get(WALL)


def test_a_full_queue_holds_up_whoever_schedules_more(gate: Path) -> None:
    with fedstack.local_executor_factory() as factory, ClusterCoordinator(factory, max_queued=2) as coordinator:
        for _ in range(2):
            coordinator.schedule(held, (str(gate),))
        third = threading.Thread(target=coordinator.schedule, args=(three,))
        third.start()
        third.join(0.2)
        assert third.is_alive()
        gate.touch()
        third.join(WALL)
        assert not third.is_alive()
        coordinator.join(WALL)


def test_a_full_queue_lets_the_loop_of_an_asynchronous_program_go_on(gate: Path) -> None:
    async def use() -> None:
        with fedstack.local_executor_factory() as factory:
            async with AsyncClusterCoordinator(factory, max_queued=1) as coordinator:
                await coordinator.schedule(held, (str(gate),))
                second = asyncio.ensure_future(coordinator.schedule(three))
                await asyncio.sleep(0.2)
                assert not second.done()
                await asyncio.to_thread(gate.touch)
                assert await asyncio.wait_for(await asyncio.wait_for(second, WALL), WALL) == 3

    asyncio.run(use())


class Traffic(Observer):
    """Counts the bytes that servers of this process receive and send."""

    total = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, RpcEnded):
            self.total += event.bytes_received + event.bytes_sent


@pytest.fixture
def server() -> Iterator[Any]:
    service = ExecutorService(fedstack.local_executor_factory(), policy=CarrierPolicy(python_code=True))
    with ServerThread(GrpcServer([service])) as made:
        yield made


@fedstack.python_computation([np.int32], np.int32)
def same(x):
    return x


def test_calls_that_can_run_at_the_same_time_go_to_a_worker_in_one_call(
    server: Any, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    start = ExecutorStub.start

    def counted(stub: ExecutorStub, request: StartRequest, *others: Any) -> Any:
        sent.append(len(request.value_ref))
        return start(stub, request, *others)

    monkeypatch.setattr(ExecutorStub, "start", counted)
    with ClusterCoordinator(server.target) as coordinator:
        coordinator.schedule(same, (1,)).get(WALL)  # the worker has the function
        first = coordinator.schedule(held, (str(gate),))
        others = [coordinator.schedule(same, (first,)) for _ in range(8)]
        gate.touch()
        assert coordinator.fetch(others, WALL) == [1] * 8
    assert max(sent) == 8


def test_a_value_that_another_worker_needs_passes_through_the_coordinator_once(server: Any, gate: Path) -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    with (
        ServerThread(GrpcServer([service])) as other,
        add_observer(traffic := Traffic()),
        ClusterCoordinator([server.target, other.target], max_running=1) as coordinator,
    ):
        value = coordinator.schedule(large, (1,))
        coordinator.join(WALL)
        # One runs where the value is, and the others cannot; they go on at the other worker.
        sizes = [coordinator.schedule(size_when_open, (value, str(gate))) for _ in range(2)]
        await_until(lambda: all("running" in repr(each) for each in sizes))
        sizes += [coordinator.schedule(size_when_open, (value, str(gate))) for _ in range(10)]
        gate.touch()
        assert coordinator.fetch(sizes, WALL) == [8 * MEGABYTE] * 12
    assert 16 * MEGABYTE <= traffic.total < 24 * MEGABYTE

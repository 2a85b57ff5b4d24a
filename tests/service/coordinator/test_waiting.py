"""How calls are waited for: one, several and all, for so long."""

import asyncio
import math
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.errors import DeadlineExceededError, InvalidValueError, LeafError, TypeMismatchError
from fedstack.service.coordinator import AsyncClusterCoordinator, ClusterCoordinator, as_completed, wait
from fedstack.testing import SimulatedCluster

WALL = 30.0


@fedstack.python_computation([np.int32], np.int32)
def same(x):
    return x


@fedstack.python_computation([np.int32], np.int32)
def fail(x):
    raise ValueError("no")


@fedstack.python_computation([np.str_], np.int32)
def held(gate):
    while not os.path.exists(gate):
        threading.Event().wait(0.005)
    return 1


def test_values_are_waited_for_as_in_ray(coordinator: ClusterCoordinator, gate: Path) -> None:
    slow, quick = coordinator.schedule(held, (str(gate),)), coordinator.schedule(same, (1,))
    assert wait([slow, quick]) == ([quick], [slow])
    assert wait([slow, quick], num_returns=2, timeout=0.05) == ([quick], [slow])
    assert wait([slow, quick], timeout=0) == ([quick], [slow])
    assert wait(iter([slow, quick])) == ([quick], [slow])
    assert wait([]) == ([], [])


def test_values_are_waited_for_as_in_concurrent_futures(coordinator: ClusterCoordinator, gate: Path) -> None:
    slow, quick = coordinator.schedule(held, (str(gate),)), coordinator.schedule(same, (1,))
    coordinator.fetch(quick)
    with pytest.raises(DeadlineExceededError, match="Expected all 2 calls to end within 0.05 s, but only 1 ended"):
        list(as_completed([slow, quick], timeout=0.05))
    ended = as_completed([slow, quick, slow])
    assert next(ended) is quick
    gate.touch()
    assert list(ended) == [slow]


def test_failed_calls_have_ended_too(coordinator: ClusterCoordinator) -> None:
    failed = coordinator.schedule(fail, (1,))
    assert list(as_completed([failed], WALL)) == [failed]
    assert wait([failed], timeout=0) == ([failed], [])


def test_who_waits_again_and_again_leaves_nothing_behind(coordinator: ClusterCoordinator, gate: Path) -> None:
    slow = coordinator.schedule(held, (str(gate),))
    for _ in range(3):
        wait([slow], timeout=0)
        with pytest.raises(DeadlineExceededError):
            list(as_completed([slow], timeout=0))
        done = coordinator.schedule(same, (1,))
        assert next(as_completed([slow, done], WALL)) is done
    assert not slow.closure.callbacks


def test_a_value_that_was_taken_is_not_held_by_who_waits_for_others(
    coordinator: ClusterCoordinator, gate: Path
) -> None:
    ends = as_completed([coordinator.schedule(same, (1,)), coordinator.schedule(held, (str(gate),))], WALL)
    first = weakref.ref(next(ends))
    await_until(lambda: first() is None, WALL)  # the thread that has told of it may hold it for a moment
    gate.touch()
    assert [value.get(WALL) for value in ends] == [1]


@pytest.mark.parametrize("timeout", [math.inf, 1e300])
def test_any_time_is_time_enough(coordinator: ClusterCoordinator, gate: Path, timeout: float) -> None:
    value = coordinator.schedule(held, (str(gate),))
    opening = threading.Timer(0.1, gate.touch)
    opening.start()
    assert wait([value], timeout=timeout) == ([value], [])
    value = coordinator.schedule(same, (1,))
    assert list(as_completed([value], timeout)) == [value]
    assert value.get(timeout) == 1
    coordinator.join(timeout)
    opening.join()


def test_values_are_taken_one_after_the_other_until_none_is_left(coordinator: ClusterCoordinator) -> None:
    left, found = [coordinator.schedule(same, (number,)) for number in range(100)], []
    while left:
        [value], left = wait(left, timeout=WALL)
        found.append(value.get(WALL))
    assert sorted(found) == list(range(100))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda value: wait(value),
            r"Expected a list of values returned by schedule, found RemoteValue .*write \[value\] to wait",
        ),
        (lambda value: wait(3), "Expected a list of values returned by schedule, found int 3"),
        (lambda value: wait([value, 3]), "Expected values returned by schedule, found int 3 at index 1"),
        (lambda value: as_completed([3]), "Expected values returned by schedule, found int 3 at index 0"),
        (lambda value: wait([value], num_returns=2), "Expected num_returns from 1 to 1, found 2"),
        (lambda value: wait([value], num_returns=0), "Expected num_returns from 1 to 1, found 0"),
        (lambda value: wait([value], timeout=-1), "Expected timeout (of|to be a number of) at least 0, found -1"),
        (
            lambda value: as_completed([value], timeout="1"),
            "timeout to be a number of at least 0, found str '1'",
        ),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    coordinator: ClusterCoordinator, wrong: Callable[[object], object], message: str
) -> None:
    with pytest.raises((InvalidValueError, TypeMismatchError), match=message):
        wrong(coordinator.schedule(same, (1,)))


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "1"], ids=str)
def test_no_time_to_wait_is_less_than_none(coordinator: ClusterCoordinator, timeout: Any) -> None:
    value = coordinator.schedule(same, (1,))
    coordinator.join(WALL)
    for waits in (value.get, value.fetch, coordinator.join, lambda timeout: coordinator.fetch([value], timeout)):
        with pytest.raises(InvalidValueError, match="Expected timeout (of|to be a number of) at least 0"):
            waits(timeout)

    async def use() -> None:
        with fedstack.local_executor_factory() as factory:
            async with AsyncClusterCoordinator(factory) as other:
                for waits in (other.join, lambda timeout: other.fetch([value], timeout)):
                    with pytest.raises(InvalidValueError, match="Expected timeout (of|to be a number of) at least 0"):
                        await waits(timeout)

    asyncio.run(use())


def test_what_is_here_takes_no_time(coordinator: ClusterCoordinator) -> None:
    value, failed = coordinator.schedule(same, (1,)), None
    assert value.get(WALL) == 1
    assert value.get(timeout=0) == 1
    assert coordinator.fetch({"a": value, "b": 2}, timeout=0) == {"a": 1, "b": 2}
    failed = coordinator.schedule(fail, (1,))
    wait([failed])
    with pytest.raises(LeafError):
        failed.get(timeout=0)


def test_errors_come_without_the_frames_in_which_they_were_waited_for(coordinator: ClusterCoordinator) -> None:
    failed = coordinator.schedule(fail, (1,))
    for waits in (failed.get, lambda: coordinator.fetch([failed]), coordinator.join):
        with pytest.raises(LeafError) as caught:
            waits()
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "run_sync" not in frames
        assert "wait" in frames


def test_a_loop_does_not_wait_for_what_runs_on_it() -> None:
    async def program(cluster: SimulatedCluster) -> None:
        async with AsyncClusterCoordinator(cluster.stubs()) as coordinator:
            value = await coordinator.schedule(same, (1,))
            for waits in (lambda: wait([value]), lambda: list(as_completed([value]))):
                with pytest.raises(RuntimeError, match="would never end on the event loop that runs the calls; await"):
                    waits()
            assert [await ended for ended in asyncio.as_completed([value])] == [1]
            assert wait([value]) == ([value], [])

    SimulatedCluster().run(program)


def test_a_coordinator_tells_what_it_has_to_do(coordinator: ClusterCoordinator, gate: Path) -> None:
    value, slow = coordinator.schedule(same, (1,)), coordinator.schedule(held, (str(gate),))
    others = [coordinator.schedule(same, (slow,)) for _ in range(2)]
    wait([value])
    await_until(lambda: repr(coordinator) == "<ClusterCoordinator of 1 worker: 2 waiting, 1 running, 1 values held>")
    with pytest.raises(DeadlineExceededError, match="<ClusterCoordinator of 1 worker.*> did not finish within 0.01 s"):
        coordinator.join(0.01)
    gate.touch()
    coordinator.fetch(others, WALL)
    coordinator.close()
    assert repr(coordinator) == "<ClusterCoordinator closed>"

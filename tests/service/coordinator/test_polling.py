"""How values come home that are asked for with little time to wait: they go on coming, and the next one finds them."""

import asyncio
import concurrent.futures
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.errors import ClosedError, DeadlineExceededError, ResourceLimitError
from fedstack.service.coordinator import AsyncClusterCoordinator, ClusterCoordinator, RemoteValue, workers
from fedstack.service.coordinator.workers import ValueHandle
from fedstack.testing import SimulatedCluster

WALL = 30.0


@fedstack.python_computation([np.int32], np.int32)
def same(x):
    return x


class Transfers:
    """Holds up what comes home until it may, and counts it."""

    def __init__(self, fetch: Callable[[ValueHandle], Any]) -> None:
        self._fetch = fetch
        self.begun = self.ended = self.cancelled = 0
        self.failure: Exception | None = None
        self._gate = concurrent.futures.Future[None]()

    def let_go(self) -> None:
        if not self._gate.done():
            self._gate.set_result(None)

    async def payload(self, held: ValueHandle) -> object:
        self.begun += 1
        try:
            await asyncio.shield(asyncio.wrap_future(self._gate))
            if self.failure is not None:
                raise self.failure
            return await self._fetch(held)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.ended += 1


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transfers]:
    made = Transfers(ValueHandle.payload)
    monkeypatch.setattr(ValueHandle, "payload", lambda held: made.payload(held))
    yield made
    made.let_go()


def polled(get: Callable[[], object]) -> Callable[[], bool]:
    """Returns what tries once to get something, and says whether it did."""

    def poll() -> bool:
        try:
            get()
        except DeadlineExceededError:
            return False
        return True

    return poll


@pytest.mark.parametrize("timeout", [0, 1e-9])
def test_a_value_that_is_polled_comes_home(coordinator: ClusterCoordinator, timeout: float) -> None:
    value = coordinator.schedule(same, (7,))
    await_until(polled(lambda: value.get(timeout=timeout)))
    assert value.get(timeout=0) == 7


def test_a_structure_that_is_polled_comes_home(coordinator: ClusterCoordinator) -> None:
    values = {"a": coordinator.schedule(same, (1,)), "b": [coordinator.schedule(same, (n,)) for n in range(3)]}
    await_until(polled(lambda: coordinator.fetch(values, timeout=0)))
    assert coordinator.fetch(values, timeout=0) == {"a": 1, "b": [0, 1, 2]}


def test_a_value_that_is_polled_on_an_event_loop_comes_home() -> None:
    async def program(cluster: SimulatedCluster) -> None:
        async with AsyncClusterCoordinator(cluster.stubs()) as coordinator:
            given = [await coordinator.schedule(same, (1,)) for _ in range(2)]
            polls: list[Callable[[RemoteValue], Any]] = [
                lambda value: coordinator.fetch(value, timeout=0),
                lambda value: asyncio.wait_for(value, 0.001),
            ]
            for value, poll in zip(given, polls):
                for _ in range(1000):
                    try:
                        assert await poll(value) == 1
                    except (DeadlineExceededError, asyncio.TimeoutError):
                        await asyncio.sleep(0.01)
                    else:
                        break
                assert value.is_here

    SimulatedCluster().run(program)


def test_a_value_comes_home_once_however_often_it_is_asked_for(
    coordinator: ClusterCoordinator, transfers: Transfers
) -> None:
    value = coordinator.schedule(same, (7,))
    coordinator.join(WALL)
    for _ in range(20):
        with pytest.raises(DeadlineExceededError):
            value.get(timeout=0)
        with pytest.raises(DeadlineExceededError):
            coordinator.fetch([value], timeout=0.001)
    transfers.let_go()
    assert value.get(WALL) == 7
    assert (transfers.begun, transfers.ended, transfers.cancelled) == (1, 1, 0)


def test_what_nobody_refers_to_any_more_comes_no_further(coordinator: ClusterCoordinator, transfers: Transfers) -> None:
    value: RemoteValue | None = coordinator.schedule(same, (7,))
    coordinator.join(WALL)
    with pytest.raises(DeadlineExceededError):
        coordinator.fetch(value, timeout=0)
    await_until(lambda: transfers.begun)
    value = None
    gc.collect()
    await_until(lambda: transfers.cancelled)
    assert transfers.begun == transfers.ended == 1


def test_the_end_of_a_coordinator_ends_what_comes_home(coordinator: ClusterCoordinator, transfers: Transfers) -> None:
    value, other = (coordinator.schedule(same, (number,)) for number in range(2))
    coordinator.join(WALL)
    with pytest.raises(DeadlineExceededError):
        value.get(timeout=0)
    await_until(lambda: transfers.begun)
    waiting = coordinator._calls.loop.submit(_get(other))
    await_until(lambda: transfers.begun == 2)
    coordinator.close()
    assert transfers.cancelled == 2
    for get in (lambda: value.get(WALL), lambda: waiting.result(WALL)):
        with pytest.raises(ClosedError, match="fetch its values before you close"):
            get()


async def _get(value: RemoteValue) -> object:
    return await value


def test_what_fails_while_nobody_waits_is_told_to_the_next_one_who_does(
    coordinator: ClusterCoordinator, transfers: Transfers
) -> None:
    transfers.failure = ResourceLimitError("too large")
    transfers.let_go()
    value = coordinator.schedule(same, (7,))
    coordinator.join(WALL)
    with pytest.raises(ResourceLimitError, match="too large"):
        await_until(polled(lambda: value.get(timeout=0)))
    transfers.failure = None
    assert value.get(WALL) == 7


def test_of_several_values_those_come_home_that_can(
    coordinator: ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [coordinator.schedule(same, (number,)) for number in range(3)]
    coordinator.join(WALL)
    large = set(values[1].closure.held.values())
    fetch = ValueHandle.payload

    async def payload(held: ValueHandle) -> object:
        if held in large:
            raise ResourceLimitError("too large")
        return await fetch(held)

    async def payloads_of(held: Sequence[ValueHandle]) -> list[object]:
        return [await payload(one) for one in held]

    monkeypatch.setattr(ValueHandle, "payload", payload)
    monkeypatch.setattr(workers, "payloads_of", payloads_of)
    with pytest.raises(ResourceLimitError, match="too large"):
        await_until(polled(lambda: coordinator.fetch(values, timeout=0)))
    await_until(lambda: values[0].is_here and values[2].is_here)
    large.clear()
    assert coordinator.fetch(values, WALL) == [0, 1, 2]


def test_values_that_come_together_do_so_as_long_as_anybody_refers_to_one(
    coordinator: ClusterCoordinator, transfers: Transfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def payloads_of(held: Sequence[ValueHandle]) -> list[object]:
        return [await transfers.payload(one) for one in held]

    monkeypatch.setattr(workers, "payloads_of", payloads_of)
    values = [coordinator.schedule(same, (number,)) for number in range(2)]
    coordinator.join(WALL)
    with pytest.raises(DeadlineExceededError):
        coordinator.fetch(values, timeout=0)
    await_until(lambda: transfers.begun)
    values.pop()
    gc.collect()
    coordinator.schedule(same, (7,))
    coordinator.join(WALL)  # the loop knows of it by now
    assert not transfers.cancelled
    values.pop()
    gc.collect()
    await_until(lambda: transfers.cancelled)

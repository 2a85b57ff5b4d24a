"""Callers that have enough: what they asked for is cancelled at the worker, and what it held for them is freed."""

import asyncio
import gc
import itertools
import threading
from collections.abc import Coroutine
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import FLOATS, MODEL, double, doubled_sum, mean_visit, visit
from fault_stacks import Background, Door, eventually, executor_at, status_of, stub_to
from processes import WALL, Fleet, WorkerProcess
from tcp_proxy import Proxies

import fedstack
from fedstack.contexts import AsyncExecutionContext
from fedstack.errors import ClosedError, WorkerUnavailableError
from fedstack.executors import RemoteExecutor
from fedstack.proto.extensions_pb2 import HandshakeResponse
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.meeting import until_set
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

VISITOR = fl.StructType([np.int32, np.float32])


async def until(look: Any, *running: "asyncio.Task[Any]") -> None:
    """Returns when something has become true, which what runs should bring about."""
    found = False  # as it was at the last look: what is cancelled on its way may still come and go

    def look_at_both() -> bool:
        nonlocal found
        found = look()
        return found or any(task.done() for task in running)

    await asyncio.to_thread(eventually, look_at_both)
    if not (found or look()):
        raise AssertionError(f"ended before: {[task.result() for task in running if task.done()]}")


async def cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, WALL)


async def visitor(executor: RemoteExecutor, door: Door) -> Any:
    function = await executor.create_value(visit)
    return await executor.create_call(function, await executor.create_value((door.port, 0.5), VISITOR))


async def works(executor: RemoteExecutor) -> None:
    function = await executor.create_value(double)
    result = await executor.create_call(function, await executor.create_value(np.int32(4), np.int32))
    assert await asyncio.wait_for(result.compute(), WALL) == 8


def creations(executor: RemoteExecutor) -> dict[str, Coroutine[Any, Any, Any]]:
    return {
        "function": executor.create_value(double),
        "large value": executor.create_value(np.ones(MODEL.shape, np.float32), MODEL),
        "struct of large values": executor.create_value_stream_structs(
            (np.ones(MODEL.shape, np.float32), np.int32(1)), fl.StructType([MODEL, np.int32])
        ),
    }


_GRANT_BYTES = 24  # with which a worker lets a stream send the bytes of a large value
ON_THE_WAY = [
    *itertools.product(["function", "large value", "struct of large values"], ["up"], [0]),
    ("function", "down", 0),
    *itertools.product(["large value", "struct of large values"], ["down"], [_GRANT_BYTES]),
    *itertools.product(["large value", "struct of large values"], ["up"], [3_000_000]),
]


@pytest.mark.parametrize(("kind", "direction", "count"), ON_THE_WAY)
async def test_a_creation_that_is_cancelled_on_its_way_leaves_nothing_behind(
    fleet: Fleet, proxies: Proxies, kind, direction, count
) -> None:
    worker = fleet.start()
    proxy = proxies.before(worker.target)
    with executor_at(proxy.target) as executor:
        kept = await executor.create_value(np.ones(100_000, np.float32), FLOATS)
        held = status_of(worker.target).values
        is_held = proxy.hold_after(direction, count)
        others = creations(executor)
        creating = asyncio.ensure_future(others.pop(kind))
        for other in others.values():
            other.close()
        await asyncio.to_thread(is_held.wait, WALL)
        if direction == "down":
            await until(lambda: status_of(worker.target).values > held)
        await cancel(creating)
        proxy.release()
        await until(lambda: status_of(worker.target).values == held)
        await until(lambda: status_of(worker.target).running == 0)
        assert len(await kept.compute()) == 100_000
        await works(executor)


async def test_computing_that_is_cancelled_stops_at_the_worker(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    with executor_at(worker.target) as executor:
        function = await executor.create_value(visit)
        first = await executor.create_call(function, await executor.create_value((door.port, 0.5), VISITOR))
        pair = await executor.create_struct([await executor.create_value(np.int32(door.port), np.int32), first])
        second = await executor.create_call(function, pair)
        computing = asyncio.ensure_future(second.compute())
        await until(lambda: len(door.visitors) == 1)
        assert status_of(worker.target).running == 1
        await cancel(computing)
        await until(lambda: status_of(worker.target).running == 0)
        door.open()
        await works(executor)
        # The function that waited has returned by now; what was to come after it was not run.
        assert len(door.visitors) == 1
        assert await asyncio.wait_for(second.compute(), WALL) == pytest.approx(
            np.sin(np.sin(0.5) * 1e3) * 1e3, rel=1e-3
        )


@pytest.mark.parametrize("ticks", range(8))
def test_computing_again_right_after_a_cancellation_does_not_join_what_is_ending(ticks) -> None:
    entered, released = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hold(x):
        entered.set()
        assert released.wait(WALL)
        return x

    service = ExecutorService(fedstack.local_executor_factory())

    async def work() -> None:
        executor = RemoteExecutor(ExecutorStub(InMemoryConnection(service)))
        executor.set_cardinalities({})
        argument = await executor.create_value(np.int32(7), np.int32)
        value = await executor.create_call(await executor.create_value(hold), argument)
        computing = asyncio.ensure_future(value.compute())
        await until_set(entered, computing)
        computing.cancel()
        for _ in range(ticks):
            await asyncio.sleep(0)
        again = asyncio.ensure_future(value.compute())
        with pytest.raises(asyncio.CancelledError):
            await computing
        released.set()
        assert await asyncio.wait_for(again, WALL) == 7
        executor.close()
        await service.close()

    io_loop.run_sync(work(), WALL)


async def test_one_of_two_who_wait_for_a_value_may_leave(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    with executor_at(worker.target) as executor:
        value = await visitor(executor, door)
        leaving, staying = asyncio.ensure_future(value.compute()), asyncio.ensure_future(value.compute())
        await until(lambda: door.visitors and status_of(worker.target).running == 2)
        await cancel(leaving)
        await until(lambda: status_of(worker.target).running == 1)
        door.open()
        assert await asyncio.wait_for(staying, WALL) == pytest.approx(np.sin(0.5) * 1e3, rel=1e-3)
        assert len(door.visitors) == 1


@pytest.mark.parametrize("extensions", [True, False], ids=["fedstack's own peer", "plain peer"])
async def test_a_round_that_is_cancelled_stops_at_all_workers(fleet: Fleet, door: Door, extensions) -> None:
    workers = [fleet.start(), fleet.start()]
    stubs = [stub_to(worker.target, extensions=extensions) for worker in workers]
    context = AsyncExecutionContext(fedstack.remote_executor_factory(stubs))
    with fedstack.use_context(context):
        running = asyncio.ensure_future(mean_visit([(door.port, 0.1 * number) for number in range(200)]))
        await until(lambda: {worker.pid for worker in workers} <= set(door.visitors), running)
        await cancel(running)
        for worker in workers:
            await until(lambda worker=worker: status_of(worker.target).running == 0)
        came = len(door.visitors)
        assert came < 200
        door.open()
        assert await asyncio.wait_for(doubled_sum([1, 2]), WALL) == 6
        assert len(door.visitors) < came + 100  # threads may have begun clients that had not come yet
    context.close()
    for worker in workers:
        await until(lambda worker=worker: status_of(worker.target).values == 0)


async def test_a_round_that_is_cancelled_while_inputs_are_sent_stops_sending(fleet: Fleet, proxies: Proxies) -> None:
    from fault_leaves import mean_length

    worker = fleet.start()
    proxy = proxies.before(worker.target)
    context = AsyncExecutionContext(fedstack.remote_executor_factory([proxy.target]))
    inputs = [np.full(MODEL.shape, number, np.float32) for number in range(8)]
    with fedstack.use_context(context):
        is_sending = proxy.hold_after("up", 5_000_000)
        running = asyncio.ensure_future(mean_length(inputs))
        await asyncio.to_thread(is_sending.wait, WALL)
        await until(lambda: status_of(worker.target).running == 1, running)
        await cancel(running)
        proxy.release()
        await until(lambda: status_of(worker.target).running == 0)
        assert await asyncio.wait_for(doubled_sum([1, 2]), WALL) == 6
    context.close()
    assert proxy.bytes("up") < 16_000_000


def visited(x: float) -> np.float32:
    """Returns what `visit` returns for a client."""
    return np.float32(np.sin(np.float32(x)) * np.float32(1e3))


def test_a_context_that_is_closed_ends_its_sessions(fleet: Fleet) -> None:
    worker = fleet.start()
    context = fedstack.create_sync_remote_execution_context(worker.target)
    with fedstack.use_context(context):
        assert Background(lambda: doubled_sum([1, 2])).result() == 6
    assert len(status_of(worker.target).session) == 1
    context.close()
    eventually(lambda: not status_of(worker.target).session)  # long before its lease has run out


def test_a_context_that_is_closed_during_calls_ends_its_sessions_after_the_last_of_them(
    fleet: Fleet, door: Door
) -> None:
    worker = fleet.start()
    context = fedstack.create_sync_remote_execution_context(worker.target)
    with fedstack.use_context(context):
        running = [Background(lambda: mean_visit([(door.port, 1.0)])) for _ in range(2)]
        eventually(lambda: len(door.visitors) == 2)
        context.close()
        with pytest.raises(ClosedError, match="The context is closed; create a new context"):
            doubled_sum([1, 2])
        assert len(status_of(worker.target).session) == 1
        door.open()
        assert [one.result() for one in running] == [visited(1.0)] * 2
    eventually(lambda: not status_of(worker.target).session)


def test_a_context_that_is_closed_does_not_try_again_what_fails_then(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    context = fedstack.create_sync_remote_execution_context(worker.target)
    with fedstack.use_context(context):
        running = Background(lambda: mean_visit([(door.port, 1.0)]))
        eventually(lambda: door.visitors)
        context.close()
        worker.kill()
        with pytest.raises(ClosedError, match="The context is closed; create a new context"):
            running.result()
    door.open()


async def test_an_async_context_that_is_closed_during_a_call_ends_its_sessions_after_it(
    fleet: Fleet, door: Door
) -> None:
    worker = fleet.start()
    context = fedstack.create_async_remote_execution_context(worker.target)
    with fedstack.use_context(context):
        running = asyncio.ensure_future(mean_visit([(door.port, 1.0)]))
        await until(lambda: door.visitors, running)
        context.close()
        door.open()
        assert await asyncio.wait_for(running, WALL) == visited(1.0)
    await until(lambda: not status_of(worker.target).session)


async def test_an_executor_that_is_closed_while_it_computes_ends_that(fleet: Fleet, door: Door) -> None:
    worker: WorkerProcess = fleet.start()
    with executor_at(worker.target) as executor:
        value = await visitor(executor, door)
        computing = asyncio.ensure_future(value.compute())
        await until(lambda: door.visitors)
        executor.close()
        with pytest.raises(ClosedError, match="was closed during a call"):
            await asyncio.wait_for(computing, WALL)
        await until(lambda: not status_of(worker.target).session)


class HesitantStub(ExecutorStub):
    """Fails to shake hands once, when the test says so."""

    def __init__(self, connection: InMemoryConnection) -> None:
        super().__init__(connection)
        self.entered = asyncio.Event()
        self.failing = asyncio.Event()

    async def handshake(self) -> HandshakeResponse | None:
        if not self.entered.is_set():
            self.entered.set()
            await self.failing.wait()
            raise WorkerUnavailableError("Expected a worker, found none yet")
        return await super().handshake()


def test_a_caller_that_is_cancelled_while_it_connects_does_not_spoil_the_next_one(caplog) -> None:
    service = ExecutorService(fedstack.local_executor_factory())

    async def work() -> None:
        stub = HesitantStub(InMemoryConnection(service))
        executor = RemoteExecutor(stub)
        executor.set_cardinalities({})
        creating = asyncio.ensure_future(executor.create_value(double))
        await asyncio.wait_for(stub.entered.wait(), WALL)
        await cancel(creating)
        stub.failing.set()
        for _ in range(10):  # what it had begun fails now, and nobody waits for it
            await asyncio.sleep(0)
        gc.collect()
        await works(executor)
        executor.close()
        await service.close()

    io_loop.run_sync(work(), WALL)
    assert caplog.records == []

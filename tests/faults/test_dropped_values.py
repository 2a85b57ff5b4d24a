"""Values that nobody refers to any more: the worker is told in batches, by nobody but the transport's own thread."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from fault_leaves import FLOATS, MODEL, double, mean_wobble
from fault_stacks import context_over, eventually, executor_at, locally, status_of, stub_to
from processes import WALL, Fleet

from fedstack.executors import RemoteExecutor
from fedstack.proto import executor_pb2
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import THREAD_NAME, io_loop
from fedstack.transport.wire.addresses import parse_target
from fedstack.transport.wire.parcels import Parcel, Piece

pytestmark = pytest.mark.slow


class WatchedConnection(GrpcConnection):
    """A connection that notes by whom it is used, and what is disposed of."""

    def __init__(self, target: str) -> None:
        super().__init__(parse_target(target))
        self.threads: Counter[str] = Counter()
        self.calls: list[str] = []
        self.batches: list[list[str]] = []

    def _note(self, path: str, request: bytes = b"") -> None:
        self.threads[threading.current_thread().name] += 1
        self.calls.append(path.rpartition("/")[2])
        if path.endswith("/Dispose"):
            self.batches.append([ref.id for ref in executor_pb2.DisposeRequest.FromString(request).value_ref])

    async def unary(self, path: str, request: bytes, timeout: float | None) -> bytes:
        self._note(path, request)
        return await super().unary(path, request, timeout)

    async def upload(self, path: str, parcel: Parcel, timeout: float | None) -> bytes:
        self._note(path)
        return await super().upload(path, parcel, timeout)

    def download(self, path: str, request: bytes) -> AsyncGenerator[Piece, None]:
        self._note(path)
        return super().download(path, request)

    def exchange(self, path: str, parcel: Parcel) -> AsyncGenerator[Piece, None]:
        self._note(path)
        return super().exchange(path, parcel)


async def until(look: Any) -> None:
    await asyncio.to_thread(eventually, look)


def executor_over(connection: WatchedConnection, **options: Any) -> RemoteExecutor:
    executor = RemoteExecutor(ExecutorStub(connection), **options)
    executor.set_cardinalities({})
    return executor


async def values_there(executor: RemoteExecutor, count: int) -> list[Any]:
    """Returns values that the worker has, not only their executor."""
    values = [await executor.create_value(np.int32(number), np.int32) for number in range(count)]
    everything = await executor.create_struct(values)
    await everything.compute()
    return values


@pytest.mark.long
async def test_two_hundred_rounds_leave_no_values_behind(fleet: Fleet) -> None:
    worker = fleet.start()
    most = 0
    with executor_at(worker.target) as executor:
        function = await executor.create_value(double)
        for number in range(200):
            argument = await executor.create_value(np.int32(number), np.int32)
            result = await executor.create_call(function, argument)
            pair = await executor.create_struct([argument, result])
            assert await (await executor.create_selection(pair, 1)).compute() == 2 * number
            if number % 20 == 19:
                del argument, result, pair
                await until(lambda: status_of(worker.target).values <= 1 + 20)
                most = max(most, status_of(worker.target).values)
        await until(lambda: status_of(worker.target).values == 1)
    assert most <= 21


async def test_large_values_that_are_dropped_free_their_bytes(fleet: Fleet) -> None:
    worker = fleet.start()
    with executor_at(worker.target) as executor:
        for _ in range(10):
            value = await executor.create_value(np.ones(MODEL.shape, np.float32), MODEL)
        assert status_of(worker.target).bytes >= 4_000_000
        del value
        await until(lambda: status_of(worker.target).bytes == 0)


@pytest.mark.long
def test_two_hundred_rounds_of_a_context_leave_nothing_at_any_worker(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start(extensions=True)]
    numbers = [0.1, 0.2, 0.3]
    expected = locally(mean_wobble, numbers)
    with context_over([worker.target for worker in workers]):
        for _ in range(200):
            assert mean_wobble(numbers) == expected
        for worker in workers:
            eventually(lambda worker=worker: status_of(worker.target).running == 0)  # its last call has its answer
            status = status_of(worker.target)
            assert (len(status.session), status.values, status.bytes) == (1, 0, 0)


def test_rounds_of_a_context_over_plain_peers_leave_what_waits_for_its_batch(fleet: Fleet) -> None:
    worker = fleet.start()
    numbers = [0.1, 0.2, 0.3]
    expected = locally(mean_wobble, numbers)
    with context_over([stub_to(worker.target, extensions=False)]):
        for number in range(60):
            assert mean_wobble(numbers) == expected
            if number % 20 == 19:
                eventually(lambda: status_of(worker.target).values <= 20)
        eventually(lambda: status_of(worker.target).values == 0)


async def test_full_batches_go_soon_and_the_rest_by_age(fleet: Fleet) -> None:
    connection = WatchedConnection(fleet.start().target)
    executor = executor_over(connection, dispose_batch_size=5)
    values = await values_there(executor, 12)
    connection.batches.clear()
    ids = [value.id for value in values]
    del values
    gc.collect()
    await until(lambda: len(connection.batches) >= 2)
    assert [len(batch) for batch in connection.batches[:2]] == [5, 5]
    await until(lambda: sum(map(len, connection.batches)) >= 12)
    assert set(ids) <= {value for batch in connection.batches for value in batch}
    executor.close()
    await io_loop.run(connection.close())


async def test_what_waits_for_its_batch_goes_when_the_executor_is_closed(fleet: Fleet) -> None:
    connection = WatchedConnection(fleet.start().target)
    executor = executor_over(connection, dispose_batch_size=1000)
    values = await values_there(executor, 3)
    connection.batches.clear()
    ids = {value.id for value in values}
    del values
    await asyncio.to_thread(executor.close)
    assert connection.calls[-2:] == ["Dispose", "DisposeExecutor"]
    assert ids <= set(connection.batches[-1])
    await io_loop.run(connection.close())


async def test_finalizers_call_nobody(fleet: Fleet) -> None:
    connection = WatchedConnection(fleet.start().target)
    executor = executor_over(connection, dispose_batch_size=2)
    values = await values_there(executor, 40)

    def drop() -> int:
        before = len(connection.calls)
        while values:
            values.pop()
        gc.collect()
        return len([call for call in connection.calls[before:] if call != "Dispose"])

    # Where nobody waits for the loop: on a thread without one, in the midst of the garbage collector's work.
    thread_outcome: list[int] = []
    thread = threading.Thread(target=lambda: thread_outcome.append(drop()), name="dropping")
    thread.start()
    await asyncio.to_thread(thread.join, WALL)
    assert thread_outcome == [0]
    await until(lambda: sum(map(len, connection.batches)) >= 40)
    assert set(connection.threads) == {THREAD_NAME}
    executor.close()
    await io_loop.run(connection.close())


async def test_values_that_are_dropped_while_the_loop_is_busy_are_only_noted(fleet: Fleet) -> None:
    """A finalizer that waited for the loop would wait here for ever."""
    connection = WatchedConnection(fleet.start().target)
    executor = executor_over(connection, dispose_batch_size=1)
    values = await values_there(executor, 10)
    calls = len(connection.calls)
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        assert go_on.wait(WALL)

    io_loop.loop.call_soon_threadsafe(block)
    assert await asyncio.to_thread(blocked.wait, WALL)
    values.clear()
    gc.collect()
    assert len(connection.calls) == calls
    go_on.set()
    await until(lambda: sum(map(len, connection.batches)) >= 10)
    executor.close()
    await io_loop.run(connection.close())


@pytest.mark.long
async def test_values_whose_disposal_did_not_get_through_are_disposed_of_later(fleet: Fleet) -> None:
    worker = fleet.start()
    stub = stub_to(worker.target, control_seconds=1.0)
    executor = RemoteExecutor(stub, dispose_batch_size=1)
    executor.set_cardinalities({})
    values = await values_there(executor, 5)
    held = status_of(worker.target).values
    assert held >= 5
    worker.stop()
    values.clear()
    keeper_has_tried = threading.Event()
    io_loop.loop.call_soon_threadsafe(lambda: io_loop.loop.call_later(2.5, keeper_has_tried.set))
    assert await asyncio.to_thread(keeper_has_tried.wait, WALL)
    worker.wake()
    await until(lambda: status_of(worker.target).values == 0)
    executor.close()
    await io_loop.run(stub.close())


async def test_values_of_a_computation_that_failed_are_freed_too(fleet: Fleet) -> None:
    from fault_leaves import fail

    worker = fleet.start()
    with executor_at(worker.target) as executor:
        function = await executor.create_value(fail)
        for number in range(5):
            result = await executor.create_call(function, await executor.create_value(np.int32(number), np.int32))
            try:
                await result.compute()
            except RuntimeError as error:
                assert "ZeroDivisionError" in str(error)
                error.__traceback__ = None
        del result
        gc.collect()
        await until(lambda: status_of(worker.target).values <= 1)


async def test_streamed_structs_leave_no_steps_behind(fleet: Fleet) -> None:
    worker = fleet.start()
    struct = fl.StructType([("a", FLOATS), ("b", fl.StructType([np.int32, np.float32]))])
    with executor_at(worker.target, stream_structs=True) as executor:
        for _ in range(3):
            value = await executor.create_value({"a": np.ones(3, np.float32), "b": (np.int32(1), 2.0)}, struct)
            assert (await value.compute())["b"][0] == 1
        del value
        await until(lambda: status_of(worker.target).values == 0)

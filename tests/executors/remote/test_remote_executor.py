"""What a remote executor says to its peer: sessions, calls from any loop and thread, messages of any size."""

import asyncio
import gc
import re
import threading

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import (
    CardinalityError,
    ClosedError,
    InvalidValueError,
    ResourceLimitError,
    StaleSessionError,
    WorkerUnavailableError,
)
from fedstack.executors import (
    ComposingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    RemoteExecutor,
    SequenceExecutor,
)
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.limits import ServiceLimits
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.frames import CHUNK_BYTES, Chunking

WALL = 20.0
INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(np.int32, fl.CLIENTS)
PAIR = fl.StructType([INT, INT])
KIB = 1024


@fedstack.python_computation([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fedstack.python_computation([np.int32], (np.float32, [None]))
def ones(x):
    return np.ones(x, np.float32)


@fl.federated_computation(INTS)
def total(values):
    return fl.federated_sum(values)


@fl.federated_computation()
def count():
    return fl.federated_sum(fl.federated_value(1, fl.CLIENTS))


async def called(executor, computation, argument=None, type_spec=None):
    function = await executor.create_value(computation)
    value = None if type_spec is None else await executor.create_value(argument, type_spec)
    return await executor.create_call(function, value)


async def test_cardinalities_come_first(connection):
    executor = RemoteExecutor(ExecutorStub(connection))
    with pytest.raises(InvalidValueError, match=r"call set_cardinalities\(\) before creating values"):
        await executor.create_value(1, INT)
    assert connection.methods == []
    executor.set_cardinalities({})
    assert await (await executor.create_value(1, INT)).compute() == 1
    executor.close()


@pytest.mark.parametrize("extensions", [True, False])
async def test_new_cardinalities_end_the_old_session_and_its_values(make_remote, service, eventually, extensions):
    executor = make_remote(3, extensions=extensions)
    value = await executor.create_value([1, 2, 3], INTS)
    function = await executor.create_value(total)
    assert await (await executor.create_call(function, value)).compute() == 6
    executor.set_cardinalities({fl.CLIENTS: 2})
    for use in (
        value.compute,
        lambda: executor.create_call(function, value),
        lambda: executor.create_struct([value]),
    ):
        with pytest.raises(
            StaleSessionError, match=r"Expected a value of the current session at memory .* create the value ag"
        ):
            await use()
    assert await (await called(executor, count)).compute() == 2
    assert await (await called(executor, total, [1, 2], INTS)).compute() == 3
    await eventually(lambda: len(service.status().session) == 1)
    assert service.status().session[0].clients == 2


async def test_values_for_another_number_of_clients_are_refused_before_anything_is_sent(executor, connection):
    with pytest.raises(CardinalityError, match="Expected one value for each of the 3 clients of .*, found 2"):
        await executor.create_value([1, 2], INTS)
    with pytest.raises(CardinalityError, match="found 3 at value.a and 2 at value.b"):
        await executor.create_value({"a": [1, 2, 3], "b": [1, 2]}, fl.StructType([("a", INTS), ("b", INTS)]))
    assert connection.methods == []


async def test_a_session_is_opened_once_for_all_who_need_it_at_the_same_time(executor, connection):
    values = await asyncio.gather(*(executor.create_value(number, INT) for number in range(20)))
    assert connection.methods == ["OpenSession"]
    assert await asyncio.gather(*(value.compute() for value in values)) == list(range(20))


async def test_cardinalities_may_change_while_a_session_is_opened(executor, connection, service, eventually):
    gate = connection.gates["OpenSession"] = asyncio.Event()
    creating = asyncio.ensure_future(called(executor, count))
    await eventually(lambda: connection.methods == ["OpenSession"])
    executor.set_cardinalities({fl.CLIENTS: 5})
    io_loop.loop.call_soon_threadsafe(gate.set)
    assert await (await creating).compute() == 5
    await eventually(lambda: [session.clients for session in service.status().session] == [5])


async def test_an_executor_may_be_closed_while_it_connects(executor, connection, service, eventually):
    gate = connection.gates["OpenSession"] = asyncio.Event()
    creating = asyncio.ensure_future(executor.create_value(1, INT))
    await eventually(lambda: connection.methods == ["OpenSession"])
    executor.close()
    io_loop.loop.call_soon_threadsafe(gate.set)
    with pytest.raises(ClosedError, match="was closed while it was connecting"):
        await creating
    await eventually(lambda: len(service.status().session) == 0)


async def test_whoever_waits_for_a_session_may_give_up_while_others_go_on(executor, connection, eventually):
    gate = connection.gates["OpenSession"] = asyncio.Event()
    first, second = (asyncio.ensure_future(executor.create_value(number, INT)) for number in range(2))
    await eventually(lambda: connection.methods == ["OpenSession"])
    first.cancel()
    io_loop.loop.call_soon_threadsafe(gate.set)
    assert await (await second).compute() == 1
    assert connection.methods == ["OpenSession", "Evaluate"]


async def test_a_session_that_could_not_be_opened_is_opened_by_the_next_who_needs_it(executor, connection):
    connection.fail["OpenSession"] = [WorkerUnavailableError("not yet")]
    with pytest.raises(WorkerUnavailableError, match="not yet"):
        await executor.create_value(1, INT)
    assert await (await executor.create_value(1, INT)).compute() == 1


@pytest.mark.parametrize("extensions", [True, False])
async def test_after_a_session_is_lost_its_values_are_of_no_use_and_new_ones_are(make_remote, service, extensions):
    executor = make_remote(extensions=extensions)
    value = await executor.create_value(1, INT)
    (session,) = service.status().session
    service._core.sessions.end(next(iter(service._core.sessions)).id, "the test has ended it")
    for _ in range(2):
        with pytest.raises(StaleSessionError, match="create"):
            await value.compute()
    again = await executor.create_value(2, INT)
    assert await again.compute() == 2
    with pytest.raises(StaleSessionError, match="found a value of a session that has ended"):
        await executor.create_struct([value, again])
    assert service.status().session[0].id != session.id


async def test_closing_ends_the_session_and_everything_in_it(make_remote, service, connection, eventually):
    executor = make_remote()
    value = await executor.create_value(1, INT)
    await value.compute()
    executor.close()
    executor.close()
    await eventually(lambda: len(service.status().session) == 0)
    assert connection.methods.count("DisposeExecutor") == 1
    for use in (value.compute, lambda: executor.create_value(1, INT), lambda: executor.create_struct([value])):
        with pytest.raises(ClosedError):
            await use()


async def test_an_executor_that_nobody_refers_to_any_more_ends_its_session(connection, service, eventually):
    executor = RemoteExecutor(ExecutorStub(connection))
    executor.set_cardinalities({})
    await executor.create_value(1, INT)
    assert len(service.status().session) == 1
    del executor
    gc.collect()
    await eventually(lambda: len(service.status().session) == 0)


async def test_sessions_at_one_service_share_nothing(make_remote, service):
    one, other = make_remote(2), make_remote(2)
    values = [await executor.create_value(number, INT) for number, executor in enumerate((one, other))]
    assert [await value.compute() for value in values] == [0, 1]
    assert len(service.status().session) == 2
    one.set_cardinalities({fl.CLIENTS: 4})
    assert await (await called(other, count)).compute() == 2
    assert await (await called(one, count)).compute() == 4


@pytest.mark.parametrize("extensions", [True, False])
@pytest.mark.parametrize("stream_structs", [True, False])
def test_one_executor_serves_any_number_of_threads_and_event_loops(make_remote, extensions, stream_structs, service):
    executor = make_remote(extensions=extensions, stream_structs=stream_structs)
    found, threads = {}, []

    async def work(number):
        async def one(k):
            value = await called(executor, add, (number, k), PAIR)
            struct = await executor.create_struct({"sum": value, "k": await executor.create_value(k, INT)})
            whole = await struct.compute()
            return whole["sum"], whole["k"]

        return await asyncio.gather(*(one(k) for k in range(5)))

    def run(number):
        found[number] = asyncio.run(work(number))

    for number in range(6):
        threads.append(threading.Thread(target=run, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join(WALL)
    assert found == {number: [(number + k, k) for k in range(5)] for number in range(6)}
    assert len(service.status().session) == 1


def test_a_value_made_on_one_loop_is_good_on_another(make_remote):
    executor = make_remote()
    value = asyncio.run(called(executor, add, (1, 2), PAIR))
    assert [asyncio.run(value.compute()) for _ in range(2)] == [3, 3]


def vector(length):
    return np.arange(length, dtype=np.float32), fl.TensorType(np.float32, [length])


MEGABYTE = 256 * KIB  # in numbers


@pytest.mark.parametrize(
    ("length", "form", "methods"),
    [
        (4 * KIB - 1, "array", ["OpenSession", "Evaluate"]),
        (4 * KIB, "raw", ["OpenSession", "Evaluate"]),
        (MEGABYTE, "raw", ["OpenSession", "Evaluate"]),
        (2 * MEGABYTE, "raw", ["OpenSession", "Evaluate", "Evaluate"]),
    ],
)
async def test_an_array_up_to_a_megabyte_travels_with_what_needs_it(executor, connection, length, form, methods):
    array, type_spec = vector(length)
    value = await executor.create_value(array, type_spec)
    found = await value.compute()
    assert connection.methods == methods
    (creation,) = connection.of("Evaluate")[0].request.creation
    assert creation.value.value.WhichOneof("kind") == form
    assert np.array_equal(found, array)
    assert found.flags.writeable


async def test_no_message_is_larger_than_a_chunk(make_remote, service, connection):
    array, type_spec = vector(3 << 20)
    executor = make_remote()
    assert np.array_equal(await (await executor.create_value(array, type_spec)).compute(), array)
    upload, _ = connection.of("Evaluate")
    _, download = (sizes for method, sizes in connection.received if method == "Evaluate")
    for sizes in (upload.sizes, download):
        assert len(sizes) == 1 + (12 << 20) // CHUNK_BYTES
        assert max(sizes) <= CHUNK_BYTES + 10
    executor.close()


async def test_a_large_value_is_fetched_in_one_call(make_remote, connection):
    array, type_spec = vector(2 * MEGABYTE)
    executor = make_remote()
    value = await executor.create_value(array, type_spec)
    assert np.array_equal(await value.compute(), array)
    assert connection.methods == ["OpenSession", "Evaluate", "Evaluate"]
    zipped = await executor.create_struct({"a": value, "b": value})
    assert np.array_equal((await zipped.compute()).b, array)
    assert connection.methods[3:] == ["Evaluate"]
    executor.close()


def small_chunks(connection, **limits):
    chunking = Chunking(large_bytes=100, chunk_bytes=64)
    service = ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(chunking=chunking, **limits))
    connection = type(connection)(service)
    executor = RemoteExecutor(ExecutorStub(connection, chunking=chunking))
    executor.set_cardinalities({fl.CLIENTS: 3})
    return service, connection, executor


async def test_both_sides_choose_the_size_of_their_chunks(connection):
    service, connection, executor = small_chunks(connection)
    array, type_spec = vector(100)
    small, small_type = vector(24)
    value = await executor.create_value((small, array), fl.StructType([small_type, type_spec]))
    found = await value.compute()
    assert np.array_equal(found[0], small)
    assert np.array_equal(found[1], array)
    assert [size - 2 for size in connection.of("Evaluate")[0].sizes[1:]] == [64] * 6 + [16]
    (download,) = (sizes for method, sizes in connection.received if method == "Evaluate")
    assert [size - 2 for size in download[1:]] == [64] * 6 + [16]
    executor.close()
    io_loop.run_sync(service.close())


async def test_a_value_that_is_too_large_for_the_peer_is_refused_before_it_is_sent(connection):
    service, connection, executor = small_chunks(connection, max_value_bytes=1000)
    array, type_spec = vector(250)
    assert len(await (await executor.create_value(array, type_spec)).compute()) == 250
    array, type_spec = vector(251)
    with pytest.raises(
        ResourceLimitError, match=r"Expected at most 1000 bytes in a value or phase, found 1004 bytes in a value of"
    ):
        await executor.create_value(array, type_spec)
    assert len(connection.of("Evaluate")) == 1
    executor.close()
    io_loop.run_sync(service.close())


@pytest.fixture(params=[100, 1 << 20], ids=["beside the message", "in the message"])
def stub_of_small_values(request):
    service = ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(max_value_bytes=1000))
    yield ExecutorStub(InMemoryConnection(service), chunking=Chunking(large_bytes=request.param))
    io_loop.run_sync(service.close())


def bytes_found(error: ResourceLimitError) -> int:
    found = re.fullmatch(r"Expected at most 1000 bytes in a value or phase, found (?:about )?(\d+)[ ;].*", str(error))
    assert found
    return int(found[1])


async def test_the_bytes_of_a_value_are_counted_without_what_describes_them(stub_of_small_values):
    executor = RemoteExecutor(stub_of_small_values)
    executor.set_cardinalities({fl.CLIENTS: 3})
    array, type_spec = vector(250)
    assert len(await (await executor.create_value(array, type_spec)).compute()) == 250
    array, type_spec = vector(280)
    with pytest.raises(ResourceLimitError) as caught:
        await (await executor.create_value(array, type_spec)).compute()
    assert 1120 <= bytes_found(caught.value) <= 1160
    executor.close()


def test_the_bytes_of_a_phase_are_counted_without_what_describes_them(stub_of_small_values):
    def summed(length):
        vectors = [np.arange(k, k + length, dtype=np.int32) for k in range(3)]
        return fl.federated_computation(
            lambda vectors, numbers: (fl.federated_sum(vectors), fl.federated_sum(numbers)),
            fl.FederatedType(fl.TensorType(np.int32, [length]), fl.CLIENTS),
            INTS,
        )(vectors, [1, 2, 3])

    factory = fedstack.remote_executor_factory([stub_of_small_values])
    with SyncExecutionContext(factory) as context, fedstack.use_context(context):
        assert summed(80)[1] == 6
        with pytest.raises(ResourceLimitError) as caught:
            summed(93)  # 1116 and 12 bytes
        assert 1116 <= bytes_found(caught.value) <= 1250


async def test_a_session_has_room_for_so_many_bytes_and_values(connection):
    service, connection, executor = small_chunks(connection, max_session_bytes=3000, max_values=4)
    array, type_spec = vector(500)
    kept = await executor.create_value(array, type_spec)
    assert len(await kept.compute()) == 500
    with pytest.raises(ResourceLimitError, match="Expected at most 3000 bytes of values in a session, found"):
        await (await executor.create_value(array, type_spec)).compute()
    values = [await executor.create_value(number, INT) for number in range(4)]
    for value in values[:3]:
        await value.compute()
    with pytest.raises(ResourceLimitError, match="Expected at most 4 values in a session"):
        await values[3].compute()
    assert len(await kept.compute()) == 500
    executor.close()
    io_loop.run_sync(service.close())


async def test_results_of_any_size_come_back(executor, connection):
    function = await executor.create_value(ones)
    for length in (1, 100, 4 * KIB, 100 * KIB):
        value = await executor.create_call(function, await executor.create_value(length, INT))
        assert len(await value.compute()) == length
    assert len(connection.of("Evaluate")) == 5


async def test_a_result_of_many_small_arrays_is_not_crammed_into_one_answer(executor, connection):
    sequence = fl.SequenceType(fl.TensorType(np.float32, [1000]))
    value = await executor.create_value([np.ones(1000, np.float32)] * 100, sequence)
    assert len(await value.compute()) == 100
    assert connection.methods == ["OpenSession", "Evaluate"]


async def test_a_composing_executor_spreads_phases_over_remote_executors(make_remote, connection):
    children = [make_remote(2), make_remote(1)]
    executor = ReferenceResolvingExecutor(ComposingExecutor(SequenceExecutor(LeafExecutor()), children, [2, 1]))
    assert await (await called(executor, total, [1, 2, 3], INTS)).compute() == 6
    assert sorted(connection.methods) == ["OpenSession", "OpenSession", "RunPhase", "RunPhase"]
    executor.close()


@pytest.mark.parametrize("count", [-1, 1.5, 10**12, "2", None, float("nan")])
def test_a_number_of_participants_that_cannot_be_is_refused_when_it_is_set(count: object) -> None:
    executor = RemoteExecutor(ExecutorStub(InMemoryConnection(ExecutorService(fedstack.local_executor_factory()))))
    with pytest.raises(CardinalityError, match="Expected a number of clients.* from 0 to 2147483647"):
        executor.set_cardinalities({fl.CLIENTS: count})  # type: ignore[dict-item]
    with pytest.raises(CardinalityError, match="found the key str 'clients'"):
        executor.set_cardinalities({"clients": 2})  # type: ignore[dict-item]
    executor.close()


@pytest.mark.parametrize("size", ["a", None, 1.5, 0])
def test_a_batch_of_no_size_is_refused(size: object) -> None:
    stub = ExecutorStub(InMemoryConnection(ExecutorService(fedstack.local_executor_factory())))
    with pytest.raises(InvalidValueError, match="Expected dispose_batch_size.* of at least 1"):
        RemoteExecutor(stub, dispose_batch_size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("stub", ["localhost:8000", None, 3])
def test_what_is_no_stub_is_refused_when_the_executor_is_made(stub: object) -> None:
    with pytest.raises(
        InvalidValueError,
        match="Expected a stub .*; to connect to an address, call RemoteExecutor.connect",
    ):
        RemoteExecutor(stub)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", [3, None, "yes"])
def test_whether_to_stream_structs_is_true_or_false(choice: object) -> None:
    stub = ExecutorStub(InMemoryConnection(ExecutorService(fedstack.local_executor_factory())))
    with pytest.raises(InvalidValueError, match="Expected stream_structs to be True or False, found "):
        RemoteExecutor(stub, stream_structs=choice)  # type: ignore[arg-type]

"""Large functions travel to each worker once, and again when they have changed."""

import gc
from concurrent.futures import ThreadPoolExecutor

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from test_shared_inputs import held_by, locally, phases, remote_context
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.computations.types.language import TensorType
from fedstack.computations.values.columns import ConstantColumn
from fedstack.errors import InvalidValueError, ResourceLimitError, StaleSessionError
from fedstack.executors.remote import phase_copies
from fedstack.executors.remote.phase_copies import unpack_functions
from fedstack.executors.remote.remote_sessions import RemoteSession
from fedstack.observe import PhaseEnded
from fedstack.proto.extensions_pb2 import PhaseRequest
from fedstack.service.pool.worker_pool import local_worker_pool

FLOAT = np.float32
add = fedstack.python_computation([FLOAT, FLOAT], FLOAT)(lambda x, y: x + y)
half = fedstack.python_computation([FLOAT], FLOAT)(lambda x: x / 2)


@fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
def total(values):
    return fl.federated_aggregate(fl.federated_map(half, values), FLOAT(0), add, add, half)


@pytest.fixture
def all_functions_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LARGE_FUNCTION_BYTES", "_WORTH_KEEPING_BYTES"):
        monkeypatch.setattr(phase_copies, name, 1)


def packed(request: PhaseRequest) -> list[PhaseRequest.Input]:
    return [request.packed_program, *(function.packed for fold in request.fold for function in fold.function)]


def new_total():
    """Returns the computation with functions that no worker and no cache has seen."""
    halved = fedstack.python_computation([FLOAT], FLOAT)(lambda x: x / 2)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_aggregate(fl.federated_map(halved, values), FLOAT(0), add, add, half)

    return computation


@pytest.mark.usefixtures("all_functions_are_large")
@pytest.mark.parametrize("workers", [1, 2])
def test_large_functions_are_sent_to_each_worker_once(workers: int) -> None:
    values, computation = [1.0, 2.0, 4.0], new_total()
    expected = locally(total, values)
    with remote_context(workers) as connections:
        for _ in range(3):
            assert computation(values) == expected
    for connection in connections:
        (first, size), *others = phases(connection)
        assert not first.program.ByteSize()
        assert all(message.keep and message.HasField("value") for message in packed(first))
        for request, again in others:
            assert [m.kept for m in packed(request)] == [m.keep for m in packed(first)]
            assert again < size / 2


@pytest.mark.usefixtures("all_functions_are_large")
def test_a_new_session_and_one_without_room_get_functions_again() -> None:
    values, computation = [1.0, 2.0, 4.0], new_total()
    expected = locally(total, values)
    with remote_context() as (connection,):
        assert computation(values) == expected
        connection.fail["RunPhase"] = [StaleSessionError("Expected a session, found that its lease ran out")]
        assert computation(values) == expected
        assert packed(phases(connection)[-1][0])[0].HasField("value")
    with remote_context(max_session_bytes=50) as (connection,):
        for _ in range(2):
            assert computation(values) == expected
        assert all(message.HasField("value") for request, _ in phases(connection) for message in packed(request))


@pytest.mark.usefixtures("all_functions_are_large")
def test_calls_at_the_same_time_leave_one_copy() -> None:
    values, computation = [1.0, 2.0, 4.0], new_total()
    with remote_context() as (connection,):
        context = fl.framework.get_context_stack().current

        def call() -> object:
            with fedstack.use_context(context):
                return computation(values)

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(lambda _: call(), range(40))) == {locally(total, values)}
        functions = len(packed(phases(connection)[0][0]))
        gc.collect()  # two calls may have made a template at the same time, of which one is garbage
        await_until(lambda: held_by(connection) <= functions)


def test_functions_keep_no_session_alive() -> None:
    table = np.ones(50_000, FLOAT)
    looked_up = fedstack.python_computation([FLOAT], FLOAT)(lambda x: table[int(x)])

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_sum(fl.federated_map(looked_up, values))

    def sessions() -> int:
        gc.collect()
        return sum(isinstance(one, RemoteSession) for one in gc.get_objects())

    before = sessions()
    for _ in range(2):
        with local_worker_pool(1) as pool, fedstack.create_sync_remote_execution_context(pool):
            assert computation([0.0, 1.0]) == 2.0
            assert sessions() > before
        await_until(lambda: sessions() <= before)


@pytest.mark.slow
def test_a_large_function_fails_and_survives_in_child_processes() -> None:
    table = np.arange(50_000, dtype=FLOAT)

    @fedstack.python_computation([FLOAT], FLOAT)
    def end_or_look_up(x):
        if x < 0:
            import os

            os._exit(3)
        return table[int(x)]

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_sum(fl.federated_map(end_or_look_up, values))

    policy = fedstack.ClientFailures(tolerate=1)
    with local_worker_pool(2) as pool, fedstack.create_sync_remote_execution_context(pool, client_failures=policy):
        for _ in range(2):
            assert computation([1.0, 2.0, -1.0, 3.0]) == 6.0


def parts(diary: Diary) -> list[PhaseEnded]:
    return [event for event in diary.of(PhaseEnded) if event.worker]


def test_a_function_sent_by_value_is_sent_again_when_it_has_changed() -> None:
    diary = Diary()
    table = np.zeros(500_000, FLOAT)

    @fedstack.python_computation([FLOAT], FLOAT)
    def looked_up(x):
        return x + table[int(x)]

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_sum(fl.federated_map(looked_up, values))

    sizes = []
    with (
        local_worker_pool(1) as pool,  # of two, an idle one may take clients over, and then parts have other sizes
        fedstack.create_sync_remote_execution_context(pool),
        observe.add_observer(diary),
    ):
        for number in range(6):
            table[:] = number // 2
            assert computation([0.0, 1.0]) == 1 + 2 * (number // 2)
            await_until(lambda: len(parts(diary)) == len(sizes) + 1)
            sizes.append(parts(diary)[-1].bytes_sent > table.nbytes)
    assert sizes == [True, False] * 3


def request_with(**packed_as: object) -> PhaseRequest:
    request = PhaseRequest()
    for name, value in packed_as.items():
        setattr(request.packed_program, name, value)
    return request


def test_what_is_no_function_is_refused() -> None:
    request = PhaseRequest()
    request.packed_program.value.array.dtype = 7
    request.packed_program.value.array.string_list.value.append(b"\xff\xff")
    with pytest.raises(InvalidValueError, match="serialized computation"):
        unpack_functions(request, lambda kept: (_ for _ in ()).throw(AssertionError(kept)))

    def find(kept):
        return ConstantColumn(FLOAT(1), 1), TensorType(FLOAT)

    twice = request_with(kept="x")
    twice.program.literal.SetInParent()
    with pytest.raises(InvalidValueError, match="in one form"):
        unpack_functions(twice, find)

    def find_large(kept):
        return ConstantColumn(b"x" * 1000, 1), TensorType(np.str_)

    def check_size(size):
        raise ResourceLimitError(f"{size} bytes")

    with pytest.raises(ResourceLimitError, match="1000 bytes"):
        unpack_functions(request_with(kept="x"), find_large, check_size)
    with pytest.raises(InvalidValueError, match="type str as a function, found the id of 1 values of type float32"):
        unpack_functions(request_with(kept="x"), find)

"""Large functions travel to each worker once, and again when they have changed."""

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from test_shared_inputs import locally, phases, remote_context
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.computations.types.language import TensorType
from fedstack.computations.values.columns import ConstantColumn
from fedstack.errors import InvalidValueError, StaleSessionError
from fedstack.executors.remote import phase_copies
from fedstack.executors.remote.phase_copies import unpack_functions
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
        local_worker_pool(2) as pool,
        fedstack.create_sync_remote_execution_context(pool),
        observe.add_observer(diary),
    ):
        for number in range(6):
            table[:] = number // 2
            assert computation([0.0, 1.0]) == 1 + 2 * (number // 2)
            await_until(lambda: len(parts(diary)) == 2 * len(sizes) + 2)
            sizes.append([event.bytes_sent > table.nbytes for event in parts(diary)[-2:]])
    assert sizes == [[True, True], [False, False]] * 3


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

    with pytest.raises(InvalidValueError, match="type str as a function, found the id of 1 values of type float32"):
        unpack_functions(request_with(kept="x"), find)

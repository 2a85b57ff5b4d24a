"""What several phases of a computation read travels to each worker once."""

import contextlib
from collections.abc import Iterator, Sequence

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from hypothesis import given
from hypothesis import strategies as st
from recording_connection import RecordingConnection

import fedstack
from fedstack.backends.elastic import rebalancing
from fedstack.backends.workers_backend import WorkersBackend
from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn
from fedstack.computations.values.shared_columns import SharedColumn
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import RemoteError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.remote.workers import Worker
from fedstack.executors.worker.phase_pipeline import PhaseHost
from fedstack.proto.extensions_pb2 import PhaseRequest, PhaseResponse
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.executor.phase_service import SessionHost
from fedstack.service.host.limits import ServiceLimits
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.wire.parcels import Incoming, Parcel

SIZE = 10_000
VECTOR = fl.TensorType(np.float32, [SIZE])
VECTORS = fl.FederatedType(VECTOR, fl.CLIENTS)
squared_distance = fedstack.python_computation([VECTOR, VECTOR], np.float32)(lambda x, m: np.sum((x - m) ** 2))
shifted = fedstack.python_computation([VECTOR, VECTOR], VECTOR)(lambda x, m: x - m)
difference = fedstack.python_computation([np.float32, np.float32], np.float32)(lambda x, m: x - m)
largest = fedstack.python_computation([VECTOR], np.float32)(lambda x: np.max(x))


@fl.federated_computation(VECTORS)
def spread(values):
    """Needs the values twice: for the mean, and for the distances from it."""
    mean = fl.federated_broadcast(fl.federated_mean(values))
    return fl.federated_mean(fl.federated_map(squared_distance, (values, mean)))


@fl.federated_computation(VECTORS, VECTORS)
def three_phases(values, others):
    mean = fl.federated_broadcast(fl.federated_mean(values))
    shift = fl.federated_broadcast(fl.federated_sum(fl.federated_map(shifted, (others, mean))))
    return fl.federated_max(fl.federated_map(largest, fl.federated_map(shifted, (values, shift)))), mean


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def small(values):
    mean = fl.federated_broadcast(fl.federated_mean(values))
    return fl.federated_sum(fl.federated_map(difference, (values, mean)))


class Owner:
    """The owner of copies."""


def locally(computation, *arguments):
    context = SyncExecutionContext(fedstack.local_executor_factory())
    try:
        with fedstack.use_context(context):
            return computation(*arguments)
    finally:
        context.close()


def vectors(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((count, SIZE), np.float32))


@contextlib.contextmanager
def remote_context(count: int = 1, **limits) -> Iterator[list[RecordingConnection]]:
    """Runs computations of the block at services in this process; yields the connections to them."""
    services = [
        ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(**limits)) for _ in range(count)
    ]
    connections = [RecordingConnection(service) for service in services]
    context = SyncExecutionContext(fedstack.remote_executor_factory([ExecutorStub(c) for c in connections]))
    try:
        with fedstack.use_context(context):
            yield connections
    finally:
        context.close()
        for service in services:
            io_loop.run_sync(service.close())


def phases(connection: RecordingConnection) -> list[tuple[PhaseRequest, int]]:
    """Returns the phases that were sent, and the bytes of each."""
    found = []
    for sent in connection.of("RunPhase"):
        assert isinstance(sent.request, PhaseRequest)
        found.append((sent.request, sum(sent.sizes)))
    return found


def held_by(connection: RecordingConnection) -> int:
    return connection.service.status().values


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_two_phases_read_is_sent_to_each_worker_once(workers: int) -> None:
    values = vectors(6)
    expected = locally(spread, values)
    with remote_context(workers) as connections:
        assert spread(values) == expected
    for connection in connections:
        (_, first), (second, rest) = phases(connection)
        clients = 6 // workers
        assert first > clients * SIZE * 4
        assert rest < SIZE * 4 + 20_000  # the mean, that is new, and what runs
        assert [bool(message.kept) for message in second.input] == [True, False]


def test_of_three_phases_the_last_refers_to_what_the_first_got() -> None:
    values, others = vectors(4), vectors(4, seed=1)
    expected = locally(three_phases, values, others)
    with remote_context() as (connection,):
        found = three_phases(values, others)
    np.testing.assert_equal(found, expected)
    first, second, third = (request for request, _ in phases(connection))
    (kept,) = {message.keep for message in first.input if message.keep}
    assert kept not in {message.kept for message in second.input}
    assert kept in {message.kept for message in third.input}


async def test_workers_let_go_of_it_when_the_computation_is_over(eventually) -> None:
    with remote_context(2) as connections:
        spread(vectors(6))
        kept = [message.keep for connection in connections for r, _ in phases(connection) for message in r.input]
        assert any(kept)
        for connection in connections:
            await eventually(lambda connection=connection: connection.of("Dispose") and not held_by(connection))


def test_each_call_sends_its_own_values() -> None:
    values = vectors(4)
    with remote_context(2):
        before = spread(values)
        values[3] *= 2
        after = spread(values)
    assert before != after
    assert after == locally(spread, values)


def test_where_there_is_no_room_to_keep_it_it_is_sent_again() -> None:
    values = vectors(6)
    expected = locally(spread, values)
    with remote_context(max_session_bytes=5 * SIZE * 4) as (connection,):
        assert spread(values) == expected
    (first, size), (second, again) = phases(connection)
    assert first.input[0].keep
    assert not second.input[0].kept
    assert again > size


def test_a_peer_that_keeps_nothing_is_sent_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    values = vectors(6)
    expected = locally(spread, values)
    monkeypatch.setattr(SessionHost, "keep", PhaseHost.keep)
    with remote_context(2):
        assert spread(values) == expected


def test_small_inputs_are_not_kept() -> None:
    values = [1.0, 2.0, 4.0]
    with remote_context() as (connection,):
        assert small(values) == pytest.approx(0, abs=1e-6)
    assert len(phases(connection)) == 2
    assert not any(message.keep or message.kept for request, _ in phases(connection) for message in request.input)


def test_a_session_that_is_lost_between_phases_is_opened_anew_and_gets_everything() -> None:
    values = vectors(6)
    expected = locally(spread, values)
    with remote_context() as (connection,):

        def break_next_call(x):
            connection.fail["RunPhase"] = [StaleSessionError("Expected a session, found that its lease ran out")]
            return x

        breaking = fedstack.python_computation([VECTOR], VECTOR)(break_next_call)

        @fl.federated_computation(VECTORS)
        def interrupted(values):
            mean = fl.federated_broadcast(fl.federated_mean(fl.federated_map(breaking, values)))
            return fl.federated_mean(fl.federated_map(squared_distance, (values, mean)))

        assert interrupted(values) == expected
    (first, _), (stale, _), (second, size) = phases(connection)
    assert stale.input[0].kept == first.input[0].keep
    assert stale.executor.id == first.executor.id != second.executor.id
    assert size > 6 * SIZE * 4


async def test_what_a_phase_left_whose_answer_was_lost_is_disposed_of(eventually) -> None:
    with remote_context() as (connection,):
        spread(vectors(6))
        connection.lose["RunPhase"] = [WorkerUnavailableError("Expected an answer, found none")]
        spread(vectors(6))
        offered = {m.keep for request, _ in phases(connection) for m in request.input if m.keep}
        assert len(offered) == 3  # by both calls, and by the request that was lost

        def disposed() -> set[str]:
            return {ref.id for call in connection.of("Dispose") for ref in call.request.value_ref}

        await eventually(lambda: offered <= disposed() or not held_by(connection))


def test_an_id_of_something_else_is_refused() -> None:
    def run(connection: RecordingConnection, request: PhaseRequest) -> PhaseResponse:
        async def call() -> PhaseResponse:
            parcel = Parcel(request.SerializeToString())
            answer = Incoming(
                connection.exchange("/fedstack.v1.ExecutorExtensions/RunPhase", parcel), on_heartbeat=lambda beat: None
            )
            return PhaseResponse.FromString(await answer.header())

        return io_loop.run_sync(call())

    with remote_context() as (connection,):
        spread(vectors(6))
        _, (second, _) = phases(connection)
        changed = PhaseRequest.FromString(second.SerializeToString())
        changed.input[0].kept = "nobody"
        with pytest.raises(RemoteError, match="Expected the id of a value in session") as missing:
            run(connection, changed)
        assert missing.value.code == "NOT_FOUND"


def test_what_workers_have_is_not_sent_again_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    values = vectors(7)
    expected = locally(spread, values)
    places = WorkersBackend.places
    with remote_context(3) as connections:
        lost = connections[1]
        lost.fail["RunPhase"] = [WorkerUnavailableError("Expected an answer, found none")]

        async def without_lost(self: WorkersBackend) -> Sequence[Worker]:
            ready = await places(self)
            return ready if lost.fail["RunPhase"] else [one for one in ready if one.stub.connection is not lost]

        monkeypatch.setattr(WorkersBackend, "places", without_lost)
        assert spread(values) == expected
    kept, sent = 0, 0
    for connection in (connections[0], connections[2]):
        *_, (last, size) = phases(connection)
        kept += sum(part.clients for part in last.input[0].part if part.kept) or last.clients * bool(last.input[0].kept)
        sent += size
    assert kept >= 5  # either worker has taken over either of the two clients
    assert sent < (2 + 7 - kept) * SIZE * 4 + 40_000


def test_a_worker_begins_with_the_clients_whose_inputs_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    values = vectors(6)
    expected = locally(spread, values)
    places, turned = WorkersBackend.places, []

    async def turning(self: WorkersBackend) -> Sequence[object]:
        turned.append(None)
        return list(await places(self))[:: (-1) ** len(turned)]

    monkeypatch.setattr(WorkersBackend, "places", turning)
    monkeypatch.setattr(rebalancing, "SETTLED_SECONDS", 60.0)  # a phase that lasts for long looks for workers again
    with remote_context(3) as connections:
        assert spread(values) == expected
    assert len(turned) == 2
    for connection in connections:
        (first, _), (second, rest) = phases(connection)
        assert first.first_client == second.first_client
        assert rest < SIZE * 4 + 20_000


def test_a_worker_that_takes_clients_over_has_the_zero_of_their_aggregation() -> None:
    large = fl.TensorType(np.float32, [300_000])

    @fedstack.python_computation([large, np.float32], large)
    def added(total, value):
        return total + value

    @fedstack.python_computation([np.float32], np.float32)
    def waiting(value):
        if value == 3:
            await_until(lambda: any(method == "RunPhase" for method, _ in connections[1].received))
        return value

    @fedstack.python_computation([large, large], large)
    def both(first, second):
        return first + second

    @fedstack.python_computation([large], np.float32)
    def first_of(total):
        return total[0]

    @fedstack.python_computation(None, large)
    def zeros():
        return np.zeros(300_000, np.float32)

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def total(values):
        return fl.federated_aggregate(fl.federated_map(waiting, values), zeros(), added, both, first_of)

    values = [np.float32(value) for value in range(8)]
    with remote_context(2) as connections:
        connections[0].lose["RunPhase"] = [WorkerUnavailableError("Expected an answer, found none")]
        assert total(values) == sum(range(8))
    (first, size), (again, rest) = phases(connections[1])
    assert first.fold[0].argument[0].keep == again.fold[0].argument[0].kept != ""
    assert size > 1_200_000 > 100_000 > rest


def test_a_shared_column_knows_which_members_were_copied() -> None:
    column, owner = SharedColumn(ScalarColumn(np.arange(10))), Owner()
    assert column.parts_at(owner) == [(None, range(10))]
    for name, start, stop in (("a", 2, 4), ("b", 3, 5), ("c", 7, 10)):
        column.slice(start, stop).note_copy(owner, name)

    def parts(start: int, stop: int) -> list[tuple[str, int, int]]:
        found = column.slice(start, stop).parts_at(owner)
        return [("" if copy is None else copy.name, some.start, some.stop) for copy, some in found]

    assert parts(0, 10) == [("", 0, 2), ("a", 2, 4), ("b", 4, 5), ("", 5, 7), ("c", 7, 10)]
    assert parts(3, 8) == [("a", 3, 4), ("b", 4, 5), ("", 5, 7), ("c", 7, 8)]
    assert parts(5, 7) == [("", 5, 7)]
    assert column.slice(2, 8).slice(1, 2).members == range(3, 4)
    assert column.parts_at(Owner()) == [(None, range(10))]
    assert list(column.slice(2, 4)) == [2, 3]
    assert list(SharedColumn(ListColumn([(1, b"a"), (2, b"b")])).field(1)) == [b"a", b"b"]


def test_any_copy_of_a_constant_column_has_all_members() -> None:
    column, owner = SharedColumn(ConstantColumn(7, 10)), Owner()
    column.slice(2, 3).note_copy(owner, "a")
    ((copy, members),) = column.parts_at(owner)
    assert copy is not None
    assert (copy.name, members) == ("a", range(10))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6), st.integers(0, 20), st.integers(0, 20))
def test_parts_cover_all_members_once_and_lie_in_their_copies(copies, start: int, stop: int) -> None:
    start, stop = min(start, stop), max(start, stop) + 1
    column, owner = SharedColumn(ScalarColumn(np.arange(21))), Owner()
    for number, (first, last) in enumerate(copies):
        column.slice(min(first, last), max(first, last) + 1).note_copy(owner, str(number))
    parts = column.slice(start, stop).parts_at(owner)
    assert [member for _, members in parts for member in members] == list(range(start, stop))
    copied = {member for first, last in copies for member in range(min(first, last), max(first, last) + 1)}
    for copy, members in parts:
        assert members
        assert set(members) <= set(copy.members) if copy is not None else not set(members) & copied

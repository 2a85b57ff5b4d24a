"""A client's value may be elsewhere: it is read where it is used, and is then as good as one that was given."""

import asyncio
import threading
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from shelf import Shelf

import fedstack
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import RemoteError, TypeMismatchError
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop

pytestmark = pytest.mark.fedstack_leak_check(False)  # the services go on from test to test

FLOATS = fl.TensorType(np.float32, [None])
EXAMPLE = fl.StructWithPythonType([("x", np.float32), ("y", np.int32)], dict)


@fedstack.python_computation(FLOATS, np.float32)
def total(values):
    return values.sum()


@fl.federated_computation(fl.FederatedType(FLOATS, fl.CLIENTS))
def mean_total(values):
    return fl.federated_mean(fl.federated_map(total, values))


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def summed(values):
    return fl.federated_sum(values)


@fl.federated_computation(fl.FederatedType(FLOATS, fl.CLIENTS))
def totals(values):
    return fl.federated_map(total, values)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(scope="module")
def services() -> Iterator[list[ExecutorService]]:
    made = [ExecutorService(fedstack.local_executor_factory()) for _ in range(2)]
    yield made
    for service in made:
        io_loop.run_sync(service.close())


@pytest.fixture(params=["local", "workers", "plain peer"])
def context(request, services):
    """Contexts over each kind of stack."""
    if request.param == "local":
        made = fedstack.create_sync_local_execution_context()
    else:
        plain = request.param == "plain peer"
        options = {"extensions": False, "keeps_handles": True} if plain else {}
        stubs = [ExecutorStub(InMemoryConnection(service), **options) for service in services]
        made = fedstack.create_sync_remote_execution_context(stubs[:1] if plain else stubs)
    with made:
        yield made


def assert_read_once(context, shelf: Shelf, count: int) -> None:
    """Values are read once, but for those of clients that run elsewhere, too, because a worker seems to stand still."""
    found = set(shelf.read) if "workers" in repr(context).lower() else shelf.read
    assert len(found) == count


def given(clients: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.random(3 + client % 5).astype(np.float32) for client in range(clients)]


class TestResults:
    def test_are_those_of_the_values_themselves(self, context, shelf):
        values = given(53)
        assert mean_total([shelf.put(value) for value in values]) == mean_total(values)
        assert_read_once(context, shelf, 53)

    def test_may_be_values_that_nothing_computes_with(self, context, shelf):
        assert summed([shelf.put(value) for value in range(9)]) == 36

    def test_are_the_same_where_some_values_are_given(self, context, shelf):
        values = given(20)
        mixed = [shelf.put(value) if client % 3 else value for client, value in enumerate(values)]
        assert mean_total(mixed) == mean_total(values)
        assert_read_once(context, shelf, 13)

    def test_are_the_same_where_members_of_structs_are_elsewhere(self, context, shelf):
        client = fl.StructType([("data", FLOATS), ("weight", np.float32)])

        @fl.federated_computation(client)
        def pick_data(one):
            return one.data

        @fl.federated_computation(client)
        def pick_weight(one):
            return one.weight

        @fl.federated_computation(fl.FederatedType(client, fl.CLIENTS))
        def weighted(clients):
            data = fl.federated_map(pick_data, clients)
            return fl.federated_mean(fl.federated_map(total, data), fl.federated_map(pick_weight, clients))

        values = [{"data": value, "weight": float(client + 1)} for client, value in enumerate(given(12))]
        elsewhere = [{**value, "data": shelf.put(value["data"])} for value in values]
        assert weighted(elsewhere) == weighted(values)
        assert weighted([shelf.put(value) for value in values]) == weighted(values)

    def test_are_the_same_for_sequences(self, context, shelf):
        @fedstack.python_computation(fl.SequenceType(EXAMPLE), np.int32)
        def count(examples):
            return np.int32(sum(one["y"] for one in examples))

        @fl.federated_computation(fl.FederatedType(fl.SequenceType(EXAMPLE), fl.CLIENTS))
        def counted(clients):
            return fl.federated_sum(fl.federated_map(count, clients))

        values = [[{"x": 0.5, "y": client}] * (client % 4) for client in range(10)]
        assert counted([shelf.put(value) for value in values]) == counted(values)

    def test_are_the_same_in_later_phases(self, context, shelf):
        @fedstack.python_computation((FLOATS, np.float32), np.float32)
        def above(values, mean):
            return np.float32((values.sum() > mean).sum())

        @fl.federated_computation(fl.FederatedType(FLOATS, fl.CLIENTS))
        def number_above(values):
            mean = fl.federated_mean(fl.federated_map(total, values))
            return fl.federated_sum(fl.federated_map(above, (values, fl.federated_broadcast(mean))))

        values = given(30)
        assert number_above([shelf.put(value) for value in values]) == number_above(values)

    def test_are_read_where_they_are_the_result(self, context, shelf):
        @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
        def same(values):
            return values

        assert same([shelf.put(value) for value in (3, 1, 2)]) == [3, 1, 2]

    def test_of_selections_are_those_of_the_keys_themselves(self, context, shelf):
        @fedstack.python_computation((np.int32, np.int32), np.int32)
        def chosen(value, key):
            return value * key

        @fl.federated_computation(
            fl.FederatedType(fl.TensorType(np.int32, [2]), fl.CLIENTS),
            fl.FederatedType(np.int32, fl.SERVER),
        )
        def selected(keys, value):
            return fl.federated_select(keys, fl.federated_value(np.int32(9), fl.SERVER), value, chosen)

        keys = [np.array([client, 2], np.int32) for client in range(3)]
        found = selected([shelf.put(one) for one in keys], 10)
        assert [list(one) for one in found] == [[0, 20], [10, 20], [20, 20]]


class TestErrors:
    """They are those of values that were given, and name the client."""

    @pytest.mark.parametrize("wrong", [np.zeros(3, np.int64), "three", np.zeros((2, 2), np.float32)])
    def test_of_a_wrong_type_have_the_same_text(self, context, shelf, wrong):
        values = given(40)
        values[17] = wrong
        with pytest.raises(TypeMismatchError) as expected:
            totals(values)
        with pytest.raises(TypeMismatchError) as found:
            totals([shelf.put(value) for value in values])
        assert "client 17" in str(found.value)
        assert str(found.value) == str(expected.value)

    def test_of_a_wrong_type_are_raised_at_once_for_what_is_given(self, shelf):
        values = [shelf.put(np.zeros(3, np.float32)), "three"]
        with pytest.raises(TypeMismatchError, match="client 1"):
            normalize_argument(values, mean_total.type_signature.parameter)
        assert not shelf.reads

    def test_are_of_the_first_client_that_cannot_be_read(self, context, shelf):
        values = [
            shelf.put(KeyError("lost") if client in (23, 31) else value) for client, value in enumerate(given(40))
        ]
        with pytest.raises(RemoteError, match=r"lost a value.*client 23"):
            mean_total(values)

    def test_name_a_member_of_a_struct(self, context, shelf):
        @fl.federated_computation(fl.FederatedType([("a", np.int32), ("b", np.int32)], fl.CLIENTS))
        def same(values):
            return fl.federated_sum(values)

        with pytest.raises(TypeMismatchError, match=r"client 1\]\.b"):
            same([{"a": 1, "b": shelf.put(2)}, {"a": 1, "b": shelf.put("2")}])

    def test_tell_that_an_element_of_a_sequence_cannot_be_elsewhere(self, shelf):
        type_spec = fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS)
        with pytest.raises(TypeMismatchError, match=r"Expected int32, found.*client 0\]\[1\]"):
            normalize_argument([[1, shelf.put(2)]], type_spec)

    def test_tell_that_a_function_returned_what_is_elsewhere(self, shelf):
        ticket = shelf.put(2)

        @fedstack.python_computation(np.int32, np.int32)
        def returns_ticket(value):
            return ticket

        with (
            fedstack.create_sync_local_execution_context(),
            pytest.raises(TypeMismatchError, match=r"Expected int32, found.*returns_ticket"),
        ):
            returns_ticket(1)


class TestReading:
    def test_begins_when_clients_run(self, shelf):
        column = normalize_argument(
            [shelf.put(client) for client in range(100)], fl.FederatedType(np.int32, fl.CLIENTS)
        )
        part = column.slice(10, 90).slice(5, 8)
        assert not shelf.reads
        assert list(part.items()) == [15, 16, 17]
        assert shelf.reads == [[15, 16, 17]]

    def test_is_of_many_clients_at_a_time(self, shelf):
        with fedstack.create_sync_local_execution_context():
            summed([shelf.put(1) for _ in range(5000)])
        assert shelf.read == list(range(5000))
        assert len(shelf.reads) < 100

    def test_of_a_field_reads_nothing_by_itself(self, shelf):
        column = normalize_argument([shelf.put({"x": 0.5, "y": 3})], fl.FederatedType(EXAMPLE, fl.CLIENTS))
        picked = column.field(1)
        assert not shelf.reads
        assert list(picked.slice(0, 1).items()) == [3]

    def test_waits_on_threads_and_not_on_the_loop(self, shelf, services, monkeypatch):
        reading = []
        monkeypatch.setattr(
            Shelf,
            "take",
            lambda self, numbers, where: reading.append(threading.current_thread()) or [1 for _ in numbers],
        )

        async def run(make):
            async with make() as context:
                return await context.invoke(summed, [shelf.put(1)] * 7)

        stubs = [ExecutorStub(InMemoryConnection(service)) for service in services]
        for make in (
            fedstack.create_async_local_execution_context,
            lambda: fedstack.create_async_remote_execution_context(stubs),
        ):
            assert asyncio.run(run(make)) == 7
        assert reading
        assert threading.current_thread() not in reading

    def test_of_values_of_no_client_is_no_error(self):
        column = normalize_argument([], fl.FederatedType(np.int32, fl.CLIENTS))
        assert column.is_here
        assert len(column.here()) == 0


def test_a_client_whose_value_is_lost_is_left_out(shelf) -> None:
    placed = [shelf.put(value) for value in given(20)]
    placed[7] = shelf.put(KeyError("gone"))
    with fedstack.create_sync_local_execution_context(client_failures=fedstack.ClientFailures()):
        found = totals(placed)
    assert [client for client, one in enumerate(found) if isinstance(one, fedstack.ClientFailure)] == [7]
    assert "lost a value" in str(found[7].error)

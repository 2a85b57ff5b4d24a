"""References to the data of clients can be given to any computation in place of the data."""

import asyncio
import os
import pickle
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from client_service import CLIENTS, POINTS, DataService, as_if_elsewhere, average, data_service, points

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, LeafError
from fedstack.program import DatasetDataSource, DatasetDataSourceIterator
from fedstack.proto.client_references_pb2 import ClientDataset, ClientSelections
from fedstack.service import Server, ServerConfig, local_worker_pool
from fedstack.service.data import Dataset, register_dataset
from fedstack.service.data.consumer.client_references import reader_of_this_process
from fedstack.service.data.consumer.reference_reader import ReferenceReader
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.peers.data_worker_stub import DataWorkerStub

LOCAL = points()
START = np.zeros(3, np.float32)


@pytest.fixture
def service() -> Iterator[DataService]:
    with data_service() as found:
        register_dataset(found.target, LOCAL, dataset_id="points")
        yield found


@pytest.fixture
def source(service: DataService) -> Iterator[DatasetDataSource]:
    with DatasetDataSource(service.target, "points", seed=7) as found:
        yield found


@pytest.fixture
def read_here() -> Iterator[None]:
    """References without a data source may be read; their connections are closed after the test."""
    yield
    reader_of_this_process().close()
    reader_of_this_process.cache_clear()


@pytest.fixture
def expected() -> list[bytes]:
    return trained(DatasetDataSource(LOCAL, seed=7))


def trained(source: DatasetDataSource) -> list[bytes]:
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        return rounds(source)


def rounds(source: DatasetDataSource) -> list[bytes]:
    """Returns the bits of the models of three rounds."""
    model, iterator = START, source.iterator()
    models = []
    for _ in range(3):
        model = average(model, iterator.select(30))
        models.append(model.tobytes())
    return models


def test_training_by_reference_has_the_bits_of_local_training(
    service: DataService, source: DatasetDataSource, expected: list[bytes]
) -> None:
    assert trained(source) == expected
    with as_if_elsewhere(), DatasetDataSource(service.target, "points", seed=7) as source:
        assert trained(source) == expected


@pytest.mark.long
def test_workers_read_what_they_train_on_and_have_the_same_bits(
    service: DataService, source: DatasetDataSource, expected: list[bytes]
) -> None:
    with local_worker_pool(2, data_services=[service.target]) as pool:
        with fedstack.create_sync_remote_execution_context(pool) as context, fedstack.use_context(context):
            assert rounds(source) == expected

        async def train() -> list[bytes]:
            model, iterator, models = START, source.iterator(), []
            for _ in range(3):
                model = await average(model, iterator.select(30))
                models.append(model.tobytes())
            return models

        with fedstack.create_async_remote_execution_context(pool) as context, fedstack.use_context(context):
            assert asyncio.run(train()) == expected


@pytest.mark.long
def test_a_client_that_ends_its_worker_is_found_where_clients_are_references(
    service: DataService, source: DatasetDataSource
) -> None:
    @fedstack.python_computation([POINTS.member], np.float32)
    def crash(data):
        if len(list(data)) == len(LOCAL["user 3"]):
            os._exit(3)
        return np.float32(0)

    @fl.federated_computation(POINTS)
    def total(data):
        return fl.federated_sum(fl.federated_map(crash, data))

    others = [client for client in LOCAL if len(LOCAL[client]) != len(LOCAL["user 3"])][:5]
    with local_worker_pool(2, data_services=[service.target]) as pool:
        with fedstack.create_sync_remote_execution_context(pool) as context, fedstack.use_context(context):
            with pytest.raises(LeafError, match="client 5"):
                total(source.select([*others, "user 3"]))


def test_an_asynchronous_context_in_this_process_has_the_same_bits(
    source: DatasetDataSource, expected: list[bytes]
) -> None:
    async def train() -> bytes:
        return (await average(START, source.iterator().select(30))).tobytes()

    with fedstack.create_async_local_execution_context() as context, fedstack.use_context(context):
        assert asyncio.run(train()) == expected[0]


def test_a_plain_executor_service_gets_the_elements(source: DatasetDataSource, expected: list[bytes]) -> None:
    policy = CarrierPolicy(modules=("*",), python_code=True)
    service = ExecutorService(fedstack.local_executor_factory(), extensions=False, policy=policy)
    with ServerThread(GrpcServer([service])) as server:
        with fedstack.create_sync_remote_execution_context(server.target) as context, fedstack.use_context(context):
            assert average(START, source.iterator().select(30)).tobytes() == expected[0]


@pytest.mark.long
@pytest.mark.usefixtures("fedstack_context")
def test_the_data_of_many_clients_is_read_in_few_calls(service: DataService, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read = DataWorkerStub.read
    monkeypatch.setattr(DataWorkerStub, "read", lambda *args, **kwargs: calls.append(args) or read(*args, **kwargs))
    many = points(1000, per_client=10)
    register_dataset(service.target, many, dataset_id="many")
    with as_if_elsewhere(), DatasetDataSource(service.target, "many") as source:
        assert average(START, source.iterator().select()).tobytes() == average(START, list(many.values())).tobytes()
        assert 0 < (first := len(calls)) < 50
        average(START, source.sample(500, 1))
        assert len(calls) == first  # what was read is still there


def test_a_reference_has_the_elements_of_its_client(source: DatasetDataSource) -> None:
    (reference,) = source.select(["user 3"])
    np.testing.assert_equal(list(reference), list(LOCAL["user 3"]))
    np.testing.assert_equal(list(reference), list(LOCAL["user 3"]))  # again and again
    assert repr(reference) == "<ClientReference to 'user 3': <x=float32[3],y=float32>*>"


@pytest.mark.usefixtures("read_here")
def test_a_reference_can_be_pickled_and_is_small(source: DatasetDataSource) -> None:
    (reference,) = source.select(["user 3"])
    content = pickle.dumps(reference)
    assert len(content) < 500
    back = pickle.loads(content)
    assert (back, hash(back), back.client_id) == (reference, hash(reference), "user 3")
    np.testing.assert_equal(list(back), list(LOCAL["user 3"]))


@pytest.mark.usefixtures("fedstack_context")
def test_references_stand_beside_values_and_in_structs(source: DatasetDataSource) -> None:
    @fedstack.python_computation([POINTS.member, np.float32], np.float32)
    def scaled(data, factor):
        return np.float32(factor * sum(point["y"] for point in data))

    pair = fl.FederatedType(fl.to_type([POINTS.member, np.float32]), fl.CLIENTS)

    @fl.federated_computation(pair)
    def total(values):
        return fl.federated_sum(fl.federated_map(scaled, values))

    ids = ["user 1", "user 2", "user 3"]
    mixed = [source.select(ids)[0], LOCAL["user 2"], list(LOCAL["user 3"])]
    found, wanted = (total([(data, 2.0) for data in values]) for values in (mixed, [LOCAL[i] for i in ids]))
    assert found == wanted


@pytest.mark.usefixtures("fedstack_context")
def test_a_reference_may_be_an_argument_without_clients(source: DatasetDataSource) -> None:
    @fedstack.python_computation([POINTS.member], np.float32)
    def total(data):
        return np.float32(sum(point["y"] for point in data))

    assert total(source.select(["user 5"])[0]) == total(LOCAL["user 5"])


def test_a_data_block_names_a_client(source: DatasetDataSource) -> None:
    async def materialized() -> object:
        return await reader.materialize(source.select(["user 5"])[0].to_data(), POINTS.member)

    with ReferenceReader() as reader:
        found = asyncio.run(materialized())
        assert sum(map(len, found.blocks())) == len(LOCAL["user 5"])


def test_clients_with_numbers_and_with_many_elements() -> None:
    owners = np.array([7] * 400 + [-3] * 5 + [2**40] * 1)
    rows = np.arange(len(owners) * 5000, dtype=np.float64).reshape(len(owners), 5000)
    local = Dataset.from_arrays({"who": owners, "row": rows}).by_client("who")
    with data_service(1) as service, as_if_elsewhere():
        register_dataset(service.target, local, dataset_id="rows")
        with DatasetDataSource(service.target, "rows") as source:
            assert source.client_ids == [-3, 7, 2**40]
            for reference in source.select([7, -3, 2**40]):
                np.testing.assert_equal(list(reference), list(local[reference.client_id]))


def test_the_elements_of_a_worker_in_the_same_process_are_not_copied(source: DatasetDataSource) -> None:
    columns = [next(source.select(["user 3"])[0].blocks()).field(0).values for _ in range(2)]
    assert np.shares_memory(*columns)


@pytest.mark.usefixtures("fedstack_context")
def test_an_unknown_client_is_an_error_of_its_own_only(service: DataService, source: DatasetDataSource) -> None:
    first, unknown = source.select(["user 0", "nobody"])
    with pytest.raises(InvalidValueError, match="Expected the id of a client of the dataset, found str 'nobody'"):
        list(unknown)
    np.testing.assert_equal(list(first), list(LOCAL["user 0"]))
    with pytest.raises(FedstackError, match=r"'nobody'.*client 1"):
        average(START, [first, unknown])


def test_a_worker_dials_only_what_its_operator_has_named(source: DatasetDataSource, service: DataService) -> None:
    with data_service(0) as other:
        for config, found in (
            (ServerConfig(), "--data-service ADDRESS"),
            (
                ServerConfig(data_services=other.target),
                rf"Expected a reference to data of {other.target}.*{service.target}.*--data-",
            ),
        ):
            server = Server.create_local_server(config)
            with server, fedstack.create_sync_remote_execution_context(server.target) as context:
                with fedstack.use_context(context), pytest.raises(CarrierError, match=found):
                    average(START, source.sample(5, 1))


def test_a_data_service_that_has_another_dataset_under_the_id_serves_none_of_it(source: DatasetDataSource) -> None:
    with data_service(1) as other:
        register_dataset(other.target, points(seed=1), dataset_id="points")
        dataset = ClientDataset()
        source.select(["user 1"])[0].group.source.Unpack(dataset)
        dataset.dispatcher = other.target
        with DatasetDataSource(other.target, "points") as there:
            (reference,) = there.select(["user 1"])
            reference.group.source.Pack(dataset)
            with pytest.raises(FedstackError, match=f"digest {dataset.digest.hex()[:16]}"):
                list(reference)


@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_a_sample_follows_from_its_seed_wherever_the_data_is(source: DatasetDataSource, clients: int) -> None:
    drawn = [[one.client_id for one in source.sample(clients, seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert clients == 1 or drawn[1] != drawn[2]
    local = [list(dataset) for dataset in LOCAL.sample(clients, 1)]
    np.testing.assert_equal([list(one) for one in source.sample(clients, 1)], local)
    with pytest.raises(
        InvalidValueError, match=f"Expected a sample of at most {CLIENTS} clients, found a sample of 41"
    ):
        source.sample(41, 1)


def test_an_iterator_goes_on_from_its_bytes_unless_the_dataset_is_another(
    service: DataService, source: DatasetDataSource
) -> None:
    iterator = source.iterator()
    iterator.select(3)
    content = iterator.to_bytes()
    back = DatasetDataSourceIterator.from_bytes(content)
    assert back.select(3) == iterator.select(3)
    back.source.close()
    with data_service(0) as other:
        register_dataset(other.target, points(seed=1), dataset_id="points")
        message = ClientSelections.FromString(content)
        message.registered.dispatcher = other.target
        with pytest.raises(InvalidValueError, match="found a different dataset under this id"):
            DatasetDataSourceIterator.from_bytes(message.SerializeToString())

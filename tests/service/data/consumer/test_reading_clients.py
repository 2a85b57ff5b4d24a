"""Data workers hold datasets by client, within bounds; what is wrongly asked of them is refused, and harms nobody."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from client_service import DataService, as_if_elsewhere, data_service, points
from example_counts import examples
from google.protobuf.any_pb2 import Any
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.computations.codec.references import Reference, ReferenceGroup
from fedstack.computations.types.language import TensorType
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, ResourceLimitError
from fedstack.program import DatasetDataSource
from fedstack.proto.client_references_pb2 import ClientDataset
from fedstack.proto.data_service_pb2 import ListClientsRequest, ReadRequest
from fedstack.proto.extensions_pb2 import HandshakeRequest
from fedstack.service.data import Dataset, DataWorkerLimits, register_dataset
from fedstack.service.data.consumer.descriptions import described
from fedstack.service.data.consumer.reference_reader import ReferenceReader, canonical
from fedstack.service.data.datasets.client_datasets import ClientDatasets, id_of, key_of
from fedstack.service.data.reading.readers import reader_at
from fedstack.service.data.worker.client_groups import ClientGroups
from fedstack.transport.peers.io_loop import io_loop

LOCAL = points()


@pytest.fixture
def service() -> Iterator[DataService]:
    with data_service(1) as found, as_if_elsewhere():
        register_dataset(found.target, LOCAL, dataset_id="points")
        yield found


ids = st.one_of(
    st.tuples(st.just(np.str_), st.text()),
    st.tuples(st.just(np.int64), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(np.uint8), st.integers(0, 255)),
    st.tuples(st.just(np.float32), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(np.bool_), st.booleans()),
)


@given(ids)
def test_ids_come_back_as_they_went(given) -> None:
    dtype, client = given
    back = id_of(key_of(client, TensorType(dtype)), TensorType(dtype))
    assert (type(back), back) == (type(client), client)


@settings(max_examples=examples(50))
@given(st.binary(max_size=20))
def test_bytes_that_are_no_id_are_refused(key: bytes) -> None:
    for dtype in (np.int64, np.str_):
        try:
            assert key_of(id_of(key, TensorType(dtype)), TensorType(dtype)) == key
        except InvalidValueError as error:
            assert "Expected a client id of type" in str(error)


def test_a_dataset_is_read_once_whoever_asks_at_the_same_time() -> None:
    begun, reads = threading.Barrier(4), []

    def rows(split: int):
        reads.append(split)
        yield from ({"who": who, "x": 1.0} for who in range(3))

    clients = Dataset.from_generator(rows, {"who": np.int64, "x": np.float64}).by_client("who")
    groups = ClientGroups(DataWorkerLimits())

    def find(_: int) -> object:
        begun.wait(20)
        return groups.find(b"digest", clients)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(find, range(4)))
    assert len(set(map(id, found))) == len(reads) == 1


def test_what_was_read_longest_ago_makes_room() -> None:
    groups = ClientGroups(DataWorkerLimits(max_client_bytes=2500))
    clients = Dataset.from_arrays({"who": np.arange(50), "x": np.zeros(50)}).by_client("who")  # 800 bytes
    found = {name: groups.find(name, clients) for name in (b"a", b"b", b"c", b"d")}
    assert repr(groups) == "<ClientGroups of 3 datasets, 2400 bytes>"
    assert groups.find(b"d", clients) is found[b"d"]
    assert groups.find(b"a", clients) is not found[b"a"]


def test_a_group_is_read_from_any_element_on() -> None:
    clients = Dataset.from_arrays({"who": [0, 1, 0, 2, 1], "x": np.arange(5)}).by_client("who")
    groups = ClientGroups(DataWorkerLimits())
    keys = [key_of(client, clients.id_type) for client in (1, 0, 2)]
    for start in range(7):
        read = groups.read(b"digest", clients, keys, start)
        found = [int(row) for block in read.blocks for row in block.field(0).values]
        assert (found, read.rows) == ([1, 4, 0, 2, 3][start:], [2, 2, 1])


@pytest.mark.parametrize(
    "request_of",
    [
        lambda digest: ReadRequest(digest=digest, client=[b"user 1", b"nobody"]),
        lambda digest: ReadRequest(digest=digest, client=[b"\xff\xfe"]),
        lambda digest: ReadRequest(digest=digest[:7], client=[b"user 1"]),
        lambda digest: ReadRequest(digest=bytes(32), client=[b"user 1"]),
    ],
)
def test_requests_for_what_there_is_not_are_refused(service: DataService, request_of) -> None:
    with DatasetDataSource(service.target, "points") as source:
        dataset, (reference,) = ClientDataset(), source.select(["user 1"])
        reference.group.source.Unpack(dataset)

        async def read() -> None:
            reader = reader_at(service.workers[0].target)
            try:
                reading = reader.open(request_of(dataset.digest), reference.element_type)
                await reading.next()
            finally:
                await reader.close()

        with pytest.raises(FedstackError, match="Expected|No dataset with digest"):
            io_loop.run_sync(read(), 20)
        assert len(list(reference)) == len(LOCAL["user 1"])


def test_the_clients_of_a_dataset_that_is_not_by_client_are_not_listed(service: DataService) -> None:
    async def asked() -> None:
        reader = reader_at(service.workers[0].target)
        try:
            await reader.list_clients(ListClientsRequest(digest=described(LOCAL.dataset).description.digest))
        finally:
            await reader.close()

    register_dataset(service.target, LOCAL.dataset)
    with pytest.raises(InvalidValueError, match="register the result of its by_client"):
        io_loop.run_sync(asked(), 20)


@pytest.mark.parametrize("content", [Any(), Any(type_url="x/y", value=b"z"), HandshakeRequest(), b"\xff"])
def test_a_reference_to_something_else_is_refused(content) -> None:
    source = Any()
    if isinstance(content, Any):
        source = content
    elif isinstance(content, bytes):
        source.Pack(ClientDataset())
        source.value = content
    else:
        source.Pack(content)
    group = ReferenceGroup(source, [b"a"], TensorType(np.int64), ReferenceReader().blocks)
    with pytest.raises(CarrierError, match="Expected a reference to a fedstack.v1.ClientDataset"):
        next(Reference(group, 0).blocks())


def test_an_address_is_the_same_however_it_is_written() -> None:
    assert len({canonical(a) for a in ("localhost:1", "grpc://localhost:1", "127.0.0.1:1", "grpcs://127.0.0.1:1")}) == 1
    assert canonical("there:1") != canonical("localhost:1")
    with pytest.raises(InvalidValueError, match="port"):
        ReferenceReader(allowed=["nowhere"])


# Datasets that are too large to be held.

FILE_ROWS = 40
SMALL = DataWorkerLimits(max_client_bytes=1000)  # two rooms have that


@pytest.fixture
def rooms(tmp_path: Path) -> ClientDatasets[Dataset]:
    """A file for each of five rooms, and another one in which there are two more of the last."""
    for number, room in enumerate("ecadb"):
        (tmp_path / f"{number}.csv").write_text(
            "room,celsius\n" + "".join(f"{room},{100 * number + row}\n" for row in range(FILE_ROWS))
        )
    (tmp_path / "9.csv").write_text("room,celsius\nb,1000\nb,1001\n")
    return Dataset.from_csv(str(tmp_path / "*.csv"), {"room": np.str_, "celsius": np.float64}).by_client("room")


def test_where_splits_have_few_clients_they_are_read_for_these_alone(rooms: ClientDatasets[Dataset]) -> None:
    groups, keys = ClientGroups(SMALL), [b"b", b"e", b"a"]
    assert dict(groups.find(b"digest", rooms).rows) == {b"a": 40, b"b": 42, b"c": 40, b"d": 40, b"e": 40}
    expected = [row["celsius"] for room in "bea" for row in rooms[room]]
    for start in (0, 1, 41, 42, 43, 100, 122, 130):
        read = groups.read(b"digest", rooms, keys, start)
        found = [float(row) for block in read.blocks for row in block.field(0).values]
        assert (found, read.rows) == (expected[start:], [42, 40, 40])
    with pytest.raises(InvalidValueError, match="Expected the id of a client of the dataset, found .*nobody"):
        list(groups.read(b"digest", rooms, [b"nobody"], 0).blocks)


def test_consecutive_elements_of_clients_in_arrays_are_read_for_these_alone() -> None:
    who = np.repeat(np.arange(5), 10_000)
    clients = Dataset.from_arrays({"who": who, "x": np.arange(50_000)}).by_client("who")
    groups, keys = ClientGroups(SMALL), [key_of(client, clients.id_type) for client in (3, 0)]
    read = groups.read(b"digest", clients, keys, 5)
    found = [int(row) for block in read.blocks for row in block.field(0).values]
    assert found == [*range(30_005, 40_000), *range(10_000)]


def test_what_would_be_read_again_for_each_of_many_clients_is_refused() -> None:
    who = np.arange(50_000) % 5
    mixed = Dataset.from_arrays({"who": who, "x": np.arange(50_000)})
    with pytest.raises(
        ResourceLimitError, match="a separate file, split the dataset into several datasets.*--max-client-bytes"
    ):
        ClientGroups(SMALL).find(b"digest", mixed.by_client("who"))


def test_a_split_without_end_is_given_up() -> None:
    def rows(split: int):
        while True:
            yield {"who": split, "x": 1.0}

    endless = Dataset.from_generator(rows, {"who": np.int64, "x": np.float64}, 3).by_client("who")
    with pytest.raises(ResourceLimitError, match="--max-client-bytes"):
        ClientGroups(SMALL).find(b"digest", endless)


def test_what_is_done_to_all_elements_together_is_not_left_out(rooms: ClientDatasets[Dataset]) -> None:
    shuffled = rooms.dataset.shuffle(8, seed=1).by_client("room")
    with pytest.raises(ResourceLimitError, match="--max-client-bytes"):
        ClientGroups(SMALL).find(b"digest", shuffled)
    assert len(ClientGroups(DataWorkerLimits()).find(b"digest", shuffled).rows) == 5


def test_a_file_that_has_changed_since_is_found_out(rooms: ClientDatasets[Dataset], tmp_path: Path) -> None:
    groups = ClientGroups(SMALL)
    groups.find(b"digest", rooms)
    (tmp_path / "9.csv").write_text("room,celsius\nb,1000\n")
    with pytest.raises(
        InvalidValueError, match="Expected 2 elements of client 'b' in splits 5 to 6, found 1; restart the data"
    ):
        list(groups.read(b"digest", rooms, [b"b"], 0).blocks)


@pytest.mark.parametrize("limits", [SMALL, DataWorkerLimits()], ids=["read where they are", "held"])
def test_a_client_whose_file_has_no_rows_is_one_without_elements(tmp_path: Path, limits: DataWorkerLimits) -> None:
    for user, rows in {"a": 60, "none": 0, "b": 70}.items():
        np.savez(tmp_path / f"{user}.npz", y=np.arange(rows))
    clients = Dataset.from_npz(str(tmp_path / "*.npz"), client_from_path="user").by_client("user")
    assert (clients.client_ids, list(clients["none"])) == (["a", "b", "none"], [])
    with data_service(1, limits=limits, data_roots=[tmp_path]) as found:
        register_dataset(found.target, clients, dataset_id="users")
        with DatasetDataSource(found.target, "users") as source:
            assert source.client_ids == clients.client_ids
            assert [len(list(one)) for one in source.select(["none", "a", "none", "b"])] == [0, 60, 0, 70]
            assert [list(one) for one in source.select(["none"])] == [[]]


def test_clients_in_files_of_their_own_are_read_by_reference(rooms: ClientDatasets[Dataset], tmp_path: Path) -> None:
    with data_service(1, limits=SMALL, data_roots=[tmp_path]) as found:
        register_dataset(found.target, rooms, dataset_id="rooms")
        with DatasetDataSource(found.target, "rooms") as source:
            assert source.client_ids == list("abcde")
            references = source.select(list("db"))
            assert [list(reference) for reference in references] == [list(rooms["d"]), list(rooms["b"])]

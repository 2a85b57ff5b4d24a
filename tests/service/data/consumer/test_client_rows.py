"""Clients of a data service come as columns or batches where the computation says so, as from `fedstack.by_client`."""

from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client_service import DataService, as_if_elsewhere, data_service

import fedstack
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError, TypeMismatchError
from fedstack.program import DatasetDataSource
from fedstack.service import local_worker_pool
from fedstack.service.data import Dataset, register_dataset

ROWS, CLIENTS = 200, 8
_draw = np.random.default_rng(0)
TABLE = {
    "y": _draw.integers(10, size=ROWS),
    "user": np.array([f"user {k}" for k in _draw.integers(CLIENTS, size=ROWS)]),
    "x": _draw.normal(size=(ROWS, 3)).astype(np.float32),
}
COLUMNS = fl.to_type([("x", (np.float32, [None, 3])), ("y", (np.int64, [None]))])  # in another order than the data
BATCHES = fl.SequenceType(COLUMNS)
FITTED = fl.to_type((np.float32, [3]))


@fedstack.python_computation([COLUMNS], FITTED)
def fit_columns(data):
    return data["x"].T @ data["y"].astype(np.float32)


@fedstack.python_computation([BATCHES], FITTED)
def fit_batches(data):
    model = np.zeros(3, np.float32)
    for _ in range(2):
        for batch in data:
            model = model * np.float32(0.9) + batch["x"].T @ batch["y"].astype(np.float32)
    return model


@fl.federated_computation(fl.FederatedType(COLUMNS, fl.CLIENTS))
def over_columns(data):
    return fl.federated_sum(fl.federated_map(fit_columns, data))


@fl.federated_computation(fl.FederatedType(BATCHES, fl.CLIENTS))
def over_batches(data):
    return fl.federated_sum(fl.federated_map(fit_batches, data))


@fl.federated_computation(fl.FederatedType(COLUMNS, fl.CLIENTS))
def rows_of_each(data):
    return data


BATCHING: dict[str, Any] = {"batch_size": 7, "shuffle_seed": 3, "round": 1}


def results(clients: list[Any], batches: list[Any]) -> list[bytes]:
    return [over_columns(clients).tobytes(), over_batches(batches).tobytes()]


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    tables = list(fedstack.by_client(TABLE, "user").values())
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        return results(tables, [fedstack.batches(table, **BATCHING) for table in tables])


@pytest.fixture
def service() -> Iterator[DataService]:
    with data_service() as found:
        register_dataset(found.target, Dataset.from_arrays(TABLE).by_client("user"), dataset_id="rows")
        yield found


@pytest.fixture
def references(service: DataService) -> Iterator[list[Any]]:
    with DatasetDataSource(service.target, "rows") as source:
        yield source.select(source.client_ids)


def referred(references: list[Any]) -> list[bytes]:
    return results(references, [one.batches(**BATCHING) for one in references])


def test_a_dataset_by_client_gives_columns_and_batches(expected: list[bytes]) -> None:
    clients = Dataset.from_arrays(TABLE).by_client("user")
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        assert referred([clients[client] for client in clients]) == expected
        tables = fedstack.by_client(TABLE, "user")
        for found, table in zip(rows_of_each(list(clients.values())), tables.values()):
            assert {name: found[name].tolist() for name in "xy"} == {name: table[name].tolist() for name in "xy"}


def test_references_are_read_as_columns_and_batches_in_this_process(
    references: list[Any], expected: list[bytes]
) -> None:
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        assert referred(references) == expected
        with as_if_elsewhere():
            assert referred(references) == expected


@pytest.mark.long
def test_workers_read_columns_and_batches_themselves(
    service: DataService, references: list[Any], expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_worker_pool(2, data_services=[service.target]) as pool:
        with fedstack.create_sync_remote_execution_context(pool) as context, fedstack.use_context(context):
            monkeypatch.setattr(type(references[0]), "blocks", None)  # nothing is read here
            assert referred(references) == expected
            one = over_batches([references[0].batches(7), references[1].batches(5)])
        monkeypatch.undo()
        with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
            assert one.tobytes() == over_batches([references[0].batches(7), references[1].batches(5)]).tobytes()


@pytest.mark.long
def test_a_worker_without_the_data_service_says_so_and_one_that_lost_a_client_names_it(service: DataService) -> None:
    with DatasetDataSource(service.target, "rows") as source:
        good, bad = source.select(["user 0", "nobody"])
        with local_worker_pool(1) as pool, fedstack.create_sync_remote_execution_context(pool) as context:
            with fedstack.use_context(context), pytest.raises(FedstackError, match="contains no data service"):
                over_columns([good])
        with local_worker_pool(1, data_services=[service.target]) as pool:
            with fedstack.create_sync_remote_execution_context(pool) as context, fedstack.use_context(context):
                with pytest.raises(
                    FedstackError, match="Expected the id of a client of the dataset, found str 'nobody'"
                ):
                    over_columns([good, bad])


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (
            fl.to_type([("x", (np.float32, [None, 3]))]),
            "found .* of rows with .*; at arg.client 1.; declare a sequence",
        ),
        (fl.to_type((np.float32, [None, 3])), "found .* of rows with .*; at arg.client 1."),
        (fl.to_type([("x", (np.float64, [None, 4])), ("y", (np.int64, [None]))]), r"shape \[\?,4\].*client 1"),
        (fl.to_type([("x", (np.float32, [None, 3])), ("y", (np.int32, [None]))]), r"Expected int32.*client 1.*y"),
    ],
)
def test_columns_that_are_not_of_the_type_are_refused_with_their_client(member: Any, message: str) -> None:
    clients = Dataset.from_arrays(TABLE).by_client("user")
    # A client's own value comes first, so that the other's index is no accident.
    here = {"x": np.zeros((1, 3), np.float32), "y": np.zeros(1, np.int64)}
    if isinstance(member, fl.StructType) and "y" in dict(member.items()):
        here = {name: np.zeros([1, *list(t.shape)[1:]], t.dtype) for name, t in member.items()}
    elif isinstance(member, fl.StructType):
        del here["y"]
    else:
        here = here["x"]
    with pytest.raises(TypeMismatchError, match=message):
        normalize_argument([here, clients["user 1"]], fl.FederatedType(member, fl.CLIENTS)).items()


def test_batches_are_refused_where_no_sequence_is_wanted() -> None:
    clients = Dataset.from_arrays(TABLE).by_client("user")
    with pytest.raises(TypeMismatchError, match=r"in batches of 4 rows each.*client 0.*declare a sequence of batches"):
        normalize_argument([clients["user 1"].batches(4)], fl.FederatedType(COLUMNS, fl.CLIENTS))


def test_elements_that_are_no_structs_make_one_array_and_text_one_of_bytes() -> None:
    def column(dataset: Dataset, member: Any) -> Any:
        return normalize_argument([dataset], fl.FederatedType(fl.to_type(member), fl.CLIENTS)).items()[0]

    assert column(Dataset.range(20_000), (np.int64, [None])).tolist() == list(range(20_000))
    assert column(Dataset.range(0), (np.int64, [None])).shape == (0,)
    words = Dataset.from_arrays({"w": ["a", "bc"]})
    assert column(words, [("w", (np.str_, [None]))])[0].tolist() == [b"a", b"bc"]


def test_a_client_is_read_out_of_its_file_when_it_runs(tmp_path: Any) -> None:
    for user, rows in fedstack.by_client(TABLE, "user").items():
        (tmp_path / f"user={user}").mkdir()
        x = pa.FixedSizeListArray.from_arrays(pa.array(rows["x"].reshape(-1)), 3)
        pq.write_table(pa.table({"y": rows["y"], "x": x}), tmp_path / f"user={user}" / "0.parquet", row_group_size=5)
    clients = Dataset.from_parquet(str(tmp_path / "*/*.parquet"), client_from_path="user").by_client("user")
    tables = fedstack.by_client(TABLE, "user")
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        assert over_columns(list(clients.values())).tobytes() == over_columns(list(tables.values())).tobytes()
        (tmp_path / "user=user 1" / "0.parquet").unlink()
        with pytest.raises(FedstackError, match=r"0\.parquet raised FileNotFoundError"):
            over_columns([clients["user 0"], clients["user 1"]])

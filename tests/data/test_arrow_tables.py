"""Arrow tables, and what speaks Arrow's C stream protocol, are tables like data frames."""

import sys
from typing import Any

import federated_language as fl
import numpy as np
import pyarrow as pa
import pytest

from fedstack.computations.values.federated_values import normalize_argument
from fedstack.data.client_data import batches
from fedstack.data.client_tables import by_client
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.service.data import Dataset

WIDE = 2**53 + 1  # the first integer that float64 has not
ROWS: dict[str, list[Any]] = {
    "who": ["b", "a", "b"],
    "n": [1, WIDE, 3],
    "x": [[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]],
    "name": ["p", "q\0", "r"],
    "open": [True, False, True],
}
TABLE = pa.table(ROWS)


class Stream:
    """Has a table, and shows nothing of it but the protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


FORMS = [TABLE, pa.concat_tables([TABLE[:1], TABLE[1:]]), TABLE.to_batches()[0], Stream(TABLE)]


def check_by_client(table: Any) -> None:
    found = by_client(table, "who")
    assert list(found) == ["a", "b"]
    assert found["a"]["n"].tolist() == [WIDE]
    assert (found["b"]["x"].dtype, found["b"]["x"].tolist()) == (np.float64, [[1.0, 2.0], [5.0, 6.0]])
    assert np.isnan(found["a"]["x"][0, 1])
    assert found["a"]["name"].tolist() == ["q\0"]
    assert found["b"]["open"].dtype == np.bool_


def check_batches(table: Any) -> None:
    first, last = batches(table, 2)
    assert list(first) == list(ROWS)
    assert first["n"].tolist() == [1, WIDE]
    assert last["x"].tolist() == [[5.0, 6.0]]
    assert not first["n"].flags.writeable


@pytest.mark.parametrize("table", FORMS, ids=["table", "chunks", "batch", "stream"])
def test_arrow_tables_are_split_and_batched_as_data_frames_are(table: Any) -> None:
    check_by_client(table)
    check_batches(table)
    (element, *_) = Dataset.from_arrays(table)
    assert (element["who"], element["n"], element["x"].tolist()) == (b"b", 1, [1.0, 2.0])


@pytest.mark.slow  # Polars is none of what core tests need
def test_frames_of_polars_are_read_with_their_lists_arrays_and_categories() -> None:
    import polars as pl

    frame = pl.DataFrame(ROWS, schema_overrides={"who": pl.Categorical})
    check_by_client(frame)
    check_batches(frame)
    fixed = pl.DataFrame({"who": [1, 1], "x": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int32, 2))})
    assert by_client(fixed, "who")[1]["x"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InvalidValueError, match=r"at column 'x', found no value in row 1 \(1 missing\)"):
        by_client(pl.DataFrame({"who": [1, 2], "x": [5, None]}), "who")


@pytest.mark.slow  # as above
@pytest.mark.filterwarnings("error")
def test_a_frame_that_is_yet_to_be_computed_is_to_be_collected_first() -> None:
    import polars as pl

    lazy = pl.DataFrame({"who": [1], "x": [1.0]}).lazy()
    with pytest.raises(TypeMismatchError, match=r"for by_client, found a lazy `LazyFrame`; call collect\(\) first"):
        by_client(lazy, "who")  # type: ignore[call-overload]
    with pytest.raises(TypeMismatchError, match=r"at arrays, found a lazy `LazyFrame`; call collect\(\) first"):
        batches(lazy, 1)


def test_columns_of_arrow_stand_in_dicts_too() -> None:
    columns = {"who": TABLE["who"], "x": pa.array([1, 2, 3], pa.int16()), "y": np.arange(3)}
    assert {name: array.tolist() for name, array in by_client(columns, "who")["b"].items()} == {
        "x": [1, 3],
        "y": [0, 2],
    }
    (batch,) = batches((TABLE["n"].slice(1), np.arange(2)), 2)
    assert batch[0].tolist() == [WIDE, 3]


@pytest.mark.parametrize(
    "column",
    [
        pa.FixedSizeListArray.from_arrays(pa.array(range(6), pa.int8()), 2),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int8).reshape(3, 2)),
        pa.array([[0, 1], [2, 3], [4, 5]], pa.large_list(pa.int8())),
    ],
    ids=["fixed", "tensor", "large"],
)
def test_lists_of_one_length_become_a_dimension(column: Any) -> None:
    for part, rows in ((column, [[0, 1], [2, 3], [4, 5]]), (column[1:], [[2, 3], [4, 5]])):
        (batch,) = batches({"x": part}, 3)
        assert (batch["x"].dtype, batch["x"].tolist()) == (np.int8, rows)
    (nothing,) = batches({"x": pa.array([[[1], [2]]])}, 1)
    assert nothing["x"].shape == (1, 2, 1)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([5, None]),
            r"type int64 in every row at column 'x', found no value in row 1 \(1 missing\); .*fill_null",
        ),
        (pa.chunked_array([[0.5], [None]]), r"type double in every row .*, found no value in row 1 \(1 missing\)"),
        (pa.array([[1, 2], None]), r"found no value in row 1 \(1 missing\)"),
        (pa.array([[1, 2], [3, None]]), r"found no value in row 1 \(1 missing\)"),
        (pa.array([[1], [2, 3]]), r"Expected lists of equal length at column 'x', found lists .*; pad the rows"),
        (pa.array([{"a": 1}, {"a": 2}]), r"at column 'x', found struct<a: int64>; convert its members"),
    ],
)
def test_a_column_that_makes_no_array_is_refused_by_name(column: Any, message: str) -> None:
    table = pa.table({"who": [1, 2], "x": column})
    with pytest.raises(InvalidValueError, match=message):
        by_client(table, "who")


def test_several_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    with pytest.raises(InvalidValueError, match="at arrays, found several columns named 'x'"):
        batches(twice, 1)
    with pytest.raises(InvalidValueError, match="at by_client, found several columns named 'x'"):
        by_client(twice, "x")


def test_a_table_where_values_of_clients_are_wanted_is_called_by_its_columns() -> None:
    assert describe(TABLE) == "a Table with the columns ['who', 'n', 'x', 'name', 'open']"
    clients = fl.FederatedType(fl.StructType([("n", (np.int64, [None]))]), fl.CLIENTS)
    with pytest.raises(TypeMismatchError, match=r"found a Table with the columns .*by_client"):
        normalize_argument(TABLE, clients)
    with pytest.raises(TypeMismatchError, match=r"pass {c: df\[c\]\.to_numpy\(\) for c in df\.column_names}, or"):
        normalize_argument([TABLE], clients)


def test_an_arrow_column_is_an_argument_unless_a_value_is_missing() -> None:
    assert normalize_argument({"n": TABLE["n"]}, fl.StructType([("n", fl.TensorType(np.int64, [3]))]))[0].tolist() == [
        1,
        WIDE,
        3,
    ]
    with pytest.raises(
        InvalidValueError, match=r"in every row of a column of double, found no value in row 0 \(1 missing\)"
    ):
        normalize_argument(pa.array([None, 0.5]), fl.TensorType(np.float64, [2]))


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "fedstack\[arrow\]"'):
        by_client(Stream(TABLE), "who")

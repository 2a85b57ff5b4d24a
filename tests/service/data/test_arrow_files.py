"""Datasets out of Parquet and Arrow files, and out of files that are of one client each."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.errors import InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.service.data import Dataset
from fedstack.service.data.datasets import arrow_files
from fedstack.service.data.datasets.definitions import definition_of, read_definition

ROWS = 10
TABLE = pa.table(
    {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * ROWS, dtype=np.float32)), 3),
        "y": pa.array(range(ROWS), pa.int32()),
        "name": [f"n{k}" for k in range(ROWS)],
        "words": [["a"] * (k % 3) for k in range(ROWS)],
        "in": [{"k": k} for k in range(ROWS)],
    }
)


def parquet(path: Path, table: pa.Table = TABLE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def arrow(path: Path, table: pa.Table = TABLE, *, rows: int = ROWS, is_stream: bool = False) -> Path:
    with (pa.ipc.new_stream if is_stream else pa.ipc.new_file)(path, table.schema) as file:
        file.write_table(table, rows)
    return path


def written(dataset: Dataset) -> Dataset:
    return read_definition(definition_of(dataset, Destination(takes_code=True)))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_rows_come_as_the_file_has_them_with_its_row_groups_or_record_batches_as_splits(
    tmp_path: Path, form: str
) -> None:
    if form == "parquet":
        made = Dataset.from_parquet(parquet(tmp_path / "a", row_group_size=4))
    else:
        made = Dataset.from_arrow(arrow(tmp_path / "a", rows=4))
    for dataset in (made, written(made)):
        found = list(dataset)
        assert [element["y"] for element in found] == list(range(ROWS))
        assert [element["x"].tolist() for element in found][1] == [3.0, 4.0, 5.0]
        assert found[5]["words"].tolist() == [b"a", b"a"]
        assert (found[7]["name"], found[7]["in"]) == (b"n7", {"k": 7})
        assert dataset.num_splits == 3
        assert [e[1] for block in dataset.read(1, 3, 2) for e in block.items()] == [6, 7, 8, 9]
    assert str(made.element_type) == "<x=float32[3],y=int32,name=str,words=str[?],in=<k=int64>>"


def test_a_stream_of_arrow_is_one_split(tmp_path: Path) -> None:
    dataset = Dataset.from_arrow([arrow(tmp_path / "a", rows=4, is_stream=True), arrow(tmp_path / "b")], ["name", "y"])
    assert [element["y"] for element in dataset] == [*range(ROWS)] * 2
    assert (dataset.num_splits, list(next(iter(dataset)))) == (2, ["name", "y"])


def test_columns_are_chosen_by_name_or_by_type(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a", pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": pa.array([1, 2], pa.int8())}))
    assert str(Dataset.from_parquet(path, ["y", "x"]).element_type) == "<y=int8,x=float64[?]>"
    wide = Dataset.from_parquet(path, {"x": (np.float64, [2]), "y": np.int64})
    assert [(e["x"].tolist(), type(e["y"])) for e in wide] == [([1.0, 2.0], np.int64), ([3.0, 4.0], np.int64)]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (["z"], InvalidValueError, r"Expected exactly one column 'z' in .*a, found the columns \['x', 'y'"),
        ("x", TypeMismatchError, "to be a list of names or a dict from names to types, found str"),
        ({"y": np.int16}, TypeMismatchError, r"Expected rows of int16 in .*a, column 'y', found rows of int32\[\]"),
        (
            {"x": (np.float32, [4])},
            TypeMismatchError,
            r"Expected rows of float32\[4\] in .*'x', found rows of float32\[3\]",
        ),
        ({"name": np.int8}, TypeMismatchError, r"Expected rows of int8 in .*column 'name', found rows of object\[\]"),
        ({"y": np.str_}, TypeMismatchError, r"Expected str in .*column 'y', found int32"),
    ],
)
def test_columns_that_the_file_does_not_have_so_are_refused(
    tmp_path: Path, columns: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(Dataset.from_parquet(parquet(tmp_path / "a"), columns))


def test_values_that_are_missing_or_that_the_language_has_not_are_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a", pa.table({"x": [1, 2, None], "when": pa.array([0, 1, 2], pa.timestamp("s"))}))
    with pytest.raises(InvalidValueError, match=r"at .*a, column 'x', found no value in row 3 of the file"):
        list(Dataset.from_parquet(path, ["x"]))
    with pytest.raises(TypeMismatchError, match=r"in .*column 'when', found timestamp\[ms\]; leave out this column"):
        Dataset.from_parquet(path)


def items(dataset: Dataset, found: list[Any]) -> None:
    for element in dataset:
        found.append(element["x"])


@pytest.mark.parametrize(
    "rows", [[1.0] * 25 + [None] * 5, [[1.0]] * 25 + [[1.0, None]] * 5], ids=["numbers", "lists of several lengths"]
)
@pytest.mark.parametrize("form", ["parquet", "arrow", "json"])
def test_a_row_that_cannot_be_read_has_its_number_in_the_file_and_comes_after_those_before_it(
    tmp_path: Path, form: str, rows: list[Any]
) -> None:
    table = pa.table({"x": rows})
    if form == "parquet":
        dataset = Dataset.from_parquet(parquet(tmp_path / "a", table, row_group_size=10))
    elif form == "arrow":
        dataset = Dataset.from_arrow(arrow(tmp_path / "a", table, rows=10))
    else:
        (tmp_path / "a").write_text("".join(json.dumps({"x": row}) + "\n" for row in rows))
        kind = (np.float64, [None]) if isinstance(rows[0], list) else np.float64
        dataset = Dataset.from_json_lines(tmp_path / "a", {"x": kind})
    found: list[Any] = []
    with pytest.raises(InvalidValueError, match="found no value in row 26 of the file"):
        items(dataset, found)
    assert len(found) == 25


def test_a_list_of_another_length_than_the_type_says_comes_after_those_before_it(tmp_path: Path) -> None:
    path, found = parquet(tmp_path / "a", pa.table({"x": [[1.0, 2.0]] * 7 + [[1.0]]})), list[Any]()
    with pytest.raises(TypeMismatchError, match=r"Expected rows of float64\[2\] in .*, found rows of float64\[1\]"):
        items(Dataset.from_parquet(path, {"x": (np.float64, [2])}), found)
    assert len(found) == 7


def test_a_column_is_read_once(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a")
    with pytest.raises(
        InvalidValueError, match=r"Expected distinct column names in .*from_parquet, found \['y', 'y'\]; name"
    ):
        Dataset.from_parquet(path, ["y", "y"])


@pytest.mark.parametrize("make", [Dataset.from_parquet, Dataset.from_arrow])
def test_a_file_of_another_kind_is_named(tmp_path: Path, make: Any) -> None:
    (tmp_path / "bad").write_bytes(b"nothing of the kind, for sure")
    with pytest.raises(InvalidValueError, match=r"Reading .*bad raised"):
        make(tmp_path / "bad")


def test_a_file_that_shrinks_or_changes_while_it_is_read_is_an_error_of_that_read(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100_000)})
    path = parquet(tmp_path / "a", table, row_group_size=50_000)
    dataset = Dataset.from_parquet(path)
    elements = iter(dataset)
    assert next(elements)["x"] == 0
    os.truncate(path, 1000)
    with pytest.raises(InvalidValueError, match=r"a has changed|Reading .*a raised"):
        list(elements)
    parquet(path, table, row_group_size=10_000)
    with pytest.raises(
        InvalidValueError, match="Expected 2 row groups or record batches in .*, found 10; define the dataset again"
    ):
        next(dataset.read(1, 2))


@pytest.mark.parametrize(
    "names",
    [["user=b/1.parquet", "user=a%2Fb/1.parquet", "user=b/2.parquet"], ["b.parquet", "a b.parquet", "c.x.parquet"]],
    ids=["folders", "files"],
)
def test_a_client_is_read_from_its_own_files_alone(tmp_path: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        parquet(tmp_path / name, pa.table({"y": [number, number + 10]}))
    dataset = Dataset.from_parquet(str(tmp_path / "**/*.parquet"), client_from_path="user")
    ids = {"a/b", "b"} if "=" in names[0] else {"a b", "b", "c.x"}
    for each in (dataset, written(dataset)):
        clients = each.by_client("user")
        assert clients.client_ids == sorted(ids)
        expected = [0, 10, 2, 12] if "=" in names[0] else [0, 10]
        assert [element["y"] for element in clients["b"]] == expected
        assert {element["user"].decode() for element in each} == ids
    (tmp_path / names[1]).write_bytes(b"")
    assert [element["y"] for element in dataset.by_client("user")["b"]] == expected


def test_the_client_in_the_path_is_known_to_csv_json_lines_and_npz_too(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("y\n1\n")
    (tmp_path / "u.jsonl").write_text('{"y": 1}\n')
    np.savez(tmp_path / "u.npz", y=np.array([1]))
    made = (
        Dataset.from_csv(tmp_path / "u.csv", {"y": np.int64}, client_from_path="who"),
        Dataset.from_json_lines(tmp_path / "u.jsonl", {"y": np.int64}, client_from_path="who"),
        Dataset.from_npz(tmp_path / "u.npz", client_from_path="who"),
    )
    for dataset in made:
        assert list(written(dataset)) == [{"y": 1, "who": b"u"}]
        assert {who: list(mine) for who, mine in dataset.by_client("who").items()} == {"u": [{"y": 1}]}
        assert list(dataset.take(1).by_client("who")["u"]) == [{"y": 1}]


def test_paths_that_name_clients_do_so_in_one_way_and_under_a_new_name(tmp_path: Path) -> None:
    paths = [parquet(tmp_path / "user=a" / "0"), parquet(tmp_path / "b")]
    with pytest.raises(InvalidValueError, match=r"contain a folder user=…, found .*b"):
        Dataset.from_parquet(paths, ["y"], client_from_path="user")
    with pytest.raises(
        TypeMismatchError,
        match=r"Expected files without a column 'y', because client_from_path adds this column, found",
    ):
        Dataset.from_parquet(paths, client_from_path="y")


def test_a_definition_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    proto = definition_of(Dataset.from_parquet(parquet(tmp_path / "a")), Destination(takes_code=True))
    proto.files.parts.append(3)
    with pytest.raises(InvalidComputationError, match="found numbers for 2 files"):
        read_definition(proto)


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ('{"x":', np.int32, """Expected a JSON object in .*a.jsonl, row 40001, found '{"x":': .*; correct the file"""),
        ('{"x": 1.5}', np.int32, "Expected int32 in .*a.jsonl, row 40001, column 'x', found 1.5; correct the file"),
        ('{"x": "a"}', np.int32, "Expected int32 in .*a.jsonl, row 40001, column 'x', found 'a'; correct the file"),
        ('{"x": 300}', np.int8, "Expected int8 in .*a.jsonl, row 40001, column 'x', found 300; correct the file"),
        ('{"x": [1, 2]}', np.int32, r"Expected int32 in .*a.jsonl, row 40001, column 'x', found \[1, 2\]; correct"),
        ("[1]", np.int32, "row 40001"),
    ],
)
def test_a_line_of_json_that_does_not_fit_is_named_by_its_row(tmp_path: Path, line, kind, message) -> None:
    before = '{"x": 1, "y": "' + "p" * 80 + '"}\n'
    (tmp_path / "a.jsonl").write_text(before * 20_000 + "\n" + before * 20_000 + line + "\n" + before)
    with pytest.raises(InvalidValueError, match=message):
        list(Dataset.from_json_lines(tmp_path / "a.jsonl", {"y": np.str_, "x": kind}))


def test_a_line_of_json_that_is_too_long_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_TEXT_BYTES", 1000)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2, "y": "' + "p" * 5000 + '"}\n')
    with pytest.raises(InvalidValueError, match="at most 1000 bytes in .*a.jsonl, row 2, found 5018; divide"):
        list(Dataset.from_json_lines(tmp_path / "a.jsonl", {"x": np.int32}))


def test_a_list_of_another_length_is_named_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1]}\n{"x": [2, 3]}\n')
    with pytest.raises(TypeMismatchError, match=r"rows of int32\[1\] in .*, row 2, found rows of int32\[2\]"):
        list(Dataset.from_json_lines(tmp_path / "a.jsonl", {"x": (np.int32, [1])}))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("y\n1\n")
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "fedstack\[arrow\]"'):
        Dataset.from_csv(tmp_path / "a.csv", {"y": np.int64})
    with pytest.raises(ImportError, match=r"fedstack\[arrow\]"):
        Dataset.from_json_lines(tmp_path / "a.csv", {"y": np.int64})
    with pytest.raises(ImportError, match=r"fedstack\[arrow\]"):
        Dataset.from_parquet(tmp_path / "a.csv")

"""Datasets out of files, good and bad ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.service.data import Dataset
from fedstack.service.data.datasets import arrow_files

READING = {"room": np.str_, "celsius": np.float32, "open": np.bool_, "people": np.uint8}


def listed(dataset: Dataset) -> list[Any]:
    return [dict(element) if isinstance(element, dict) else element.tolist() for element in dataset]


def csv(folder: Path, *lines: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(("room,celsius,open,people,comment", *lines)) + "\n", encoding="utf-8")
    return path


def test_files_of_a_pattern_come_in_the_order_of_their_names_each_as_a_split(tmp_path: Path) -> None:
    for name, first in (("b", 10), ("a", 0), ("c", 20)):
        np.save(tmp_path / f"{name}.npy", np.arange(first, first + 3))
    dataset = Dataset.from_npy(str(tmp_path / "*.npy"))
    assert listed(dataset) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert dataset.num_splits == 3
    assert [e for block in dataset.read(1, 2, 2) for e in block.items()] == [12]
    assert listed(Dataset.from_npy([tmp_path / "c.npy", str(tmp_path / "a.npy")])) == [20, 21, 22, 0, 1, 2]


def test_a_pattern_without_files_and_what_is_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError, match="Expected Dataset.from_npy to find at least one file, found no match for .*; check"
    ):
        Dataset.from_npy(str(tmp_path / "*.npy"))
    with pytest.raises(TypeMismatchError, match="to receive a path, a pattern or a list of paths, found int 5"):
        Dataset.from_csv(5, READING)


def test_arrays_of_another_byte_order_are_read_as_they_are_meant(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3, dtype=">i4"))
    assert [(type(element), int(element)) for element in Dataset.from_npy(tmp_path / "a.npy")] == [
        (np.int32, 0),
        (np.int32, 1),
        (np.int32, 2),
    ]


def test_npz_files_have_several_arrays_side_by_side(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), name=np.array(["p", "q"]))
    found = list(Dataset.from_npz(tmp_path / "a.npz"))
    assert [(element["x"].tolist(), element["name"]) for element in found] == [([1, 0], b"p"), ([0, 1], b"q")]


def test_arrays_that_differ_from_those_of_the_first_file_are_refused_with_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(TypeMismatchError, match=r"Expected rows of float64\[3\] at .*b\.npy, found .*float32"):
        list(Dataset.from_npy(str(tmp_path / "?.npy")))
    np.savez(tmp_path / "a.npz", x=np.zeros(2), y=np.zeros(2))
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    with pytest.raises(InvalidValueError, match=r"Expected an array 'y' in .*b\.npz, found the arrays \['x'\]"):
        list(Dataset.from_npz(str(tmp_path / "?.npz")))
    np.savez(tmp_path / "b.npz", x=np.zeros(2), y=np.zeros(3))
    with pytest.raises(InvalidValueError, match=r"the same number of rows in .*b\.npz, found x: 2, y: 3"):
        list(Dataset.from_npz(str(tmp_path / "?.npz")))


@pytest.mark.parametrize("content", [b"", b"no numpy", b"\x93NUMPY\x01\x00", b"PK\x03\x04 no zip"])
@pytest.mark.parametrize("make", [Dataset.from_npy, Dataset.from_npz])
def test_a_corrupt_file_of_arrays_is_named(tmp_path: Path, make: Any, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(InvalidValueError, match=r"bad( |$)|bad$"):
        list(make(tmp_path / "bad"))


def test_an_array_that_is_cut_off_and_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", np.arange(100))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-8])
    with pytest.raises(InvalidValueError, match=r"Reading .*cut\.npy raised ValueError"):
        list(Dataset.from_npy(tmp_path / "cut.npy"))
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(InvalidValueError, match=r"Reading .*objects\.npy raised ValueError"):
        list(Dataset.from_npy(tmp_path / "objects.npy"))


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    path = csv(tmp_path)
    dataset = Dataset.from_csv(path, READING)
    path.unlink()
    with pytest.raises(InvalidValueError, match=r"Reading .*a\.csv raised FileNotFoundError"):
        list(dataset)


def test_the_cells_of_csv_are_read_as_the_types_say(tmp_path: Path) -> None:
    path = csv(tmp_path, '"a, ä",20.5,true,3,"two\nlines"', "b,1,0,255,")
    found = list(Dataset.from_csv(path, READING))
    assert found == [
        {"room": "a, ä".encode(), "celsius": np.float32(20.5), "open": True, "people": 3},
        {"room": b"b", "celsius": np.float32(1), "open": False, "people": 255},
    ]
    assert [type(value) for value in found[0].values()] == [bytes, np.float32, np.bool_, np.uint8]
    dataset = Dataset.from_csv(path, {"people": np.int64})
    assert [e for block in dataset.read(0, 1, 1) for e in block.items()] == [(255,)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,warm,true,1,", r"Expected float32 in .*a\.csv, row 3, column 'celsius', found 'warm'"),
        ("a,1e99,true,1,", r"Expected float32 in .*a\.csv, column 'celsius', row 3, found 1e\+99"),
        ("a,,true,1,", r"Expected float32 in .*a\.csv, row 3, column 'celsius', found ''"),
        ("a,1,yes,1,", r"Expected bool in .*a\.csv, row 3, column 'open', found 'yes'"),
        ("a,1,true,256,", r"Expected uint8 in .*a\.csv, row 3, column 'people', found '256'"),
        ("a,1,true,1.0,", r"Expected uint8 in .*a\.csv, row 3, column 'people', found '1.0'"),
        ("a,1", r"Reading .*a\.csv raised ArrowInvalid: .*Row #3: Expected 5 columns, got 2"),
    ],
)
def test_a_row_of_csv_that_does_not_fit_is_named(tmp_path: Path, line: str, message: str) -> None:
    types = {name: READING[name] for name in ("people", "open", "celsius", "room")}  # in another order than the file
    with pytest.raises(InvalidValueError, match=message):
        list(Dataset.from_csv(csv(tmp_path, "a,1,true,1,", line), types))


def test_rows_are_numbered_through_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "_TEXT_BYTES", 1000)
    path = csv(tmp_path, *["a,1,true,1,"] * 1000, "a,1,true,x,")
    with pytest.raises(InvalidValueError, match=r"in .*a\.csv, row 1002, column 'people', found 'x'"):
        list(Dataset.from_csv(path, READING))
    path = json_lines(tmp_path, *[{"x": 1}] * 1000, {"y": 1})
    with pytest.raises(InvalidValueError, match=r"at .*a\.jsonl, column 'x', found no value in row 1001"):
        list(Dataset.from_json_lines(path, {"x": np.int32}))


def test_a_column_that_is_missing_or_there_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError, match=r"Expected exactly one column 'floor' in .*row 1, found the columns \['room'"
    ):
        list(Dataset.from_csv(csv(tmp_path), {"floor": np.int32}))
    (tmp_path / "twice.csv").write_text("x,x\n1,2\n")
    with pytest.raises(InvalidValueError, match="Expected exactly one column 'x' in .*, found several columns 'x'"):
        list(Dataset.from_csv(tmp_path / "twice.csv", {"x": np.int32}))
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InvalidValueError, match=r"Expected exactly one column 'x' in .*, found the columns \[\]"):
        list(Dataset.from_csv(tmp_path / "empty.csv", {"x": np.int32}))


@pytest.mark.parametrize("types", [np.int32, {"x": (np.int32, [2])}, {}, [np.int32], "x", {"x": np.complex64}])
def test_types_of_columns_are_a_dict_of_scalars(tmp_path: Path, types: Any) -> None:
    with pytest.raises(TypeMismatchError, match="Expected"):
        list(Dataset.from_csv(csv(tmp_path), types))


def test_text_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("x\nä\n".encode("latin-1"))
    with pytest.raises(InvalidValueError, match=r"Reading .*latin\.csv raised .*Row #2: .*invalid UTF8"):
        list(Dataset.from_csv(tmp_path / "latin.csv", {"x": np.str_}))
    (tmp_path / "latin.jsonl").write_bytes('{"x": "b"}\n{"x": "ä"}\n'.encode("latin-1"))
    with pytest.raises(InvalidValueError, match=r"a JSON object in .*latin\.jsonl, row 2, found .*'utf-8' codec"):
        list(Dataset.from_json_lines(tmp_path / "latin.jsonl", {"x": np.str_}))


def json_lines(folder: Path, *values: Any) -> Path:
    path = folder / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, values)) + "\n\n", encoding="utf-8")
    return path


def test_json_values_are_read_as_the_type_says_and_other_members_left_out(tmp_path: Path) -> None:
    values = [{"x": [1, 2.5], "name": "ä", "more": None, "in": {"k": 1, "l": 2}}, {"name": "", "x": [], "in": {"k": 0}}]
    element = {"x": (np.float32, [None]), "name": np.str_, "in": {"k": np.int8}}
    found = list(Dataset.from_json_lines(json_lines(tmp_path, *values), element))
    assert [(e["x"].tolist(), e["name"], e["in"]) for e in found] == [
        ([1.0, 2.5], "ä".encode(), {"k": 1}),
        ([], b"", {"k": 0}),
    ]
    assert found[0]["x"].dtype == np.float32
    nested = list(
        Dataset.from_json_lines(json_lines(tmp_path, {"m": [[1], [2]]}, {"m": []}), {"m": (np.int8, [None, 1])})
    )
    assert nested[0]["m"].tolist() == [[1], [2]]
    (tmp_path / "empty.jsonl").write_text("")
    assert not list(Dataset.from_json_lines(tmp_path / "empty.jsonl", element))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x": 0.5}, r"Expected int32 in .*a\.jsonl, row 2, column 'x', found 0\.5"),
        ({"y": 1}, r"at .*a\.jsonl, column 'x', found no value in row 2"),
        ({"x": 2**31}, r"Expected int32 in .*a\.jsonl, row 2, column 'x', found 2147483648"),
        ({"x": None}, r"at .*a\.jsonl, column 'x', found no value in row 2"),
        (5, r"Expected a JSON object in .*a\.jsonl, row 2, found '5'; correct the file"),
    ],
)
def test_a_json_value_that_does_not_fit_is_refused_with_its_file(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        list(Dataset.from_json_lines(json_lines(tmp_path, {"x": 1}, value), {"x": np.int32}))


def test_lines_of_json_are_objects(tmp_path: Path) -> None:
    with pytest.raises(TypeMismatchError, match="Expected a dict with a type for each column, found float32"):
        Dataset.from_json_lines(json_lines(tmp_path, 1.5), np.float32)
    (tmp_path / "bad.jsonl").write_text('{"x": 1}\n\n{]\n')
    with pytest.raises(InvalidValueError, match=r"Expected a JSON object in .*bad\.jsonl, row 2, found"):
        list(Dataset.from_json_lines(tmp_path / "bad.jsonl", {"x": np.float32}))

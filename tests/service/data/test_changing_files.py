"""Files that somebody writes into while they are read cost that read, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedstack.errors import InvalidValueError
from fedstack.service.data import Dataset
from fedstack.service.data.datasets import arrow_files

ROWS = 400_000  # of 8 bytes: some blocks
CHANGED = r"The file .*a\.npy has changed since it was first opened; write a new file"


def shorten(path: Path) -> None:
    os.truncate(path, 1000)


def write_shorter(path: Path) -> None:
    np.save(path, np.zeros(10))


def write_others(path: Path) -> None:
    np.save(path, np.ones(ROWS))


@pytest.mark.parametrize("change", [shorten, write_shorter, write_others])
def test_a_file_that_changes_is_an_error_of_the_read(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(ROWS))
    os.utime(path, ns=(0, 0))  # it was written long ago
    blocks = Dataset.from_npy(path).blocks()
    assert not next(blocks).items()[0]
    change(path)
    with pytest.raises(InvalidValueError, match=CHANGED):
        list(blocks)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not say when a file was changed last")
def test_a_change_shows_although_its_time_was_put_back(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(ROWS))
    os.utime(path, ns=(0, 0))
    blocks, before = Dataset.from_npy(path).blocks(), os.stat(path).st_ctime_ns
    next(blocks)
    while os.stat(path).st_ctime_ns == before:  # that clock ticks every few milliseconds
        np.save(path, np.ones(ROWS))
        os.utime(path, ns=(0, 0))
    with pytest.raises(InvalidValueError, match=CHANGED):
        list(blocks)


def write_parquet(path: Path, first: int) -> None:
    pq.write_table(pa.table({"x": np.arange(first, first + 20)}), path, row_group_size=5)


def write_arrow(path: Path, first: int) -> None:
    table = pa.table({"x": np.arange(first, first + 20)})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, 5)


IN_PARTS = pytest.mark.parametrize(
    ("write", "make"), [(write_parquet, Dataset.from_parquet), (write_arrow, Dataset.from_arrow)]
)


@IN_PARTS
def test_a_file_in_parts_is_the_same_for_all_of_them_in_a_pass(
    write: Callable[[Path, int], None], make: Callable[[Path], Dataset], tmp_path: Path
) -> None:
    write(path := tmp_path / "a", 0)
    dataset = make(path)
    elements = iter(dataset.repeat(2))
    assert [next(elements)["x"] for _ in range(7)] == list(range(7))
    write(tmp_path / "new", 100)
    (tmp_path / "new").replace(path)
    with pytest.raises(InvalidValueError, match="has changed since it was first opened"):
        for element in elements:
            assert element["x"] < 100
    assert [element["x"] for element in dataset] == list(range(100, 120))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_text_that_becomes_shorter_does_not_end_early(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "_TEXT_BYTES", 1000)
    path, rows = tmp_path / name, 100_000
    if name == "a.csv":
        path.write_text("x\n" + "1\n" * rows)
        dataset = Dataset.from_csv(path, {"x": np.int64})
    else:
        path.write_text('{"x": 1}\n' * rows)
        dataset = Dataset.from_json_lines(path, {"x": np.int64})
    blocks = dataset.blocks()
    next(blocks)
    os.truncate(path, 0)
    with pytest.raises(InvalidValueError, match="has changed since it was first opened"):
        list(blocks)


def test_a_program_that_reads_a_file_outlives_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(ROWS))
    source = f"""
import os
from fedstack.errors import InvalidValueError
from fedstack.service.data import Dataset
blocks = Dataset.from_npy({str(path)!r}).blocks()
next(blocks)
os.truncate({str(path)!r}, 1000)
try:
    list(blocks)
except InvalidValueError as error:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n")


@pytest.mark.parametrize("shape", [(7,), (5, 3), (4, 3, 2), (6, 0), (0, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">i4", "U3", "S2", "?", "<c8"])
def test_arrays_of_any_layout_are_read_from_any_row_on(
    shape: tuple[int, ...], order: str, dtype: str, tmp_path: Path
) -> None:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    array = np.asarray(numbers.astype(dtype), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    dataset = Dataset.from_npy(tmp_path / "a.npy")
    expected = array.astype("S") if dtype == "U3" else array
    for start in (0, 2):
        found = [item for block in dataset.read(0, 1, start) for item in block.items()]
        assert [np.asarray(one).tolist() for one in found] == expected[start:].tolist()


def header(descr: str, shape: str) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(118).encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "EOFError|ValueError"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "version"),
        (header("<f8", "(-5,)"), "shape"),
        (header("<f8", "(5,)"), "contains 0 of"),
        (header("|O", "(5,)"), "objects"),
    ],
)
def test_what_is_no_array_is_refused_with_the_file(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InvalidValueError, match=rf"a\.npy.*({why})"):
        Dataset.from_npy(tmp_path / "a.npy")

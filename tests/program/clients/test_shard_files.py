"""Files of clients' states: in the format of safetensors, read in any order, and refused if they are damaged."""

import json
import os
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from fedstack.data.client_states import shard_head
from fedstack.data.client_states.record_layout import RecordLayout
from fedstack.data.client_states.shard_head import may_be_shard
from fedstack.data.client_states.state_shards import FileShard
from fedstack.data.headed_file import DamagedStateError
from fedstack.errors import InvalidValueError, ProgramStateError

IDS = ["a", b"\x00\xff", 3]
NAME = "00000000.states"

dtypes = st.sampled_from(["?", "i1", "u2", "f2", "i4", "f4", "u8", "f8", "c8", ml_dtypes.bfloat16])
tensors = st.builds(np.zeros, st.lists(st.integers(0, 3), max_size=3).map(tuple), dtypes)
structures = tensors | st.dictionaries(st.sampled_from(["w", "b", 'é"x']), tensors, min_size=1)
ids_of_clients = st.text(st.characters(codec="utf-8")) | st.binary() | st.integers(-(1 << 63), (1 << 63) - 1)


def written(path: Path, like: object, ids: list) -> tuple[RecordLayout, np.ndarray]:
    layout = RecordLayout.of(like)
    records = np.random.default_rng(0).integers(0, 2, (len(ids), layout.dtype.itemsize), dtype=np.uint8)
    FileShard.written(path, layout, ids, records)
    return layout, records


@given(structures, st.lists(ids_of_clients, unique=True))
def test_files_are_read_by_safetensors_and_by_fedstack(like: object, ids: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        layout, records = written(path, like, ids)
        found = safetensors.numpy.load_file(path)
        with safetensors.safe_open(path, "np") as file:
            metadata = file.metadata()
        shard = FileShard.opened(path, None)
        read = shard.read(np.arange(len(ids)))
    assert found["states"].tobytes() == read.tobytes() == records.tobytes()
    assert found["states"].shape[0] == found["crc32"].shape[0] == len(ids)
    assert json.loads(metadata["fields"]) == shard.fields == layout.fields
    assert json.loads(found["client_ids"].tobytes()) == [{"hex": x.hex()} if isinstance(x, bytes) else x for x in ids]
    assert shard.client_ids == ids


@pytest.mark.parametrize(
    ("like", "shape", "dtype"),
    [
        (np.zeros((2, 3), np.float32), (3, 2, 3), np.float32),
        (np.int64(0), (3,), np.int64),
        ({"w": np.zeros((2, 2)), "b": np.float64(0)}, (3, 5), np.float64),
        ({"w": np.zeros(2, np.float32), "steps": np.int64(0)}, (3, 16), np.uint8),  # of two dtypes
        (np.zeros(3, np.float32), (3, 16), np.uint8),  # with bytes between the records
        (np.zeros(1, np.complex64), (3, 8), np.uint8),  # which safetensors has not
    ],
)
def test_states_of_one_dtype_are_an_array_of_it(tmp_path: Path, like: object, shape: tuple, dtype: type) -> None:
    written(tmp_path / NAME, like, IDS)
    found = safetensors.numpy.load_file(tmp_path / NAME)["states"]
    assert (found.shape, found.dtype) == (shape, dtype)


@pytest.mark.parametrize("rows", [[], [0], [3, 4, 5], [5, 4, 4, 3], [6, 0, 1, 2, 5]])
def test_any_rows_of_a_shard_are_read_in_any_order(tmp_path: Path, rows: list[int]) -> None:
    layout, records = written(tmp_path / NAME, np.zeros(2, np.float32), list(range(7)))
    shard = FileShard.opened(tmp_path / NAME, layout)
    np.testing.assert_array_equal(shard.read(np.array(rows, np.intp)), records[rows])


def test_a_file_with_any_other_bit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    _, records = written(path, np.zeros(2, np.float32), IDS)
    content, digest = path.read_bytes(), FileShard.opened(path, None).digest
    for place in range(len(content) - records.nbytes):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                assert FileShard.opened(path, None).digest != digest  # which the state of the program has
            except DamagedStateError:
                assert may_be_shard(path)


def test_a_file_of_any_other_length_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / NAME
    written(path, np.zeros(2, np.float32), IDS)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert may_be_shard(path)
        with pytest.raises(DamagedStateError):
            FileShard.opened(path, None)
    path.write_bytes(content + b"\0")
    with pytest.raises(DamagedStateError, match="its end"):
        FileShard.opened(path, None)
    path.write_bytes(bytes(len(content)))  # as after a crash
    assert may_be_shard(path)
    with pytest.raises(DamagedStateError, match="its beginning"):
        FileShard.opened(path, None)


def test_files_of_other_clients_have_other_digests(tmp_path: Path) -> None:
    digests: set[int] = set()
    for ids in (["a", "b"], ["a", "c"], ["b", "a"], [b"a", "b"], [0, 1]):
        written(tmp_path / NAME, np.int64(0), ids)
        digests.add(FileShard.opened(tmp_path / NAME, None).digest)
    assert len(digests) == 5


@pytest.mark.parametrize("name", ["my.states", "my backup.states", "1.states", "abc.states", "my-own.states"])
def test_a_file_with_another_name_is_none_of_fedstack(tmp_path: Path, name: str) -> None:
    written(tmp_path / name, np.int64(0), IDS)
    assert not may_be_shard(tmp_path / name)
    (tmp_path / name).write_bytes(b"")
    assert not may_be_shard(tmp_path / name)


def test_what_is_no_regular_file_is_none_of_fedstack(tmp_path: Path) -> None:
    path = tmp_path / NAME
    written(tmp_path / "there", np.int64(0), IDS)
    path.symlink_to(tmp_path / "there")
    assert not may_be_shard(path)
    path.unlink()
    os.mkfifo(path)
    assert not may_be_shard(path)
    path.unlink()
    path.mkdir()
    assert not may_be_shard(path)
    with pytest.raises(ProgramStateError, match="found no regular file"):
        FileShard.opened(path, None)


def test_numbers_that_python_does_not_write_are_no_ids(tmp_path: Path) -> None:
    written(tmp_path / NAME, np.int64(0), [10**4000])
    with pytest.raises(InvalidValueError, match="Expected whole numbers of at most 14000 bits .*; use strings"):
        written(tmp_path / NAME, np.int64(0), [10**5000])


def test_files_of_other_formats_and_kinds_are_told_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    with monkeypatch.context() as newer:
        newer.setattr(shard_head, "_FORMAT", "3")
        written(path, np.zeros(2, np.float32), IDS)
    with pytest.raises(ProgramStateError, match=r"Expected format 2 in .*, found format 3, which fedstack .* wrote"):
        FileShard.opened(path, None)
    path.write_bytes(b"FEDCLNTS" + bytes(100))
    with pytest.raises(ProgramStateError, match=r"Expected a .* in format 2 in .*, found the format before"):
        FileShard.opened(path, None)
    safetensors.numpy.save_file({"states": np.zeros(3)}, path)
    assert not may_be_shard(path)
    with pytest.raises(ProgramStateError, match="found another kind of file; remove it, or choose another folder"):
        FileShard.opened(path, None)

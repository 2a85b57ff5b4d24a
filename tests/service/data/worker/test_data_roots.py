"""Files are read below the folders that a worker was given and nowhere else, and in a pass as they were at first."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from catalogue import Catalogue, StartWorker
from data_reading import read, some, whole

from fedstack.errors import CarrierError, InvalidValueError
from fedstack.service.data import Dataset


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for folder in ("in", "out", "in-too"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "rows.npy", np.arange(5))
    (tmp_path / "in" / "link.npy").symlink_to(tmp_path / "out" / "rows.npy")
    (tmp_path / "in" / "alias.npy").symlink_to(tmp_path / "in" / "rows.npy")
    (tmp_path / "as-in").symlink_to(tmp_path / "in")
    return tmp_path


@pytest.mark.parametrize("path", ["in/rows.npy", "in/alias.npy", "as-in/rows.npy"])
@pytest.mark.parametrize("root", ["in", "as-in"])
def test_files_below_a_root_are_read(
    root: str, path: str, files: Path, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.from_npy(files / path)
    worker = start_worker(data_roots=[files / root])
    assert read(worker.target, whole(catalogue.register(dataset)), dataset.element_type) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "path", ["out/rows.npy", "in-too/rows.npy", "in/link.npy", "in/../out/rows.npy", "../missing.npy", "a\0b", ""]
)
def test_other_files_are_refused_whether_or_not_they_are_there(
    path: str, files: Path, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.from_npy(files / "out" / "rows.npy")
    dataset.source.paths = (str(files / path) if path else "",)  # type: ignore[attr-defined]
    worker = start_worker(data_roots=[files / "in"])
    with pytest.raises(CarrierError, match=r"Expected a file below .*/in, found .*--data-root"):
        read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)


def test_a_worker_without_roots_reads_no_files(files: Path, catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.range(5).zip(Dataset.from_npy(files / "in" / "rows.npy"))
    worker = start_worker()
    with pytest.raises(CarrierError, match="start the data worker with the file's folder as --data-root"):
        read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)


def test_ranges_of_one_pass_find_a_file_as_its_first_found_it(
    tmp_path: Path, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    def write(first: int) -> None:
        pq.write_table(pa.table({"x": np.arange(first, first + 4)}), tmp_path / "new", row_group_size=1)
        (tmp_path / "new").replace(tmp_path / "a")

    write(0)
    dataset = Dataset.from_parquet(tmp_path / "a")
    worker, digest = start_worker(data_roots=[tmp_path]), catalogue.register(dataset)

    def found(pass_id: bytes, split: int) -> list[object]:
        request = some(digest, 4, split, split + 1)
        request.pass_id = pass_id
        return read(worker.target, request, dataset.element_type)

    assert [found(b"first", 0), found(b"first", 1)] == [[(0,)], [(1,)]]
    write(100)
    with pytest.raises(
        InvalidValueError, match=r"The file .*/a has changed since it was first opened; .* in splits 2 to 3"
    ):
        found(b"first", 2)
    assert [found(b"second", 2), found(b"", 3)] == [[(102,)], [(103,)]]
    with pytest.raises(InvalidValueError, match="Expected a pass id of at most 64 bytes, found 65"):
        found(bytes(65), 0)

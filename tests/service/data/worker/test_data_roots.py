"""Files are read below the folders that a worker was given, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from data_reading import read, whole

from fedstack.errors import CarrierError
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
    with pytest.raises(CarrierError, match="start the data worker with --data-root"):
        read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)

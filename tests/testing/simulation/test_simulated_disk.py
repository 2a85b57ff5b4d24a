"""What a simulated disk has after a loss of power: what was synced, and any part of all else."""

import hashlib
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.testing import SimulatedFaults
from fedstack.testing.simulation.simulated_disk import SimulatedDisk
from fedstack.testing.simulation.simulated_files import SimulatedFiles
from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.testing.simulation.virtual_loop import VirtualLoop

SEEDS = range(20)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def names_after_losses(folder: Path, loop: VirtualLoop, seed: int) -> list[int]:
    """Returns how many of the names that were committed are there after each of some losses of power."""
    network = SimulatedNetwork(loop, seed, SimulatedFaults())
    disk = SimulatedDisk(folder / f"{seed}", network, lambda: None)
    found: list[int] = []
    for number in range(3):
        journal = disk.open()
        with journal.transaction() as tables:
            found.append(tables.execute("SELECT count(*) FROM names").fetchone()[0])
            tables.execute("INSERT INTO names VALUES (?, ?)", (f"{number}", b"x" * 3000))
    disk.cut()
    return found


def test_what_was_committed_outlives_each_loss_of_power(tmp_path: Path, loop: VirtualLoop) -> None:
    for seed in SEEDS:
        assert names_after_losses(tmp_path, loop, seed) == [0, 1, 2]


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_commits_that_are_not_synced_are_lost(
    tmp_path: Path, loop: VirtualLoop, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("synchronous = FULL", f"synchronous = {level}"), *values)

    def connect(path: Any, **options: Any) -> sqlite3.Connection:
        return real(path, factory=Careless, **options)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    outcomes: list[object] = []
    for seed in SEEDS:
        try:
            outcomes.append(names_after_losses(tmp_path, loop, seed))
        except JournalError as error:
            outcomes.append(error)
    assert any(outcome != [0, 1, 2] for outcome in outcomes)


def test_a_definition_outlives_each_loss_of_power(tmp_path: Path, loop: VirtualLoop) -> None:
    for seed in SEEDS:
        disk = SimulatedDisk(tmp_path / f"{seed}", SimulatedNetwork(loop, seed, SimulatedFaults()), lambda: None)
        digest = _keep(disk)
        disk.cut()
        assert disk.open().has_definition(digest)
        disk.cut()


def test_a_definition_is_not_kept_for_sure_where_the_power_fails_meanwhile(tmp_path: Path, loop: VirtualLoop) -> None:
    found: set[bool] = set()
    for seed in SEEDS:
        network = SimulatedNetwork(loop, seed, SimulatedFaults())
        disk = SimulatedDisk(tmp_path / f"{seed}", network, lambda: None)
        journal = disk.open()
        network.faults = SimulatedFaults(power_loss_rate=1.0)
        with pytest.raises(JournalError, match="The power failed"):
            journal.keep_definition(_DIGEST, memoryview(_DEFINITION))
        network.faults = SimulatedFaults()
        disk.cut()
        found.add(disk.open().has_definition(_DIGEST))
        disk.cut()
        assert disk.failures == 1
    assert found == {True, False}


def test_a_transaction_that_keeps_something_although_the_disk_is_full_fails_the_run(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    network = SimulatedNetwork(loop, 0, SimulatedFaults())
    disk = SimulatedDisk(tmp_path, network, lambda: None)
    journal = disk.open()
    network.faults = SimulatedFaults(full_disk_rate=1.0)
    with pytest.raises(ResourceLimitError), journal.transaction() as tables:
        tables.execute("INSERT INTO names VALUES ('a', x'00')")
    assert network.wrongs == []
    with pytest.raises(ResourceLimitError), journal.transaction() as tables:
        tables.execute("INSERT INTO names VALUES ('a', x'00')")
        tables.execute("COMMIT")  # what a transaction with a bug may do
        tables.execute("BEGIN")
    (wrong,) = network.wrongs
    assert "has changed the tables" in wrong
    disk.cut()


@pytest.mark.parametrize("syncs", [(), ("file",), ("folder",), ("file", "folder")])
def test_a_name_is_safe_once_its_folder_was_synced_and_a_content_once_its_file_was(
    tmp_path: Path, syncs: tuple[str, ...]
) -> None:
    found: set[bytes | None] = set()
    for seed in SEEDS:
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        files = SimulatedFiles(folder)
        with files.watched(lambda: None):
            with (folder / "new").open("wb") as file:
                file.write(b"all of it")
                file.flush()
                if "file" in syncs:
                    os.fsync(file.fileno())
            (folder / "new").replace(folder / "a")
            if "folder" in syncs:
                descriptor = os.open(folder, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        files.lose(random.Random(seed))
        found.add((folder / "a").read_bytes() if (folder / "a").exists() else None)
    assert ("folder" in syncs) == (None not in found)
    assert ("file" in syncs) == (found <= {None, b"all of it"})
    assert b"all of it" in found


_DEFINITION = b"what a dataset is made of"
_DIGEST = hashlib.sha256(_DEFINITION).digest()


def _keep(disk: SimulatedDisk) -> bytes:
    disk.open().keep_definition(_DIGEST, memoryview(_DEFINITION))
    return _DIGEST

"""A disk of a simulation, with the real files of a journal: the power fails when they are written, or it is full."""

import contextlib
import errno
import os
import random
import sqlite3
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from fedstack.errors import JournalError
from fedstack.service.data.dispatcher.journal import FILE, LAST, Journal, Tables
from fedstack.testing.simulation.simulated_network import SimulatedNetwork

# What a disk writes as a whole.
_SECTOR = 512
_WAL = f"{FILE}-wal"
_Files = Mapping[str, bytes]


class SimulatedDisk:
    """The disk of one dispatcher.

    Args:
      folder: A real folder for its files.
      network: Says how often and when the power fails.
      on_power_loss: Is called then.

    Attributes:
      failures: How often the power has failed.
    """

    def __init__(self, folder: Path, network: SimulatedNetwork, on_power_loss: Callable[[], None]) -> None:
        self._folder = folder
        self._network = network
        self._on_power_loss = on_power_loss
        self._journal: SimulatedJournal | None = None
        self.failures = 0

    def open(self) -> Journal:
        """Returns the journal as it is on the disk.

        Raises:
          JournalError: If the power fails meanwhile.
        """
        self.cut()
        self._journal = SimulatedJournal(self._folder, self)
        return self._journal

    def cut(self) -> None:
        """Ends the process that has the journal open, as a loss of power does: nobody closes anything."""
        if self._journal is not None:
            self._journal.close()

    def fails(self) -> bool:
        """Decides whether the power fails with the commit that comes now."""
        return self._network.happens(self._network.faults.power_loss_rate)

    def is_full(self) -> bool:
        """Decides whether there is no room for the change that comes now."""
        is_full = self._network.happens(self._network.faults.full_disk_rate)
        if is_full:
            self._network.say("the disk is full")
        return is_full

    def fail(self, before: _Files, after: _Files) -> _Files:
        """Lets the power fail; returns what is on the disk then.

        Args:
          before: What was there after the last commit.
          after: What the process has written since, any part of which may be there.
        """
        self.failures += 1
        # The commit is noted when it is over.
        chance, found = self._network.chance, {**after, LAST: before.get(LAST, b"")}
        # The log is synced before anything moves from there into the tables.
        torn = _WAL if before.get(FILE, b"") == after.get(FILE, b"") else FILE
        share = chance.choice((0.0, chance.random(), 1.0))
        found[torn] = _torn(before.get(torn, b""), after.get(torn, b""), share, chance)
        self._network.say(f"the power fails: {torn} has {share:.2f} of a commit")
        self._on_power_loss()
        return found

    def __repr__(self) -> str:
        return f"<SimulatedDisk in {self._folder}>"


class SimulatedJournal(Journal):
    """The journal on such a disk.

    Args:
      folder: The folder.
      disk: The disk.
    """

    def __init__(self, folder: Path, disk: SimulatedDisk) -> None:
        self._files = [folder / name for name in (FILE, _WAL, f"{FILE}-journal", LAST)]
        self._disk = disk
        self._is_cut = self._is_open = False
        super().__init__(folder)
        self._is_open = True

    @contextlib.contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        if self._is_cut:
            raise JournalError("Expected a journal on a disk with power, found one without")
        before = self._image() if self._disk.fails() else None
        with super().transaction() as tables:
            yield tables
            if self._is_open and self._disk.is_full():
                raise sqlite3.OperationalError("database or disk is full")
        if before is not None:
            self._cut(self._disk.fail(before, self._image()))
            raise JournalError("The power failed")

    def keep_definition(self, digest: bytes, definition: memoryview) -> None:
        if self._disk.is_full():
            with self._errors():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().keep_definition(digest, definition)

    def close(self) -> None:
        """Leaves the files as they are. Idempotent."""
        if not self._is_cut:
            self._cut(self._image())

    def _cut(self, image: _Files) -> None:
        self._is_cut = True
        super().close()  # which would tidy up
        for path in self._files:
            if path.name in image:
                path.write_bytes(image[path.name])
            else:
                path.unlink(missing_ok=True)

    def _image(self) -> _Files:
        return {path.name: path.read_bytes() for path in self._files if path.exists()}


def _torn(before: bytes, after: bytes, share: float, chance: random.Random) -> bytes:
    """Returns what is on a disk that was to have one content in place of another when the power failed."""
    size = len(before) + int(share * (len(after) - len(before)))
    old = before[:size].ljust(size, b"\0")
    found = bytearray(old)
    for start in range(0, size, _SECTOR):
        end = min(start + _SECTOR, size, len(after))
        if old[start:end] != after[start:end] and chance.random() < share:
            found[start:end] = after[start:end]
    return bytes(found)

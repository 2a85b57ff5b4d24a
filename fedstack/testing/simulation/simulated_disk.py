"""A simulated disk with the real files of a journal. The power may fail during writes, and the disk may be full."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.service.data.dispatcher.journal import DEFINITIONS, FILE, LAST, Journal, Tables
from fedstack.testing.simulation.simulated_files import SimulatedFiles, torn
from fedstack.testing.simulation.simulated_network import SimulatedNetwork

_WAL = f"{FILE}-wal"
# Levels of `PRAGMA synchronous`: with a write-ahead log commits are synced from FULL on, otherwise from EXTRA on.
_FULL, _EXTRA = 2, 3
# A definition takes two syncs: one of its file, then one of the folder with its name.
_SYNCS_OF_DEFINITION = 2
_Files = Mapping[str, bytes]


class SimulatedDisk:
    """The simulated disk of a dispatcher. A crash of the dispatcher is a power loss, which may lose unsynced data.

    Args:
      folder: A real folder for the files of the disk.
      network: The network, whose faults and random generator determine the power losses.
      on_power_loss: A function that is called when the power fails.

    Attributes:
      failures: The number of power losses during writes.
      definitions: The files of dataset definitions.
    """

    def __init__(self, folder: Path, network: SimulatedNetwork, on_power_loss: Callable[[], None]) -> None:
        self._folder = folder
        self._network = network
        self._on_power_loss = on_power_loss
        self._journal: SimulatedJournal | None = None
        self.failures = 0
        self.definitions = SimulatedFiles(folder / DEFINITIONS)

    def open(self) -> Journal:
        """Opens the journal from its files on the disk.

        Raises:
          JournalError: If the power fails while the journal is opened.
        """
        self.cut()
        self._journal = SimulatedJournal(self._folder, self)
        return self._journal

    def cut(self) -> None:
        """Simulates a power loss of the process that has opened the journal. The process closes nothing."""
        if self._journal is not None:
            self._journal.close()
            self.definitions.lose(self._network.chance("lose definitions"))

    def fails(self) -> bool:
        """Decides whether the power fails during the next commit or definition."""
        return self._network.happens(self._network.faults.power_loss_rate, "power")

    def is_full(self) -> bool:
        """Decides whether the disk is full for the next change."""
        is_full = self._network.happens(self._network.faults.full_disk_rate, "full disk")
        if is_full:
            self._network.say("the disk is full")
        return is_full

    def fail(self, before: _Files, after: _Files) -> _Files:
        """Simulates a power loss during a commit, and returns the files that it leaves on the disk.

        Args:
          before: The files at the last sync.
          after: The files that the process has written since. Any part of the changes may have reached the disk.
        """
        # The file of the last commit is only updated after the commit, so its old content is kept.
        chance, found = self._network.chance("tear"), {**after, LAST: before.get(LAST, b"")}
        # The log is synced before its pages are moved into the tables, so only one of the two files can be torn.
        last = _WAL if before.get(FILE, b"") == after.get(FILE, b"") else FILE
        share = chance.choice((0.0, chance.random(), 1.0))
        found[last] = torn(before.get(last, b""), after.get(last, b""), share, chance)
        self.lose_power(f"{last} has {share:.2f} of a commit")
        return found

    def lost(self, before: _Files, after: _Files) -> _Files:
        """Simulates a power loss outside of a commit, and returns the files that it leaves on the disk.

        Args:
          before: The files at the last sync.
          after: The files that the process has written since.
        """
        chance = self._network.chance("tear")
        return {
            **after,
            **{
                name: torn(before.get(name, b""), after[name], chance.choice((0.0, chance.random(), 1.0)), chance)
                for name in (FILE, _WAL)
                if name in after
            },
        }

    def lose_power(self, what: str) -> None:
        """Counts a power loss, adds it to the trace, and calls `on_power_loss`."""
        self.failures += 1
        self._network.say(f"the power fails: {what}")
        self._on_power_loss()

    def syncs_until_power_loss(self) -> int:
        """Returns a random number of syncs of the next definition after which the power fails."""
        return self._network.chance("sync").randint(0, _SYNCS_OF_DEFINITION)

    def wrong(self, what: str) -> None:
        """Records a violated invariant, so that the simulation fails."""
        self._network.wrong(what)

    def __repr__(self) -> str:
        return f"<SimulatedDisk in {self._folder}>"


class SimulatedJournal(Journal):
    """The journal on a simulated disk.

    Args:
      folder: The folder of the journal.
      disk: The simulated disk.
    """

    def __init__(self, folder: Path, disk: SimulatedDisk) -> None:
        self._files = [folder / name for name in (FILE, _WAL, f"{FILE}-journal", LAST)]
        self._disk = disk
        self._is_cut = self._is_open = False
        # The files at the last sync, if a write since then is not synced; otherwise `None`.
        self._unsynced: _Files | None = self._image()
        super().__init__(folder)
        self._is_open = True

    @property
    def file(self) -> str:
        """The file name of the journal, without the folder: traces contain it, and the folder differs between runs."""
        return FILE

    @contextlib.contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        if self._is_cut:
            raise JournalError("Expected a journal on a disk with power, found a disk whose power has failed")
        before = self._safe() if self._disk.fails() else None
        known = self._content() if self._is_open and self._disk.is_full() else None
        try:
            with super().transaction() as tables:
                yield tables
                if known is not None:
                    raise sqlite3.OperationalError("database or disk is full")
        except ResourceLimitError:
            if known not in (None, self._content()):
                self._disk.wrong("A transaction that failed because the disk was full has changed the tables")
            raise
        if before is not None:
            self._cut(self._disk.fail(before, self._image()))
            raise JournalError("The power failed")
        if self._syncs_commits():
            self._unsynced = None

    def _syncs_commits(self) -> bool:
        (level,) = self._tables.execute("PRAGMA synchronous").fetchone()
        (mode,) = self._tables.execute("PRAGMA journal_mode").fetchone()
        return level >= (_FULL if mode == "wal" else _EXTRA)

    def _safe(self) -> _Files:
        """Returns the files that survive any power loss."""
        return self._image() if self._unsynced is None else self._unsynced

    def _content(self) -> str:
        return "\n".join(self._tables.iterdump())

    def keep_definition(self, digest: bytes, definition: memoryview) -> None:
        if self._disk.is_full():
            with self._errors():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = self._disk.syncs_until_power_loss() if self._disk.fails() else None

        def one_sync_less() -> None:
            nonlocal left
            if left == 0:
                raise JournalError("The power failed")
            left = None if left is None else left - 1

        try:
            with self._disk.definitions.watched(one_sync_less):
                super().keep_definition(digest, definition)
        finally:
            if left is not None:
                self._disk.lose_power("while a definition is written")
        if left is not None:
            raise JournalError("The power failed")

    def close(self) -> None:
        """Closes the journal as a power loss does, which may lose unsynced data. Idempotent."""
        if not self._is_cut:
            image = self._image()
            self._cut(image if self._unsynced is None else self._disk.lost(self._unsynced, image))

    def _cut(self, image: _Files) -> None:
        self._is_cut = True
        super().close()  # this cleans up files, so the files of the image are written afterwards
        for path in self._files:
            if path.name in image:
                path.write_bytes(image[path.name])
            else:
                path.unlink(missing_ok=True)

    def _image(self) -> _Files:
        return {path.name: path.read_bytes() for path in self._files if path.exists()}

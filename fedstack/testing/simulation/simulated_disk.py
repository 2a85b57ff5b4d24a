"""A disk of a simulation, with the real files of a journal: the power fails when they are written, or it is full."""

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
# `PRAGMA synchronous`: commits are synced from FULL on where the log is written ahead, else from EXTRA on.
_FULL, _EXTRA = 2, 3
# A definition is synced, and then its name.
_SYNCS_OF_DEFINITION = 2
_Files = Mapping[str, bytes]


class SimulatedDisk:
    """The disk of one dispatcher. When the dispatcher ends, its power fails: what was not synced may be lost.

    Args:
      folder: A real folder for its files.
      network: Says how often and when the power fails.
      on_power_loss: Is called then.

    Attributes:
      failures: How often the power has failed.
      definitions: The files of definitions.
    """

    def __init__(self, folder: Path, network: SimulatedNetwork, on_power_loss: Callable[[], None]) -> None:
        self._folder = folder
        self._network = network
        self._on_power_loss = on_power_loss
        self._journal: SimulatedJournal | None = None
        self.failures = 0
        self.definitions = SimulatedFiles(folder / DEFINITIONS)

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
            self.definitions.lose(self._network.chance)

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
        """Lets the power fail in a commit; returns what is on the disk then.

        Args:
          before: What was synced before.
          after: What the process has written since, any part of which may be there.
        """
        # The commit is noted when it is over.
        chance, found = self._network.chance, {**after, LAST: before.get(LAST, b"")}
        # The log is synced before anything moves from there into the tables.
        last = _WAL if before.get(FILE, b"") == after.get(FILE, b"") else FILE
        share = chance.choice((0.0, chance.random(), 1.0))
        found[last] = torn(before.get(last, b""), after.get(last, b""), share, chance)
        self.lose_power(f"{last} has {share:.2f} of a commit")
        return found

    def lost(self, before: _Files, after: _Files) -> _Files:
        """Returns what is left of what was written and not synced when the power fails."""
        chance = self._network.chance
        return {
            **after,
            **{
                name: torn(before.get(name, b""), after[name], chance.choice((0.0, chance.random(), 1.0)), chance)
                for name in (FILE, _WAL)
                if name in after
            },
        }

    def lose_power(self, what: str) -> None:
        """Lets the power fail."""
        self.failures += 1
        self._network.say(f"the power fails: {what}")
        self._on_power_loss()

    def syncs_until_power_loss(self) -> int:
        """Decides after how many syncs of the definition that comes now the power fails."""
        return self._network.chance.randint(0, _SYNCS_OF_DEFINITION)

    def wrong(self, what: str) -> None:
        """Fails the simulation."""
        self._network.wrong(what)

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
        # What is on the disk, as long as nothing that has been written since is synced.
        self._unsynced: _Files | None = self._image()
        super().__init__(folder)
        self._is_open = True

    @property
    def file(self) -> str:
        """The same in each run, since messages are in traces; the folder is not."""
        return FILE

    @contextlib.contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        if self._is_cut:
            raise JournalError("Expected a journal on a disk with power, found one without")
        before = self._safe() if self._disk.fails() else None
        known = self._content() if self._is_open and self._disk.is_full() else None
        try:
            with super().transaction() as tables:
                yield tables
                if known is not None:
                    raise sqlite3.OperationalError("database or disk is full")
        except ResourceLimitError:
            if known not in (None, self._content()):
                self._disk.wrong("A transaction that found the disk full has changed what is known")
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
        """Returns what no loss of power takes away."""
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
        """Leaves the files as they are. Idempotent."""
        if not self._is_cut:
            image = self._image()
            self._cut(image if self._unsynced is None else self._disk.lost(self._unsynced, image))

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

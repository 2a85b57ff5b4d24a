"""Keeps what a dispatcher knows in SQLite: the tables are the state, in a folder or in memory."""

import contextlib
import ctypes
import errno
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import TypeAlias

from fedstack.errors import FedstackError, JournalError, ResourceLimitError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.drawn_ids import draw_id
from fedstack.service.data.dispatcher.definition_files import DefinitionFiles
from fedstack.service.data.dispatcher.private_folder import (
    make_files_private,
    make_private_file,
    make_private_folder,
)

Tables: TypeAlias = sqlite3.Connection

FILE, DEFINITIONS = "journal.sqlite", "definitions"
# Says whose file it is, in its header: "fsDD".
_APPLICATION = 0x66734444
_VERSION = 1
_SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE datasets (digest BLOB PRIMARY KEY, description BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE names (dataset_id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE workers (worker BLOB PRIMARY KEY, address TEXT NOT NULL) WITHOUT ROWID",
    # A pass of one consumer has no job, and the consumer as its owner.
    """CREATE TABLE passes (
      pass BLOB PRIMARY KEY, job TEXT NOT NULL, owner BLOB NOT NULL, repetition INTEGER NOT NULL, digest BLOB NOT NULL,
      policy INTEGER NOT NULL, guarantee INTEGER NOT NULL, target TEXT NOT NULL, num_splits INTEGER NOT NULL,
      is_whole INTEGER NOT NULL, next_range INTEGER NOT NULL, is_sealed INTEGER NOT NULL, idle_since REAL,
      UNIQUE (job, owner, repetition)) WITHOUT ROWID""",
    # What has not been cut into ranges: one list for all workers, whose `worker` is empty, or one for each.
    """CREATE TABLE lists (pass BLOB, worker BLOB, next INTEGER NOT NULL, last INTEGER NOT NULL,
      PRIMARY KEY (pass, worker)) WITHOUT ROWID""",
    # The last answer is kept: the same request again has it.
    """CREATE TABLE consumers (pass BLOB, consumer BLOB, is_here INTEGER NOT NULL, number INTEGER NOT NULL,
      answer BLOB, opening BLOB NOT NULL, PRIMARY KEY (pass, consumer)) WITHOUT ROWID""",
    # Ranges without a consumer are free.
    """CREATE TABLE ranges (pass BLOB, id INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, worker BLOB NOT NULL,
      consumer BLOB, is_finished INTEGER NOT NULL, PRIMARY KEY (pass, id)) WITHOUT ROWID""",
    "CREATE INDEX taken ON ranges (pass, consumer)",
)


class Journal:
    """What a dispatcher knows. One thread at a time may use the tables, and one the definitions.

    A transaction that has ended is on the disk: what is answered after that holds, whatever happens then. After a crash
    the tables are as the last such transaction left them.

    Args:
      folder: Where to keep it; it is made if there is none, and only its owner enters it. `None` to keep it in memory,
        as long as the process lives.

    Attributes:
      incarnation: Stands for what is known: another one where a journal has begun.

    Raises:
      JournalError: If another dispatcher uses the folder, what is in it cannot be used, or other users may enter it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder.absolute()
        with self._errors():
            if self._folder is not None:
                make_private_folder(self._folder, _is_ours)
                make_private_file(self._folder / FILE)
                make_files_private(self._folder)
            self._definitions = DefinitionFiles(None if self._folder is None else self._folder / DEFINITIONS)
            self._tables = sqlite3.connect(
                ":memory:" if self._folder is None else self._folder / FILE,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
            )
        self._owner = os.getpid()
        renew_after_fork(self)
        try:
            with self._errors():
                self.incarnation = self._open()
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Leaves the file to the process that uses it, in a forked child of it.

        There SQLite thinks that it has the lock. It would remove the log where this is closed, at the latest when the
        child ends; so it never is.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._tables))

    @property
    def file(self) -> str:
        """Where it is, for messages."""
        return "the memory of this process" if self._folder is None else str(self._folder / FILE)

    def _open(self) -> bytes:
        tables = self._tables
        # Held until the process ends, however it does.
        tables.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = tables.execute("PRAGMA application_id").fetchone()
        (is_new,) = tables.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()
        if not is_new and application != _APPLICATION:
            raise JournalError(
                f"Expected the journal of a dispatcher, found a database of another program: {self.file}; give another "
                "work_dir"
            )
        if is_new:
            tables.execute("PRAGMA auto_vacuum = INCREMENTAL")
        tables.execute("PRAGMA journal_mode = WAL")
        tables.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            if is_new:
                for statement in _SCHEMA:
                    tables.execute(statement)
                tables.execute(f"PRAGMA application_id = {_APPLICATION}")
                tables.execute(f"PRAGMA user_version = {_VERSION}")
                tables.execute("INSERT INTO facts VALUES ('incarnation', ?)", (draw_id(),))
        (version,) = tables.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise JournalError(
                f"Expected a journal of version {_VERSION}, found one of version {version}: {self.file}; use the "
                "release of fedstack that has written it, or give another work_dir"
            )
        (found,) = tables.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise self._damaged(found)
        (incarnation,) = tables.execute("SELECT value FROM facts WHERE name = 'incarnation'").fetchone()
        return incarnation

    @contextlib.contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        """Gives the tables for changes that happen together, and are on the disk at the end; or not at all.

        Raises:
          ResourceLimitError: If the disk is full.
          JournalError: If the file is damaged, or cannot be written.
        """
        with self._errors():
            self._tables.execute("BEGIN IMMEDIATE")
            try:
                yield self._tables
                self._tables.execute("COMMIT")
            except BaseException:
                if self._tables.in_transaction:  # SQLite itself ends it after some errors
                    self._tables.execute("ROLLBACK")
                raise

    def keep_definition(self, digest: bytes, definition: memoryview) -> None:
        """Keeps the definition of a dataset; when this returns, it is on the disk."""
        with self._errors():
            self._definitions.keep(digest, definition)

    def definition(self, digest: bytes) -> bytes:
        """Returns the definition of a dataset.

        Raises:
          JournalError: If its file is gone or damaged.
        """
        with self._errors():
            return self._definitions.read(digest)

    def is_definition_sound(self, digest: bytes) -> bool:
        """Returns whether a definition was there and right when it was last looked at. Reads no file."""
        return self._definitions.is_sound(digest)

    def has_definition(self, digest: bytes) -> bool:
        """Returns whether a definition is there, and what its digest stands for."""
        with self._errors():
            return self._definitions.has(digest)

    def compact(self) -> None:
        """Gives back the room of what has been deleted."""
        with self._errors():
            # As a script: a single statement ends after one page.
            self._tables.executescript("PRAGMA incremental_vacuum")
            self._tables.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Closes the file, which another dispatcher may use then. Idempotent."""
        if os.getpid() == self._owner:
            with contextlib.suppress(sqlite3.Error):
                self._tables.close()

    @contextlib.contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Says in our words what SQLite and the system say of the disk."""
        try:
            yield
        except FedstackError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise self._known(error) from error

    def _known(self, error: sqlite3.Error | OSError) -> FedstackError:
        text = str(error)
        if "is full" in text or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            return ResourceLimitError(
                f"The disk of the dispatcher's journal is full: {self.file}; nothing of this request was kept: make "
                "room there, and ask again"
            )
        if "is locked" in text:
            return JournalError(
                f"Another dispatcher uses this journal: {self.file}; stop that one, or give another work_dir"
            )
        if "not a database" in text or "malformed" in text:
            return self._damaged(text)
        place = self.file
        if isinstance(error, OSError):
            place, text = error.filename or place, error.strerror or text
        return JournalError(
            f"The dispatcher's journal cannot be used: {place}: {text}; see that this user may write there, and that "
            "the disk is sound"
        )

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"The dispatcher's journal is damaged: {self.file}: {what}; put back a copy, or move the file away to "
            "begin anew, with datasets registered again"
        )

    def __repr__(self) -> str:
        return f"<Journal in {self.file}>"


def _is_ours(name: str) -> bool:
    return name == DEFINITIONS or name.startswith(FILE)

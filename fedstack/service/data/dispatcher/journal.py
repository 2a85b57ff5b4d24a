"""Stores a dispatcher's state in SQLite tables, in a folder or in memory."""

import contextlib
import ctypes
import errno
import os
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TypeAlias

from fedstack.errors import FedstackError, JournalError, ResourceLimitError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.proto.data_service_pb2 import Commit
from fedstack.service.data.dispatcher import ledger
from fedstack.service.data.dispatcher.definition_files import DefinitionFiles
from fedstack.service.data.dispatcher.ledger import Ledger, Standing
from fedstack.service.data.dispatcher.private_files import (
    LastCommit,
    make_files_private,
    make_private_file,
    make_private_folder,
)

Tables: TypeAlias = sqlite3.Connection

FILE, LAST, DEFINITIONS = "journal.sqlite", "journal.sqlite-last", "definitions"
# Identifies the program that wrote the file, in the file's header: "fsDD".
_APPLICATION = 0x66734444
_VERSION = 2
_SCHEMA = (
    *ledger.SCHEMA,
    "CREATE TABLE datasets (digest BLOB PRIMARY KEY, description BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE names (dataset_id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE workers (worker BLOB PRIMARY KEY, address TEXT NOT NULL) WITHOUT ROWID",
    # A pass of a single consumer has no job; its owner is the consumer.
    """CREATE TABLE passes (
      pass BLOB PRIMARY KEY, job TEXT NOT NULL, owner BLOB NOT NULL, repetition INTEGER NOT NULL, digest BLOB NOT NULL,
      policy INTEGER NOT NULL, guarantee INTEGER NOT NULL, target TEXT NOT NULL, num_splits INTEGER NOT NULL,
      is_whole INTEGER NOT NULL, next_range INTEGER NOT NULL, is_sealed INTEGER NOT NULL, idle_since REAL,
      UNIQUE (job, owner, repetition)) WITHOUT ROWID""",
    # The splits that have not been cut into ranges yet: one list for all workers, with an empty `worker`, or several
    # lists.
    """CREATE TABLE lists (pass BLOB, worker BLOB, next INTEGER NOT NULL, last INTEGER NOT NULL,
      PRIMARY KEY (pass, worker)) WITHOUT ROWID""",
    # The last answer is stored, so that a repetition of the same request receives the same answer.
    """CREATE TABLE consumers (pass BLOB, consumer BLOB, is_here INTEGER NOT NULL, number INTEGER NOT NULL,
      answer BLOB, opening BLOB NOT NULL, PRIMARY KEY (pass, consumer)) WITHOUT ROWID""",
    # A range without a consumer can be assigned to any consumer.
    """CREATE TABLE ranges (pass BLOB, id INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, worker BLOB NOT NULL,
      consumer BLOB, is_finished INTEGER NOT NULL, PRIMARY KEY (pass, id)) WITHOUT ROWID""",
    "CREATE INDEX taken ON ranges (pass, consumer)",
)
# A temporary table, because consumers repeat their requests while they wait.
_WAITING = "CREATE TEMP TABLE waiting (pass BLOB, consumer BLOB, PRIMARY KEY (pass, consumer)) WITHOUT ROWID"
_SUMMED = (*ledger.TABLES, "datasets", "names", "workers", "passes", "lists", "consumers", "ranges")


class Journal:
    """The persistent state of a dispatcher.

    Only one thread at a time may use the tables, and only one thread at a time may use the definitions.

    The changes of a transaction are on disk when the transaction has ended, so an answer sent afterwards remains valid
    even if the process crashes. After a crash, the tables are in the state after the last completed transaction. Each
    transaction that changes rows is a commit with a number and a digest of all rows, which is verified when the journal
    is opened.

    Args:
      folder: The folder of the journal, which is created if it does not exist and which only its owner may enter;
        `None` to keep the journal in the memory of this process.

    Raises:
      JournalError: If another dispatcher uses the folder, the content of the folder cannot be used, or other users may
        enter the folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = None if folder is None else folder.absolute()
        self._last: LastCommit | None = None
        with self._errors():
            if self._folder is not None:
                make_private_folder(self._folder, _is_ours)
                make_private_file(self._folder / FILE)
                make_files_private(self._folder)
                self._last = LastCommit(self._folder / LAST)
            self._definitions = DefinitionFiles(None if self._folder is None else self._folder / DEFINITIONS)
            self._tables = sqlite3.connect(
                ":memory:" if self._folder is None else self._folder / FILE,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
            )
        self._ledger = Ledger(self._tables, () if folder is None else _SUMMED)
        self._owner = os.getpid()
        renew_after_fork(self)
        try:
            with self._errors():
                self._open()
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Prevents a forked child process from closing the connection, because the parent process uses the file.

        SQLite in the child assumes that it holds the lock, and would remove the log when the connection is closed. An
        additional reference to the connection keeps it open until the child process ends.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._tables))

    @property
    def file(self) -> str:
        """The location of the journal, for error messages."""
        return "the memory of this process" if self._folder is None else str(self._folder / FILE)

    def _open(self) -> None:
        tables = self._tables
        # The lock is held until the connection is closed or the process ends, even if it crashes.
        tables.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = tables.execute("PRAGMA application_id").fetchone()
        (is_new,) = tables.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()
        if not is_new and application != _APPLICATION:
            raise JournalError(
                f"Expected a dispatcher's journal, found another program's database in {self.file}; choose another "
                "work_dir"
            )
        if is_new:
            tables.execute("PRAGMA auto_vacuum = INCREMENTAL")
        tables.execute("PRAGMA journal_mode = WAL")
        tables.execute("PRAGMA synchronous = FULL")
        tables.execute("PRAGMA temp_store = MEMORY")
        tables.execute(_WAITING)
        noted = None if self._last is None else self._last.read()
        with self.transaction():
            if is_new and noted is None:
                for statement in _SCHEMA:
                    tables.execute(statement)
                tables.execute(f"PRAGMA application_id = {_APPLICATION}")
                tables.execute(f"PRAGMA user_version = {_VERSION}")
                self._ledger.begin()
        if not is_new:
            self._check()
        if noted is not None and (is_new or self.standing(noted) is not Standing.KNOWN):
            raise self._lacks(noted)

    def _check(self) -> None:
        """Verifies the version, the tables and all rows of the journal.

        Raises:
          JournalError: If the journal has another version, or has been damaged or modified since it was written.
        """
        (version,) = self._tables.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise JournalError(
                f"Expected a journal of version {_VERSION}, found a journal of version {version} in {self.file}; use "
                "the release of fedstack that wrote the journal, or choose another work_dir"
            )
        found = [text for (text,) in self._tables.execute("PRAGMA integrity_check(1)")]
        if found != ["ok"]:
            raise self._damaged(found[0])
        statements = self._tables.execute("SELECT sql FROM sqlite_master WHERE sql != '' ORDER BY rowid")
        if tuple(text for (text,) in statements) != _SCHEMA:
            raise self._damaged("its tables differ from the expected tables")
        if not self._ledger.read():
            raise self._damaged("its rows differ from the rows that were written")

    @contextlib.contextmanager
    def transaction(self) -> Generator[Tables, None, None]:
        """Runs the block as an atomic transaction, whose changes are on disk when the block has ended.

        Yields:
          The tables.

        Raises:
          ResourceLimitError: If the disk is full.
          JournalError: If the file is damaged or cannot be written.
        """
        with self._errors():
            before = self._ledger.commits
            with self._ledger.transaction():
                yield self._tables
            if self._last is not None and self._ledger.commits is not before:
                self._last.write(self.commit)

    @property
    def commit(self) -> Commit:
        """The latest commit, which is added to responses. Any thread may read this property."""
        return self._ledger.commits.latest

    def standing(self, commit: Commit) -> Standing:
        """Returns whether the journal contains, has lost or never had a commit. Any thread may call this method."""
        return self._ledger.commits.standing(commit)

    def refusal(self, heard: Commit) -> str | None:
        """Returns the reason to refuse a peer that knows a commit, or `None` to accept the peer.

        Any thread may call this method.
        """
        standing = self.standing(heard) if heard.number else Standing.KNOWN
        if standing is Standing.KNOWN:
            return None
        if standing is Standing.LOST or self._ledger.has_lost:
            return (
                f"The dispatcher's journal has lost commits: it does not contain commit {heard.number}, which a "
                "consumer or worker has received; the journal's log was truncated or damaged, or the journal was "
                "replaced by an older copy. All earlier passes have ended, because elements might otherwise be read "
                "twice: start a new pass without resume, or stop the dispatcher and restore the latest copy of its "
                "work_dir"
            )
        return (
            "The dispatcher does not know this pass, because it was restarted without a journal or with another "
            "journal; start a new pass, and configure the dispatcher with work_dir and fault_tolerant_mode=True"
        )

    def begin_anew(self, forget: Callable[[Tables], None]) -> None:
        """Discards all earlier commits, because some commits have been lost.

        Args:
          forget: Deletes the rows that depend on the earlier commits, as part of a transaction.

        Raises:
          ResourceLimitError: If the disk is full.
          JournalError: If the file is damaged or cannot be written.
        """
        with self._errors(), self._ledger.beginning_anew():
            if self._last is not None:
                self._last.clear()
            with self.transaction() as tables:
                forget(tables)
                self._ledger.forget()

    def keep_definition(self, digest: bytes, definition: memoryview) -> None:
        """Stores the definition of a dataset, which is on disk when this method returns."""
        with self._errors():
            self._definitions.keep(digest, definition)

    def definition(self, digest: bytes) -> bytes:
        """Returns the definition of a dataset.

        Raises:
          JournalError: If the file of the definition is missing or damaged.
        """
        with self._errors():
            return self._definitions.read(digest)

    def is_definition_sound(self, digest: bytes) -> bool:
        """Returns whether a definition exists and matched its digest when it was last checked. Does not read files."""
        return self._definitions.is_sound(digest)

    def has_definition(self, digest: bytes) -> bool:
        """Returns whether a definition exists and matches its digest."""
        with self._errors():
            return self._definitions.has(digest)

    def compact(self) -> None:
        """Frees the disk space of deleted rows."""
        with self._errors():
            # Run as a script, because a single statement frees only one page.
            self._tables.executescript("PRAGMA incremental_vacuum")
            self._tables.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Closes the file, so that another dispatcher can use it. Idempotent."""
        if os.getpid() == self._owner:
            with contextlib.suppress(sqlite3.Error):
                self._tables.close()

    @contextlib.contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Converts errors from SQLite and the operating system into `FedstackError`s."""
        try:
            yield
        except FedstackError:
            raise
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise self._known(error) from error

    def _known(self, error: sqlite3.Error | OSError | UnicodeDecodeError) -> FedstackError:
        text = str(error)
        if "is full" in text or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            return ResourceLimitError(
                f"The disk of the dispatcher's journal is full: {self.file}; the request has had no effect: free disk "
                "space and try again"
            )
        if "is locked" in text:
            return JournalError(
                f"Another dispatcher uses this journal: {self.file}; stop the other dispatcher, or choose another "
                "work_dir"
            )
        if any(what in text for what in ("not a database", "malformed", "not decode", "can't decode")):
            return self._damaged(text)
        if type(error) is sqlite3.DatabaseError and not text:  # Python 3.10 cannot decode this message of SQLite
            return self._damaged("its schema cannot be read")
        place = self.file
        if isinstance(error, OSError):
            place, text = error.filename or place, error.strerror or text
        return JournalError(
            f"The dispatcher's journal cannot be used: {place}: {text}; check that this user has permission to write "
            "to the folder, and that the disk has no errors"
        )

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"The dispatcher's journal is damaged: {self.file}: {what}; restore the latest copy of its folder, or move "
            f"{FILE}* to another folder to start with an empty journal, and register the datasets again"
        )

    def _lacks(self, noted: Commit) -> JournalError:
        commits = self._ledger.commits
        assert self._last is not None, "the last commit was read from this file"
        return JournalError(
            f"The dispatcher's journal has lost commits: {self.file} ends with commit {commits.number}, but "
            f"{self._last.path} records commit {noted.number}; the journal's log was truncated or damaged, or the "
            f"journal was replaced by an older or a different journal. Restore the latest copy of its folder, or move "
            f"{FILE}* to another folder to start with an empty journal, or delete {LAST} to continue with the "
            "remaining commits, in which case passes with later commits are refused"
        )

    def __repr__(self) -> str:
        return f"<Journal in {self.file}>"


def _is_ours(name: str) -> bool:
    return name == DEFINITIONS or name.startswith(FILE)

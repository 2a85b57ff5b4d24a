"""Numbers the commits of a journal, computes a digest of all rows for each commit, and detects lost commits."""

import contextlib
import enum
import hashlib
import hmac
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType

import attrs

from fedstack.foundations.draws import draw_id
from fedstack.proto.data_service_pb2 import Commit

_SEAL_BYTES = 16


class Standing(enum.Enum):
    """The relation of a peer's commit to a journal: the journal contains the commit, has lost it or never had it."""

    KNOWN = "known"
    LOST = "lost"
    STRANGE = "strange"


@attrs.frozen(eq=False)
class Commits:
    """The commits of a journal, numbered consecutively.

    Each process that writes to the journal starts a branch with a random id. If two journals contain a commit with the
    same number and branch, they therefore share all earlier commits. A journal that has lost its last commits does not
    contain a commit that a peer knows: either the journal ends before that commit, or its commit with that number
    belongs to another branch. A digest of all earlier commits would detect this too, but would need a row for each
    commit instead of a row for each branch.

    Attributes:
      secret: The key of the seals, which is unique to this journal.
      branches: The numbers of the first and the last commit of each completed branch, by the id of the branch.
      branch: The id of the current branch.
      first: The number of the first commit of the current branch.
      number: The number of the latest commit.
      latest: The latest commit, as sent to peers.
    """

    secret: bytes
    branches: Mapping[bytes, tuple[int, int]] = MappingProxyType({})
    branch: bytes = b""
    first: int = 0
    number: int = 0
    latest: Commit = attrs.field(init=False, default=attrs.Factory(lambda self: _sealed(self), takes_self=True))

    def next(self) -> "Commits":
        """Returns a copy with one commit added."""
        return attrs.evolve(self, number=self.number + 1)

    def branched(self) -> "Commits":
        """Returns a copy with one commit added, which is the first commit of a new branch."""
        number, ended = self.number + 1, {self.branch: (self.first, self.number)} if self.branch else {}
        return attrs.evolve(self, branches={**self.branches, **ended}, branch=draw_id(), first=number, number=number)

    def standing(self, commit: Commit) -> Standing:
        """Returns whether this journal contains a commit, has lost it or never had it.

        If a commit with a valid seal is missing, the journal has lost the commit and all later commits. If the branch
        of the commit is too old and is no longer recorded, the result is `STRANGE`.
        """
        if not hmac.compare_digest(commit.seal, _seal(self.secret, commit.number, commit.branch)):
            return Standing.STRANGE
        last = {self.branch: (self.first, self.number)}
        first, end = last.get(commit.branch) or self.branches.get(commit.branch, (1, 0))
        if first <= commit.number <= end:
            return Standing.KNOWN
        oldest = min((first for first, _ in self.branches.values()), default=self.first)
        return Standing.STRANGE if commit.number < oldest else Standing.LOST


def _sealed(commits: Commits) -> Commit:
    number, branch = commits.number, commits.branch
    return Commit(number=number, branch=branch, seal=_seal(commits.secret, number, branch))


def _seal(secret: bytes, number: int, branch: bytes) -> bytes:
    return hmac.digest(secret, number.to_bytes(8, "big") + branch, hashlib.sha256)[:_SEAL_BYTES]


_BYTES = 16
_MODULUS = 1 << (8 * _BYTES)
_EVENTS = {"INSERT": ((1, "NEW"),), "DELETE": ((-1, "OLD"),), "UPDATE": ((-1, "OLD"), (1, "NEW"))}


class RowSum:
    """The sum of the hashes of all rows, which is updated when the connection changes rows.

    The sum does not depend on the order of the rows.

    Args:
      tables: The connection.
      names: The names of the tables.

    Attributes:
      total: The sum. A caller that rolls back a transaction must restore the previous value.
    """

    def __init__(self, tables: sqlite3.Connection, names: Sequence[str]) -> None:
        self.total = 0
        self._tables = tables
        self._names = names
        tables.create_function("note_row", -1, self._note)

    def follow(self) -> None:
        """From now on, updates the sum whenever rows change."""
        self._tables.execute("PRAGMA recursive_triggers = ON")  # also reports the rows that INSERT OR REPLACE deletes
        for name in self._names:
            columns = [column for _, column, *_ in self._tables.execute(f"PRAGMA table_info({name})")]
            for event, rows in _EVENTS.items():
                notes = "".join(
                    f"SELECT note_row({sign}, '{name}', {', '.join(f'{row}.{column}' for column in columns)});"
                    for sign, row in rows
                )
                # The triggers are temporary, because other programs may open the file, and stored triggers could be
                # damaged too.
                self._tables.execute(
                    f"CREATE TEMP TRIGGER sum_{name}_{event} AFTER {event} ON main.{name} BEGIN {notes} END"
                )

    def _note(self, sign: int, *row: object) -> None:
        self.total = (self.total + sign * _hash(row)) % _MODULUS

    def count(self) -> int:
        """Computes the sum of all rows in the tables."""
        rows = ((name, *row) for name in self._names for row in self._tables.execute(f"SELECT * FROM {name}"))
        return sum(map(_hash, rows)) % _MODULUS

    def __repr__(self) -> str:
        return f"<RowSum {self.total:032x} of {', '.join(self._names)}>"


def _hash(row: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=_BYTES).digest(), "big")


SCHEMA = (
    # The latest commit, and a digest of its number and all rows except this row, which changes with each commit.
    "CREATE TABLE head (number INTEGER NOT NULL, digest BLOB NOT NULL)",
    # The first commit of each process that has written to this journal.
    "CREATE TABLE branches (first INTEGER PRIMARY KEY, id BLOB NOT NULL)",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
TABLES = ("branches", "facts")
_DIGEST_BYTES = 16
_MOST_BRANCHES = 10_000


class Ledger:
    """Records the commits of a journal in its tables.

    Only the thread of the tables may call the methods. Any thread may read the attributes.

    Args:
      tables: The connection.
      summed: The tables whose rows are hashed; empty for a journal in memory, which cannot be damaged.

    Attributes:
      commits: The commits of the journal.
      has_lost: Whether the journal has lost commits and discarded all earlier commits.
    """

    def __init__(self, tables: sqlite3.Connection, summed: tuple[str, ...]) -> None:
        self._tables = tables
        self._sum = RowSum(tables, summed)
        self._has_branch = False
        self._anew: Commits | None = None
        self.commits = Commits(b"")
        self.has_lost = False

    def begin(self) -> None:
        """Initializes the tables of an empty ledger. Must be called within a transaction."""
        self._sum.follow()
        self.commits = Commits(draw_id())
        self._tables.execute("INSERT INTO facts VALUES ('secret', ?)", (self.commits.secret,))
        self._tables.execute("INSERT INTO head VALUES (0, x'')")

    def read(self) -> bool:
        """Reads the commits from the tables, and returns whether all rows match the digest of the last commit."""
        tables = self._tables
        self._sum.follow()
        self._sum.total = self._sum.count()
        heads = tables.execute("SELECT number, digest FROM head").fetchall()
        if len(heads) != 1 or heads[0][1] != self._digest(heads[0][0]):
            return False
        facts = dict(tables.execute("SELECT name, value FROM facts"))
        firsts = tables.execute("SELECT first, id FROM branches ORDER BY first").fetchall()
        ends = [first - 1 for first, _ in firsts[1:]]
        ended = {id: (first, end) for (first, id), end in zip(firsts, ends, strict=False)}
        first, branch = firsts[-1]
        self.commits, self.has_lost = Commits(facts["secret"], ended, branch, first, heads[0][0]), "lost" in facts
        return True

    @contextlib.contextmanager
    def transaction(self) -> Generator[None, None, None]:
        """Runs the block as a transaction on the tables. The transaction is a commit if it changes rows."""
        tables = self._tables
        if tables.in_transaction:  # an earlier transaction could not be rolled back
            tables.execute("ROLLBACK")
        tables.execute("BEGIN IMMEDIATE")
        changes, total, commits = tables.total_changes, self._sum.total, None
        try:
            yield
            if tables.total_changes != changes:
                commits = self._advance()
            tables.execute("COMMIT")
        except BaseException:
            self._sum.total = total
            if tables.in_transaction:  # after some errors, SQLite has already rolled back the transaction
                tables.execute("ROLLBACK")
            raise
        if commits is not None:
            self.commits, self._has_branch = commits, True

    def _advance(self) -> Commits:
        before = self._anew or self.commits
        commits = before.next() if self._has_branch else before.branched()
        if not self._has_branch:
            self._tables.execute("INSERT INTO branches VALUES (?, ?)", (commits.first, commits.branch))
            oldest = "SELECT min(first) FROM (SELECT first FROM branches ORDER BY first DESC LIMIT ?)"
            self._tables.execute(f"DELETE FROM branches WHERE first < ({oldest})", (_MOST_BRANCHES,))
        row = commits.number, self._digest(commits.number)
        self._tables.execute("UPDATE head SET number = ?, digest = ?", row)
        return commits

    def _digest(self, number: int) -> bytes:
        return hashlib.blake2b(repr((number, self._sum.total)).encode(), digest_size=_DIGEST_BYTES).digest()

    @contextlib.contextmanager
    def beginning_anew(self) -> Generator[None, None, None]:
        """Returns a context manager for a transaction that discards all earlier commits but continues their numbers."""
        self._anew, self._has_branch = Commits(draw_id(), number=self.commits.number), False
        try:
            yield
            self.has_lost = True
        finally:
            self._anew = None

    def forget(self) -> None:
        """Deletes the records of earlier commits. Must be called in the transaction within `beginning_anew`."""
        assert self._anew is not None, "called within beginning_anew"
        self._tables.execute("DELETE FROM branches")
        self._tables.execute("UPDATE facts SET value = ? WHERE name = 'secret'", (self._anew.secret,))
        self._tables.execute("INSERT OR IGNORE INTO facts VALUES ('lost', x'01')")

    def __repr__(self) -> str:
        return f"<Ledger with {self.commits.number} commits>"

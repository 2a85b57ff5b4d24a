"""Numbers the commits of a journal, and sums up its rows with each."""

import contextlib
import hashlib
import sqlite3
from collections.abc import Generator

from fedstack.foundations.drawn_ids import draw_id
from fedstack.service.data.dispatcher.commits import Commits
from fedstack.service.data.dispatcher.row_sums import RowSum

SCHEMA = (
    # The latest commit, and a digest of its number and all rows; it changes with each, and has no part in that.
    "CREATE TABLE head (number INTEGER NOT NULL, digest BLOB NOT NULL)",
    # The first commit of each process that has written here.
    "CREATE TABLE branches (first INTEGER PRIMARY KEY, id BLOB NOT NULL)",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
)
TABLES = ("branches", "facts")
_DIGEST_BYTES = 16
_MOST_BRANCHES = 10_000


class Ledger:
    """The commits of a journal. It belongs to the thread of its tables, but for its attributes.

    Args:
      tables: The connection.
      summed: The tables of which each row counts; none in memory, which has no damage.

    Attributes:
      commits: Those that there are.
      has_lost: Whether it has begun anew, since the journal had lost some.
    """

    def __init__(self, tables: sqlite3.Connection, summed: tuple[str, ...]) -> None:
        self._tables = tables
        self._sum = RowSum(tables, summed)
        self._has_branch = False
        self._anew: Commits | None = None
        self.commits = Commits(b"")
        self.has_lost = False

    def begin(self) -> None:
        """Begins with no commit. It is a part of a transaction."""
        self._sum.follow()
        self.commits = Commits(draw_id())
        self._tables.execute("INSERT INTO facts VALUES ('secret', ?)", (self.commits.secret,))
        self._tables.execute("INSERT INTO head VALUES (0, x'')")

    def read(self) -> bool:
        """Goes on from the last commit; returns whether all rows are as they were then."""
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
        """A transaction of the tables; with changes it is a commit."""
        tables = self._tables
        if tables.in_transaction:  # one that could not be ended before
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
            if tables.in_transaction:  # SQLite itself ends it after some errors
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
        """A block with a transaction that knows no commit of before any more; their numbers go on."""
        self._anew, self._has_branch = Commits(draw_id(), number=self.commits.number), False
        try:
            yield
            self.has_lost = True
        finally:
            self._anew = None

    def forget(self) -> None:
        """Forgets the commits of before, in the transaction of such a block."""
        assert self._anew is not None, "it begins anew"
        self._tables.execute("DELETE FROM branches")
        self._tables.execute("UPDATE facts SET value = ? WHERE name = 'secret'", (self._anew.secret,))
        self._tables.execute("INSERT OR IGNORE INTO facts VALUES ('lost', x'01')")

    def __repr__(self) -> str:
        return f"<Ledger with {self.commits.number} commits>"

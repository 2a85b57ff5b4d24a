"""Sums up all rows of tables, so that a byte of them that changed on the disk is noticed: SQLite does not see that."""

import hashlib
import sqlite3
from collections.abc import Sequence

_BYTES = 16
_MODULUS = 1 << (8 * _BYTES)
_EVENTS = {"INSERT": ((1, "NEW"),), "DELETE": ((-1, "OLD"),), "UPDATE": ((-1, "OLD"), (1, "NEW"))}


class RowSum:
    """The sum of the hashes of all rows, in whatever order, which follows what this connection changes.

    Args:
      tables: The connection.
      names: The tables.

    Attributes:
      total: The sum. Whoever ends a transaction without its changes puts back the one of before.
    """

    def __init__(self, tables: sqlite3.Connection, names: Sequence[str]) -> None:
        self.total = 0
        self._tables = tables
        self._names = names
        tables.create_function("note_row", -1, self._note)

    def follow(self) -> None:
        """Follows changes from now on."""
        self._tables.execute("PRAGMA recursive_triggers = ON")  # for rows that INSERT OR REPLACE deletes
        for name in self._names:
            columns = [column for _, column, *_ in self._tables.execute(f"PRAGMA table_info({name})")]
            for event, rows in _EVENTS.items():
                notes = "".join(
                    f"SELECT note_row({sign}, '{name}', {', '.join(f'{row}.{column}' for column in columns)});"
                    for sign, row in rows
                )
                # Not in the file, which others may open, and where these could be damaged as well.
                self._tables.execute(
                    f"CREATE TEMP TRIGGER sum_{name}_{event} AFTER {event} ON main.{name} BEGIN {notes} END"
                )

    def _note(self, sign: int, *row: object) -> None:
        self.total = (self.total + sign * _hash(row)) % _MODULUS

    def count(self) -> int:
        """Returns the sum of what is in the tables."""
        rows = ((name, *row) for name in self._names for row in self._tables.execute(f"SELECT * FROM {name}"))
        return sum(map(_hash, rows)) % _MODULUS

    def __repr__(self) -> str:
        return f"<RowSum {self.total:032x} of {', '.join(self._names)}>"


def _hash(row: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=_BYTES).digest(), "big")

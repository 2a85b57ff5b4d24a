"""Releases values as the rows of a CSV file."""

import contextlib
import csv
import io
import json

from fedstack.program.releases.table_release_manager import Cell, Row, TableReleaseManager


class CSVFileReleaseManager(TableReleaseManager):
    """Releases values to a CSV file with one row for each key, and one column for each member of the values.

    Numbers are written so that they can be read without a loss, and arrays as JSON. A value with new members adds
    columns, which are empty in the rows before. See `TableReleaseManager` for the arguments.
    """

    def _read(self, content: bytes) -> list[Row]:
        lines = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
        found: list[Row] = []
        if content and self._key not in (lines.fieldnames or ()):
            raise ValueError(f"a first line without {self._key!r}")
        for line in lines:
            if None in line or None in line.values():
                raise ValueError("a row with another number of cells than the first")
            found.append({name: _value_of(text) for name, text in line.items() if text or name == self._key})
        return found

    def _written(self, rows: list[Row]) -> bytes:
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_text_of(row.get(name)) for name in names] for row in rows])
        return text.getvalue().encode()


def _text_of(value: Cell) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _value_of(text: str) -> Cell:
    """Returns what a text was written for. It is written in the same way again."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        value: Cell = json.loads(text)
        if _text_of(value) == text and not isinstance(value, (str, dict)):
            return value
    return text

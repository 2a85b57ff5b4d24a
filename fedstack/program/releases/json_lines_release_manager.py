"""Releases values as lines of JSON."""

import json
from typing import Any

from fedstack.program.releases.table_release_manager import Row, TableReleaseManager


class JSONLinesReleaseManager(TableReleaseManager):
    """Releases values to a file with one line of JSON for each key.

    A line is an object with the key and the members of the value; arrays are lists. NaN and infinity are written as
    Python writes them. See `TableReleaseManager` for the arguments.
    """

    def _read(self, content: bytes) -> list[Row]:
        rows: list[Any] = [json.loads(line) for line in content.splitlines() if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a line that is no object")
        return rows

    def _written(self, rows: list[Row]) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

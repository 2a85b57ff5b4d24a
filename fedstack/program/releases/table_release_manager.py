"""Releases values as the rows of a file, in which a key that is released again replaces its row."""

import abc
import contextlib
import csv
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

from fedstack.data.headed_file import write_whole
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.number_checks import whole_number_of
from fedstack.foundations.value_text import describe
from fedstack.program.argument_checks import checked_path
from fedstack.program.releases.staged_release_manager import Cell, Key, Row, StagedReleaseManager
from fedstack.program.states.file_program_state_manager import FileProgramStateManager

__all__ = ["Cell", "Row", "TableReleaseManager"]


class TableReleaseManager(StagedReleaseManager):
    """The base class of release managers that write rows to a file.

    The file is replaced as a whole, so that it is complete at any moment. Managers that release to one file in turn
    keep each other's rows; at the same moment, only one may.

    Args:
      file_path: The path of the file. Rows that it has are kept.
      state_manager: If given, rows are released together with the next state that it saves. So a run that is killed
        between the two and resumed has the same rows as one that is not.
      key_fieldname: The name of the column with the keys.
    """

    def __init__(
        self,
        file_path: "str | os.PathLike[str]",
        *,
        state_manager: FileProgramStateManager | None = None,
        key_fieldname: str = "key",
    ) -> None:
        self._path = checked_path("file_path", file_path, "the path of a file")
        self._key = key_fieldname
        self._rows: dict[Key, Row] | None = None
        self._stamp: object = None  # of the file that has these rows
        super().__init__(self._path.name, state_manager)

    @abc.abstractmethod
    def _read(self, content: bytes) -> list[Row]:
        """Returns the rows of a file, each with its key.

        Raises:
          ValueError: If the file is of another kind.
        """

    @abc.abstractmethod
    def _written(self, rows: list[Row]) -> bytes:
        """Returns the content of a file with the given rows, each with its key."""

    def rows(self, *, before: int | None = None) -> list[dict[str, object]]:
        """Returns the rows of the file, each with its key.

        Args:
          before: If given, only rows whose keys are numbers below this one are returned, such as those of the rounds
            before the present one. A file may have later ones, when a run goes on from an older state.

        Raises:
          ProgramStateError: If the file cannot be read, or is of another kind.
        """
        with self._lock:
            return [
                {self._key: key, **row}
                for key, row in self._known().items()
                if before is None or (isinstance(key, int) and key < before)
            ]

    def _key_of(self, key: object) -> Key:
        if key is None or isinstance(key, str):
            return key
        number = whole_number_of(key)
        if number is None:
            raise InvalidValueError(f"Expected a whole number or a string as a key, found {describe(key)}")
        return number

    def _row_of(self, named: Sequence[tuple[str, object]]) -> Row:
        row = super()._row_of(named)
        if self._key in row:
            raise InvalidValueError(
                f"Expected values without the name {self._key!r}, which is that of the keys; rename the value, or pass "
                "another key_fieldname"
            )
        return row

    def _add(self, rows: Sequence[tuple[Key, Row]]) -> None:
        known = self._known()
        last = dict(rows)  # of rows with the same key, the one that was released last
        if any(known.get(key) != row for key, row in last.items()):
            self._put({**known, **last})

    def _remove(self, keys: Collection[Key]) -> None:
        """Removes the rows of some keys from the file."""
        self._put({key: row for key, row in self._known().items() if key not in keys})

    def _put(self, rows: dict[Key, Row]) -> None:
        self._write([{self._key: key, **row} for key, row in rows.items()])
        self._rows, self._stamp = rows, self._stamp_now()  # not before: a row that could not be written is not there

    def _write(self, rows: list[Row]) -> None:
        """Writes the file with the given rows, each with its key."""
        self._replace(self._path, self._written(rows))

    def _replace(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProgramStateError(f"Cannot create {path.parent}: {text_of(error)}; allow it") from error
        write_whole(path, [content])

    def _known(self) -> "dict[Key, Row]":
        """Returns the rows of the file, to which another manager may have added some."""
        stamp = self._stamp_now()
        if self._rows is None or stamp not in (None, self._stamp):
            try:
                found = self._read(self._path.read_bytes())
                rows = {cast(Key, row.pop(self._key)): row for row in found}
            except FileNotFoundError:
                rows = {}
            except OSError as error:
                raise ProgramStateError(f"Cannot read {self._path}: {text_of(error)}; check it") from error
            except (ValueError, KeyError, csv.Error) as error:
                raise ProgramStateError(
                    f"Expected rows with the column {self._key!r} in {self._path}, found another kind of file "
                    f"({text_of(error)}); remove it, or choose another path"
                ) from error
            self._rows, self._stamp = rows, stamp
        return self._rows

    def _stamp_now(self) -> object:
        """Returns what changes whenever the file is replaced; `None` if there is none."""
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            return found.st_ino, found.st_mtime_ns, found.st_size
        return None

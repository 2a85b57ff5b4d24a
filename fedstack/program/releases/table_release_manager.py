"""Releases values as the rows of a file, in which a key that is released again replaces its row."""

import abc
import csv
import os
import threading
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import ReleaseManager
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.value_text import describe
from fedstack.program.states.file_program_state_manager import FileProgramStateManager, in_thread
from fedstack.program.states.headed_file import write_whole
from fedstack.program.states.staged_releases import StagedReleases
from fedstack.program.states.state_structure import named_values

# What JSON has: a number, a string, a list of such, or None.
Cell: TypeAlias = object
Row: TypeAlias = dict[str, Cell]
Key: TypeAlias = "int | str | None"


class TableReleaseManager(StagedReleases, ReleaseManager[Any, Any]):
    """The base class of release managers that write rows to a file.

    The file is replaced as a whole, so that it is complete at any moment.

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
        if not os.fspath(file_path):
            raise InvalidValueError("Expected the path of a file as file_path, found an empty string")
        self._path = Path(file_path).absolute()
        self._key = key_fieldname
        self._rows: dict[Key, Row] | None = None
        self._staged: list[tuple[Key, Row]] = []
        self._lock = threading.Lock()
        self._waits = state_manager is not None
        if state_manager is not None:
            state_manager.release_with(self)

    @abc.abstractmethod
    def _read(self, content: bytes) -> list[Row]:
        """Returns the rows of a file, each with its key.

        Raises:
          ValueError: If the file is of another kind.
        """

    @abc.abstractmethod
    def _written(self, rows: list[Row]) -> bytes:
        """Returns the content of a file with the given rows, each with its key."""

    async def release(self, value: object, key: object) -> None:
        """Releases a value as a row, which replaces the row of the same key.

        Args:
          value: A structure of numbers, strings and arrays, or references to them. Its members are columns, with names
            such as `loss` and `layer/0`.
          key: The key, such as the number of the round.

        Raises:
          InvalidValueError: If the value has other parts, or a member has the name of the column with the keys.
          ProgramStateError: If the file cannot be written, or is of another kind.
        """
        if isinstance(key, bool) or not (key is None or isinstance(key, (int, str, np.integer))):
            raise InvalidValueError(f"Expected a whole number or a string as a key, found {describe(key)}")
        number = int(cast(int, key)) if isinstance(key, np.integer) else key
        row = {name or "value": _cell(one, name) for name, one in await named_values(value)}
        if self._key in row:
            raise InvalidValueError(
                f"Expected values without the name {self._key!r}, which is that of the keys; rename the value, or pass "
                "another key_fieldname"
            )
        with self._lock:
            self._staged.append((number, row))
        if not self._waits:
            await in_thread(self._release)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._path.name

    def staged(self, mark: object) -> object:
        """Returns the rows that wait for the next state."""
        with self._lock:
            return [[key, row] for key, row in self._staged]

    def release_staged(self, staged: object) -> None:
        """Writes rows that `staged` has returned."""
        with self._lock:
            rows = [(key, row) for key, row in cast("list[tuple[Key, Row]]", staged)]
            if rows == self._staged[: len(rows)]:
                del self._staged[: len(rows)]
            self._add(rows)

    def _release(self) -> None:
        with self._lock:
            rows, self._staged = self._staged, []
            self._add(rows)

    def _add(self, rows: "list[tuple[Key, Row]]") -> None:
        known = self._known()
        changed = [(key, row) for key, row in rows if known.get(key) != row]
        if not changed:
            return
        known.update(changed)
        content = self._written([{self._key: key, **row} for key, row in known.items()])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProgramStateError(f"Cannot create {self._path.parent}: {text_of(error)}; allow it") from error
        write_whole(self._path, [content])

    def _known(self) -> "dict[Key, Row]":
        """Returns the rows of the file."""
        if self._rows is None:
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
            self._rows = rows
        return self._rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._path}>"


def _cell(value: object, name: str) -> Cell:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        value = (array.astype(float) if array.dtype.kind == "V" else array).tolist()  # bfloat16 has no Python numbers
    found = _plain(value)
    if found is NotImplemented:
        raise InvalidValueError(
            f"Expected numbers, strings and arrays to release, found {describe(value)} at {name or 'the top'}; convert "
            "it"
        )
    return found


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, list):
        members = [_plain(member) for member in cast("list[object]", value)]
        return NotImplemented if NotImplemented in members else members
    return NotImplemented

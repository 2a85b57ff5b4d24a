"""Releases values as the rows of a file, in which a key that is released again replaces its row."""

import abc
import asyncio
import contextlib
import csv
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import ReleaseManager
from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.value_text import describe
from fedstack.program.states.file_program_state_manager import FileProgramStateManager, in_thread, running_task
from fedstack.program.states.headed_file import write_whole
from fedstack.program.states.staged_releases import StagedReleases
from fedstack.program.states.state_structure import named_values

# What JSON has: a number, a string, a list of such, or None.
Cell: TypeAlias = object
Row: TypeAlias = dict[str, Cell]
Key: TypeAlias = "int | str | None"


@attrs.define(eq=False)
class _Release:
    """A value that was released.

    Attributes:
      number: How many were released before.
      caller: The task that released it.
      value: The value.
      key: The key.
      row: The row, once the value is there.
    """

    number: int
    caller: "asyncio.Task[Any] | None"
    value: object
    key: object
    row: tuple[Key, Row] | None = None


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
        self._calls = 0
        self._staged: list[_Release] = []
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

    def release(self, value: object, key: object) -> "CoroutineType[Any, Any, None]":
        """Releases a value as a row, which replaces the row of the same key.

        With a state manager, the row is a part of the next state whose `save` is called.

        Args:
          value: A structure of numbers, strings and arrays, or references to them. Its members are columns, with names
            such as `loss` and `layer/0`.
          key: The key, such as the number of the round.

        Raises:
          InvalidValueError: If the value has other parts, or a member has the name of the column with the keys.
          ProgramStateError: If the file cannot be written, or is of another kind.
        """
        with self._lock:
            one = _Release(self._calls, running_task(), value, key)
            self._calls += 1
            self._staged.append(one)
        return self._released(one)

    async def _released(self, one: _Release) -> None:
        await self._materialize(one)
        if not self._waits:
            await in_thread(self.flush)

    async def _materialize(self, one: _Release) -> None:
        if one.row is not None:
            return
        try:
            one.row = await self._row(one.value, one.key)
        except BaseException:
            with self._lock:
                self._staged = [other for other in self._staged if other is not one]
            raise

    async def _row(self, value: object, key: object) -> "tuple[Key, Row]":
        if isinstance(key, bool) or not (key is None or isinstance(key, (int, str, np.integer))):
            raise InvalidValueError(f"Expected a whole number or a string as a key, found {describe(key)}")
        number = int(cast(int, key)) if isinstance(key, np.integer) else key
        row = {name or "value": _cell(one, name) for name, one in await named_values(value)}
        if self._key in row:
            raise InvalidValueError(
                f"Expected values without the name {self._key!r}, which is that of the keys; rename the value, or pass "
                "another key_fieldname"
            )
        return number, row

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

    def flush(self) -> None:
        """Writes the rows that wait for a state, if their values are there."""
        with self._lock:
            rows = [one.row for one in self._staged if one.row is not None]
            self._staged = [one for one in self._staged if one.row is None]
            self._add(rows)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._path.name

    def mark(self, values: Sequence[object]) -> object:
        """Returns how many values were released, whether or not they are there, and which task saves the state."""
        return self._calls, running_task()

    def staged(self, mark: object) -> Callable[[], Awaitable[object]]:
        """Returns a function that waits for the rows that are released with a state; see `StagedReleases.staged`.

        What tasks other than the one that saves the state have released since is part of the state, too: a manager that
        groups others, for example, releases to them when its own task begins.
        """
        calls, caller = cast("tuple[int, object]", mark)
        with self._lock:
            called = [one for one in self._staged if one.number < calls or one.caller is not caller]

        async def rows() -> object:
            for one in called:
                with contextlib.suppress(Exception):  # raised where the value is released
                    await self._materialize(one)
            with self._lock:
                waiting = set(map(id, self._staged))
                return [list(one.row) for one in called if one.row is not None and id(one) in waiting]

        return rows

    def release_staged(self, staged: object) -> None:
        """Writes rows that `staged` has returned."""
        with self._lock:
            rows = [(key, row) for key, row in cast("list[tuple[Key, Row]]", staged)]
            for row in rows:
                done = next((one for one in self._staged if one.row == row), None)
                self._staged = [one for one in self._staged if one is not done]
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

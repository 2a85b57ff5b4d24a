"""Releases values together with the next state of a program, as rows of plain numbers, strings and lists."""

import abc
import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import ReleaseManager
from fedstack.errors import InvalidValueError
from fedstack.executors.survivors.client_failures import ClientFailure
from fedstack.foundations.number_checks import whole_number_of
from fedstack.foundations.value_text import describe
from fedstack.program.argument_checks import check_instance
from fedstack.program.states.file_program_state_manager import FileProgramStateManager
from fedstack.program.states.saved_versions import in_thread, running_task
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


class StagedReleaseManager(StagedReleases, ReleaseManager[Any, Any]):
    """The base class of release managers whose values are part of the states of a program.

    Args:
      name: The name of the releases, which stays the same in later processes.
      state_manager: If given, values are released together with the next state that it saves. So a run that is killed
        between the two and resumed has released the same values as one that is not.
    """

    def __init__(self, name: str, state_manager: FileProgramStateManager | None) -> None:
        self._name = name
        self._calls = 0
        self._staged: list[_Release] = []
        self._lock = threading.Lock()
        self._waits = state_manager is not None
        if state_manager is not None:
            check_instance("state_manager", state_manager, FileProgramStateManager, "it releases values")
            state_manager.release_with(self)

    @abc.abstractmethod
    def _add(self, rows: Sequence[tuple[Key, Row]]) -> None:
        """Releases rows, of which some may have been released before. Called with the lock, on a thread."""

    def release(self, value: object, key: object) -> "CoroutineType[Any, Any, None]":
        """Releases a value as a row, which replaces the row of the same key.

        With a state manager, the row is a part of the next state whose `save` is called.

        Args:
          value: A structure of numbers, strings and arrays, or references to them. Its members have names such as
            `loss` and `layer/0`; a single value is named `value`.
          key: The key, such as the number of the round.

        Raises:
          InvalidValueError: If the value has other parts, or the key is of another kind.
          ProgramStateError: If a file cannot be written, or is of another kind.
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
            one.row = await self._row(one.value, self._key_of(one.key))
        except BaseException:
            with self._lock:
                self._staged = [other for other in self._staged if other is not one]
            raise

    async def _row(self, value: object, key: Key) -> "tuple[Key, Row]":
        return key, self._row_of([(name or "value", one) for name, one in await named_values(value)])

    def flush(self) -> None:
        """Releases the rows that wait for a state, if their values are there."""
        with self._lock:
            rows = [one.row for one in self._staged if one.row is not None]
            self._staged = [one for one in self._staged if one.row is None]
            self._add(rows)

    @property
    def name(self) -> str:
        """The name of the releases."""
        return self._name

    def mark(self) -> object:
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
        """Releases rows that `staged` has returned."""
        with self._lock:
            rows = [(key, row) for key, row in cast("list[tuple[Key, Row]]", staged)]
            for row in rows:
                done = next((one for one in self._staged if one.row == row), None)
                self._staged = [one for one in self._staged if one is not done]
            self._add(rows)

    def _key_of(self, key: object) -> Key:
        """Returns a checked key: a whole number, if a subclass allows no others."""
        number = whole_number_of(key)
        if number is None or not -(2**63) <= number < 2**63:
            raise InvalidValueError(f"Expected a whole number of 64 bits as a key, found {describe(key)}; pass a round")
        return number

    def _row_of(self, named: Sequence[tuple[str, object]]) -> Row:
        """Returns the row of a value, given its members with their names."""
        return {name: _cell(value, name) for name, value in named}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._name}>"


def numbers_of(row: Row) -> "dict[str, float]":
    """Returns the single numbers of a row. Arrays with dimensions, strings and `None` are left out."""
    return {name: float_of(cell) for name, cell in row.items() if isinstance(cell, (int, float))}


def float_of(number: float) -> float:
    """Returns a number as a float, which is infinite if the number is too large."""
    with contextlib.suppress(OverflowError):
        return float(number)
    return math.inf if number > 0 else -math.inf


def _cell(value: object, name: str) -> Cell:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(cast("NDArray[Any]", value))
        value = (array.astype(float) if array.dtype.kind == "V" else array).tolist()  # bfloat16 has no Python numbers
    found = _plain(value)
    if found is NotImplemented:
        raise InvalidValueError(
            f"Expected numbers, strings and arrays to release, found {describe(value)} at {name}; "
            + ("release the values of the other clients" if isinstance(value, ClientFailure) else "convert it")
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

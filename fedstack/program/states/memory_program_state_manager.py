"""Keeps the states of a program in memory."""

from types import CoroutineType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import (
    ProgramStateExistsError,
    ProgramStateManager,
    ProgramStateNotFoundError,
    Serializable,
)
from fedstack.foundations.number_checks import check_whole_number
from fedstack.program.states.state_file import check_savable
from fedstack.program.states.state_structure import as_of_now, named_values, restored

_S = TypeVar("_S")


class MemoryProgramStateManager(ProgramStateManager[Any]):
    """Keeps the states of a program in the memory of this process, for tests and notebooks.

    What is loaded are copies, as from a file.
    """

    def __init__(self) -> None:
        self._states: dict[int, dict[str, object]] = {}

    async def get_versions(self) -> list[int] | None:
        """Returns the saved versions in order, or `None` if there are none."""
        return sorted(self._states) or None

    async def load(self, version: int, structure: _S) -> _S:
        """Returns the state of a version.

        Args:
          version: The version.
          structure: A state of the same structure, such as the first one.

        Raises:
          ProgramStateNotFoundError: If the version is not saved.
          InvalidValueError: If the state has another structure.
        """
        if version not in self._states:
            raise ProgramStateNotFoundError(version)
        values = {name: _copied(value) for name, value in self._states[version].items()}
        return cast(_S, restored(values, structure, f"version {version}"))

    def save(self, program_state: object, version: int) -> "CoroutineType[Any, Any, None]":
        """Saves a state.

        Args:
          program_state: The state.
          version: The version.

        Raises:
          ProgramStateExistsError: If the version is saved already.
          InvalidValueError: If a value is of a kind that a file of a state cannot have.
        """
        return self._save(as_of_now(program_state), version)

    async def _save(self, program_state: object, version: int) -> None:
        check_whole_number("version", version, 0)
        values = await named_values(program_state)
        check_savable(values)
        if version in self._states:
            raise ProgramStateExistsError(version=version, path="memory")
        self._states[version] = {
            name: value.to_bytes() if isinstance(value, Serializable) else _copied(value) for name, value in values
        }

    def __repr__(self) -> str:
        return f"<MemoryProgramStateManager with {len(self._states)} versions>"


def _copied(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    array = cast("NDArray[Any]", value)
    return array.astype(array.dtype.newbyteorder("="))  # as in files

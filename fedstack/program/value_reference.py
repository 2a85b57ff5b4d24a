"""References to results of calls that run."""

import asyncio
from collections.abc import Sequence
from typing import TypeAlias, cast

from fedstack.computations.types.language import MaterializableValueReference, Type

# The positions and names that lead to a part of a result.
Path: TypeAlias = "tuple[int | str, ...]"


class ValueReference(MaterializableValueReference):
    """A part of the result of a call.

    Args:
      call: The call.
      path: What leads to the part.
      type_signature: The type of the part.
    """

    def __init__(self, call: "asyncio.Task[object]", path: Path, type_signature: Type) -> None:
        self._call = call
        self._path = path
        self._type = type_signature

    @property
    def type_signature(self) -> Type:
        """The type of the value."""
        return self._type

    async def get_value(self) -> object:
        """Returns the value, once the call has ended."""
        return part_of(await asyncio.shield(self._call), self._path)

    def __repr__(self) -> str:
        return f"<ValueReference of {self._type}>"


def part_of(value: object, path: Path) -> object:
    """Returns a part of a result."""
    for step in path:
        if isinstance(step, int):
            value = cast("Sequence[object]", value)[step]
        else:
            value = cast("dict[str, object]", value)[step] if isinstance(value, dict) else getattr(value, step)
    return value

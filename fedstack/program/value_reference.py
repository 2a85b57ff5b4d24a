"""References to results of calls that run."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeAlias, cast

from fedstack.computations.types.language import MaterializableValueReference, Type

# The positions and names that lead to a part of a result.
Path: TypeAlias = "tuple[int | str, ...]"
# The attribute of errors that a program has got.
_TOLD = "_is_told"


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
        try:
            return await self.value_for_call()
        except Exception as error:
            with contextlib.suppress(AttributeError):
                setattr(error, _TOLD, True)
            raise

    async def value_for_call(self) -> object:
        """Returns the value for a further call. The program does not get an error yet."""
        return part_of(await asyncio.shield(self._call), self._path)

    def __repr__(self) -> str:
        return f"<ValueReference of {self._type}>"


def is_told(error: BaseException | None) -> bool:
    """Returns whether a program has got the error of a call, where it waited for a value."""
    return getattr(error, _TOLD, False)


def part_of(value: object, path: Path) -> object:
    """Returns a part of a result."""
    for step in path:
        if isinstance(step, int):
            value = cast("Sequence[object]", value)[step]
        else:
            value = cast("dict[str, object]", value)[step] if isinstance(value, dict) else getattr(value, step)
    return value

"""Takes the values of a program's state apart, and puts them together again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import Serializable, flatten_with_name, materialize_value, unflatten_as
from fedstack.errors import InvalidValueError
from fedstack.foundations.value_text import describe

# Returns the values of the present structure by name, given those of an older one.
Migrate: TypeAlias = Callable[[Mapping[str, object]], Mapping[str, object]]
_MOST_NAMES = 8


class _Serialized(Serializable):
    """The bytes of an object, as it was at some moment."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def to_bytes(self) -> bytes:
        return self._content

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "_Serialized":
        return cls(buffer)


def as_of_now(state: object) -> object:
    """Returns a state with its serialized objects as they are now, however they change later."""
    leaves = [_Serialized(one.to_bytes()) if isinstance(one, Serializable) else one for _, one in _named(state)]
    return unflatten_as(state, leaves)


async def named_values(state: object) -> list[tuple[str, object]]:
    """Returns the values of a state, each with its name, such as `model/weights`. References are awaited."""
    return _named(await materialize_value(state))


def restored(values: Mapping[str, object], structure: object, place: str, migrate: Migrate | None = None) -> object:
    """Returns saved values in a structure.

    Args:
      values: The values by name.
      structure: The structure. Serialized values are read by the class of the object in their place.
      place: Where the values were saved, for messages.
      migrate: Converts values that were saved with another structure.

    Raises:
      InvalidValueError: If the values have other names or kinds than those of the structure, or arrays have other
        numbers of dimensions or other sizes; the first one may grow with the rounds.
    """
    named = _named(structure)
    names = [name for name, _ in named]
    if migrate is not None and (set(names) != set(values) or _other(values, named)):
        values = migrate(values)
    if set(names) != set(values):
        missing = [name for name in names if name not in values]
        strange = [name for name in values if name not in set(names)]
        raise InvalidValueError(
            f"Expected a state with {_shown(names)} in {place}, found {_shown(list(values))}"
            f"{f'; missing: {_shown(missing)}' if missing else ''}{f'; new: {_shown(strange)}' if strange else ''}. "
            "The program has changed since: pass migrate=, a function that returns the values by their present names, "
            "or choose another folder"
        )
    if others := _other(values, named):
        raise InvalidValueError(
            f"Expected a state like the one that the program passes in {place}, found "
            f"{'; '.join(others[:_MOST_NAMES])}. The program has changed since: pass migrate=, a function that returns "
            "the values in their present form, or choose another folder"
        )
    leaves = [_read(values[name], like) for name, like in named]
    return unflatten_as(structure, leaves)


def _named(state: object) -> list[tuple[str, object]]:
    try:
        named = flatten_with_name(state)
    except TypeError:
        _check_containers(state, "")
        raise
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(
            f"Expected values with different names in a program's state, found {twice!r} twice, as the keys 'a/b', and "
            "'a' with 'b' in it, make it; rename a key"
        )
    return named


def _check_containers(value: object, name: str) -> None:
    """Checks that no sequence is of a class that cannot be made from its members, such as a range."""
    if isinstance(value, Mapping):
        for key, member in cast("Mapping[object, object]", value).items():
            _check_containers(member, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(cast("Sequence[object]", value)):
            _check_containers(member, f"{name}/{index}")
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        raise InvalidValueError(
            f"Expected lists, tuples and dictionaries as the containers of a program's state, found a "
            f"{type(cast(object, value)).__name__} at {name[1:] or 'the top'}; pass a list or an array"
        )


def _other(values: Mapping[str, object], named: Sequence[tuple[str, object]]) -> list[str]:
    """Returns what is wrong with values that are not like those of the structure."""
    pairs = [(name, _form(values[name]), _form(like)) for name, like in named]
    return [
        f"{found[1]} for {name or 'the value'}, where it passes {like[1]}"
        for name, found, like in pairs
        if found[0] and like[0] and found[0] != like[0]
    ]


def _form(value: object) -> tuple[object, str]:
    """Returns what does not change while a program runs, or `None` if that is not known, and the text for it."""
    if isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
        return "a number", "a number"
    if isinstance(value, np.ndarray):
        shape = cast("NDArray[Any]", value).shape
        return ("a number" if not shape else (len(shape), shape[1:])), f"an array of the shape {list(shape)}"
    if isinstance(value, (str, bytes, Serializable)):
        return type(value) if isinstance(value, str) else bytes, "a string" if isinstance(value, str) else "an object"
    return None, describe(value)


def _read(value: object, like: object) -> object:
    if isinstance(like, Serializable) and isinstance(value, bytes):
        return type(like).from_bytes(value)
    return value


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(name or "one value" for name in names[:_MOST_NAMES])
    return f"{shown or 'no values'}{f' and {len(names) - _MOST_NAMES} more' if len(names) > _MOST_NAMES else ''}"

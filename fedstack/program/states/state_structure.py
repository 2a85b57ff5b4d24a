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
    """Returns a state with its arrays and serialized objects as they are now, however they change later."""
    return unflatten_as(state, [_frozen(one) for _, one in _named(state)])


def _frozen(value: object) -> object:
    if isinstance(value, Serializable):
        return _Serialized(value.to_bytes())
    if isinstance(value, bytearray):
        return bytes(value)
    return cast("NDArray[Any]", value).copy() if isinstance(value, np.ndarray) else value


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
        dtypes or shapes. If the first dimension is 0 in the structure, it may be any, as of what grows with the rounds.
    """
    named = _named(structure)
    names = [name for name, _ in named]
    what = "The program has changed since: pass migrate=, a function that returns the values"
    is_migrated = False
    if migrate is not None and (set(names) != set(values) or _other(values, named)):
        values, is_migrated = _migrated(values, migrate), True
        place, what = f"what migrate returns for {place}", "Return them"
    if set(names) != set(values):
        missing = [name for name in names if name not in values]
        strange = [name for name in values if name not in set(names)]
        raise InvalidValueError(
            f"Expected a state with {_shown(names)} in {place}, found {_shown(list(values))}"
            f"{f'; missing: {_shown(missing)}' if missing else ''}{f'; new: {_shown(strange)}' if strange else ''}. "
            f"{what} by their present names{'' if is_migrated else ', or choose another folder'}"
        )
    if others := _other(values, named):
        raise InvalidValueError(
            f"Expected a state like the one that the program passes in {place}, found "
            f"{'; '.join(others[:_MOST_NAMES])}. {what} in their present form"
            f"{'' if is_migrated else ', or choose another folder. Pass an array of length 0 for one that grows'}"
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
    pairs = [(name, values[name], like) for name, like in named]
    return [
        f"{_form(found)[1]} for {name or 'the value'}, where it passes {_form(like)[1]}"
        for name, found, like in pairs
        if not _agree(found, like)
    ]


def _agree(found: object, like: object) -> bool:
    """Returns whether a value is like one in the structure, as far as that is known."""
    one, other = (cast("NDArray[Any]", value) if isinstance(value, np.ndarray) else None for value in (found, like))
    if one is not None and other is not None and one.ndim and other.ndim:
        grows = other.shape[0] == 0 and one.shape[1:] == other.shape[1:] and one.ndim == other.ndim
        return _dtype(one) == _dtype(other) and (grows or one.shape == other.shape)
    forms = (_form(found)[0], _form(like)[0])
    return None in forms or forms[0] == forms[1]


def _dtype(array: "NDArray[Any]") -> object:
    return "strings" if array.dtype.kind in "OSU" else array.dtype.newbyteorder("=")


def _form(value: object) -> tuple[str | None, str]:
    """Returns what does not change while a program runs, or `None` if that is not known, and the text for it."""
    if isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
        return "a number", "a number"
    if isinstance(value, np.ndarray):
        return "an array" if cast("NDArray[Any]", value).shape else "a number", describe(cast(object, value))
    if isinstance(value, (str, bytes, Serializable)):
        return ("a string", "a string") if isinstance(value, str) else ("an object", "an object")
    return None, describe(value)


def checked_migrate(migrate: object) -> Migrate | None:
    """Returns a function that converts values, or `None`.

    Raises:
      InvalidValueError: If it is no function.
    """
    if migrate is None or callable(migrate):
        return cast("Migrate | None", migrate)
    raise InvalidValueError(
        f"Expected a function as migrate, found {describe(migrate)}; pass one that gets the saved values by name, and "
        "returns those of the present structure"
    )


def _migrated(values: Mapping[str, object], migrate: Migrate) -> Mapping[str, object]:
    found = cast(object, migrate(values))
    if isinstance(found, Mapping):
        return cast("Mapping[str, object]", found)
    raise InvalidValueError(
        f"Expected migrate to return the values by name, such as {{'model/weights': …}}, found {describe(found)}; "
        "return a dictionary"
    )


def _read(value: object, like: object) -> object:
    if isinstance(like, Serializable) and isinstance(value, bytes):
        return type(like).from_bytes(value)
    return value


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(name or "one value" for name in names[:_MOST_NAMES])
    return f"{shown or 'no values'}{f' and {len(names) - _MOST_NAMES} more' if len(names) > _MOST_NAMES else ''}"

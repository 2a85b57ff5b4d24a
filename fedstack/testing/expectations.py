"""Assertions that compare an executor's results with the promised values, and show both if they differ."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar, cast

import attrs
import numpy as np

from fedstack.computations.types.language import Struct, struct_elements

_E = TypeVar("_E", bound=BaseException)
_MAX_SHOWN = 400


def expect(condition: bool, expected: object, found: object) -> None:
    """Raises an `AssertionError` that shows `expected` and `found`, unless the condition holds."""
    if not condition:
        raise _difference(expected, found)


# Texts are only built for values that differ, because formatting an array takes longer than comparing it.
def _difference(expected: object, found: object) -> AssertionError:
    return AssertionError(f"Expected {_shorten(str(expected))}, found {_shorten(str(found))}")


def expect_same(found: object, expected: object, where: str = "the result") -> None:
    """Expects equal values with the same members, dtypes and shapes. NaN equals NaN.

    Only the members of a container are compared, not its class: a struct equals a dictionary if its members are named,
    and a list or tuple if they are not.
    """
    found, expected = plain(found), plain(expected)
    if isinstance(expected, dict):
        _expect_members(found, cast("dict[str, object]", expected), where)
    elif isinstance(expected, (list, tuple)):
        parts = cast("Sequence[object]", expected)
        others = cast("Sequence[object]", found) if isinstance(found, (list, tuple)) else ()
        if not isinstance(found, (list, tuple)) or len(others) != len(parts):
            raise _difference(f"{parts!r} as {where}", _show(cast(object, found)))
        for index, (other, part) in enumerate(zip(others, parts)):
            expect_same(other, part, f"{where}[{index}]")
    elif isinstance(expected, (np.generic, np.ndarray)):
        array = cast("np.ndarray[Any, Any]", expected)
        if not _equal_arrays(found, array):
            raise _difference(_show(array, where), _show(found))
    elif type(found) is not type(expected) or found != expected:
        raise _difference(_show(expected, where), _show(found))


def expect_same_bits(found: object, expected: object, where: str = "the result") -> None:
    """Expects equal values, and numbers that are bitwise identical."""
    expect_same(found, expected, where)
    if _bytes_of(plain(found)) != _bytes_of(plain(expected)):
        raise _difference(f"the bits {_show(expected, where)}", _show(found))


async def expect_error(awaitable: Awaitable[object], error_class: type[_E], *fragments: str) -> _E:
    """Expects an awaitable to raise, and returns the error.

    Args:
      awaitable: The awaitable that should fail.
      error_class: The expected class of the error.
      *fragments: Texts that the error message must contain.
    """
    try:
        value = await awaitable
    except error_class as error:
        for fragment in fragments:
            expect(fragment in str(error), f"{fragment!r} in the message of {type(error).__name__}", str(error))
        return error
    except Exception as error:
        shown = _shorten(f"{type(error).__name__}: {error}")
        raise AssertionError(f"Expected {error_class.__name__} to be raised, found {shown}") from error
    raise AssertionError(f"Expected {error_class.__name__} to be raised, found the value {_shorten(repr(value))}")


def plain(value: object) -> object:
    """Converts structs in a value, of any container class, to dictionaries or tuples."""
    if isinstance(value, Struct):
        pairs = struct_elements(value)
        if pairs and all(name is not None for name, _ in pairs):
            return {str(name): plain(member) for name, member in pairs}
        return tuple(plain(member) for _, member in pairs)
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in cast("Mapping[str, object]", value).items()}
    as_dictionary = getattr(value, "_asdict", None)
    if as_dictionary is not None:
        return plain(as_dictionary())
    if isinstance(value, (list, tuple)):
        return type(cast("list[object]", value))(plain(member) for member in cast("Sequence[object]", value))
    if attrs.has(type(value)):
        return {field.name: plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    return value


def _expect_members(found: object, expected: dict[str, object], where: str) -> None:
    members = cast("dict[str, object]", found) if isinstance(found, dict) else None
    names = None if members is None else list(members)
    expect(
        names == list(expected),
        f"the members {list(expected)} in this order in {where}",
        names or _show(cast(object, found)),
    )
    for name, part in expected.items():
        expect_same((members or {})[name], part, f"{where}.{name}")


def _equal_arrays(found: object, expected: "np.ndarray[Any, Any]") -> bool:
    if not isinstance(found, (np.generic, np.ndarray)) or (np.ndim(expected) > 0) != isinstance(found, np.ndarray):
        return False
    other = cast("np.ndarray[Any, Any]", found)
    if other.dtype != expected.dtype or other.shape != expected.shape:
        return False
    if expected.dtype.kind == "V":  # bfloat16, whose NaNs NumPy does not recognise
        other, expected = other.astype(np.float32), expected.astype(np.float32)
    return np.array_equal(other, expected, equal_nan=expected.dtype.kind in "fc")


def _bytes_of(value: object) -> object:
    if isinstance(value, dict):
        return [_bytes_of(member) for member in cast("dict[str, object]", value).values()]
    if isinstance(value, (list, tuple)):
        return [_bytes_of(member) for member in cast("Sequence[object]", value)]
    if not isinstance(value, (np.generic, np.ndarray)):
        return value
    array = cast("np.ndarray[Any, Any]", value)
    return array.tolist() if array.dtype.hasobject else array.tobytes()


def _show(value: object, where: str = "") -> str:
    if isinstance(value, (np.generic, np.ndarray)):
        array = cast("np.ndarray[Any, Any]", value)
        text = f"{array.dtype}{list(array.shape) or ''} {array}"
    else:
        text = f"{type(value).__name__} {value!r}"
    return text + (f" as {where}" if where else "")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."

"""Makes arrays of what users give as columns, so that no value of theirs is changed without a word."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.values.tensor_values import check_nothing_missing
from fedstack.data.arrow_arrays import array_of_arrow, arrow_column
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import speaks_arrow

_SEQUENCES = (list, tuple, deque)


def check_named_once(names: Sequence[Any], wanted: Iterable[Any], path: str) -> None:
    """Refuses columns that share their name: a data frame gives all of them together for it.

    Args:
      names: The names of all the columns there are.
      wanted: The names of those that are to be read.
      path: Where the table stands, for messages.

    Raises:
      InvalidValueError: If there are several columns of a name that is wanted.
    """
    shared = list(dict.fromkeys(name for name in wanted if names.count(name) > 1))
    if shared:
        raise InvalidValueError(
            f"Expected one column of each name, found several named {', '.join(map(repr, shared))}; at {path}; "
            "rename or drop all but one of them"
        )


def check_unmasked(value: object, path: str) -> None:
    """Refuses masked arrays, also in lists: plain arrays would show what the masks hide.

    Args:
      value: What shall become an array.
      path: Where it stands, for messages.

    Raises:
      TypeMismatchError: If there is a masked array.
    """
    if _has_mask(value):
        raise TypeMismatchError(
            f"Expected an array without a mask, found a masked array; at {path}; say what stands for the masked "
            "elements: value.filled(…), or drop the rows yourself"
        )


def column_array(value: Any, path: str) -> NDArray[Any]:
    """Returns `value` as an array, one of objects where NumPy's own choice for a list would change an element.

    NumPy would cut NULs off the ends of texts, make 5 beside "x" the text "5", and round 2^63 + 1 beside -1.

    Args:
      value: An array, or what NumPy makes one.
      path: Where it stands, for messages.

    Raises:
      TypeMismatchError: If there is a masked array.
      InvalidValueError: If the rows differ in length, or values of a nullable column are missing.
    """
    check_unmasked(value, path)
    if speaks_arrow(value):
        return array_of_arrow(arrow_column(value), path)
    check_nothing_missing(value, path)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidValueError(f"Expected an array, found what is none: {error}; at {path}; pad its rows") from error
    if hasattr(value, "__array__") or array.ndim == 0 or array.dtype.kind not in "USfc":
        return array
    objects = np.asarray(value, np.object_)
    return array if _same(array, objects) else objects


def full_column(value: Any, path: str) -> NDArray[Any]:
    """Returns what `column_array` does, if none of its values is None.

    Raises:
      InvalidValueError: If one is.
    """
    array = column_array(value, path)
    if (
        array.ndim
        and array.dtype == np.object_
        and (missing := [place for place, item in enumerate(array.flat) if item is None])
    ):
        row = missing[0] // (array.size // len(array))
        raise InvalidValueError(
            f"Expected a value in every row, found None in row {row} ({len(missing)} missing); at {path}; drop such "
            "rows, or say what stands for missing values"
        )
    return array


def _same(array: NDArray[Any], objects: NDArray[Any]) -> bool:
    """Tells whether an array of text, bytes or floats holds what the objects are that it was made of."""
    if array.dtype.kind == "U":
        return all(isinstance(item, str) and not item.endswith("\0") for item in objects.flat)
    if array.dtype.kind == "S":
        return all(isinstance(item, bytes) and not item.endswith(b"\0") for item in objects.flat)
    kinds = set(map(type, objects.flat))
    if not any(issubclass(kind, (int, np.integer)) for kind in kinds):
        return True
    pairs = zip(objects.flat, array.flat, strict=True)
    return all(int(cast("int", item)) == found.item() for item, found in pairs if isinstance(item, (int, np.integer)))


def _has_mask(value: object) -> bool:
    if isinstance(value, np.ma.MaskedArray):
        return True
    if not isinstance(value, _SEQUENCES):
        return False
    # The kinds are few, the elements many: most lists need no look at each element.
    items = cast("Sequence[object]", value)
    suspect = any(issubclass(kind, (np.ma.MaskedArray, *_SEQUENCES)) for kind in set(map(type, items)))
    return suspect and any(map(_has_mask, items))


def unusable_ids(error: TypeError, column: str) -> InvalidValueError:
    """Returns the error for client ids that Python has no hash for."""
    return InvalidValueError(
        f"Expected client ids that can be keys of a dict, found: {error}; at column {column!r}; use text or integers"
    )


def is_missing(value: Any) -> bool:
    """Returns whether a value stands for none."""
    if value is None:
        return True
    try:
        # Not-a-number and not-a-time are the values that differ from themselves.
        return bool(value != value)
    except TypeError:
        # pandas' NA refuses to be a condition.
        return True

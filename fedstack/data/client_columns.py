"""Converts users' columns to arrays, without silently changing any value.

Tables and columns of pyarrow, polars and other libraries are read through the Arrow C stream protocol.
"""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.values.tensor_values import check_nothing_missing
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import speaks_arrow


def imported_pyarrow(module: str = "") -> Any:
    """Returns pyarrow, or one of its modules, such as `".parquet"`.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    try:
        return importlib.import_module(f"pyarrow{module}")
    except ImportError as error:
        raise ImportError(
            'Arrow data and files need pyarrow; install it with: pip install "fedstack[arrow]"'
        ) from error


def arrow_column(value: Any) -> Any:
    """Returns an Arrow table or column as a `pyarrow.ChunkedArray`. The elements of a table's array are structs.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    pa = imported_pyarrow()
    return pa.chunked_array(value) if hasattr(value, "__arrow_c_stream__") else pa.chunked_array([pa.array(value)])


def columns_of_arrow(value: Any) -> tuple[list[str], dict[str, Any]] | None:
    """Returns the column names and the columns of an Arrow table, or `None` if `value` is a single column.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    column = arrow_column(value)
    if not imported_pyarrow().types.is_struct(column.type):
        return None
    names = [field.name for field in column.type]
    return names, dict(zip(names, column.flatten()))


def array_of_arrow(column: Any, path: str) -> NDArray[Any]:
    """Returns a column as an array with one row per value. The array is a view if the column is one chunk of numbers.

    If the values are lists of equal length, the array has one more dimension.

    Args:
      column: A `pyarrow.Array` or `pyarrow.ChunkedArray`.
      path: The path of the column, for error messages.

    Raises:
      InvalidValueError: If a value is missing, lists differ in length, or the values are structs, maps or unions.
    """
    array = joined(column)
    rows = dense(array, path)
    if rows is None:
        raise InvalidValueError(
            f"Expected lists of equal length at {path}, found lists of different lengths in a column of {array.type}; "
            "pad the rows"
        )
    return rows


def joined(column: Any) -> Any:
    """Returns a column as a single `pyarrow.Array`."""
    if not hasattr(column, "chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def dense(array: Any, path: str, row_of: Callable[[int], object] = int) -> NDArray[Any] | None:
    """Returns a `pyarrow.Array` as a NumPy array, or `None` if its lists differ in length. See `array_of_arrow`.

    Args:
      array: The array.
      path: The path of the array, for error messages.
      row_of: A function from the index of a value to its row in the table, for error messages.
    """
    check_nothing_null(array, path, row_of)
    types, kind = imported_pyarrow().types, array.type
    if types.is_dictionary(kind):
        words = dense(array.dictionary, path)  # Arrow itself cannot decode all its text types
        return None if words is None else words[dense(array.indices, path, row_of)]
    if hasattr(kind, "extension_name"):
        shape = getattr(kind, "shape", None)
        return dense(array.storage, path, row_of) if shape is None else array.to_numpy_ndarray()
    if types.is_struct(kind) or types.is_map(kind) or types.is_union(kind):
        raise InvalidValueError(
            f"Expected numbers, text or lists of these at {path}, found {kind}; convert its members to separate "
            "columns first"
        )
    if not is_list(kind):
        return array.to_numpy(zero_copy_only=False)
    lengths = list_lengths(array)
    length = int(lengths[0]) if len(lengths) else getattr(kind, "list_size", 0)
    if np.any(lengths != length):
        return None
    inner = dense(array.flatten(), path, rows_of_items(array, row_of))
    return None if inner is None else inner.reshape(len(array), length, *inner.shape[1:])


def is_list(kind: Any) -> bool:
    """Returns whether an Arrow type is a list type."""
    types = imported_pyarrow().types
    kinds = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(kind) for name in kinds)


def list_lengths(array: Any) -> NDArray[Any]:
    """Returns the length of each list of a `pyarrow.Array` without missing values."""
    return imported_pyarrow(".compute").list_value_length(array).to_numpy(zero_copy_only=False)


def rows_of_items(array: Any, row_of: Callable[[int], object]) -> Callable[[int], object]:
    """Returns a `row_of` for the concatenated items of all lists in a `pyarrow.Array`; see `dense`."""
    return lambda item: row_of(int(np.searchsorted(np.cumsum(list_lengths(array)), item, "right")))


def check_nothing_null(array: Any, path: str, row_of: Callable[[int], object] = int) -> None:
    """Checks that no value is missing, because NumPy would convert missing values to NaN.

    Args:
      array: A `pyarrow.Array`.
      path: The path of the array, for error messages.
      row_of: See `dense`.

    Raises:
      InvalidValueError: If a value is missing.
    """
    if array.null_count:
        row = row_of(int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        raise InvalidValueError(
            f"Expected a value of type {array.type} in every row at {path}, found no value in row {row} "
            f"({array.null_count} missing); drop these rows, or fill in the missing values with fill_null(…)"
        )


_SEQUENCES = (list, tuple, deque)


def check_named_once(names: Sequence[Any], wanted: Iterable[Any], path: str) -> None:
    """Checks that wanted columns have unique names, because a data frame returns all columns with one name together.

    Args:
      names: The names of all columns.
      wanted: The names of the columns to read.
      path: The path of the table, for error messages.

    Raises:
      InvalidValueError: If several columns have the name of a wanted column.
    """
    shared = list(dict.fromkeys(name for name in wanted if names.count(name) > 1))
    if shared:
        raise InvalidValueError(
            f"Expected columns with unique names at {path}, found several columns named "
            f"{', '.join(map(repr, shared))}; rename or drop the duplicates"
        )


def check_unmasked(value: object, path: str) -> None:
    """Checks that a value contains no masked array, because the conversion to a plain array would reveal masked data.

    Args:
      value: The value to be converted to an array. Nested lists are searched for masked arrays, too.
      path: The path of the value, for error messages.

    Raises:
      TypeMismatchError: If `value` is or contains a masked array.
    """
    if _has_mask(value):
        raise TypeMismatchError(
            f"Expected an array without a mask at {path}, found a masked array; fill in the masked elements "
            "with value.filled(…), or drop their rows"
        )


def column_array(value: Any, path: str) -> NDArray[Any]:
    """Returns `value` as an array, without changing any element.

    The dtype that NumPy chooses for a list can change elements: NumPy strips NULs from the ends of texts, converts 5 in
    a list with "x" to "5", and rounds 2^63 + 1 in a list with -1. For such a list, the array has dtype object.

    Args:
      value: An array, or anything that NumPy converts to an array.
      path: The path of the value, for error messages.

    Raises:
      TypeMismatchError: If `value` is or contains a masked array.
      InvalidValueError: If the rows differ in length, or values of a nullable column are missing.
    """
    check_unmasked(value, path)
    if speaks_arrow(value):
        return array_of_arrow(arrow_column(value), path)
    check_nothing_missing(value, path)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidValueError(
            f"Expected rows of equal length at {path}, found ragged rows: {error}; pad the rows"
        ) from error
    if hasattr(value, "__array__") or array.ndim == 0 or array.dtype.kind not in "USfc":
        return array
    objects = np.asarray(value, np.object_)
    return array if _same(array, objects) else objects


def full_column(value: Any, path: str) -> NDArray[Any]:
    """Returns the result of `column_array`, after checking that no value is None.

    Raises:
      InvalidValueError: If a value is None. `column_array` raises further errors.
    """
    array = column_array(value, path)
    objects = array.flat if array.ndim and array.dtype == np.object_ else ()
    if missing := [place for place, item in enumerate(objects) if item is None]:
        row = missing[0] // (array.size // len(array))
        raise InvalidValueError(
            f"Expected a value in every row at {path}, found None in row {row} ({len(missing)} missing); drop these "
            "rows, or fill in the missing values"
        )
    return array


def _same(array: NDArray[Any], objects: NDArray[Any]) -> bool:
    """Returns whether an array of text, bytes or floats equals the objects from which NumPy created it."""
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
    # Lists have few classes and many elements, so checking the classes first avoids visiting most elements.
    items = cast("Sequence[object]", value)
    suspect = any(issubclass(kind, (np.ma.MaskedArray, *_SEQUENCES)) for kind in set(map(type, items)))
    return suspect and any(map(_has_mask, items))


def unusable_ids(error: TypeError, column: str, what: str = "client id") -> InvalidValueError:
    """Returns the error to raise for client ids, or other names of groups of rows, that are not hashable."""
    return InvalidValueError(
        f"Expected hashable {what}s in column {column!r}, found one that cannot be hashed: {error}; use text or "
        "integers"
    )


def is_missing(value: Any) -> bool:
    """Returns whether `value` marks a missing value: None, not-a-number, not-a-time, or pandas' NA."""
    if value is None:
        return True
    try:
        # Only not-a-number and not-a-time differ from themselves.
        return bool(value != value)
    except TypeError:
        # pandas' NA raises a TypeError when it is used as a condition.
        return True

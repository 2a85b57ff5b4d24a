"""Converts columns of users to arrays, without silently changing a value.

Tables and columns of pyarrow, polars and others are read by Arrow's C stream protocol.
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
      ImportError: If it is not installed.
    """
    try:
        return importlib.import_module(f"pyarrow{module}")
    except ImportError as error:
        raise ImportError('Arrow data and files need pyarrow: pip install "fedstack[arrow]"') from error


def arrow_column(value: Any) -> Any:
    """Returns an Arrow table or column as a `pyarrow.ChunkedArray`; that of a table has structs.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    pa = imported_pyarrow()
    return pa.chunked_array(value) if hasattr(value, "__arrow_c_stream__") else pa.chunked_array([pa.array(value)])


def columns_of_arrow(value: Any) -> tuple[list[str], dict[str, Any]] | None:
    """Returns the names of the columns of an Arrow table, and the columns; `None` for a single column.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    column = arrow_column(value)
    if not imported_pyarrow().types.is_struct(column.type):
        return None
    names = [field.name for field in column.type]
    return names, dict(zip(names, column.flatten()))


def array_of_arrow(column: Any, path: str) -> NDArray[Any]:
    """Returns a column as an array with a row for each value; a single chunk of numbers becomes a view.

    Lists of one length become a dimension of the array.

    Args:
      column: A `pyarrow.Array` or `pyarrow.ChunkedArray`.
      path: Its path, for error messages.

    Raises:
      InvalidValueError: If a value is missing, lists differ in length, or the values are structs.
    """
    array = joined(column)
    rows = dense(array, path)
    if rows is None:
        raise InvalidValueError(f"Expected lists of one length, found {array.type} of several; at {path}; pad its rows")
    return rows


def joined(column: Any) -> Any:
    """Returns a column as one `pyarrow.Array`."""
    if not hasattr(column, "chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def dense(array: Any, path: str, row_of: Callable[[int], object] = int) -> NDArray[Any] | None:
    """Returns a `pyarrow.Array` as one array; `None` if it has lists of several lengths. See `array_of_arrow`.

    Args:
      array: The array.
      path: Its path, for error messages.
      row_of: Returns the row of the value at an index, for error messages.
    """
    check_nothing_null(array, path, row_of)
    types, kind = imported_pyarrow().types, array.type
    if types.is_dictionary(kind):
        words = dense(array.dictionary, path)  # Arrow itself cannot decode all its kinds of text
        return None if words is None else words[dense(array.indices, path, row_of)]
    if hasattr(kind, "extension_name"):
        shape = getattr(kind, "shape", None)
        return dense(array.storage, path, row_of) if shape is None else array.to_numpy_ndarray()
    if types.is_struct(kind) or types.is_map(kind) or types.is_union(kind):
        raise InvalidValueError(
            f"Expected numbers, text or lists of these, found {kind}; at {path}; make columns of its members first"
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
    """Returns whether an Arrow type is a type of lists."""
    types = imported_pyarrow().types
    kinds = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(kind) for name in kinds)


def list_lengths(array: Any) -> NDArray[Any]:
    """Returns the length of each list of a `pyarrow.Array` without missing values."""
    return imported_pyarrow(".compute").list_value_length(array).to_numpy(zero_copy_only=False)


def rows_of_items(array: Any, row_of: Callable[[int], object]) -> Callable[[int], object]:
    """Returns a `row_of` for the items of all lists of a `pyarrow.Array`, one after the other."""
    return lambda item: row_of(int(np.searchsorted(np.cumsum(list_lengths(array)), item, "right")))


def check_nothing_null(array: Any, path: str, row_of: Callable[[int], object] = int) -> None:
    """Refuses missing values, which NumPy would convert to NaN.

    Args:
      array: A `pyarrow.Array`.
      path: Its path, for error messages.
      row_of: See `dense`.

    Raises:
      InvalidValueError: If a value is missing.
    """
    if array.null_count:
        row = row_of(int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        raise InvalidValueError(
            f"Expected a value in every row of a column of {array.type}, found none in row {row} "
            f"({array.null_count} missing); at {path}; drop such rows, or fill in the missing values: fill_null(…)"
        )


_SEQUENCES = (list, tuple, deque)


def check_named_once(names: Sequence[Any], wanted: Iterable[Any], path: str) -> None:
    """Refuses columns with the same name: a data frame returns all of them together for it.

    Args:
      names: The names of all columns.
      wanted: The names of the columns to be read.
      path: The path of the table, for error messages.

    Raises:
      InvalidValueError: If several columns have a wanted name.
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
      value: The value to be converted to an array.
      path: Its path, for error messages.

    Raises:
      TypeMismatchError: If there is a masked array.
    """
    if _has_mask(value):
        raise TypeMismatchError(
            f"Expected an array without a mask, found a masked array; at {path}; fill in the masked elements: "
            "value.filled(…), or drop the rows"
        )


def column_array(value: Any, path: str) -> NDArray[Any]:
    """Returns `value` as an array, of objects if the dtype that NumPy chooses for a list would change an element.

    NumPy would cut NULs off the ends of texts, convert 5 beside "x" to "5", and round 2^63 + 1 beside -1.

    Args:
      value: An array, or anything that NumPy converts to one.
      path: Its path, for error messages.

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
        raise InvalidValueError(f"Expected an array, found ragged rows: {error}; at {path}; pad them") from error
    if hasattr(value, "__array__") or array.ndim == 0 or array.dtype.kind not in "USfc":
        return array
    objects = np.asarray(value, np.object_)
    return array if _same(array, objects) else objects


def full_column(value: Any, path: str) -> NDArray[Any]:
    """Returns the result of `column_array`, after checking that no value is None.

    Raises:
      InvalidValueError: If one is.
    """
    array = column_array(value, path)
    objects = array.flat if array.ndim and array.dtype == np.object_ else ()
    if missing := [place for place, item in enumerate(objects) if item is None]:
        row = missing[0] // (array.size // len(array))
        raise InvalidValueError(
            f"Expected a value in every row, found None in row {row} ({len(missing)} missing); at {path}; drop such "
            "rows, or fill in the missing values"
        )
    return array


def _same(array: NDArray[Any], objects: NDArray[Any]) -> bool:
    """Returns whether an array of text, bytes or floats equals the objects that it was made from."""
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
    # There are few classes and many elements, so most lists are decided by the classes.
    items = cast("Sequence[object]", value)
    suspect = any(issubclass(kind, (np.ma.MaskedArray, *_SEQUENCES)) for kind in set(map(type, items)))
    return suspect and any(map(_has_mask, items))


def unusable_ids(error: TypeError, column: str) -> InvalidValueError:
    """Returns the error for client ids that are not hashable."""
    return InvalidValueError(
        f"Expected client ids that can be keys of a dict, found: {error}; at column {column!r}; use text or integers"
    )


def is_missing(value: Any) -> bool:
    """Returns whether a value stands for a missing one."""
    if value is None:
        return True
    try:
        # Not-a-number and not-a-time are the values that differ from themselves.
        return bool(value != value)
    except TypeError:
        # pandas' NA refuses to be a condition.
        return True

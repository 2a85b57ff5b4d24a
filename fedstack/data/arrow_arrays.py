"""Makes NumPy arrays of what speaks Arrow's C stream protocol: tables and columns of pyarrow, polars and others."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError


def imported_pyarrow(module: str = "") -> Any:
    """Returns the package, or one of its modules, such as `".parquet"`.

    Raises:
      ImportError: If it is not installed.
    """
    try:
        return importlib.import_module(f"pyarrow{module}")
    except ImportError as error:
        raise ImportError('Arrow data and files need pyarrow: pip install "fedstack[arrow]"') from error


def arrow_column(value: Any) -> Any:
    """Returns what speaks Arrow as one column, `pyarrow.ChunkedArray`; that of a table has structs.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    pa = imported_pyarrow()
    return pa.chunked_array(value) if hasattr(value, "__arrow_c_stream__") else pa.chunked_array([pa.array(value)])


def columns_of_arrow(value: Any) -> tuple[list[str], dict[str, Any]] | None:
    """Returns the names of the columns of a table that speaks Arrow, and these; `None` for a single column.

    Raises:
      ImportError: If pyarrow is not installed.
    """
    column = arrow_column(value)
    if not imported_pyarrow().types.is_struct(column.type):
        return None
    names = [field.name for field in column.type]
    return names, dict(zip(names, column.flatten()))


def array_of_arrow(column: Any, path: str) -> NDArray[Any]:
    """Returns a column as an array with a row for each of its values; one of numbers in one chunk is a view.

    Lists that are all of one length become a dimension of the array.

    Args:
      column: A `pyarrow.Array` or `pyarrow.ChunkedArray`.
      path: Where it stands, for messages.

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
      path: Where it stands, for messages.
      row_of: From the place of a value to what its row is called in messages.
    """
    check_nothing_null(array, path, row_of)
    types, kind = imported_pyarrow().types, array.type
    if types.is_dictionary(kind):
        words = dense(array.dictionary, path)  # which Arrow itself cannot pick of all its kinds of text
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
    """Returns whether an Arrow type is one of lists."""
    types = imported_pyarrow().types
    is_some = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(is_one(kind) for is_one in is_some)


def list_lengths(array: Any) -> NDArray[Any]:
    """Returns the length of each list of a `pyarrow.Array` in which none is missing."""
    return imported_pyarrow(".compute").list_value_length(array).to_numpy(zero_copy_only=False)


def rows_of_items(array: Any, row_of: Callable[[int], object]) -> Callable[[int], object]:
    """Returns the same as `row_of` for the items of all lists of a `pyarrow.Array`, one after the other."""
    return lambda item: row_of(int(np.searchsorted(np.cumsum(list_lengths(array)), item, "right")))


def check_nothing_null(array: Any, path: str, row_of: Callable[[int], object] = int) -> None:
    """Refuses missing values, of which NumPy would make NaN.

    Args:
      array: A `pyarrow.Array`.
      path: Where it stands, for messages.
      row_of: See `dense`.

    Raises:
      InvalidValueError: If a value is missing.
    """
    if array.null_count:
        row = row_of(int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
        raise InvalidValueError(
            f"Expected a value in every row of a column of {array.type}, found none in row {row} "
            f"({array.null_count} missing); at {path}; drop such rows, or say what stands for missing values: "
            "fill_null(…)"
        )

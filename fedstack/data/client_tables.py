"""Splits a table with the rows of many clients into one table per client."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_columns import (
    check_named_once,
    check_unmasked,
    column_array,
    columns_of_arrow,
    full_column,
    is_missing,
    unusable_ids,
)
from fedstack.data.ray_tables import RayDataset, RayRows, columns_of, rows_by_client
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import counted
from fedstack.foundations.value_text import ArrowTable, DataFrameLike, describe, is_data_frame, is_lazy, speaks_arrow


@overload
def by_client(
    table: Mapping[str, Any] | DataFrameLike | ArrowTable, client_id: str, columns: Sequence[str] | None = None
) -> dict[Any, dict[str, NDArray[Any]]]: ...
@overload
def by_client(table: RayDataset, client_id: str, columns: Sequence[str] | None = None) -> dict[Any, RayRows]: ...
def by_client(
    table: Mapping[str, Any] | DataFrameLike | ArrowTable | RayDataset,
    client_id: str,
    columns: Sequence[str] | None = None,
) -> Mapping[Any, object]:
    """Splits a table into one table per client.

    Clients are sorted by id. If the ids cannot be sorted (because they have different types), clients are in the order
    of their first rows. The rows of a client keep their order.

    >>> {who: part["x"].tolist() for who, part in by_client({"who": ["b", "a", "b"], "x": [1, 2, 3]}, "who").items()}
    {'a': [2], 'b': [1, 3]}

    Args:
      table: A mapping from names to columns, a data frame of pandas or polars, an Arrow table, any other object with
        `__arrow_c_stream__`, or a `ray.data.Dataset`, which Ray sorts by client. Columns are `dtype[rows, ...]`. A
        nullable column must have a value in every row, and the lists in an Arrow column must have equal lengths.
      client_id: The name of the column with the client id of each row.
      columns: The names of the columns to keep, in this order. By default, all columns except `client_id` are kept.

    Returns:
      A dict from each client id, as a Python value, to the columns of the client's rows. The arrays are read-only. For
      a `ray.data.Dataset`, the values of the dict are placeholders that can be passed to a computation, and the rows
      stay in Ray's object store.

    Raises:
      TypeMismatchError: If the table is of another type, or a column is a masked array.
      InvalidValueError: If a column is missing, differs in length or shares its name with another column, a row has no
        client id, or a column lacks a value in a row.
    """
    names, opened = _opened(table, client_id, "by_client")
    if isinstance(table, RayDataset):
        # A Ray dataset without rows has no column names.
        return rows_by_client(table, client_id, _kept(names, client_id, columns, "by_client")) if names else {}
    ids, arrays = _arrays(opened, client_id, _kept(names, client_id, columns, "by_client"))
    clients, rows_of = group_rows(ids, client_id)
    result: dict[Any, dict[str, NDArray[Any]]] = {client: {} for client in clients}
    for name, array in arrays.items():
        for client, rows in zip(clients, rows_of, strict=True):
            part = array[rows]
            part.flags.writeable = False
            result[client][name] = part
    return result


def sorted_by_client(
    table: Mapping[str, Any] | DataFrameLike | ArrowTable, client_id: str, columns: Sequence[str] | None, where: str
) -> tuple[dict[Any, slice], dict[str, NDArray[Any]]]:
    """Sorts the rows of a table by client. Unlike `by_client`, it makes no array for a client.

    Args:
      table: The table; see `by_client`, which takes the same except for a `ray.data.Dataset`.
      client_id: The name of the column with the client id of each row.
      columns: The names of the columns to keep; by default all others.
      where: The name of the function to which the table was passed, for error messages.

    Returns:
      The rows of each client, in the order of `by_client`, and the sorted columns, which are read-only.

    Raises:
      TypeMismatchError: See `by_client`.
      InvalidValueError: See `by_client`.
    """
    if isinstance(table, RayDataset):
        raise TypeMismatchError(
            f"Expected a table in memory for {where}, found a ray.data.Dataset; pass what fedstack.by_client returns "
            "for it to the computations"
        )
    names, opened = _opened(table, client_id, where)
    ids, arrays = _arrays(opened, client_id, _kept(names, client_id, columns, where))
    clients, rows_of = group_rows(ids, client_id)
    stops = np.cumsum([len(rows) for rows in rows_of]).tolist()
    places = {client: slice(stop - len(rows), stop) for client, rows, stop in zip(clients, rows_of, stops)}
    order = np.concatenate(rows_of) if rows_of else np.empty(0, np.intp)
    sorted_columns = {name: array[order] for name, array in arrays.items()}
    for array in sorted_columns.values():
        array.flags.writeable = False
    return places, sorted_columns


def rows_column(table: object, name: str, where: str) -> NDArray[Any]:
    """Returns a column of a table with one value per row, `dtype[rows]`.

    Args:
      table: A mapping from names to columns, a data frame, or an Arrow table; see `by_client`.
      name: The name of the column.
      where: The name of the function to which the table was passed, for error messages.

    Raises:
      TypeMismatchError: If the table is of another type, or the column is a masked array.
      InvalidValueError: If the column is missing, shares its name with another column, lacks a value in a row, or has
        several values in each row.
    """
    names, opened = _opened(table, name, where)
    if isinstance(table, RayDataset):
        raise TypeMismatchError(f"Expected a table in memory for {where}, found a dataset of Ray; take its rows first")
    _check_named(names, (name,), where)
    return one_per_row(_id_array(opened[name], f"column {name!r}"), f"column {name!r}", "value")


def one_per_row(column: NDArray[Any], path: str, what: str) -> NDArray[Any]:
    """Returns the column itself.

    Raises:
      InvalidValueError: If the array does not have one dimension.
    """
    if column.ndim != 1:
        raise InvalidValueError(
            f"Expected one {what} per row in {path}, found an array of shape {list(column.shape)}; use a "
            "one-dimensional column"
        )
    return column


def _opened(table: Any, column: str, where: str) -> tuple[list[str], Any]:
    """Returns the names of the columns of a table, and an object that returns each column by name."""
    if isinstance(cast(object, column), list):  # pandas' groupby accepts a list of columns
        raise TypeMismatchError(
            f"Expected the name of one column as client_id of {where}, found {describe(column)}; combine the columns "
            "into one column first"
        )
    if is_lazy(table):  # accessing the columns of a lazy table would cause a warning
        raise TypeMismatchError(
            f"Expected a table for {where}, found a lazy `{type(table).__name__}`; call collect() first"
        )
    arrow = columns_of_arrow(table) if speaks_arrow(table) else None
    return (_column_names(table, column, where), table) if arrow is None else arrow


def _kept(names: list[str], client_id: str, columns: Sequence[str] | None, where: str) -> list[str]:
    kept = [name for name in names if name != client_id] if columns is None else list(columns)
    _check_named(names, (client_id, *kept), where)
    return kept


def _arrays(opened: Any, client_id: str, kept: list[str]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Returns the client id of each row, and the columns to keep."""
    ids = one_per_row(_id_array(opened[client_id], f"column {client_id!r}"), f"column {client_id!r}", "client id")
    arrays = {name: full_column(opened[name], f"column {name!r}") for name in kept}
    for name, array in arrays.items():
        if array.shape[:1] != ids.shape:
            raise InvalidValueError(
                f"Expected {counted(len(ids), 'row')} in column {name!r}, as in column {client_id!r}, found an array "
                f"of shape {list(array.shape)}; pass columns with equal numbers of rows"
            )
    return ids, arrays


def _check_named(names: list[str], wanted: Sequence[str], where: str) -> None:
    for name in wanted:
        if name not in names:
            raise InvalidValueError(
                f"Expected a column named {name!r} for {where}, found the columns {names}; use one of these names"
            )
    check_named_once(names, wanted, where)


def _column_names(table: object, column: str, where: str) -> list[str]:
    if isinstance(table, Mapping):
        return list(cast("Mapping[str, object]", table))
    if isinstance(table, RayDataset):
        return columns_of(table, column)
    if is_data_frame(table):
        return list(table.columns)
    advice = "pass a dict from column names to arrays"
    if type(table).__module__.startswith("ray.data."):  # a grouped dataset, for example
        advice = f"pass the dataset itself: by_client(dataset, {column!r})"
    raise TypeMismatchError(
        f"Expected a mapping of columns or a data frame for {where}, found `{type(table).__name__}`; {advice}"
    )


def _id_array(column: Any, path: str) -> NDArray[Any]:
    """Returns the ids in a column as an array. If the column is a list, the ids keep their types and exact values.

    NumPy would convert 2^63 and 1 to floats, convert "1" and 1 to strings, and strip NULs from the ends of texts, so
    that different clients could get the same id.
    """
    if not isinstance(column, (list, tuple)):
        return column_array(column, path)
    items = list(cast("Sequence[Any]", column))
    check_unmasked(items, path)
    kinds = set(map(type, items))
    nested = not kinds.isdisjoint({list, tuple, np.ndarray})
    if nested or kinds <= {int} or kinds <= {str}:
        plain = column_array(items, path)
        if nested or plain.dtype.kind in "iuU":
            return plain
    ids = np.empty(len(items), np.object_)
    ids[:] = items
    return ids


def group_rows(ids: NDArray[Any], column: str, what: str = "client id") -> tuple[list[Any], list[NDArray[np.intp]]]:
    """Returns the distinct ids, and the indices of the rows of each id.

    Args:
      ids: The id of each row.
      column: The name of the column of ids, for error messages.
      what: What an id is, for error messages.

    Raises:
      InvalidValueError: If a row has no id, or an id is not hashable.
    """
    values = cast("list[Any]", ids.tolist())
    if ids.dtype.kind in "mM" and any(isinstance(value, int) for value in values):
        values = list(ids)  # tolist() converts nanosecond times, which Python does not have, to plain integers
    numbers: dict[Any, int] = {}
    try:
        inverse = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.intp, len(values))
    except TypeError as error:
        raise unusable_ids(error, column, what) from error
    for value in numbers:
        if is_missing(value):
            row = next(row for row, other in enumerate(values) if other is value)
            raise InvalidValueError(
                f"Expected a {what} in every row of column {column!r}, found {value!r} in row {row}; "
                f"drop rows without a {what}, or fill it in"
            )
    # A stable sort by number makes the rows of each client contiguous and keeps their order.
    stops = np.cumsum(np.bincount(inverse, minlength=len(numbers)))
    rows = np.argsort(inverse, kind="stable")
    starts = itertools.chain((0,), stops.tolist())
    groups = {value: rows[start:stop] for value, start, stop in zip(numbers, starts, stops.tolist(), strict=False)}
    try:
        clients = sorted(groups)
    except TypeError:
        clients = list(groups)
    return clients, [groups[client] for client in clients]

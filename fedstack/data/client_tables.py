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

    Clients are in the order of their ids if these can be sorted, else (ids of several kinds) in the order of their
    first rows. A client's rows keep their order.

    >>> {who: part["x"].tolist() for who, part in by_client({"who": ["b", "a", "b"], "x": [1, 2, 3]}, "who").items()}
    {'a': [2], 'b': [1, 3]}

    Args:
      table: A mapping from names to columns, a data frame of pandas or polars, an Arrow table, or anything else with
        `__arrow_c_stream__`. Columns are `dtype[rows, ...]`; a nullable one has the dtype of its values, all of which
        must be there, and lists in Arrow's columns have one length. Or a `ray.data.Dataset`, which Ray sorts by client.
      client_id: The name of the column with the client of each row.
      columns: The names of the columns to keep, in this order; all but `client_id` if left out.

    Returns:
      For each client id, as a Python value, the columns of its rows. The arrays are read-only. For a dataset of Ray,
      stand-ins to be passed to a computation; the rows stay in Ray's object store.

    Raises:
      TypeMismatchError: If the table is none of these, or a column is a masked array.
      InvalidValueError: If a column is missing, of another length or not the only one of its name, a row has no
        client id, or a column has no value in a row.
    """
    if isinstance(cast(object, client_id), list):  # as pandas' groupby takes it
        raise TypeMismatchError(
            f"Expected the name of one column as client_id, found {describe(client_id)}; at by_client; make one "
            "column of them first"
        )
    if is_lazy(table):  # reading its columns would warn
        raise TypeMismatchError(f"Expected a table, found `{type(table).__name__}`; at by_client; collect() it first")
    arrow = columns_of_arrow(table) if speaks_arrow(table) else None
    names, opened = (_column_names(table, client_id), cast(Any, table)) if arrow is None else arrow
    if isinstance(table, RayDataset) and not names:
        return {}  # a dataset without rows does not know its columns
    kept = [name for name in names if name != client_id] if columns is None else list(columns)
    for name in (client_id, *kept):
        if name not in names:
            raise InvalidValueError(f"Expected a column {name!r}, found {names}; at by_client; use one of these names")
    check_named_once(names, (client_id, *kept), "by_client")
    if isinstance(table, RayDataset):
        return rows_by_client(table, client_id, kept)
    ids = _id_array(opened[client_id], f"column {client_id!r}")
    if ids.ndim != 1:
        raise InvalidValueError(
            f"Expected one client id per row, found shape {list(ids.shape)}; at column {client_id!r}; use a flat column"
        )
    arrays = {name: full_column(opened[name], f"column {name!r}") for name in kept}
    for name, array in arrays.items():
        if array.shape[:1] != ids.shape:
            raise InvalidValueError(
                f"Expected {counted(len(ids), 'row')} as in column {client_id!r}, found shape {list(array.shape)}; "
                f"at column {name!r}; give all columns the same rows"
            )
    clients, rows_of = group_rows(ids, client_id)
    result: dict[Any, dict[str, NDArray[Any]]] = {client: {} for client in clients}
    for name, array in arrays.items():
        for client, rows in zip(clients, rows_of, strict=True):
            part = array[rows]
            part.flags.writeable = False
            result[client][name] = part
    return result


def _column_names(table: object, client_id: str) -> list[str]:
    if isinstance(table, Mapping):
        return list(cast("Mapping[str, object]", table))
    if isinstance(table, RayDataset):
        return columns_of(table, client_id)
    if is_data_frame(table):
        return list(table.columns)
    advice = "give a dict from column names to arrays"
    if type(table).__module__.startswith("ray.data."):  # that is grouped, say
        advice = f"give the dataset itself: by_client(dataset, {client_id!r})"
    raise TypeMismatchError(
        f"Expected a mapping of columns or a data frame, found `{type(table).__name__}`; at by_client; {advice}"
    )


def _id_array(column: Any, path: str) -> NDArray[Any]:
    """Returns the ids of a column; those of a list keep their classes and all their digits.

    NumPy would convert 2^63 and 1 to floats, "1" and 1 to strings, and cut NULs off the ends of texts: different
    clients would become one.
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


def group_rows(ids: NDArray[Any], column: str) -> tuple[list[Any], list[NDArray[np.intp]]]:
    """Returns the distinct ids and, for each, its rows.

    Args:
      ids: The id of each row.
      column: The name of their column, for error messages.

    Raises:
      InvalidValueError: If a row has no id, or one that is not hashable.
    """
    values = cast("list[Any]", ids.tolist())
    if ids.dtype.kind in "mM" and any(isinstance(value, int) for value in values):
        values = list(ids)  # Python has no times to the nanosecond; NumPy would make bare numbers of them
    numbers: dict[Any, int] = {}
    try:
        inverse = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.intp, len(values))
    except TypeError as error:
        raise unusable_ids(error, column) from error
    for value in numbers:
        if is_missing(value):
            row = next(row for row, other in enumerate(values) if other is value)
            raise InvalidValueError(
                f"Expected a client id in every row, found {value!r} in row {row}; at column {column!r}; "
                "drop such rows or give them an id"
            )
    # A stable sort by number puts the rows of each client side by side and keeps their order.
    stops = np.cumsum(np.bincount(inverse, minlength=len(numbers)))
    rows = np.argsort(inverse, kind="stable")
    starts = itertools.chain((0,), stops.tolist())
    groups = {value: rows[start:stop] for value, start, stop in zip(numbers, starts, stops.tolist(), strict=False)}
    try:
        clients = sorted(groups)
    except TypeError:
        clients = list(groups)
    return clients, [groups[client] for client in clients]

"""Reads the labels of rows, and orders rows by label."""

from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.data.client_columns import full_column
from fedstack.data.client_tables import group_rows, one_per_row, rows_column
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe, is_data_frame, is_lazy


@attrs.frozen(eq=False)
class Labels:
    """The labels of rows.

    Attributes:
      codes: The label of each row, `intp[rows]`, as a position in `values`.
      values: The distinct labels as Python values, sorted if they can be sorted.
      counts: The number of rows with each label, `intp[labels]`.
    """

    codes: NDArray[np.intp]
    values: list[Any]
    counts: NDArray[np.intp]


def column_of(data: object, name: str | None, where: str) -> NDArray[Any]:
    """Returns the column by which rows are partitioned, `dtype[rows]`.

    Args:
      data: A table, or the column itself if `name` is `None`.
      name: The name of the column in the table.
      where: The name of the function to which `data` was passed, for error messages.

    Raises:
      TypeMismatchError: If `data` is not a table although a name is given, or is a table without a name.
      InvalidValueError: If the table has no such column, or a value is missing.
    """
    if name is not None:
        return rows_column(data, name, where)
    if isinstance(data, dict) or is_data_frame(data) or is_lazy(data):
        raise TypeMismatchError(
            f"Expected a column of labels for {where}, found {describe(cast(object, data))}; say by which column to "
            "partition the table: partition_by"
        )
    return one_per_row(full_column(data, "the labels"), "the labels", "label")


def labels_of(data: object, name: str | None, where: str, what: str = "label") -> Labels:
    """Returns the labels of rows; see `column_of`.

    Raises:
      InvalidValueError: If there are no rows, or a label is missing or NaN.
    """
    column = column_of(data, name, where)
    path = name or "labels"
    if not len(column):
        raise InvalidValueError(f"Expected at least one row for {where}, found none; pass the data of the clients")
    if column.dtype.kind not in "biu" and (column.dtype.kind != "f" or np.isnan(column).any()):
        # Text and objects are hashed, which is faster than sorting them, and this names the row of a NaN.
        values, rows_of = group_rows(column, path, what)
        counts = np.fromiter(map(len, rows_of), np.intp, len(rows_of))
        codes = np.empty(len(column), np.intp)
        codes[np.concatenate(rows_of)] = np.repeat(np.arange(len(values)), counts)
        return Labels(codes, values, counts)
    found, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
    return Labels(codes, found.tolist(), counts)


def stable_order(codes: NDArray[np.intp], number: int) -> NDArray[np.intp]:
    """Returns the indices of rows sorted by code, in which rows with one code keep their order.

    Args:
      codes: The code of each row, less than `number`.
      number: The number of codes. NumPy sorts integers of 16 bits in linear time, ten times as fast as others.
    """
    return np.argsort(codes.astype(np.min_scalar_type(max(number - 1, 0))), kind="stable")


def shuffled_by_label(labels: Labels, random: np.random.Generator) -> NDArray[np.intp]:
    """Returns the indices of all rows, sorted by label, and in random order among the rows with one label."""
    rows = random.permutation(len(labels.codes))
    return rows[stable_order(labels.codes[rows], len(labels.values))]


def dealt(labels: Labels, numbers: NDArray[np.intp], random: np.random.Generator) -> NDArray[np.intp]:
    """Returns the client of each row, `intp[rows]`, with rows chosen at random among the rows with one label.

    Args:
      labels: The labels of the rows.
      numbers: How many rows with each label each client gets, `intp[labels, clients]`. The sum for each label is the
        number of rows with this label.
      random: The source of randomness.
    """
    num_clients = numbers.shape[1]
    owners = np.empty(len(labels.codes), np.intp)
    takers: NDArray[np.intp] = np.broadcast_to(np.arange(int(num_clients)), numbers.shape)
    owners[shuffled_by_label(labels, random)] = np.repeat(takers.ravel(), numbers.ravel())
    return owners

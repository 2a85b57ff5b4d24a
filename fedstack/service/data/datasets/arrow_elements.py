"""Converts data read by pyarrow into elements, and Arrow types into types of the language."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string, shape_fits, tensor_leaves
from fedstack.computations.values.columns import Column, ListColumn, RowsColumn, ScalarColumn, StructColumn
from fedstack.computations.values.tensor_values import kind_of_dtype, quiet_context, read_only
from fedstack.data.client_columns import (
    check_nothing_null,
    dense,
    imported_pyarrow,
    is_list,
    joined,
    list_lengths,
    rows_of_items,
)
from fedstack.errors import FedstackError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import shorten
from fedstack.service.data.reading.blocks import column_over

# Maps the names of Arrow types to NumPy's names where they differ. Arrow's own conversion would import pandas.
_NUMPY_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def type_of_arrow(kind: Any, path: str) -> Type:
    """Returns the element type of a column with the Arrow type `kind`.

    Raises:
      TypeMismatchError: If the language has no corresponding type.
    """
    types = imported_pyarrow().types
    if types.is_struct(kind):
        return StructType([(field.name, type_of_arrow(field.type, f"{path}, member {field.name!r}")) for field in kind])
    if types.is_dictionary(kind):
        return type_of_arrow(kind.value_type, path)
    if hasattr(kind, "storage_type"):
        shape = getattr(kind, "shape", None)
        found = type_of_arrow(kind.storage_type if shape is None else kind.value_type, path)
        return found if shape is None else TensorType(cast(TensorType, found).dtype, shape)
    if is_list(kind):
        inner = type_of_arrow(kind.value_type, path)
        if isinstance(inner, TensorType):
            return TensorType(inner.dtype, [getattr(kind, "list_size", None), *(inner.shape or ())])
    text = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    is_text = any(getattr(types, f"is_{name}")(kind) for name in text)
    try:
        return TensorType(np.str_ if is_text else np.dtype(_NUMPY_NAMES.get(str(kind), str(kind))).type)
    except (TypeError, ValueError, SyntaxError, NotImplementedError):
        raise TypeMismatchError(
            f"Expected numbers, text, or lists and structs of these in {path}, found {kind}; leave out this column by "
            "passing columns=[...]"
        ) from None


def check_text(element: Type) -> None:
    """Checks that elements can be read from text.

    Raises:
      TypeMismatchError: If the elements contain anything other than text, numbers and bools.
    """
    for path, tensor in tensor_leaves(element):
        if kind_of_dtype(tensor.dtype) not in "Sbif" or tensor.shape is None:
            raise TypeMismatchError(f"Expected text, numbers, bools or lists of these at {path}, found {tensor}")


def arrow_type(element: Type) -> Any:
    """Returns the Arrow type to use when text is parsed as elements of a type. All floats are parsed as float64."""
    pa = imported_pyarrow()
    if isinstance(element, StructType):
        return pa.struct([(name, arrow_type(member)) for name, member in fields_of(element)])
    tensor = cast(TensorType, element)
    kind = kind_of_dtype(tensor.dtype)
    found = pa.string() if kind == "S" else pa.float64() if kind == "f" else pa.from_numpy_dtype(tensor.dtype)
    for _ in tensor.shape or ():
        found = pa.list_(found)
    return found


@attrs.frozen
class ArrowReader:
    """Converts data read by pyarrow into elements.

    Attributes:
      path: The path of the file, for error messages.
      from_text: Whether the file is a text file. Floats in text files are read as float64 and then narrowed.
    """

    path: str
    from_text: bool = False

    def until_failure(self, values: Any, element: Type, first: int) -> Iterator[Column]:
        """Yields the elements before the first invalid element, then raises the error for that element.

        Args:
          values: The values for which `column` raised an error.
          element: The type of an element.
          first: The row number of the first value in the file, for error messages.
        """
        good, bad = 0, len(values)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self.column(values.slice(good, middle - good), element, first)
                good = middle
            except FedstackError:
                bad = middle
        if good:
            yield self.column(values.slice(0, good), element, first)
        self.column(values.slice(good), element, first + good)

    def column(self, values: Any, element: Type, first: int, name: str = "") -> Column:
        """Converts an Arrow array into a column of elements.

        Args:
          values: A `pyarrow.Array` or `pyarrow.ChunkedArray`.
          element: The type of an element.
          first: The row number of the first value in the file, for error messages.
          name: The name of the column, for error messages.

        Raises:
          InvalidValueError: If a value is missing, or out of range for the element's type.
          TypeMismatchError: If the values do not have the element's type.
        """
        array, place = joined(values), f"{self.path}{name}"

        def row_of(row: int) -> str:
            return f"{first + row} of the file"

        check_nothing_null(array, place, row_of)
        if isinstance(element, StructType):
            return self._structs(array, element, first, name)
        tensor = cast(TensorType, element)
        if is_string(tensor) and is_scalar(tensor):
            return ListColumn(_texts(array, tensor, place), list_is_own=True)
        rows = dense(array, place, row_of)
        if rows is not None:
            return self._rows(rows, tensor, first, place)
        lists = _ragged(array, place, row_of)
        items = [self._rows(row[None], tensor, first + k, place).items()[0] for k, row in enumerate(lists)]
        return ListColumn(items, list_is_own=True)

    def _structs(self, array: Any, element: StructType, first: int, name: str) -> Column:
        is_struct = imported_pyarrow().types.is_struct(array.type)
        members = {field.name: member for field, member in zip(array.type, array.flatten())} if is_struct else {}
        wanted = [cast(str, member) for member, _ in fields_of(element)]
        if not members.keys() >= set(wanted):
            raise TypeMismatchError(f"Expected {element} in {self.path}{name}, found {array.type}")
        columns = [
            self.column(members[n], t, first, f"{name}, column {n!r}") for n, (_, t) in zip(wanted, fields_of(element))
        ]
        return StructColumn(tuple(columns), len(array))

    def _rows(self, rows: NDArray[Any], tensor: TensorType, first: int, place: str) -> Column:
        """Returns rows as a column with the element's dtype.

        The cast must be lossless, except that floats from text may lose precision but must stay finite.
        """
        dtype, kind = tensor.dtype, kind_of_dtype(tensor.dtype)
        narrows = self.from_text and kind == "f"
        is_one = kind_of_dtype(rows.dtype) == kind and (narrows or kind == "S" or np.can_cast(rows.dtype, dtype))
        if not is_one or not shape_fits(rows.shape[1:], tensor.shape):
            where = f", row {first}" if len(rows) == 1 else ""
            raise TypeMismatchError(
                f"Expected rows of {tensor} in {place}{where}, found rows of {rows.dtype}{list(rows.shape[1:])}"
            )
        if kind == "S":
            return column_over(rows, TensorType(np.str_, rows.shape[1:]), len(rows), place)
        values = quiet_context().run(np.asarray, rows, dtype)
        if narrows:
            lost = (np.isinf(values) & np.isfinite(rows)).reshape(len(rows), -1).any(axis=1)
            for row in np.flatnonzero(lost)[:1].tolist():
                raise InvalidValueError(
                    f"Expected {tensor} in {place}, row {first + row}, found {shorten(rows[row].tolist())}; correct "
                    "the file, or read the column as a wider type"
                )
        return (ScalarColumn if is_scalar(tensor) else RowsColumn)(read_only(np.ascontiguousarray(values)))


def _texts(array: Any, tensor: TensorType, place: str) -> list[object]:
    pa = imported_pyarrow()
    if pa.types.is_dictionary(array.type):
        words = _texts(array.dictionary, tensor, place)
        return [words[index] for index in array.indices.to_pylist()]
    if type_of_arrow(array.type, place) != tensor:
        raise TypeMismatchError(f"Expected {tensor} in {place}, found {array.type}")
    return array.cast(pa.large_binary()).to_pylist()


def _ragged(array: Any, place: str, row_of: Callable[[int], object]) -> list[NDArray[Any]]:
    """Returns each list of an array as a NumPy array; the lists may have different lengths."""
    inner = dense(array.flatten(), place, rows_of_items(array, row_of))
    if inner is not None:
        return np.split(inner, np.cumsum(list_lengths(array))[:-1])
    found = [dense(array.slice(row, 1), place) for row in range(len(array))]
    if any(row is None for row in found):
        raise InvalidValueError(
            f"Expected lists of equal length within each row in {place}, found lists of different lengths; pad the "
            "lists"
        )
    return [cast("NDArray[Any]", row)[0] for row in found]

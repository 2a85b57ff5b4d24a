"""Names what users give in messages, whatever it is, and tells tables from other objects."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np


def shorten(value: object, limit: int = 80) -> str:
    """Shows a value in a message, cut to `limit` characters."""
    try:
        text = repr(value)
    except Exception as error:  # of the user's own class, of a list in itself, of an integer with too many digits
        text = f"whose repr raises {type(error).__name__}"
    text = " ".join(text.split()) if "\n" in text else text  # arrays have lines
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe(value: object) -> str:
    """Names a value by its type and, where short, its content."""
    if is_data_frame(value):
        names = cast("Iterable[object]", getattr(value, "column_names", None) or value.columns)
        return f"a {type(value).__name__} with the columns {shorten(list(names))}"
    if isinstance(value, np.ndarray):
        array = cast(np.ndarray, value)
        return f"an array {array.dtype}{list(array.shape)}"
    if isinstance(value, np.generic):
        scalar = cast(np.generic, value)
        return f"{scalar.dtype} {scalar}"
    if value is None:
        return "None"
    return f"{type(value).__name__} {shorten(value)}"


@runtime_checkable
class DataFrameLike(Protocol):
    """What a table must have if it is not a mapping; a pandas `DataFrame` does."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def is_data_frame(value: object) -> TypeGuard[DataFrameLike]:
    """Tells whether a value is a table with named columns, and no array whose fields NumPy shows as attributes."""
    return not is_lazy(value) and isinstance(value, DataFrameLike) and not isinstance(value, np.ndarray)


def is_lazy(value: object) -> bool:
    """Returns whether a value is a table that is yet to be computed, as those of polars' `lazy()` are."""
    return hasattr(type(value), "collect") and hasattr(type(value), "columns")


class ArrowTable(Protocol):
    """What has columns, and gives them by Arrow's C stream protocol: tables of pyarrow, frames of polars."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def speaks_arrow(value: object) -> bool:
    """Returns whether a value is a table or a column that is to be read by Arrow's C protocols.

    What pandas has speaks them too, and calls NaN among its floats a missing value; so it goes by its own names.
    """
    kind = type(value)
    return (hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")) and not hasattr(kind, "isna")

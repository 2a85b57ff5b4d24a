"""Describes users' values in messages, and recognizes tables among these values."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np


def shorten(value: object, limit: int = 80) -> str:
    """Returns the repr of a value, truncated to `limit` characters."""
    try:
        text = repr(value)
    except Exception as error:  # raised by a user's class, or for an integer with too many digits
        text = f"whose repr raises {type(error).__name__}"
    text = " ".join(text.split()) if "\n" in text else text  # the repr of an array has several lines
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe(value: object) -> str:
    """Returns a description of a value: its type and, for small values, its content."""
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
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(value, "shape"):
        return f"a JAX array {getattr(value, 'dtype', '')}{list(cast(Any, value).shape)}"
    return f"{type(value).__name__} {shorten(value)}"


@runtime_checkable
class DataFrameLike(Protocol):
    """A table that is not a mapping, such as a pandas `DataFrame`."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def is_data_frame(value: object) -> TypeGuard[DataFrameLike]:
    """Returns whether a value is a table with named columns. NumPy arrays with named fields do not count."""
    return not is_lazy(value) and isinstance(value, DataFrameLike) and not isinstance(value, np.ndarray)


def is_lazy(value: object) -> bool:
    """Returns whether a value is a table that has not been computed yet, such as the result of polars' `lazy()`."""
    return hasattr(type(value), "collect") and hasattr(type(value), "columns")


class ArrowTable(Protocol):
    """A table that exports its columns through Arrow's C stream interface, such as a pyarrow or polars table."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def speaks_arrow(value: object) -> bool:
    """Returns whether to read a table or column through Arrow's C data interface.

    Pandas objects also support the interface, but they export NaN as a missing value. Therefore they are read through
    their own methods.
    """
    kind = type(value)
    return (hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")) and not hasattr(kind, "isna")

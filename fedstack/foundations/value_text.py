"""Describes values of users in messages, and recognises tables."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np


def shorten(value: object, limit: int = 80) -> str:
    """Returns the repr of a value, cut to `limit` characters."""
    try:
        text = repr(value)
    except Exception as error:  # a user's class, a list that contains itself, an integer of too many digits
        text = f"whose repr raises {type(error).__name__}"
    text = " ".join(text.split()) if "\n" in text else text  # arrays have lines
    return text if len(text) <= limit else text[: limit - 3] + "..."


def describe(value: object) -> str:
    """Describes a value by its type and, where that is short, its content."""
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
    """A table that is not a mapping, such as a pandas `DataFrame`."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def is_data_frame(value: object) -> TypeGuard[DataFrameLike]:
    """Returns whether a value is a table with named columns. An array with named fields is not."""
    return not is_lazy(value) and isinstance(value, DataFrameLike) and not isinstance(value, np.ndarray)


def is_lazy(value: object) -> bool:
    """Returns whether a value is a table that has yet to be computed, as polars' `lazy()` returns."""
    return hasattr(type(value), "collect") and hasattr(type(value), "columns")


class ArrowTable(Protocol):
    """A table that exports its columns by Arrow's C stream protocol, such as those of pyarrow and polars."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def speaks_arrow(value: object) -> bool:
    """Returns whether a table or column is to be read by Arrow's C protocols.

    Those of pandas support them too, but export NaN as a missing value, so they are read by their own methods.
    """
    kind = type(value)
    return (hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")) and not hasattr(kind, "isna")

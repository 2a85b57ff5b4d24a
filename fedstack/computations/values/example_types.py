"""Finds the language's type of an example value, from whatever library the value is."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, cast

import attrs
import numpy as np

from fedstack.computations.types.language import StructType, StructWithPythonType, TensorType, Type, infer_type
from fedstack.computations.types.type_structure import join_path
from fedstack.computations.values.records import AttributeDict, KeyedTuple, OrderedAttributeDict, Record
from fedstack.computations.values.tensor_values import check_nothing_missing
from fedstack.errors import TypeMismatchError
from fedstack.foundations.number_checks import checked_flag
from fedstack.foundations.value_text import describe, is_data_frame, is_lazy

_Members = list[tuple[str | None, object]]
# The containers to use in place of dictionaries that cannot be made from pairs, or that only leaf functions receive.
_MADE_OTHERWISE: Mapping[type, type] = MappingProxyType(
    {AttributeDict: dict, OrderedAttributeDict: OrderedDict, defaultdict: dict, Counter: dict}
)
_FORMS = "pass numbers, strings, arrays, data frames, or dictionaries, tuples and lists of these"


def type_of(example: object, *, open_rows: bool = False) -> Type:
    """Returns the type of the language that an example value has, to declare computations with.

    >>> str(type_of({"layer1.weight": np.zeros((2, 3), np.float32), "steps": 5}))
    '<layer1.weight=float32[2,3],steps=int32>'

    Args:
      example: A value that the computation will receive, or one like it:

        - an array or tensor of NumPy, PyTorch or JAX, or anything else with a dtype and a shape (which is not read);
        - a Python number, string or boolean. A `float` is a `float32` and an `int` an `int32` if it fits, as for the
          language; NumPy scalars keep their dtypes;
        - a data frame of pandas or polars, or an Arrow table: a dict of its columns, `dtype[?]` each;
        - dictionaries (such as a `state_dict`), tuples, named tuples, lists, dataclasses and attrs classes of these, in
          any depth: a struct with the same names and the same container.
      open_rows: Whether the first dimension of every array has any size, as for the rows of a client.

    Raises:
      TypeMismatchError: If the language has no type for a part of the value. The message contains the path of the part.
    """
    return type_at(example, "example", checked_flag("open_rows", open_rows))


def type_at(value: object, path: str, open_rows: bool = False) -> Type:
    """Returns the type of an example value; see `type_of`.

    Args:
      value: The value.
      path: The path of the value, for error messages.
      open_rows: See `type_of`.

    Raises:
      TypeMismatchError: If the language has no type for a part of the value.
    """
    kind = type(value)
    if issubclass(kind, (bool, int, float, complex, str, bytes)) and not issubclass(kind, np.generic):
        try:
            return cast(Type, infer_type(value))
        except ValueError as error:  # an integer that needs more than 64 bits
            raise TypeMismatchError(
                f"Expected integers of at most 64 bits, found {describe(value)}; at {path}"
            ) from error
    if hasattr(kind, "type_signature"):  # what the language has typed, such as a computation
        return cast(Any, value).type_signature
    if is_data_frame(value):
        table = cast(Any, value)
        names = list(getattr(table, "column_names", None) or table.columns)
        _check_text(names, path)
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise TypeMismatchError(
                f"Expected columns with names of their own, found {twice[0]!r} twice; at {path}; rename one of them"
            )
        columns = [(name, _array_type(table[name], join_path(path, name, 0), True)) for name in names]
        return _struct_type(columns, dict, path)
    found = _members(value)
    if found is None:
        return _array_type(value, path, open_rows)
    members, container = found
    types = [
        (name, type_at(member, join_path(path, None if name is None else str(name), index), open_rows))
        for index, (name, member) in enumerate(members)
    ]
    return _struct_type(types, container, path)


def _struct_type(types: Sequence[tuple[str | None, Type]], container: type | None, path: str) -> Type:
    _check_text([name for name, _ in types if name is not None], path)
    elements = [member if name is None else (name, member) for name, member in types]
    try:
        return StructType(elements) if container is None else StructWithPythonType(elements, container)
    except ValueError as error:
        raise TypeMismatchError(f"Expected names that the language can use; at {path}: {error}; rename them") from error


def _check_text(names: Sequence[object], path: str) -> None:
    odd = [name for name in names if not isinstance(name, str)]
    if odd:
        raise TypeMismatchError(f"Expected names that are text, found {describe(odd[0])}; at {path}; use str(name)")


def _members(value: object) -> tuple[_Members, Any] | None:
    """Returns the names and values of a struct's members and its container, or `None` for other values."""
    kind: type = type(value)
    if isinstance(value, Record):
        if None in value.__names__:
            return [(None, member) for member in tuple(value)], tuple
        return list(zip(value.__names__, tuple(value))), OrderedDict
    if isinstance(value, Mapping):
        is_made_of_pairs = isinstance(value, dict) and kind not in _MADE_OTHERWISE
        pairs: _Members = list(cast("Mapping[str, object]", value).items())
        return pairs, kind if is_made_of_pairs else _MADE_OTHERWISE.get(kind, dict)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        container = kind.__bases__[1] if isinstance(value, KeyedTuple) else kind
        return list(cast(Any, value)._asdict().items()), container
    if isinstance(value, (tuple, list)):
        items = cast("Sequence[Any]", value)
        if items and all(map(_is_pair, items)):
            return [(name, member) for name, member in items], None
        return [(None, member) for member in items], kind
    if attrs.has(kind):
        return [(field.name, getattr(value, field.name)) for field in attrs.fields(kind)], kind
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclass_fields(value)], kind
    return None


def _is_pair(value: object) -> bool:
    """Returns whether a value is a name with a value. For the language, a list of these is a struct with names."""
    if not isinstance(value, (tuple, list)):
        return False
    items = cast("Sequence[object]", value)
    return len(items) == 2 and isinstance(items[0], str)


def _array_type(value: object, path: str, open_rows: bool) -> Type:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeMismatchError(
            f"Expected an array without a mask, found a masked array; at {path}; fill in the masked elements with "
            "value.filled(…)"
        )
    dtype, sizes = _dtype_of(value), getattr(value, "shape", None)
    if dtype is None or dtype == np.object_ or sizes is None:
        if not hasattr(type(value), "__array__") or is_lazy(value):
            advice = "call collect() first" if is_lazy(value) else _FORMS
            advice = "pass its state_dict()" if hasattr(type(value), "state_dict") else advice
            raise TypeMismatchError(f"Expected a value with a type, found {describe(value)}; at {path}; {advice}")
        check_nothing_missing(value, path)
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:  # of JAX's keys and PyTorch's quantized tensors
            raise TypeMismatchError(
                f"Expected a value with a type, found {describe(value)}; at {path}: {error}; convert it to a "
                "dtype that the language has"
            ) from error
        dtype, sizes = array.dtype, array.shape
        if dtype == np.object_ and all(isinstance(item, (str, bytes)) for item in array.flat):
            dtype = np.dtype(np.str_)
    shape = [size if isinstance(size, int) else None for size in sizes]  # JAX may have symbols for sizes
    if open_rows and shape:
        shape[0] = None
    try:
        return TensorType(dtype.type, shape)
    except NotImplementedError as error:
        raise TypeMismatchError(
            f"Expected an array of numbers or text, found {describe(value)} of {dtype}; at {path}; convert it to a "
            "dtype that the language has"
        ) from error


def _dtype_of(value: object) -> "np.dtype[Any] | None":
    """Returns the dtype of an array without reading it, or `None` if it has none that NumPy knows."""
    try:
        return np.dtype(str(cast(Any, value).dtype).removeprefix("torch."))
    except (AttributeError, TypeError):
        return None

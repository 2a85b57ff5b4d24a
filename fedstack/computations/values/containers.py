"""Converts payloads to results: Python containers of the annotated type, and arrays that the caller owns.

The annotated result type of a computation specifies the container of each struct in the user's code, such as a named
tuple, an `OrderedDict` or an attrs class. A struct without a container becomes an `OrderedDict` if its members have
names and a tuple otherwise, as in the language.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import FederatedType, SequenceType, Struct, StructType, TensorType, Type
from fedstack.computations.types.type_structure import (
    TypeMemo,
    contains_sequence,
    fields_of,
    is_client_valued,
    no_memory_for,
)
from fedstack.computations.values.columns import Column
from fedstack.computations.values.deferred_column import Elsewhere
from fedstack.computations.values.ownership import BUFFER_OF_ONE, whole_buffer
from fedstack.computations.values.records import (
    OrderedAttributeDict,
    attribute_dict_maker,
    keyed_tuple_class,
    record_class,
)
from fedstack.computations.values.sequences import check_one_order
from fedstack.errors import InvalidComputationError

Maker = Callable[[Sequence[object]], object]
_NOBODY: Mapping[int, object] = MappingProxyType({})


def to_result(payload: object, type_spec: Type, absent: Mapping[int, object] = _NOBODY) -> object:
    """Returns the Python value of a payload, with containers of the annotated type and arrays that the caller owns.

    Args:
      payload: The payload.
      type_spec: The type of the payload.
      absent: What lists with one value per client contain for some clients, by the index of the client.

    Raises:
      InvalidComputationError: If a struct has both named and unnamed members, which no container supports.
    """
    return _converted(payload, type_spec, _own, result_maker, absent)


def _converted(
    payload: object,
    type_spec: Type,
    tensor: Callable[[object], object],
    maker: Callable[[StructType], Maker],
    absent: Mapping[int, object] = _NOBODY,
) -> object:
    """Converts the tensors of a payload with `tensor`, and builds each struct with the maker of its type."""
    if isinstance(type_spec, TensorType):
        return tensor(payload)
    if isinstance(type_spec, FederatedType) and not is_client_valued(type_spec):
        return _converted(payload, type_spec.member, tensor, maker, absent)
    if isinstance(type_spec, StructType):
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec))
        return maker(type_spec)([_converted(member, t, tensor, maker, absent) for member, (_, t) in members])
    if isinstance(type_spec, FederatedType):
        column = cast(Column, payload)
        may_stand = not column.is_here
        items = [
            item if may_stand and isinstance(item, Elsewhere) else _converted(item, type_spec.member, tensor, maker)
            for item in column.results()
        ]
        for client, failure in absent.items():
            items[client] = failure
        return items
    if isinstance(type_spec, SequenceType):
        elements = cast("Iterable[object]", payload)
        return [_converted(item, type_spec.element, tensor, maker) for item in elements]
    return tensor(payload)


def to_elements(payload: object, type_spec: Type) -> object:
    """Returns the result of `to_result`, for receivers that read all passes of a sequence in one order.

    Raises:
      InvalidValueError: If a sequence has a different order in each pass.
    """
    _check_orders(payload, type_spec)
    return to_result(payload, type_spec)


def _check_orders(payload: object, type_spec: Type) -> None:
    if not contains_sequence(type_spec):
        return
    if isinstance(type_spec, FederatedType):
        for item in cast(Column, payload).items() if is_client_valued(type_spec) else [payload]:
            _check_orders(item, type_spec.member)
    elif isinstance(type_spec, StructType):
        for member, (_, member_type) in zip(cast("tuple[object, ...]", payload), fields_of(type_spec)):
            _check_orders(member, member_type)
    else:
        check_one_order(payload, "an executor of another library")


def to_structure(payload: object, type_spec: Type, *, kept: bool = True) -> object:
    """Returns the result of `ExecutorValue.compute()`, made of the language's `Struct`s, lists and NumPy values.

    Args:
      payload: The payload.
      type_spec: The type of the payload.
      kept: Whether the payload is kept for later calls of `compute()`. If so, its arrays are copied.
    """
    return _converted(payload, type_spec, _copied if kept else _own, _struct_maker)


def _struct_maker(struct: StructType) -> Maker:
    return lambda members: Struct([(name, member) for (name, _), member in zip(fields_of(struct), members)])


def _copied(payload: object) -> object:
    return cast("NDArray[Any]", payload).copy() if isinstance(payload, np.ndarray) else payload


def _own(payload: object) -> object:
    """Returns a writable array that only the caller references. The payload must not be used afterwards.

    A payload array is a read-only view of a buffer that a leaf returned or the user passed. The buffer itself is
    returned if nothing else references it (see `ownership.py`); otherwise the result is a copy.
    """
    if not isinstance(payload, np.ndarray):
        return payload
    array = cast("NDArray[Any]", payload)
    buffer = whole_buffer(array)
    if buffer is not None and sys.getrefcount(buffer) == BUFFER_OF_ONE:
        return buffer
    try:
        return array.copy()
    except MemoryError as error:  # the array may be broadcast from one element, as for a maximum over no clients
        raise no_memory_for(f"{array.dtype}{list(array.shape)}", array.nbytes) from error


_result_makers: TypeMemo[Maker] = TypeMemo()
_argument_makers: TypeMemo[Maker] = TypeMemo()


def result_maker(struct: StructType) -> Maker:
    """Returns the function that builds the container of a struct type from its members, for results."""
    found = _result_makers.get(struct)
    return _result_makers.put(struct, _make_result_maker(struct)) if found is None else found


def _make_result_maker(struct: StructType) -> Maker:
    names = [name for name, _ in fields_of(struct)]
    container = struct.python_container
    if any(name is None for name in names) and any(name is not None for name in names):
        raise InvalidComputationError(
            f"Expected a result in which either all members or no members have names, found {struct}; name all "
            "members or none"
        )
    if container is None:
        container = OrderedDict if names and names[0] is not None else tuple
    make = cast("Callable[..., object]", container)
    if takes_keywords(container):
        keys = cast("list[str]", names)
        return lambda members: make(**dict(zip(keys, members)))
    if issubclass(container, dict):
        return lambda members: make(zip(names, members))
    return make


def takes_keywords(container: type) -> bool:
    """Returns whether a container is constructed from keyword arguments: a named tuple, attrs class or dataclass."""
    return hasattr(container, "_fields") or attrs.has(container) or is_dataclass(container)


def argument_maker(struct: StructType) -> Maker:
    """Returns the function that builds the structs that leaf functions receive, with access by attribute and by key."""
    found = _argument_makers.get(struct)
    return _argument_makers.put(struct, _make_argument_maker(struct)) if found is None else found


def _make_argument_maker(struct: StructType) -> Maker:
    names = tuple(name for name, _ in fields_of(struct))
    container = struct.python_container
    if container is None or (names and container in (list, tuple) and names[0] is not None):
        return record_class(names)
    if container is OrderedDict:
        return lambda members: OrderedAttributeDict(zip(cast("tuple[str, ...]", names), members))
    if container is dict:
        return attribute_dict_maker(cast("tuple[str, ...]", names))
    if issubclass(container, tuple) and hasattr(cast(type, container), "_fields"):
        keyed, keys = keyed_tuple_class(cast("type[tuple[object, ...]]", container)), cast("list[str]", names)
        return lambda members: keyed(**dict(zip(keys, members)))
    return result_maker(struct)

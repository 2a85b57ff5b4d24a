"""Gives results the Python containers of their annotated type, and buffers that belong to nobody else.

The annotated result type of a computation says which container each struct had in the user's code (named tuple,
`OrderedDict`, attrs class …); a struct without one becomes an `OrderedDict` if it has names and a tuple if not, as
the language does it.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import FederatedType, SequenceType, Struct, StructType, TensorType, Type
from fedstack.computations.types.type_memory import TypeMemo
from fedstack.computations.types.type_structure import contains_sequence, fields_of, is_client_valued, no_memory_for
from fedstack.computations.values.columns import Column
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


def to_result(payload: object, type_spec: Type) -> object:
    """Returns the Python value of a payload: containers of the annotated type, arrays that the caller may keep.

    Raises:
      InvalidComputationError: If a struct has both named and unnamed members, which no container can hold.
    """
    if isinstance(type_spec, TensorType):
        return _own(payload)
    if isinstance(type_spec, FederatedType):
        if is_client_valued(type_spec):
            return [to_result(item, type_spec.member) for item in cast(Column, payload).items()]
        return to_result(payload, type_spec.member)
    if isinstance(type_spec, SequenceType):
        return [to_result(item, type_spec.element) for item in cast("Iterable[object]", payload)]
    if isinstance(type_spec, StructType):
        members = cast("tuple[object, ...]", payload)
        values = [to_result(member, t) for member, (_, t) in zip(members, fields_of(type_spec))]
        return result_maker(type_spec)(values)
    return _own(payload)


def to_elements(payload: object, type_spec: Type) -> object:
    """Returns what `to_result` does, for whoever gets of sequences nothing but their elements.

    Raises:
      InvalidValueError: If the order of a sequence differs from pass to pass.
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
        check_one_order(payload, "an executor of another origin")


def to_structure(payload: object, type_spec: Type, *, kept: bool = True) -> object:
    """Returns what `ExecutorValue.compute()` promises: the language's `Struct` for structs, lists, NumPy values.

    Args:
      payload: The payload.
      type_spec: Its type.
      kept: Whether somebody keeps the payload, for whoever computes the value again; its arrays are copied then.
    """
    if isinstance(type_spec, TensorType):
        return _copied(payload) if kept else _own(payload)
    if isinstance(type_spec, FederatedType):
        if is_client_valued(type_spec):
            return [to_structure(item, type_spec.member, kept=kept) for item in cast(Column, payload).items()]
        return to_structure(payload, type_spec.member, kept=kept)
    if isinstance(type_spec, SequenceType):
        return [to_structure(item, type_spec.element, kept=kept) for item in cast("Iterable[object]", payload)]
    if isinstance(type_spec, StructType):
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec))
        return Struct([(name, to_structure(member, t, kept=kept)) for member, (name, t) in members])
    return _copied(payload) if kept else _own(payload)


def _copied(payload: object) -> object:
    return cast("NDArray[Any]", payload).copy() if isinstance(payload, np.ndarray) else payload


def _own(payload: object) -> object:
    """Returns an array that nobody else can write to or keeps: the leaf's own if it let go of it, else a copy.

    A payload array is a read-only view over what a leaf returned or the user gave. If nothing else refers to that
    buffer, the buffer can be handed out (`ownership.py`). The payload must not be used again.
    """
    if not isinstance(payload, np.ndarray):
        return payload
    array = cast("NDArray[Any]", payload)
    buffer = whole_buffer(array)
    if buffer is not None and sys.getrefcount(buffer) == BUFFER_OF_ONE:
        return buffer
    try:
        return array.copy()
    except MemoryError as error:  # one value may stand for all, as in an extreme over no clients
        raise no_memory_for(f"{array.dtype}{list(array.shape)}", array.nbytes) from error


_result_makers: TypeMemo[Maker] = TypeMemo()
_argument_makers: TypeMemo[Maker] = TypeMemo()


def result_maker(struct: StructType) -> Maker:
    """Returns the function that builds the container of a struct type out of its members, for results."""
    found = _result_makers.get(struct)
    return _result_makers.put(struct, _make_result_maker(struct)) if found is None else found


def _make_result_maker(struct: StructType) -> Maker:
    names = [name for name, _ in fields_of(struct)]
    container = struct.python_container
    if any(name is None for name in names) and any(name is not None for name in names):
        raise InvalidComputationError(
            f"Expected a result with all members named or none, found {struct}; name all members or none"
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
    """Tells whether a container is built from keywords: named tuples, attrs classes and dataclasses."""
    return hasattr(container, "_fields") or attrs.has(container) or is_dataclass(container)


def argument_maker(struct: StructType) -> Maker:
    """Returns the function that builds what a leaf function sees for a struct: access by attribute and by key."""
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

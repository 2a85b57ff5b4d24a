"""Answers questions about types quickly: fields, leaves, names, and types read from protos.

There is one object for equal types, nearly always, so what is kept for a type goes by its identity: its hash walks
the whole type each time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from numpy.typing import NDArray

from fedstack.computations.types.language import (
    CLIENTS,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    StructWithPythonType,
    TensorType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_memory import TypeMemo, recent_types
from fedstack.errors import InvalidComputationError, ResourceLimitError

_T = TypeVar("_T")
# What the language and protobuf raise for messages that are no types.
_NO_TYPE = (NotImplementedError, ValueError, TypeError, KeyError, AttributeError, DecodeError, EncodeError)
_MAX_CACHED_TYPES = 10_000
_types_by_bytes: dict[bytes, Type] = {}
recent_types.on_clear.append(_types_by_bytes.clear)
# What is filled at once.
_SMALL_BYTES = 64 << 10
_kinds: TypeMemo[frozenset[type[Type]]] = TypeMemo()
_fields: TypeMemo[tuple[tuple[str | None, Type], ...]] = TypeMemo()
_bytes: TypeMemo[tuple[int, bool]] = TypeMemo()


def type_from_proto(proto: computation_pb2.Type) -> Type:
    """Returns the language's type for `proto`, the same object for equal protos.

    Raises:
      InvalidComputationError: If the proto describes no type.
    """
    try:
        key = proto.SerializeToString()
    except EncodeError as error:
        raise InvalidComputationError(f"Expected a type, found one that nests too deep: {error}") from error
    found = _types_by_bytes.get(key)
    if found is None:
        if not key:
            raise InvalidComputationError("Expected a type that the language knows, found none")
        try:
            found = Type.from_proto(proto)
        except _NO_TYPE as error:
            raise InvalidComputationError(
                f"Expected a type that the language knows, found one it refuses: {error}"
            ) from error
        if len(_types_by_bytes) >= _MAX_CACHED_TYPES:
            _types_by_bytes.clear()
        _types_by_bytes[key] = found
        recent_types.received(len(key))
    return found


def fields_of(struct: StructType) -> tuple[tuple[str | None, Type], ...]:
    """Returns the (name, type) pairs of a struct type in its order."""
    found = _fields.get(struct)
    return _fields.put(struct, tuple(struct.items())) if found is None else found


def is_nothing(result: Type) -> bool:
    """Returns whether a function of this result type returns nothing."""
    return isinstance(result, StructType) and not fields_of(result)


def is_scalar(tensor: TensorType) -> bool:
    """Tells whether a tensor type has rank zero."""
    return tensor.shape == ()


def is_string(tensor: TensorType) -> bool:
    """Tells whether a tensor type holds strings; their payloads are `bytes`."""
    return tensor.dtype.type is np.str_


def shape_fits(shape: tuple[int, ...], declared: Sequence[int | None] | None) -> bool:
    """Returns whether a shape fits a declared one, in which `None` stands for any size or, as a whole, any rank."""
    if declared is None or shape == declared:
        return True
    return len(shape) == len(declared) and all(d is None or d == s for s, d in zip(shape, declared))


def is_client_valued(type_spec: Type) -> bool:
    """Tells whether values of this type differ from client to client."""
    return isinstance(type_spec, FederatedType) and type_spec.placement is CLIENTS and not type_spec.all_equal


def is_placed_at_clients(type_spec: Type) -> bool:
    """Tells whether the type is a federated type at clients, all-equal or not."""
    return isinstance(type_spec, FederatedType) and type_spec.placement is CLIENTS


def contains_function(type_spec: Type) -> bool:
    """Tells whether a value of this type has a function anywhere in it."""
    return FunctionType in _kinds_in(type_spec)


def contains_federated(type_spec: Type) -> bool:
    """Tells whether a value of this type has a federated value anywhere in it."""
    return FederatedType in _kinds_in(type_spec)


def contains_sequence(type_spec: Type) -> bool:
    """Tells whether a value of this type has a sequence anywhere in it."""
    return SequenceType in _kinds_in(type_spec)


def _kinds_in(type_spec: Type) -> frozenset[type[Type]]:
    """Returns the classes of the type and of all types inside it."""
    found = _kinds.get(type_spec)
    if found is None:
        inside = [_kinds_in(child) for child in type_spec.children()]
        found = _kinds.put(type_spec, frozenset({type(type_spec)}).union(*inside))
    return found


def tensor_leaves(type_spec: Type, path: str = "") -> Iterator[tuple[str, TensorType]]:
    """Yields (path, type) of each tensor in a nest of structs, depth first.

    Raises:
      InvalidComputationError: If something other than tensors is in the nest.
    """
    if isinstance(type_spec, TensorType):
        yield path, type_spec
    elif isinstance(type_spec, StructType):
        for index, (name, member) in enumerate(fields_of(type_spec)):
            yield from tensor_leaves(member, join_path(path, name, index))
    else:
        raise InvalidComputationError(f"Expected a structure of tensors, found {type_spec} at {path or 'the top'}")


def join_path(path: str, name: str | None, index: int) -> str:
    """Extends a value path by a field: `arg.weights` by name, `arg[2]` by position."""
    return f"{path}[{index}]" if name is None else f"{path}.{name}"


def least_bytes(type_spec: Type) -> int:
    """Returns how many bytes the numbers of a value have at least, going by its type.

    Unknown dimensions, sequences, strings and values that differ from client to client count as nothing.
    """
    return _known_bytes(type_spec)[0]


def exact_bytes(type_spec: Type) -> int | None:
    """Returns how many bytes a value has; `None` if that depends on the data: open sizes, strings, sequences."""
    least, is_all = _known_bytes(type_spec)
    return least if is_all else None


def _known_bytes(type_spec: Type) -> tuple[int, bool]:
    """Returns how many bytes a value has at least, and whether that is all."""
    if isinstance(type_spec, FederatedType) and not is_client_valued(type_spec):
        return _known_bytes(type_spec.member)
    if isinstance(type_spec, StructType):
        found = _bytes.get(type_spec)
        if found is None:  # a struct may have one member, and that another, any number of times
            members = [_known_bytes(member) for _, member in fields_of(type_spec)]
            found = _bytes.put(type_spec, (sum(least for least, _ in members), all(is_all for _, is_all in members)))
        return found
    if not isinstance(type_spec, TensorType) or type_spec.shape is None or is_string(type_spec):
        return 0, False
    return math.prod(size or 0 for size in type_spec.shape) * type_spec.dtype.itemsize, None not in type_spec.shape


def flatten(payload: object, type_spec: Type) -> list[object]:
    """Lists the tensors of a payload of nested tuples, in the order of `tensor_leaves`."""
    if not isinstance(type_spec, StructType):
        return [payload]
    leaves: list[object] = []
    members = cast("tuple[object, ...]", payload)
    for member, (_, member_type) in zip(members, fields_of(type_spec), strict=True):
        leaves.extend(flatten(member, member_type))
    return leaves


def flattener(type_spec: Type) -> Callable[[object], list[object]]:
    """Returns `flatten` for payloads of one type, for many of them."""
    if not isinstance(type_spec, StructType):
        return lambda payload: [payload]
    if any(isinstance(member, StructType) for _, member in fields_of(type_spec)):
        return lambda payload: flatten(payload, type_spec)
    return cast("Callable[[object], list[object]]", list)


def unflatten(leaves: Iterator[_T], type_spec: Type) -> "_T | tuple[object, ...]":
    """Builds the nested tuples of `type_spec` out of its leaves, the inverse of `flatten`."""
    if not isinstance(type_spec, StructType):
        return next(leaves)
    return tuple(unflatten(leaves, member) for _, member in fields_of(type_spec))


def has_open_sizes(type_spec: Type) -> bool:
    """Tells whether values of an unplaced type may have different sizes: by unknown dimensions, or sequences."""
    if isinstance(type_spec, TensorType):
        return type_spec.shape is None or None in type_spec.shape
    return isinstance(type_spec, SequenceType) or any(has_open_sizes(child) for child in type_spec.children())


def has_negative_sizes(type_spec: Type) -> bool:
    """Tells whether a dimension is less than 0, which the language takes, and takes for unknown in a message."""
    if isinstance(type_spec, TensorType):
        return any(size is not None and size < 0 for size in type_spec.shape or ())
    return any(map(has_negative_sizes, type_spec.children()))


def common_type(left: Type, right: Type) -> Type | None:
    """Returns the type of two structures of tensors that differ in sizes only: these are unknown; `None` for others."""
    if left is right or left == right:
        return left
    if isinstance(left, TensorType) and isinstance(right, TensorType):
        if left.dtype != right.dtype or left.shape is None or right.shape is None:
            return None
        if len(left.shape) != len(right.shape):
            return None
        sizes = [size if size == other else None for size, other in zip(left.shape, right.shape)]
        return TensorType(left.dtype.type, sizes)
    if not isinstance(left, StructType) or not isinstance(right, StructType):
        return None
    fields = fields_of(left)
    if [name for name, _ in fields] != [name for name, _ in fields_of(right)]:
        return None
    members = [common_type(member, other) for (_, member), (_, other) in zip(fields, fields_of(right))]
    named = [(name, member) for (name, _), member in zip(fields, members) if member is not None]
    if len(named) < len(fields):
        return None
    container = left.python_container
    return StructType(named) if container is None else StructWithPythonType(named, container)


def full_array(tensor: TensorType, shape: tuple[int, ...], value: object) -> NDArray[Any]:
    """Returns an array of a tensor type that is full of one value; a large one may be read-only and take no memory.

    Args:
      tensor: The type.
      shape: The shape, for what the type leaves open too.
      value: The value.

    Raises:
      ResourceLimitError: If there is not enough memory for it.
    """
    dtype = np.dtype(np.object_) if is_string(tensor) else tensor.dtype
    try:
        # Pages of zeros take memory only when they are used. Of another value there is one, which stands for all.
        if type(value) is int and value == 0:
            return np.zeros(shape, dtype)
        if math.prod(shape) * dtype.itemsize <= _SMALL_BYTES:
            return np.full(shape, value, dtype)
        return np.broadcast_to(np.asarray(value, dtype), shape)
    except (MemoryError, ValueError) as error:  # ValueError for what no array could address
        raise no_memory_for(str(tensor), math.prod(shape) * dtype.itemsize) from error


def no_memory_for(array: str, size: int) -> ResourceLimitError:
    """Returns the error for an array that nobody has sent, of so many bytes, for which there is no memory."""
    return ResourceLimitError(
        f"There is no memory for an array of {array}, which takes {size:,} bytes; an array is made of it where "
        "nothing is summed, or for a call on zeros: give it fewer elements"
    )


def zeros(type_spec: Type, open_size: int = 1) -> object:
    """Returns the payload of zeros (and empty strings) of an unplaced type.

    Args:
      type_spec: The type.
      open_size: The size of unknown dimensions, and the number of elements of sequences; by default 1, so that a
        function evaluated on the result sees data.
    """
    if isinstance(type_spec, StructType):
        return tuple(zeros(member, open_size) for _, member in fields_of(type_spec))
    if isinstance(type_spec, SequenceType):
        return [zeros(type_spec.element, open_size)] * open_size
    if not isinstance(type_spec, TensorType):
        raise InvalidComputationError(f"Expected a type of plain values, found {type_spec}")
    if is_scalar(type_spec):
        return b"" if is_string(type_spec) else type_spec.dtype.type(0)
    shape = tuple(open_size if size is None else size for size in type_spec.shape or ())
    array = full_array(type_spec, shape, b"" if is_string(type_spec) else 0)
    array.flags.writeable = False
    return array

"""Defines fast queries about types (their fields, leaves and sizes), and parses types from protos.

Results are cached by the identity of a type (`TypeMemo`), because hashing a type traverses the whole type. Equal types
are almost always the same object, because the language keeps every type forever; other equal types are compared by
structure. A server keeps only types that are referenced or were created recently (`release_unused_types`), because its
clients could otherwise fill its memory with types.
"""

import importlib
import math
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Generic, TypeVar, cast

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
from fedstack.errors import InvalidComputationError, ResourceLimitError

_T = TypeVar("_T")
# Enough for the types that every call creates again, and for most types that a worker receives during its lifetime.
_MOST_RECENT = 10_000
_MOST_RECENT_BYTES = 64 << 20


class TypeMemo(Generic[_T]):
    """A cache of one value per type, keyed by the identity of the type.

    A value is kept as long as its type is alive, so the value must not reference the type.
    """

    def __init__(self) -> None:
        self._items: dict[int, tuple[_T, weakref.ref[Type]]] = {}

    def get(self, type_spec: Type) -> _T | None:
        """Returns the value that is cached for a type, or `None` if there is none."""
        found = self._items.get(id(type_spec))
        return None if found is None else found[0]

    def put(self, type_spec: Type, value: _T) -> _T:
        """Caches a value for a type and returns the value."""
        key, items = id(type_spec), self._items
        # The callback runs before another object can receive the same identity.
        items[key] = value, weakref.ref(type_spec, lambda _: items.pop(key, None) and None)
        return value

    def __len__(self) -> int:
        return len(self._items)


class _RecentTypes:
    """References to the most recently created types; dropped after `_MOST_RECENT_BYTES` of types have been received."""

    def __init__(self) -> None:
        self._types: deque[Type] = deque(maxlen=_MOST_RECENT)
        self._bytes = 0
        self.on_clear: list[Callable[[], object]] = []

    def add(self, made: Type) -> None:
        self._types.append(made)

    def received(self, size: int) -> None:
        """Records the size in bytes of a peer's message that contained types."""
        self._bytes += size
        if self._bytes <= _MOST_RECENT_BYTES:
            return
        self._bytes = 0
        self._types.clear()
        for clear in self.on_clear:
            clear()

    def __len__(self) -> int:
        return len(self._types)


class _Pool(weakref.WeakValueDictionary[object, Type]):
    """The language's pool of types of one class. It references the types weakly."""

    def __setitem__(self, key: object, value: Type) -> None:
        super().__setitem__(key, value)
        recent_types.add(value)


recent_types = _RecentTypes()


def release_unused_types() -> bool:
    """Makes this process release types that are no longer referenced.

    Returns:
      Whether unused types will be released. They will not if the language stores its types in an unknown way.
    """
    module: Any = importlib.import_module("federated_language.types.computation_types")
    pools: object = getattr(module, "_intern_pool", None)
    if not isinstance(pools, defaultdict):
        return False
    known = cast("defaultdict[type[Type], MutableMapping[object, Type]]", pools)
    known.default_factory = _Pool
    for kind, pool in list(known.items()):
        if not isinstance(pool, _Pool):
            known[kind] = _Pool(dict(pool))
    return True


# The errors that the language and protobuf raise for malformed types.
_NO_TYPE = (NotImplementedError, ValueError, TypeError, KeyError, AttributeError, DecodeError, EncodeError)
_MAX_CACHED_TYPES = 10_000
_types_by_bytes: dict[bytes, Type] = {}
recent_types.on_clear.append(_types_by_bytes.clear)
# Larger arrays are broadcast from a single element.
_SMALL_BYTES = 64 << 10
_kinds: TypeMemo[frozenset[type[Type]]] = TypeMemo()
_fields: TypeMemo[tuple[tuple[str | None, Type], ...]] = TypeMemo()
_bytes: TypeMemo[tuple[int, bool]] = TypeMemo()


def type_from_proto(proto: computation_pb2.Type) -> Type:
    """Returns the language's type that a proto describes. Equal protos yield the same cached object.

    Raises:
      InvalidComputationError: If the proto does not describe a type.
    """
    try:
        key = proto.SerializeToString()
    except EncodeError as error:
        raise InvalidComputationError(f"The type is nested too deeply: {error}") from error
    found = _types_by_bytes.get(key)
    if found is None:
        if not key:
            raise InvalidComputationError("Expected a type of Federated Language, found an empty type")
        try:
            found = Type.from_proto(proto)
        except _NO_TYPE as error:
            raise InvalidComputationError(f"The language rejects the type: {error}") from error
        if len(_types_by_bytes) >= _MAX_CACHED_TYPES:
            _types_by_bytes.clear()
        _types_by_bytes[key] = found
        recent_types.received(len(key))
    return found


def fields_of(struct: StructType) -> tuple[tuple[str | None, Type], ...]:
    """Returns the (name, type) pairs of a struct type, in the order of the fields."""
    found = _fields.get(struct)
    return _fields.put(struct, tuple(struct.items())) if found is None else found


def struct_of(fields: Iterable[tuple[str | None, Type]]) -> StructType:
    """Returns a struct type with the given (name, type) pairs as fields."""
    return StructType([member if name is None else (name, member) for name, member in fields])


def is_nothing(result: Type) -> bool:
    """Returns whether a result type is the empty struct, which means that the function returns nothing."""
    return isinstance(result, StructType) and not fields_of(result)


def is_scalar(tensor: TensorType) -> bool:
    """Returns whether a tensor type has rank zero."""
    return tensor.shape == ()


def is_string(tensor: TensorType) -> bool:
    """Returns whether a tensor type contains strings, whose payloads are `bytes`."""
    return tensor.dtype.type is np.str_


def shape_fits(shape: tuple[int, ...], declared: Sequence[int | None] | None) -> bool:
    """Returns whether a shape matches a declared shape.

    In a declared shape, a dimension of `None` matches any size. A declared shape of `None` matches any shape.
    """
    if declared is None or shape == declared:
        return True
    return len(shape) == len(declared) and all(d is None or d == s for s, d in zip(shape, declared))


def is_client_valued(type_spec: Type) -> bool:
    """Returns whether a type is placed at the clients and not all-equal, so that its values may differ by client."""
    return isinstance(type_spec, FederatedType) and type_spec.placement is CLIENTS and not type_spec.all_equal


def is_placed_at_clients(type_spec: Type) -> bool:
    """Returns whether a type is placed at the clients, whether or not it is all-equal."""
    return isinstance(type_spec, FederatedType) and type_spec.placement is CLIENTS


def contains_function(type_spec: Type) -> bool:
    """Returns whether a value of this type contains a function."""
    return FunctionType in _kinds_in(type_spec)


def contains_federated(type_spec: Type) -> bool:
    """Returns whether a value of this type contains a federated value."""
    return FederatedType in _kinds_in(type_spec)


def contains_sequence(type_spec: Type) -> bool:
    """Returns whether a value of this type contains a sequence."""
    return SequenceType in _kinds_in(type_spec)


def _kinds_in(type_spec: Type) -> frozenset[type[Type]]:
    """Returns the classes of a type and of all types that it contains."""
    found = _kinds.get(type_spec)
    if found is None:
        inside = [_kinds_in(child) for child in type_spec.children()]
        found = _kinds.put(type_spec, frozenset({type(type_spec)}).union(*inside))
    return found


def tensor_leaves(type_spec: Type, path: str = "") -> Iterator[tuple[str, TensorType]]:
    """Yields the (path, type) pair of each tensor in nested structs, depth first.

    Raises:
      InvalidComputationError: If the structs contain types other than tensors.
    """
    if isinstance(type_spec, TensorType):
        yield path, type_spec
    elif isinstance(type_spec, StructType):
        for index, (name, member) in enumerate(fields_of(type_spec)):
            yield from tensor_leaves(member, join_path(path, name, index))
    else:
        raise InvalidComputationError(f"Expected a structure of tensors, found {type_spec} at {path or 'the top'}")


def join_path(path: str, name: str | None, index: int) -> str:
    """Returns the path of a field: `arg.weights` for a field with a name, or `arg[2]` for a field without one."""
    return f"{path}[{index}]" if name is None else f"{path}.{name}"


def least_bytes(type_spec: Type) -> int:
    """Returns the minimum size in bytes of a value of the given type.

    Unknown dimensions, sequences, strings and values that differ by client count as 0 bytes.
    """
    return _known_bytes(type_spec)[0]


def exact_bytes(type_spec: Type) -> int | None:
    """Returns the size in bytes of a value of the given type, or `None` if the size depends on the data.

    The size depends on the data for unknown dimensions, strings, sequences and values that differ by client.
    """
    least, is_all = _known_bytes(type_spec)
    return least if is_all else None


def _known_bytes(type_spec: Type) -> tuple[int, bool]:
    """Returns the minimum size in bytes of a value of the given type, and whether this size is exact."""
    if isinstance(type_spec, FederatedType) and not is_client_valued(type_spec):
        return _known_bytes(type_spec.member)
    if isinstance(type_spec, StructType):
        found = _bytes.get(type_spec)
        if found is None:  # cached, because nested structs may repeat the same members many times
            members = [_known_bytes(member) for _, member in fields_of(type_spec)]
            found = _bytes.put(type_spec, (sum(least for least, _ in members), all(is_all for _, is_all in members)))
        return found
    if not isinstance(type_spec, TensorType) or type_spec.shape is None or is_string(type_spec):
        return 0, False
    return math.prod(size or 0 for size in type_spec.shape) * type_spec.dtype.itemsize, None not in type_spec.shape


def flatten(payload: object, type_spec: Type) -> list[object]:
    """Returns the tensors in a payload of nested tuples, in the order of `tensor_leaves`."""
    if not isinstance(type_spec, StructType):
        return [payload]
    leaves: list[object] = []
    members = cast("tuple[object, ...]", payload)
    for member, (_, member_type) in zip(members, fields_of(type_spec), strict=True):
        leaves.extend(flatten(member, member_type))
    return leaves


def flattener(type_spec: Type) -> Callable[[object], list[object]]:
    """Returns a function that flattens payloads of the given type, faster than `flatten` where possible."""
    if not isinstance(type_spec, StructType):
        return lambda payload: [payload]
    if any(isinstance(member, StructType) for _, member in fields_of(type_spec)):
        return lambda payload: flatten(payload, type_spec)
    return cast("Callable[[object], list[object]]", list)


def unflatten(leaves: Iterator[_T], type_spec: Type) -> "_T | tuple[object, ...]":
    """Builds a payload of nested tuples from its tensors. This is the inverse of `flatten`."""
    if not isinstance(type_spec, StructType):
        return next(leaves)
    return tuple(unflatten(leaves, member) for _, member in fields_of(type_spec))


def has_open_sizes(type_spec: Type) -> bool:
    """Returns whether values of an unplaced type may differ in size, due to unknown dimensions or sequences."""
    if isinstance(type_spec, TensorType):
        return type_spec.shape is None or None in type_spec.shape
    return isinstance(type_spec, SequenceType) or any(has_open_sizes(child) for child in type_spec.children())


def has_negative_sizes(type_spec: Type) -> bool:
    """Returns whether any dimension is negative.

    The language accepts negative dimensions, but reads them as unknown dimensions when it parses a message.
    """
    if isinstance(type_spec, TensorType):
        return any(size is not None and size < 0 for size in type_spec.shape or ())
    return any(map(has_negative_sizes, type_spec.children()))


def common_type(left: Type, right: Type) -> Type | None:
    """Returns the common type of two structures of tensors, in which sizes that differ are unknown.

    The result is `None` if the structures differ in more than the sizes of dimensions.
    """
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
    """Returns an array of the given tensor type, filled with one value. A large array may be a read-only broadcast.

    Args:
      tensor: The tensor type.
      shape: The shape, with a size for each dimension that is unknown in the type.
      value: The value of each element.

    Raises:
      ResourceLimitError: If there is not enough memory for the array.
    """
    dtype = np.dtype(np.object_) if is_string(tensor) else tensor.dtype
    try:
        # Zeros take up memory only when their pages are used. Other values need memory for a single element.
        if type(value) is int and value == 0:
            return np.zeros(shape, dtype)
        if math.prod(shape) * dtype.itemsize <= _SMALL_BYTES:
            return np.full(shape, value, dtype)
        return np.broadcast_to(np.asarray(value, dtype), shape)
    except (MemoryError, ValueError) as error:  # NumPy raises ValueError for sizes beyond the address space
        raise no_memory_for(str(tensor), math.prod(shape) * dtype.itemsize) from error


def no_memory_for(array: str, size: int) -> ResourceLimitError:
    """Returns the error for an array that fedstack has to create but that does not fit into memory."""
    return ResourceLimitError(
        f"An array of {array} requires {size:,} bytes, but less is available; fedstack creates such an "
        "array for a sum over no clients or for a call with zeros, so declare fewer elements"
    )


def zeros(type_spec: Type, open_size: int = 1) -> object:
    """Returns a payload that consists of zeros and empty strings, for an unplaced type.

    Args:
      type_spec: The type.
      open_size: The size of unknown dimensions and the length of sequences. The default is 1, so that a function
        called with the zeros receives data.
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

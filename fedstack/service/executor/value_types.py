"""Determines the type of a value that a peer has sent without a type."""

from collections.abc import Callable, Iterable, Sequence

from fedstack.computations.codec.arrays import dtype_of_number, read_dims
from fedstack.computations.plan.graph import declared_type
from fedstack.computations.types.language import (
    CLIENTS,
    SERVER,
    FederatedType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    array_pb2,
)
from fedstack.computations.types.type_structure import type_from_proto
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import name_text
from fedstack.proto.executor_pb2 import Value


def count_members(value: Value, most: int) -> int:
    """Returns the number of values in a struct, including nested structs. Stops counting above `most`."""
    found = 0
    waiting = [value]
    while waiting and found <= most:
        elements = waiting.pop().struct.element
        found += len(elements)
        if found <= most:
            waiting += [element.value for element in elements if element.value.WhichOneof("kind") == "struct"]
    return found


def type_of_value(value: Value, path: str = "value") -> Type:
    """Returns the type of a value: the declared type if there is one, otherwise the type of the content.

    Raises:
      InvalidValueError: If the type is missing, or does not exist in the language.
      TypeMismatchError: If the elements of a sequence have no common type.
    """
    kind = value.WhichOneof("kind")
    if kind == "array":
        return _type_of_array(value.array, path)
    if kind == "computation":
        return declared_type(value.computation)
    if kind == "struct":
        members = [(e.name, type_of_value(e.value, f"{path}[{i}]")) for i, e in enumerate(value.struct.element)]
        return _allowed(lambda: StructType([(name, member) if name else member for name, member in members]), path)
    if kind == "sequence" and value.sequence.HasField("element_type"):
        element = type_from_proto(value.sequence.element_type)
        return _allowed(lambda: SequenceType(element), path)
    if kind == "sequence" and value.sequence.element:
        leaves = _leaves_of_elements(value.sequence.element, path)
        return SequenceType(leaves[0] if len(leaves) == 1 else StructType(leaves))
    if kind == "federated":
        return _type_of_federated(value.federated, path)
    raise InvalidValueError(
        f"The value at {path} has an unknown type (content: {kind or 'an empty message'}); send the type with the value"
    )


def _allowed(make: Callable[[], Type], path: str) -> Type:
    """Creates a type, and converts the error if the language rejects the type, as for nested placements."""
    try:
        return make()
    except ValueError as error:
        raise InvalidValueError(f"The type at {path} is invalid: {error}") from error


def _type_of_array(array: array_pb2.Array, path: str) -> TensorType:
    dtype = dtype_of_number(array.dtype)
    if dtype is None:
        raise InvalidValueError(
            f"Expected an array of a known dtype at {path}, found an array of dtype number {array.dtype}"
        )
    return TensorType(dtype.type, read_dims(array.shape.dim, path, unknown_rank=array.shape.unknown_rank))


def _leaves_of_elements(elements: Iterable[Value.Sequence.Element], path: str) -> list[TensorType]:
    """Returns the common types of the tensors in all elements. Dimensions in which elements differ are unknown."""
    leaves: list[TensorType] = []
    for index, element in enumerate(elements):
        where = f"{path}[{index}]"
        found = [_type_of_array(array, where) for array in element.flat_value]
        if not index:
            leaves = found
        elif len(found) != len(leaves):
            raise TypeMismatchError(
                f"Expected {len(leaves)} arrays in the element at {where}, as in the first element, found "
                f"{len(found)} arrays"
            )
        elif found != leaves:
            leaves = [_common(left, right, where) for left, right in zip(leaves, found)]
    return leaves


def _common(left: TensorType, right: TensorType, path: str) -> TensorType:
    if left.dtype != right.dtype:
        raise TypeMismatchError(f"Expected an element of type {left} at {path}, found an element of type {right}")
    return TensorType(left.dtype.type, _common_shape(left.shape, right.shape))


def _common_shape(left: Sequence[int | None] | None, right: Sequence[int | None] | None) -> list[int | None] | None:
    if left is None or right is None or len(left) != len(right):
        return None
    return [size if size == other else None for size, other in zip(left, right)]


def _type_of_federated(federated: Value.Federated, path: str) -> Type:
    declared = federated.type
    placements = {CLIENTS.uri: CLIENTS, SERVER.uri: SERVER}
    placement = placements.get(declared.placement.value.uri)
    if placement is None:
        raise InvalidValueError(
            f"Expected the placement {CLIENTS.uri} or {SERVER.uri} at {path}, found "
            f"{name_text(declared.placement.value.uri)!r}"
        )
    if placement is SERVER and not declared.all_equal:  # no worker has ever accepted such a value
        raise InvalidValueError(
            f"A value at the placement {SERVER.uri} must be all-equal, but the value at {path} is not"
        )
    if declared.HasField("member"):
        member = type_from_proto(declared.member)
    elif federated.value:
        member = type_of_value(federated.value[0], path)
    else:
        raise InvalidValueError(f"The federated value at {path} has no member type; send the type with the value")
    return _allowed(lambda: FederatedType(member, placement, declared.all_equal), path)

"""Finds the type of a value that a peer has sent without one."""

from fedstack.computations.arrays import dtype_of_number
from fedstack.computations.language import (
    CLIENTS,
    SERVER,
    FederatedType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    array_pb2,
)
from fedstack.computations.type_structure import type_from_proto
from fedstack.errors import InvalidValueError
from fedstack.proto.executor_pb2 import Value


def type_of_value(value: Value, path: str = "value") -> Type:
    """Returns the type of a value: what it says, and where it says nothing, what its content shows.

    Raises:
      InvalidValueError: If it neither says nor shows a type.
    """
    kind = value.WhichOneof("kind")
    if kind == "array":
        return _type_of_array(value.array, path)
    if kind == "computation":
        return type_from_proto(value.computation.type)
    if kind == "struct":
        members = [(e.name, type_of_value(e.value, f"{path}[{i}]")) for i, e in enumerate(value.struct.element)]
        return StructType([(name, member) if name else member for name, member in members])
    if kind == "sequence" and value.sequence.HasField("element_type"):
        return SequenceType(type_from_proto(value.sequence.element_type))
    if kind == "sequence" and value.sequence.element:
        leaves = [_type_of_array(array, path) for array in value.sequence.element[0].flat_value]
        return SequenceType(leaves[0] if len(leaves) == 1 else StructType(leaves))
    if kind == "federated":
        return _type_of_federated(value.federated, path)
    raise InvalidValueError(
        f"Expected a value that shows its type, found {kind or 'an empty message'}; at {path}; send the type along"
    )


def _type_of_array(array: array_pb2.Array, path: str) -> Type:
    dtype = dtype_of_number(array.dtype)
    if dtype is None or any(size < 0 for size in array.shape.dim) or array.shape.unknown_rank:
        raise InvalidValueError(f"Expected an array with a dtype and a shape, found neither; at {path}")
    return TensorType(dtype.type, tuple(array.shape.dim))


def _type_of_federated(federated: Value.Federated, path: str) -> Type:
    declared = federated.type
    placements = {CLIENTS.uri: CLIENTS, SERVER.uri: SERVER}
    placement = placements.get(declared.placement.value.uri)
    if placement is None:
        raise InvalidValueError(
            f"Expected the placement {CLIENTS.uri} or {SERVER.uri}, found {declared.placement.value.uri!r}; at {path}"
        )
    if declared.HasField("member"):
        member = type_from_proto(declared.member)
    elif federated.value:
        member = type_of_value(federated.value[0], path)
    else:
        raise InvalidValueError(f"Expected a federated value that tells its member type, found none; at {path}")
    return FederatedType(member, placement, declared.all_equal or placement is SERVER)

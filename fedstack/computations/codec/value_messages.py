"""Turns payloads of any type into the `Value` message of the wire and back.

What a payload is follows from its type:

| type | payload |
| --- | --- |
| tensor | NumPy scalar or read-only array of exactly the dtype; strings are `bytes` (see `arrays`) |
| struct | tuple of payloads, in the type's order |
| sequence | any re-iterable of payloads; decoded as a list |
| federated, one for each client | payloads in anything with a length that can be iterated; decoded as a list |
| federated, all-equal or at the server | the payload of the member |
| function | its `Computation` message |

Peers leave out much of what a message could say, so reading relies on the type; without one, a message must say enough
itself. A message from elsewhere is not trusted: counts are compared before anything is built.
"""

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import cast

from google.protobuf.unknown_fields import UnknownFieldSet

from fedstack.computations.codec.arrays import array_from_proto, write_array
from fedstack.computations.types.language import (
    CLIENTS,
    SERVER,
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    array_pb2,
    computation_pb2,
)
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import (
    fields_of,
    is_client_valued,
    join_path,
    tensor_leaves,
    type_from_proto,
    unflatten,
)
from fedstack.computations.values.columns import Payload
from fedstack.computations.values.sequences import check_one_order, check_re_iterable
from fedstack.computations.values.tensor_values import mismatch
from fedstack.errors import InvalidComputationError, InvalidValueError, ResourceLimitError
from fedstack.foundations.error_text import counted, name_text
from fedstack.proto import executor_pb2

_NOT_A_COLUMN = (str, bytes, bytearray, Mapping)
# protobuf parses at most 100 nested messages. A struct takes three of them, and a request around it a few more.
_MAX_WRITTEN_DEPTH = 30
# What was parsed is within that limit. A message built in this process may be deeper than Python's stack.
_MAX_READ_DEPTH = 100
# An element of a sequence may take two bytes on the wire, whatever its type says. This bounds what it can grow to.
_MAX_EMPTY_STRUCTS = 16


def value_to_proto(payload: Payload, type_spec: Type, *, path: str = "value") -> executor_pb2.Value:
    """Encodes a payload.

    Args:
      payload: The payload, exactly as its type asks (see above); nothing is converted.
      type_spec: The type of the payload.
      path: Where the value stands, for messages; members extend it, as in `arg.weights[2]`.

    Returns:
      A new message that says all that the wire has a field for: names, element types and federated types.

    Raises:
      TypeMismatchError: If the payload does not fit the type, or a sequence is a one-shot iterator.
      ResourceLimitError: If structs nest deeper than a peer could parse.
    """
    if _depth(type_spec) > _MAX_WRITTEN_DEPTH:
        raise _too_deep(_MAX_WRITTEN_DEPTH, path)
    proto = executor_pb2.Value()
    _write(proto, payload, type_spec, path)
    return proto


def value_from_proto(proto: executor_pb2.Value, type_spec: Type | None = None, *, path: str = "value") -> Payload:
    """Decodes a payload.

    Members are matched by position; a name, where the message has one, must be that of the type. dtypes must be equal
    and shapes fit. A literal computation is decoded as its array, any other is returned as it is. Of an all-equal
    value that a peer sent once for each client, the first counts: they are trusted to be equal.

    Args:
      proto: The message.
      type_spec: The type that the value must have. Without one, federated values and sequences must bring theirs.
      path: Where the value stands, for messages; members extend it, as in `arg.weights[2]`.

    Returns:
      The payload (see above). Its arrays are read-only.

    Raises:
      TypeMismatchError: If the value does not fit the type.
      InvalidValueError: If the message contradicts itself, is incomplete, or can be read by TensorFlow only.
      ResourceLimitError: If it asks for more depth or memory than a message of its size should.
    """
    return _read(proto, type_spec, path, 0)


def _write(proto: executor_pb2.Value, payload: object, type_spec: Type, path: str) -> None:
    # Messages are filled in place: protobuf copies what is put into another message later.
    if isinstance(type_spec, TensorType):
        write_array(proto.array, payload, type_spec.dtype, type_spec.shape, path=path)
    elif isinstance(type_spec, StructType):
        proto.struct.SetInParent()
        for name, member_type, member, member_path in _members(payload, type_spec, path):
            element = proto.struct.element.add(name=name)
            _write(element.value, member, member_type, member_path)
    elif isinstance(type_spec, SequenceType):
        check_re_iterable(payload, path)
        check_one_order(payload, path)
        proto.sequence.element_type.CopyFrom(type_spec.element.to_proto())
        for index, item in enumerate(cast("Iterable[object]", payload)):
            _write_flat(proto.sequence.element.add(), item, type_spec.element, f"{path}[{index}]")
    elif isinstance(type_spec, FederatedType):
        _write_federated(proto.federated, payload, type_spec, path)
    elif isinstance(type_spec, FunctionType):
        if not isinstance(payload, computation_pb2.Computation):
            mismatch(type_spec, _kind(payload), path, "give the function's computation")
        proto.computation.CopyFrom(payload)
    else:
        mismatch("a type that has values", type_spec, path)


def _write_flat(proto: executor_pb2.Value.Sequence.Element, payload: object, type_spec: Type, path: str) -> None:
    if isinstance(type_spec, TensorType):
        write_array(proto.flat_value.add(), payload, type_spec.dtype, type_spec.shape, path=path)
    elif isinstance(type_spec, StructType):
        for _, member_type, member, member_path in _members(payload, type_spec, path):
            _write_flat(proto, member, member_type, member_path)
    else:
        mismatch("tensors and structs of them in a sequence", type_spec, path)


def _write_federated(proto: executor_pb2.Value.Federated, payload: object, type_spec: FederatedType, path: str) -> None:
    proto.type.CopyFrom(type_spec.to_proto().federated)
    if not is_client_valued(type_spec):
        # There is only one server, whatever the type says, and peers insist on it.
        proto.type.all_equal = True
        _write(proto.value.add(), payload, type_spec.member, path)
        return
    for index, member in enumerate(_clients(payload, type_spec, path)):
        _write(proto.value.add(), member, type_spec.member, f"{path}, client {index}")


def _clients(payload: object, type_spec: FederatedType, path: str) -> Iterable[object]:
    if isinstance(payload, Sized) and isinstance(payload, Iterable) and not isinstance(payload, _NOT_A_COLUMN):
        return cast("Iterable[object]", payload)
    mismatch(type_spec, _kind(payload), path, "give a list with one payload per client")


def _members(payload: object, struct: StructType, path: str) -> Iterator[tuple[str | None, Type, object, str]]:
    """Yields name, type, payload and path of each member of a struct."""
    fields = fields_of(struct)
    if not isinstance(payload, tuple):
        mismatch(struct, _kind(payload), path, "give a tuple of the members in the type's order")
    members = cast("tuple[object, ...]", payload)
    if len(members) != len(fields):
        mismatch(f"{counted(len(fields), 'member')} of {type_text(struct)}", f"{len(members)}", path)
    for index, (member, (name, member_type)) in enumerate(zip(members, fields, strict=True)):
        yield name, member_type, member, join_path(path, name, index)


def _read(proto: executor_pb2.Value, type_spec: Type | None, path: str, depth: int) -> object:
    if depth > _MAX_READ_DEPTH:
        raise _too_deep(_MAX_READ_DEPTH, path)
    kind = proto.WhichOneof("kind")
    if kind == "array":
        return _read_array(proto.array, type_spec, path)
    if kind == "struct":
        return tuple(
            _read(element.value, member_type, member_path, depth + 1)
            for element, member_type, member_path in _elements(proto.struct, type_spec, path)
        )
    if kind == "sequence":
        return _read_sequence(proto.sequence, type_spec, path)
    if kind == "federated":
        return _read_federated(proto.federated, type_spec, path, depth + 1)
    if kind == "computation":
        return _read_computation(proto.computation, type_spec, path)
    raise InvalidValueError(f"Expected a value, found an empty message; at {path}; set one of its fields")


def _read_array(proto: array_pb2.Array, type_spec: Type | None, path: str) -> object:
    if type_spec is None:
        return array_from_proto(proto, path=path)
    if not isinstance(type_spec, TensorType):
        mismatch(type_spec, "an array", path)
    return array_from_proto(proto, type_spec.dtype, type_spec.shape, path=path)


def _elements(
    proto: executor_pb2.Value.Struct, type_spec: Type | None, path: str
) -> Iterator[tuple[executor_pb2.Value.Struct.Element, Type | None, str]]:
    """Yields each element of a struct with its type and path."""
    if type_spec is None:
        for index, element in enumerate(proto.element):
            yield element, None, join_path(path, element.name or None, index)
        return
    if not isinstance(type_spec, StructType):
        mismatch(type_spec, "a struct", path)
    fields = fields_of(type_spec)
    if len(proto.element) != len(fields):
        mismatch(f"{counted(len(fields), 'member')} of {type_text(type_spec)}", f"{len(proto.element)}", path)
    for index, (element, (name, member_type)) in enumerate(zip(proto.element, fields, strict=True)):
        if element.name and element.name != name:
            found = f"the name {name_text(element.name)!r} at position {index}"
            mismatch(type_spec, found, path, "use the type's names in the type's order, or none")
        yield element, member_type, join_path(path, name, index)


def _read_sequence(proto: executor_pb2.Value.Sequence, type_spec: Type | None, path: str) -> list[object]:
    if type_spec is not None and not isinstance(type_spec, SequenceType):
        mismatch(type_spec, "a sequence", path)
    if not proto.element:
        if len(UnknownFieldSet(proto)):
            raise InvalidValueError(
                f"Expected a sequence of arrays, found a serialized dataset; at {path}; only TensorFlow can run it: "
                "materialize it into a list of its elements"
            )
        return []
    element_type = _element_type(proto, type_spec, path)
    try:
        leaves = list(tensor_leaves(element_type))
    except InvalidComputationError:
        mismatch("tensors and structs of them in a sequence", element_type, path)
    if type_spec is None and _count_empty_structs(element_type) > len(leaves) + _MAX_EMPTY_STRUCTS:
        raise ResourceLimitError(
            f"Expected at most {_MAX_EMPTY_STRUCTS} empty structs in an element of a sequence, found "
            f"{_count_empty_structs(element_type)}; at {path}; leave them out of the type"
        )
    payload: list[object] = []
    for index, element in enumerate(proto.element):
        if len(element.flat_value) != len(leaves):
            mismatch(
                f"{len(leaves)} arrays for {type_text(element_type)}", f"{len(element.flat_value)}", f"{path}[{index}]"
            )
        arrays = (
            array_from_proto(array, leaf.dtype, leaf.shape, path=f"{path}[{index}]{inner}")
            for array, (inner, leaf) in zip(element.flat_value, leaves, strict=True)
        )
        payload.append(unflatten(arrays, element_type))
    return payload


def _element_type(proto: executor_pb2.Value.Sequence, type_spec: SequenceType | None, path: str) -> Type:
    if type_spec is not None:
        return type_spec.element
    if not proto.HasField("element_type"):
        raise InvalidValueError(
            f"Expected a sequence that tells the type of its elements, found none; at {path}; send it along"
        )
    return _read_type(proto.element_type, path)


def _read_federated(proto: executor_pb2.Value.Federated, type_spec: Type | None, path: str, depth: int) -> object:
    uri = proto.type.placement.value.uri
    if uri not in (CLIENTS.uri, SERVER.uri):
        raise InvalidValueError(
            f"Expected the placement {CLIENTS.uri} or {SERVER.uri}, found {name_text(uri)!r}; at {path}; send "
            "one of these"
        )
    values = proto.value
    is_single = is_sent_once = proto.type.all_equal or uri == SERVER.uri
    if is_sent_once and len(values) != 1:
        raise InvalidValueError(
            f"Expected one value that is the same for all, found {len(values)}; at {path}; send it once"
        )
    if type_spec is None:
        member_type = _read_type(proto.type.member, path) if proto.type.HasField("member") else None
    else:
        if not isinstance(type_spec, FederatedType) or type_spec.placement.uri != uri:
            mismatch(type_spec, f"a value at {uri}", path)
        member_type, is_single = type_spec.member, not is_client_valued(type_spec)
        if is_sent_once and not is_single:
            mismatch(type_spec, "one value for all clients", path, "send one value per client")
    if not is_single:
        return [_read(value, member_type, f"{path}, client {k}", depth) for k, value in enumerate(values)]
    if not values:
        raise InvalidValueError(
            f"Expected a value that is the same for all clients, found no client's; at {path}; send it as all-equal"
        )
    return _read(values[0], member_type, path, depth)


def _read_computation(proto: computation_pb2.Computation, type_spec: Type | None, path: str) -> object:
    if proto.WhichOneof("computation") == "literal":
        return _read_array(proto.literal.value, type_spec, path)
    if type_spec is not None:
        found = _read_type(proto.type, path)
        if not isinstance(type_spec, FunctionType) or not type_spec.is_equivalent_to(found):
            mismatch(type_spec, f"a computation of type {type_text(found)}", path)
    return proto


def _read_type(proto: computation_pb2.Type, path: str) -> Type:
    try:
        return type_from_proto(proto)
    except InvalidComputationError as error:
        raise InvalidValueError(f"{error}; at {path}; send a well-formed type") from error


def _count_empty_structs(type_spec: Type) -> int:
    if not isinstance(type_spec, StructType):
        return 0
    fields = fields_of(type_spec)
    return sum(_count_empty_structs(member) for _, member in fields) if fields else 1


def _depth(type_spec: Type) -> int:
    """Returns how deep structs nest in a type."""
    return isinstance(type_spec, StructType) + max(map(_depth, type_spec.children()), default=0)


def _too_deep(limit: int, path: str) -> ResourceLimitError:
    return ResourceLimitError(f"Expected at most {limit} nested structs, found more; at {path}; flatten the value")


def _kind(payload: object) -> str:
    return f"`{type(payload).__name__}`"

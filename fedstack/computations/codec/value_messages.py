"""Converts payloads of any type to the language's `Value` message and back.

The type determines the payload:

| type | payload |
| --- | --- |
| tensor | NumPy scalar or read-only array of exactly the dtype; strings are `bytes` (see `arrays`) |
| struct | tuple of payloads, in the type's order |
| sequence | any re-iterable of payloads; decoded as a list |
| federated, one value per client | a `Column`, or a list of payloads; decoded as a column |
| federated, all-equal or on the server | the payload of the member |
| function | the function's `Computation` message |

Peers omit many optional fields of a message, so decoding relies on the expected type. Messages from peers are not
trusted: counts are checked before a payload is built.
"""

from collections.abc import Iterable
from typing import cast

from google.protobuf.unknown_fields import UnknownFieldSet

from fedstack.computations.codec.arrays import array_from_proto, write_array
from fedstack.computations.codec.packing import check_count, column_in, members_in
from fedstack.computations.types.language import (
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
from fedstack.computations.types.type_sizes import struct_depth, type_text
from fedstack.computations.types.type_structure import (
    fields_of,
    is_client_valued,
    join_path,
    tensor_leaves,
    type_from_proto,
    unflatten,
)
from fedstack.computations.values.columns import Payload, column_from_payloads
from fedstack.computations.values.sequences import check_one_order, check_re_iterable
from fedstack.computations.values.tensor_values import mismatch
from fedstack.errors import InvalidComputationError, InvalidValueError, ResourceLimitError
from fedstack.foundations.error_text import name_text
from fedstack.proto import executor_pb2

# protobuf parses at most 100 nested messages. A struct uses three of them, and the enclosing request a few more.
_MAX_DEPTH = 30


def value_to_proto(payload: Payload, type_spec: Type, *, path: str = "value") -> executor_pb2.Value:
    """Encodes a payload.

    Args:
      payload: The payload, in the exact form that its type requires (see the module's docstring). Values are not
        converted.
      type_spec: The type of the payload.
      path: The path of the value, for error messages. Paths of members extend it, as in `arg.weights[2]`.

    Returns:
      A new message with all optional fields: names, element types and federated types.

    Raises:
      TypeMismatchError: If the payload does not match the type, or a sequence is a one-shot iterator.
      ResourceLimitError: If structs are nested more deeply than a peer can parse.
    """
    if struct_depth(type_spec) > _MAX_DEPTH:
        raise ResourceLimitError(
            f"Expected at most {_MAX_DEPTH} levels of nested structs at {path}, found more levels; flatten the value"
        )
    proto = executor_pb2.Value()
    _write(proto, payload, type_spec, path)
    return proto


def value_from_proto(proto: executor_pb2.Value, type_spec: Type, *, path: str = "value") -> Payload:
    """Decodes a payload.

    Members are matched by position. If the message names a member, the name must match the name in the
    type. The dtypes must be equal, and the shapes must be compatible. A literal computation is decoded as its array,
    and any other computation is returned unchanged. If a peer sends an all-equal value once per client, the values are
    assumed to be equal, and the first value is used.

    Args:
      proto: The message.
      type_spec: The expected type of the value.
      path: The path of the value, for error messages. Paths of members extend it, as in `arg.weights[2]`.

    Returns:
      The payload (see the module's docstring). Its arrays are read-only.

    Raises:
      TypeMismatchError: If the value does not match the type.
      InvalidValueError: If the message is inconsistent or incomplete, or only TensorFlow can read it.
    """
    kind = proto.WhichOneof("kind")
    if kind == "array":
        return _read_array(proto.array, type_spec, path)
    if kind == "struct":
        return _read_struct(proto.struct, type_spec, path)
    if kind == "sequence":
        return _read_sequence(proto.sequence, type_spec, path)
    if kind == "federated":
        return _read_federated(proto.federated, type_spec, path)
    if kind == "computation":
        return _read_computation(proto.computation, type_spec, path)
    raise InvalidValueError(f"Expected a value at {path}, found an empty message; set one of the message's fields")


def _write(proto: executor_pb2.Value, payload: object, type_spec: Type, path: str) -> None:
    # Messages are filled in place, because protobuf would copy a message that is assigned to a field.
    if isinstance(type_spec, TensorType):
        write_array(proto.array, payload, type_spec.dtype, type_spec.shape, path=path)
    elif isinstance(type_spec, StructType):
        proto.struct.SetInParent()
        members = zip(members_in(payload, type_spec, path), fields_of(type_spec))
        for index, (member, (name, member_type)) in enumerate(members):
            _write(proto.struct.element.add(name=name).value, member, member_type, join_path(path, name, index))
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
            mismatch(type_spec, f"`{type(payload).__name__}`", path, "pass the function's `Computation` message")
        proto.computation.CopyFrom(payload)
    else:
        mismatch("a tensor, struct, sequence, federated or function type", type_spec, path)


def _write_flat(proto: executor_pb2.Value.Sequence.Element, payload: object, type_spec: Type, path: str) -> None:
    if isinstance(type_spec, TensorType):
        write_array(proto.flat_value.add(), payload, type_spec.dtype, type_spec.shape, path=path)
    elif isinstance(type_spec, StructType):
        members = zip(members_in(payload, type_spec, path), fields_of(type_spec))
        for index, (member, (name, member_type)) in enumerate(members):
            _write_flat(proto, member, member_type, join_path(path, name, index))
    else:
        mismatch("sequence elements that are tensors or structs of tensors", type_spec, path)


def _write_federated(proto: executor_pb2.Value.Federated, payload: object, type_spec: FederatedType, path: str) -> None:
    proto.type.CopyFrom(type_spec.to_proto().federated)
    if not is_client_valued(type_spec):
        # There is only one server, and peers require this field even if the type is not all-equal.
        proto.type.all_equal = True
        _write(proto.value.add(), payload, type_spec.member, path)
        return
    is_list = isinstance(payload, (list, tuple))
    members = cast("Iterable[object]", payload) if is_list else column_in(payload, type_spec.member, path)
    for index, member in enumerate(members):
        _write(proto.value.add(), member, type_spec.member, f"{path}, client {index}")


def _read_array(proto: array_pb2.Array, type_spec: Type, path: str) -> object:
    if not isinstance(type_spec, TensorType):
        mismatch(type_spec, "an array", path)
    return array_from_proto(proto, type_spec.dtype, type_spec.shape, path=path)


def _read_struct(proto: executor_pb2.Value.Struct, type_spec: Type, path: str) -> tuple[object, ...]:
    if not isinstance(type_spec, StructType):
        mismatch(type_spec, "a struct", path)
    fields = fields_of(type_spec)
    check_count(len(proto.element), len(fields), type_spec, path)
    payload: list[object] = []
    for index, (element, (name, member_type)) in enumerate(zip(proto.element, fields)):
        if element.name and element.name != name:
            found = f"the name {name_text(element.name)!r} at position {index}"
            mismatch(type_spec, found, path, "use the type's names in the type's order, or omit the names")
        payload.append(value_from_proto(element.value, member_type, path=join_path(path, name, index)))
    return tuple(payload)


def _read_sequence(proto: executor_pb2.Value.Sequence, type_spec: Type, path: str) -> list[object]:
    if not isinstance(type_spec, SequenceType):
        mismatch(type_spec, "a sequence", path)
    if not proto.element:
        if len(UnknownFieldSet(proto)):
            raise InvalidValueError(
                f"Expected a sequence of arrays at {path}, found a serialized dataset that only TensorFlow can read; "
                "convert the dataset to a list of its elements"
            )
        return []
    element_type = type_spec.element
    try:
        leaves = list(tensor_leaves(element_type))
    except InvalidComputationError:
        mismatch("sequence elements that are tensors or structs of tensors", element_type, path)
    payload: list[object] = []
    for index, element in enumerate(proto.element):
        place = f"{path}[{index}]"
        if len(element.flat_value) != len(leaves):
            mismatch(f"{len(leaves)} arrays for {type_text(element_type)}", f"{len(element.flat_value)} arrays", place)
        arrays = (
            array_from_proto(array, leaf.dtype, leaf.shape, path=place + inner)
            for array, (inner, leaf) in zip(element.flat_value, leaves)
        )
        payload.append(unflatten(arrays, element_type))
    return payload


def _read_federated(proto: executor_pb2.Value.Federated, type_spec: Type, path: str) -> object:
    uri, values = proto.type.placement.value.uri, proto.value
    if not isinstance(type_spec, FederatedType) or type_spec.placement.uri != uri:
        mismatch(type_spec, f"a value at {name_text(uri)!r}", path)
    is_sent_once = proto.type.all_equal or uri == SERVER.uri
    member = type_spec.member
    if is_client_valued(type_spec):
        if is_sent_once:
            mismatch(type_spec, "one value for all clients", path, "send one value per client")
        members = [value_from_proto(value, member, path=f"{path}, client {k}") for k, value in enumerate(values)]
        return column_from_payloads(members, member)
    if not values or (is_sent_once and len(values) > 1):
        raise InvalidValueError(
            f"Expected a single all-equal value at {path}, found {len(values)} values; send the value once"
        )
    return value_from_proto(values[0], member, path=path)


def _read_computation(proto: computation_pb2.Computation, type_spec: Type, path: str) -> object:
    if proto.WhichOneof("computation") == "literal":
        return _read_array(proto.literal.value, type_spec, path)
    try:
        found = type_from_proto(proto.type)
    except InvalidComputationError as error:
        raise InvalidValueError(f"The type at {path} is malformed: {error}; send a well-formed type") from error
    if not isinstance(type_spec, FunctionType) or not type_spec.is_equivalent_to(found):
        mismatch(type_spec, f"a computation of type {type_text(found)}", path)
    return proto

"""Payloads of any type survive the way through the wire's `Value` message, and foreign messages are read or refused."""

import contextlib
import math

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import array_pb2, computation_pb2
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from random_types import tensors, types

from fedstack.computations.codec.value_messages import value_from_proto, value_to_proto
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.errors import FedstackError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.proto import executor_pb2

Value = executor_pb2.Value
INT = fl.TensorType(np.int32)
AT_CLIENTS = fl.FederatedType(np.int32, fl.CLIENTS)
FOR_ALL = fl.FederatedType(np.int32, fl.CLIENTS, True)


@st.composite
def payloads(draw, type_spec):
    if isinstance(type_spec, fl.TensorType):
        return draw(tensor_payloads(type_spec))
    if isinstance(type_spec, fl.StructType):
        return tuple(draw(payloads(member)) for member in type_spec.children())
    if isinstance(type_spec, fl.SequenceType):
        return draw(st.lists(payloads(type_spec.element), max_size=3))
    if type_spec.placement is fl.CLIENTS and not type_spec.all_equal:
        return draw(st.lists(payloads(type_spec.member), max_size=3))
    return draw(payloads(type_spec.member))


@st.composite
def tensor_payloads(draw, type_spec):
    open_shape = (None,) * draw(st.integers(0, 2)) if type_spec.shape is None else type_spec.shape
    shape = [draw(st.integers(0, 3)) if dim is None else dim for dim in open_shape]
    size = math.prod(shape)
    if type_spec.dtype.type is np.str_:
        flat = np.empty(size, np.object_)
        flat[:] = draw(st.lists(st.binary(max_size=3), min_size=size, max_size=size))
    else:
        length = size * type_spec.dtype.itemsize
        raw = draw(st.binary(min_size=length, max_size=length))
        flat = np.frombuffer(bytes(b & 1 for b in raw) if type_spec.dtype == np.bool_ else raw, type_spec.dtype)
    return flat.reshape(shape) if shape else flat[0]


typed = types.flatmap(lambda type_spec: st.tuples(st.just(type_spec), payloads(type_spec)))


def assert_same(found, expected):
    if isinstance(found, Column):
        found = list(found.items())
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, bytes):
        assert found == expected
    else:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if found.dtype == np.object_:
            assert found.tolist() == expected.tolist()
        elif found.ndim:
            assert found.tobytes() == expected.tobytes()
        else:
            # The list form of a float turns a signalling NaN into a quiet one, and two NaNs differ.
            assert repr(found) == repr(expected)


def reparse(proto):
    return type(proto).FromString(proto.SerializeToString())


def strip(proto):
    """Leaves out of a value all that servers leave out of results."""
    kind = proto.WhichOneof("kind")
    if kind == "struct":
        for element in proto.struct.element:
            element.ClearField("name")
            strip(element.value)
    elif kind == "sequence":
        proto.sequence.ClearField("element_type")
    elif kind == "federated":
        proto.federated.type.ClearField("member")
        for value in proto.federated.value:
            strip(value)
    return proto


@given(typed)
def test_value_survives_the_wire(typed):
    type_spec, payload = typed
    assert_same(value_from_proto(reparse(value_to_proto(payload, type_spec)), type_spec), payload)


@pytest.mark.long
@given(typed)
def test_value_survives_without_names_and_types_in_the_message(typed):
    type_spec, payload = typed
    assert_same(value_from_proto(strip(reparse(value_to_proto(payload, type_spec))), type_spec), payload)


def test_value_to_proto_writes_names_and_types_of_everything():
    type_spec = fl.StructType([("b", fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS)), ("a", np.float32)])
    proto = value_to_proto(([[np.int32(1)]], np.float32(2)), type_spec)
    assert [element.name for element in proto.struct.element] == ["b", "a"]
    federated = proto.struct.element[0].value.federated
    assert fl.FederatedType.from_proto(computation_pb2.Type(federated=federated.type)) == type_spec.b
    assert fl.Type.from_proto(federated.value[0].sequence.element_type) == INT


def test_sequence_elements_are_flattened_depth_first_in_the_order_of_the_type():
    type_spec = fl.SequenceType([("b", [("d", np.int32), ("c", np.int32)]), ("a", np.int32)])
    payload = [((np.int32(1), np.int32(2)), np.int32(3)), ((np.int32(4), np.int32(5)), np.int32(6))]
    proto = value_to_proto(payload, type_spec)
    flat = [[array.int32_list.value[0] for array in element.flat_value] for element in proto.sequence.element]
    assert flat == [[1, 2, 3], [4, 5, 6]]
    assert value_from_proto(proto, type_spec) == payload


def test_value_to_proto_takes_any_re_iterable_as_a_sequence_and_any_column_of_clients():
    column = ListColumn([np.int32(0), np.int32(1)])
    assert_same(value_from_proto(value_to_proto(column, AT_CLIENTS), AT_CLIENTS), column.values)

    class Squares:
        def __len__(self):
            return 3

        def __iter__(self):
            return (np.int32(x * x) for x in range(3))

    type_spec = fl.SequenceType(np.int32)
    assert value_from_proto(value_to_proto(Squares(), type_spec), type_spec) == [0, 1, 4]


@pytest.mark.parametrize("all_equal", [True, False])
def test_server_value_is_all_equal_on_the_wire_whatever_its_type_says(all_equal):
    type_spec = fl.FederatedType(np.int32, fl.SERVER, all_equal)
    proto = value_to_proto(np.int32(1), type_spec)
    assert proto.federated.type.all_equal
    assert value_from_proto(proto, type_spec) == 1


def federated(values, all_equal, uri="clients"):
    proto = Value()
    proto.federated.type.placement.value.uri = uri
    proto.federated.type.all_equal = all_equal
    for value in values:
        proto.federated.value.add().CopyFrom(value_to_proto(np.int32(value), INT))
    return proto


def test_value_from_proto_takes_the_first_of_an_all_equal_value_that_was_sent_once_per_client():
    assert value_from_proto(federated([7, 7, 7], all_equal=False), fl.FederatedType(np.int32, fl.CLIENTS, True)) == 7


@pytest.mark.parametrize(
    ("proto", "type_spec", "message"),
    [
        (federated([], True), FOR_ALL, "Expected a single all-equal value at arg, found 0"),
        (federated([1, 1], True), FOR_ALL, "found 2"),
        (federated([1, 1], False, "server"), fl.FederatedType(np.int32, fl.SERVER), "found 2"),
        (federated([1], False, "moon"), AT_CLIENTS, "found a value at 'moon'"),
        (federated([], False), FOR_ALL, "found 0"),
        (federated([1], True), fl.FederatedType(np.int32, fl.CLIENTS), "found one value for all clients"),
        (federated([1], True), fl.FederatedType(np.int32, fl.SERVER), "found a value at 'clients'"),
        (federated([1], True), INT, "found a value at 'clients'"),
        (federated([1], False), fl.FederatedType(np.int64, fl.CLIENTS), "found int32; at arg, client 0"),
    ],
)
def test_value_from_proto_refuses_federated_values_that_do_not_fit(proto, type_spec, message):
    with pytest.raises((TypeMismatchError, InvalidValueError)) as caught:
        value_from_proto(proto, type_spec, path="arg")
    assert message in str(caught.value)


def literal(value):
    computation = computation_pb2.Computation(type=fl.TensorType(value.dtype, value.shape).to_proto())
    computation.literal.value.CopyFrom(fl.array_to_proto(value))
    return computation


@pytest.mark.parametrize("type_spec", [fl.TensorType(np.float32, [2]), fl.TensorType(np.float32, None)])
def test_value_from_proto_decodes_a_literal_as_its_array(type_spec):
    payload = np.array([1, 2], np.float32)
    assert_same(value_from_proto(Value(computation=literal(payload)), type_spec), payload)


def test_function_is_its_computation():
    computation = computation_pb2.Computation(type=fl.FunctionType(np.int32, np.float32).to_proto())
    computation.intrinsic.uri = "generic_plus"
    type_spec = fl.FunctionType(np.int32, np.float32)
    proto = reparse(value_to_proto(computation, type_spec))
    assert value_from_proto(proto, type_spec) == computation
    for other in (INT, fl.FunctionType(np.int32, np.int32)):
        with pytest.raises(TypeMismatchError, match=r"found a computation of type \(int32 -> float32\); at arg"):
            value_from_proto(proto, other, path="arg")


def test_value_from_proto_checks_names_only_where_the_message_has_them():
    type_spec = fl.StructType([("a", np.int32), ("b", np.int32)])
    proto = value_to_proto((np.int32(1), np.int32(2)), type_spec)
    with pytest.raises(TypeMismatchError, match="found the name 'a' at position 0; at arg"):
        value_from_proto(proto, fl.StructType([("b", np.int32), ("a", np.int32)]), path="arg")
    with pytest.raises(TypeMismatchError, match="found the name 'a' at position 0"):
        value_from_proto(proto, fl.StructType([np.int32, np.int32]))
    proto.struct.element[0].name = ""
    assert value_from_proto(proto, type_spec) == (1, 2)


NESTED = fl.StructType(
    [("weights", [np.float32, np.float32, (np.float32, [2, None])]), ("data", fl.SequenceType([("x", np.int32)]))]
)


def nested(third=(2, 1), x=np.int32):
    three = (np.float32(1), np.float32(2), np.zeros(third, np.float32))
    other = fl.StructType(
        [("weights", [np.float32, np.float32, (np.float32, third)]), ("data", fl.SequenceType([("x", x)]))]
    )
    return (three, [(x(0),), (x(1),)]), other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"third": (3, 1)}, "Expected float32[2,?], found float32[3,1]; at arg.weights[2]"),
        ({"third": (2,)}, "Expected float32[2,?], found float32[2]; at arg.weights[2]"),
        ({"x": np.int64}, "Expected int32, found int64; at arg.data[0].x"),
    ],
)
def test_misfit_is_reported_with_its_path_when_written_and_when_read(change, message):
    payload, other = nested(**change)
    with pytest.raises(TypeMismatchError) as caught:
        value_to_proto(payload, NESTED, path="arg")
    assert message in str(caught.value)
    with pytest.raises(TypeMismatchError) as caught:
        value_from_proto(value_to_proto(payload, other), NESTED, path="arg")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "type_spec", "message"),
    [
        ([np.int32(1)], fl.StructType([np.int32]), "found `list`; at arg; pass a tuple"),
        ((np.int32(1),) * 3, fl.StructType([np.int32] * 2), "Expected 2 members of <int32,int32>, found 3; at arg"),
        (iter([np.int32(1)]), fl.SequenceType(np.int32), "found a one-shot iterator `list_iterator`; at arg"),
        (3, fl.SequenceType(np.int32), "found `int`; at arg"),
        (b"ab", fl.SequenceType(np.int32), "found `bytes`; at arg"),
        ([1], fl.SequenceType(np.int32), "found `int`; at arg[0]"),
        (iter([np.int32(1)]), fl.FederatedType(np.int32, fl.CLIENTS), "found `list_iterator`; at arg"),
        ({0: np.int32(1)}, fl.FederatedType(np.int32, fl.CLIENTS), "found `dict`; at arg"),
        ([1], fl.FederatedType(np.int32, fl.CLIENTS), "found `int`; at arg, client 0"),
        (len, fl.FunctionType(None, np.int32), "found `builtin_function_or_method`; at arg"),
        (None, fl.PlacementType(), "federated or function type, found placement; at arg"),
    ],
)
def test_value_to_proto_refuses_what_is_no_payload_of_the_type(payload, type_spec, message):
    with pytest.raises(TypeMismatchError) as caught:
        value_to_proto(payload, type_spec, path="arg")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "type_spec", [INT, fl.StructType([INT]), fl.SequenceType(INT), fl.FederatedType(INT, fl.CLIENTS)]
)
@pytest.mark.parametrize(
    "other", [INT, fl.StructType([INT] * 2), fl.SequenceType([INT] * 2), fl.FederatedType(INT, fl.SERVER)]
)
def test_value_from_proto_refuses_a_value_of_another_kind(type_spec, other):
    if type_spec == other:
        return
    payload = {fl.TensorType: np.int32(1), fl.StructType: (np.int32(1),)}.get(type(type_spec), [np.int32(1)])
    with pytest.raises(TypeMismatchError, match="at value"):
        value_from_proto(value_to_proto(payload, type_spec), other)


def test_value_from_proto_refuses_an_empty_message():
    with pytest.raises(InvalidValueError, match="Expected a value at value, found an empty message"):
        value_from_proto(Value(), INT)


@pytest.mark.parametrize("raw", [b"\x1a\x03abc", b"\x0a\x03abc"])
def test_value_from_proto_refuses_the_dataset_of_an_old_peer(raw):
    proto = Value(sequence=Value.Sequence.FromString(raw))
    with pytest.raises(InvalidValueError, match="at value, found a serialized dataset that only TensorFlow can read"):
        value_from_proto(reparse(proto), fl.SequenceType(np.int32))


def test_value_from_proto_refuses_a_sequence_of_anything_but_tensors():
    proto = value_to_proto([np.int32(1)], fl.SequenceType(np.int32))
    with pytest.raises(TypeMismatchError, match="Expected sequence elements that are tensors or structs of tensors"):
        value_from_proto(proto, fl.SequenceType(fl.PlacementType()))


def test_value_from_proto_refuses_the_wrong_number_of_arrays_in_an_element():
    type_spec = fl.SequenceType([np.int32, np.int32])
    proto = value_to_proto([(np.int32(1), np.int32(2))] * 2, type_spec)
    del proto.sequence.element[1].flat_value[0]
    with pytest.raises(TypeMismatchError, match=r"Expected 2 arrays for <int32,int32>, found 1 arrays; at value\[1\]"):
        value_from_proto(proto, type_spec)


def deep(levels, leaf):
    type_spec = leaf
    for _ in range(levels):
        type_spec = fl.StructType([("x", type_spec)])
    return type_spec


def deep_payload(levels):
    payload = np.int32(7)
    for _ in range(levels):
        payload = (payload,)
    return payload


@pytest.mark.parametrize(
    ("wrap", "wrap_payload"),
    [
        (lambda t: t, lambda p: p),
        (lambda t: fl.FederatedType(t, fl.SERVER), lambda p: p),
        (lambda t: fl.FederatedType(t, fl.CLIENTS), lambda p: [p, p]),
        (lambda t: fl.SequenceType(t), lambda p: [p, p]),
        (lambda t: fl.FederatedType(fl.SequenceType(t), fl.CLIENTS), lambda p: [[p], []]),
    ],
)
def test_value_to_proto_writes_no_deeper_than_a_peer_can_parse(wrap, wrap_payload):
    type_spec, payload = wrap(deep(30, INT)), wrap_payload(deep_payload(30))
    request = executor_pb2.CreateValueRequest(value=value_to_proto(payload, type_spec))
    assert_same(value_from_proto(reparse(request).value, type_spec), payload)
    with pytest.raises(ResourceLimitError, match="Expected at most 30 levels of nested structs"):
        value_to_proto(wrap_payload(deep_payload(31)), wrap(deep(31, INT)))


@given(types, st.binary(max_size=80))
def test_random_bytes_are_decoded_or_refused(type_spec, raw):
    with contextlib.suppress(DecodeError, FedstackError):
        value_from_proto(Value.FromString(raw), type_spec)


edits = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.floats(0, 0.999), st.integers(0, 255)), max_size=4
)


@pytest.mark.long
@given(typed, edits)
@example((INT, np.int32(1)), [])
def test_mutated_bytes_are_decoded_or_refused(typed, edits):
    type_spec, payload = typed
    raw = bytearray(value_to_proto(payload, type_spec).SerializeToString())
    for what, where, byte in edits:
        start = int(where * len(raw))
        raw[start : start + (what != "insert")] = b"" if what == "delete" else bytes([byte])
    try:
        proto = Value.FromString(bytes(raw))
    except DecodeError:
        return
    with contextlib.suppress(FedstackError):
        value_from_proto(proto, type_spec)


@given(st.data())
def test_arrays_in_a_value_may_be_lists_as_new_peers_write_them(data):
    type_spec = data.draw(tensors)
    payload = data.draw(payloads(type_spec))
    hint = type_spec.dtype.type if isinstance(payload, bytes) or payload.size == 0 else None
    proto = reparse(Value(array=fl.array_to_proto(payload, dtype_hint=hint)))
    found = value_from_proto(proto, type_spec)
    assert np.shape(found) == np.shape(payload)
    assert np.asarray(found).tolist() == np.asarray(payload).tolist() or np.asarray(found).dtype.kind in "fcV"


def test_array_message_of_another_process_is_the_field_of_a_value():
    raw = Value(array=array_pb2.Array(dtype=3, int32_list=array_pb2.Array.IntList(value=[5]))).SerializeToString()
    assert raw == bytes([6 << 3 | 2, 7, 1 << 3, 3, 6 << 3 | 2, 3, 1 << 3 | 2, 1, 5])
    assert value_from_proto(Value.FromString(raw), INT) == 5

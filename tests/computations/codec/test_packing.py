"""Payloads of any type travel as a message and frames, however these are cut; what a peer makes up is refused."""

import math
import tracemalloc

import federated_language as fl
import numpy as np
import pytest
from federated_language.proto import array_pb2, computation_pb2, data_type_pb2
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_types import structs, tensors, types

from fedstack.computations.codec.packing import LARGE_BYTES as LARGE
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    ScalarColumn,
    StructColumn,
    column_from_payloads,
)
from fedstack.computations.values.containers import to_result
from fedstack.errors import CardinalityError, FedstackError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.segments import SegmentReader
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.wire.frames import data_frames, parse_frame

INT, FLOAT, TEXT = fl.TensorType(np.int32), fl.TensorType(np.float32), fl.TensorType(np.str_)
PLENTY = 1 << 30

functions = st.builds(fl.FunctionType, st.none() | tensors, tensors)
all_types = types | functions | structs(functions | types)


@st.composite
def arrays(draw, type_spec):
    """Draws what a tensor may be; now and then one that travels beside the message, cut out of a larger one."""
    open_shape = (None,) * draw(st.integers(0, 2)) if type_spec.shape is None else type_spec.shape
    shape = [draw(st.integers(0, 3)) if dim is None else dim for dim in open_shape]
    if None in open_shape and type_spec.dtype.type is not np.str_ and draw(st.integers(0, 4)) == 0:
        shape[list(open_shape).index(None)] = LARGE
    size = math.prod(shape)
    if type_spec.dtype.type is np.str_:
        flat = np.empty(size, np.object_)
        flat[:] = draw(st.lists(st.binary(max_size=3), min_size=size, max_size=size))
    else:
        pattern = draw(st.binary(min_size=1, max_size=40))
        raw = (pattern * (size * type_spec.dtype.itemsize // len(pattern) + 1))[: size * type_spec.dtype.itemsize]
        flat = np.frombuffer(bytes(b & 1 for b in raw) if type_spec.dtype == np.bool_ else raw, type_spec.dtype)
    if not shape:
        return flat[0]
    array = flat.reshape(shape)
    return array.T.copy().T if draw(st.booleans()) else array  # in an order that is not that of the wire


@st.composite
def payloads(draw, type_spec, clients):
    if isinstance(type_spec, fl.TensorType):
        return draw(arrays(type_spec))
    if isinstance(type_spec, fl.StructType):
        return tuple(draw(payloads(member, clients)) for member in type_spec.children())
    if isinstance(type_spec, fl.SequenceType):
        return draw(st.lists(payloads(type_spec.element, clients), max_size=3))
    if isinstance(type_spec, fl.FunctionType):
        return computation_pb2.Computation(type=type_spec.to_proto(), data=computation_pb2.Data())
    if type_spec.placement is fl.CLIENTS and not type_spec.all_equal:
        column = columns(type_spec.member, clients)
        return draw(column | column.map(list))
    return draw(payloads(type_spec.member, clients))


@st.composite
def columns(draw, member, clients):
    """Draws a column of every kind that executors make of a member type."""
    kinds = ["constant", "list"]
    if isinstance(member, fl.StructType):
        kinds += ["fields"] * 3
    if isinstance(member, fl.TensorType) and member.shape == () and member.dtype.type is not np.str_:
        kinds += ["scalars"] * 2
    if isinstance(member, fl.TensorType) and member.shape != ():
        kinds += ["alike"] * 3
    kind = draw(st.sampled_from(kinds))
    if kind == "constant":
        return ConstantColumn(draw(payloads(member, clients)), clients)
    if kind == "fields":
        fields = tuple(draw(columns(field, clients)) for field in member.children())
        return StructColumn(fields, clients)
    if kind == "alike":
        first = draw(arrays(member))
        if not isinstance(first, np.ndarray):
            return ListColumn([first] * clients)
        return ListColumn([np.ascontiguousarray(np.roll(first, client)) for client in range(clients)])
    values = [draw(payloads(member, clients)) for _ in range(clients)]
    if kind == "scalars":
        return ScalarColumn(np.array(values, member.dtype))
    return ListColumn(values)


@st.composite
def typed(draw):
    type_spec = draw(all_types)
    clients = draw(st.integers(0, 4))
    return type_spec, draw(payloads(type_spec, clients)), clients


def send(
    payload,
    type_spec,
    *,
    clients=None,
    max_bytes=PLENTY,
    chunk_bytes=5000,
    places=(),
    for_results=False,
):
    """Packs a payload, sends it over a stream that is cut anywhere, and returns what comes out."""
    packer, message = Packer(), Packed()
    packer.pack(message, payload, type_spec)
    unpacker = Unpacker(max_bytes=max_bytes, clients=clients, for_results=for_results)
    received = unpacker.unpack(Packed.FromString(message.SerializeToString()), type_spec)
    reader = SegmentReader(unpacker.buffers)
    content = b"".join(bytes(parse_frame(frame).data) for frame in data_frames(packer.segments, chunk_bytes))
    assert len(content) == packer.segment_bytes == reader.expected
    ends = sorted(place % (len(content) + 1) for place in places)
    for start, end in zip([0, *ends], [*ends, len(content)], strict=True):
        reader.feed(memoryview(content)[start:end])
    reader.finish()
    unpacker.finish()
    return received


def assert_same(found, expected, type_spec):
    if isinstance(expected, computation_pb2.Computation):
        assert found == expected
    elif isinstance(type_spec, fl.FederatedType) and type_spec.placement is fl.CLIENTS and not type_spec.all_equal:
        assert isinstance(found, Column)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, type_spec.member)
    elif isinstance(type_spec, fl.FederatedType):
        assert_same(found, expected, type_spec.member)
    elif isinstance(type_spec, fl.SequenceType):
        assert isinstance(found, (list, ColumnSequence))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, type_spec.element)
    elif isinstance(type_spec, fl.StructType):
        assert isinstance(found, tuple)
        assert len(found) == len(expected)
        for one, other, member in zip(found, expected, type_spec.children(), strict=True):
            assert_same(one, other, member)
    elif isinstance(expected, bytes):
        assert found == expected
    else:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if found.dtype == np.object_:
            assert found.tolist() == expected.tolist()
        elif found.ndim or found.dtype.kind not in "fcV":
            assert found.tobytes() == expected.tobytes()
        else:
            # The list form of a float turns a signalling NaN into a quiet one, and two NaNs differ.
            assert repr(found) == repr(expected)


def arrays_in(payload):
    """Yields the arrays of a payload as whoever takes it out of its columns sees them."""
    if isinstance(payload, (tuple, list, Column, ColumnSequence)):
        for member in payload:
            yield from arrays_in(member)
    elif isinstance(payload, np.ndarray):
        yield payload


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(typed(), st.integers(1, 3 * LARGE), st.lists(st.integers(0, 10**6), max_size=5), st.booleans())
def test_a_payload_of_any_type_arrives_as_it_was_sent_and_read_only(typed, chunk_bytes, places, for_results):
    type_spec, payload, clients = typed
    received = send(
        payload,
        type_spec,
        clients=clients,
        chunk_bytes=chunk_bytes,
        places=places,
        for_results=for_results,
    )
    assert_same(received, payload, type_spec)
    assert not any(array.flags.writeable for array in arrays_in(received))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(typed())
def test_a_payload_of_any_type_fits_into_one_message(typed):
    type_spec, payload, clients = typed
    packer, message = Packer(large_bytes=PLENTY), Packed()
    packer.pack(message, payload, type_spec)
    assert not packer.segments
    unpacker = Unpacker(max_bytes=0, clients=clients)
    assert_same(unpacker.unpack(message, type_spec), payload, type_spec)
    assert not unpacker.buffers


def at_clients(member):
    return fl.FederatedType(member, fl.CLIENTS)


def packed(payload, type_spec):
    packer, message = Packer(), Packed()
    packer.pack(message, payload, type_spec)
    return packer, message


VECTOR = fl.TensorType(np.float32, [None])


@pytest.mark.parametrize(
    ("column", "member", "kind"),
    [
        (ConstantColumn(np.int32(7), 3), INT, "same"),
        (ConstantColumn(np.zeros(LARGE, np.float32), 10**6), VECTOR, "same"),
        (ScalarColumn(np.arange(3, dtype=np.int32)), INT, "column"),
        (ScalarColumn(np.arange(LARGE, dtype=np.int32)), INT, "rows"),
        (ListColumn([np.zeros(2, np.float32)] * 3), VECTOR, "column"),
        (ListColumn([np.zeros(LARGE, np.float32)] * 3), VECTOR, "rows"),
        (ListColumn([np.zeros(2, np.float32), np.zeros(3, np.float32)]), VECTOR, "clients"),
        (ListColumn([b"a", b"\0\xff"]), TEXT, "clients"),
        (ListColumn([[np.int32(1)], []]), fl.SequenceType(INT), "sequences"),
        (StructColumn((ScalarColumn(np.arange(3, dtype=np.int32)),), 3), fl.StructType([INT]), "fields"),
        (StructColumn((), 3), fl.StructType([]), "fields"),
    ],
)
def test_a_column_takes_the_form_that_costs_least(column, member, kind):
    packer, message = packed(column, at_clients(member))
    assert message.WhichOneof("kind") == kind
    assert bool(packer.segments) == (packer.segment_bytes >= LARGE)
    assert message.ByteSize() < LARGE
    if len(column) < 10**6:
        assert_same(send(column, at_clients(member)), column, at_clients(member))


def test_what_a_broadcast_gives_travels_once_however_many_clients_there_are():
    column = ConstantColumn(np.zeros(LARGE, np.float32), 10**6)
    received = send(column, at_clients(VECTOR), clients=10**6)
    assert isinstance(received, ConstantColumn)
    assert len(received) == 10**6
    assert received.value.nbytes == 4 * LARGE


def test_the_bytes_of_large_arrays_are_sent_from_where_they_lie():
    array = np.zeros(LARGE, np.float32)
    packer, _ = packed((array, ListColumn([array, array])), fl.StructType([VECTOR, at_clients(VECTOR)]))
    single, rows = packer.segments
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), array) for view in (single, *rows.views()))
    assert packer.segment_bytes == 3 * array.nbytes


@pytest.mark.parametrize("clients", [1, 3])
def test_large_results_of_clients_are_handed_out_as_they_were_received(clients):
    column = ListColumn([np.full((2, LARGE), client, np.float32) for client in range(clients)])
    type_spec = at_clients(fl.TensorType(np.float32, [2, None]))
    received = send(column, type_spec, for_results=True)
    views = list(received)
    results = to_result(received, type_spec)
    assert [result.tobytes() for result in results] == [array.tobytes() for array in column]
    assert all(map(np.shares_memory, results, views))
    assert all(result.flags.writeable and result.flags.owndata for result in results)


@pytest.mark.parametrize(("length", "beside"), [(LARGE // 4 - 1, False), (LARGE // 4, True)])
def test_an_array_travels_beside_the_message_from_the_threshold_on(length, beside):
    packer, message = packed(np.zeros(length, np.float32), VECTOR)
    assert message.WhichOneof("kind") == ("raw" if beside else "array")
    assert packer.segment_bytes == (4 * length if beside else 0)


def test_what_is_announced_is_counted_before_memory_is_touched():
    message = Packed()
    for _ in range(8):
        message.struct.member.add().raw.CopyFrom(Packed.Raw(dtype=data_type_pb2.DT_FLOAT, dim=[1 << 28]))
    tracemalloc.start()
    try:
        with pytest.raises(ResourceLimitError, match=r"Expected at most 1024 bytes .* found at least 1073741824"):
            Unpacker(max_bytes=1024).unpack(message, fl.StructType([VECTOR] * 8))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_limit_is_on_all_arrays_of_a_message_together():
    array = np.zeros(LARGE, np.uint8)
    pair, type_spec = (array, array), fl.StructType([fl.TensorType(np.uint8, [None])] * 2)
    assert_same(send(pair, type_spec, max_bytes=2 * LARGE), pair, type_spec)
    with pytest.raises(ResourceLimitError, match="raise the peer's limit"):
        send(pair, type_spec, max_bytes=2 * LARGE - 1)


@pytest.mark.parametrize(
    ("dims", "error", "message"),
    [
        ([], InvalidValueError, "Expected the shape of an array at .*, found the shape of a scalar"),
        ([-1], InvalidValueError, "Expected non-negative dimensions"),
        ([2, -(2**63)], InvalidValueError, "Expected non-negative dimensions"),
        ([1] * 65, InvalidValueError, "Expected a shape with at most 64"),
        ([2**63 - 1], ResourceLimitError, "found at least 36893488147419103228"),
        ([2**32, 2**32], ResourceLimitError, "found at least"),  # 2^64 elements: none, to whoever counts in 64 bits
        ([2**62, 2**62, 0], ResourceLimitError, "Expected an array that fits into memory"),
    ],
)
@pytest.mark.parametrize("kind", ["raw", "rows"])
def test_dimensions_that_no_array_has_are_refused(kind, dims, error, message):
    proto = Packed()
    getattr(proto, kind).CopyFrom(Packed.Raw(dtype=data_type_pb2.DT_FLOAT, dim=dims))
    tensor = fl.TensorType(np.float32, None)
    with pytest.raises(error, match=message):
        Unpacker(max_bytes=PLENTY).unpack(proto, tensor if kind == "raw" else at_clients(tensor))


@pytest.mark.parametrize("dims", [[], [-1], [1] * 65, [2**63 - 1], [2**62, 2**62, 0]])
def test_a_column_in_the_message_has_the_dimensions_of_an_array(dims):
    array = array_pb2.Array(dtype=data_type_pb2.DT_FLOAT, shape=array_pb2.ArrayShape(dim=dims), content=b"")
    with pytest.raises(FedstackError):
        Unpacker(max_bytes=PLENTY).unpack(Packed(column=array), at_clients(fl.TensorType(np.float32, None)))


def empty_rows(clients, kind):
    """A message of a few bytes that announces arrays without elements for any number of clients."""
    if kind == "rows":
        return Packed(rows=Packed.Raw(dtype=data_type_pb2.DT_FLOAT, dim=[clients, 0]))
    shape = array_pb2.ArrayShape(dim=[clients, 0])
    return Packed(column=array_pb2.Array(dtype=data_type_pb2.DT_FLOAT, shape=shape, content=b""))


@pytest.mark.parametrize("kind", ["rows", "column"])
def test_arrays_without_elements_cost_nothing_however_many_clients_are_said_to_have_them(kind):
    tracemalloc.start()
    try:
        column = Unpacker(max_bytes=PLENTY).unpack(empty_rows(10_000_000, kind), at_clients(VECTOR))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(column) == 10_000_000
    assert_same(column.slice(0, 2), [np.zeros(0, np.float32)] * 2, at_clients(VECTOR))


def of_clients(clients, kind):
    if kind == "same":
        message = Packed(same=Packed.Same(clients=clients))
        packed_member(message.same.member)
        return message, INT
    if kind == "fields":
        return Packed(fields=Packed.Fields(clients=clients)), fl.StructType([])
    return empty_rows(clients, kind), VECTOR


def packed_member(proto):
    Packer().pack(proto, np.int32(1), INT)


@pytest.mark.parametrize("kind", ["same", "fields", "rows", "column"])
def test_the_number_of_clients_is_bounded(kind):
    message, member = of_clients(10_000_001, kind)
    with pytest.raises(ResourceLimitError, match="Expected at most 10000000 clients at value.*, found 10000001"):
        Unpacker(max_bytes=PLENTY).unpack(message, at_clients(member))


@pytest.mark.parametrize("kind", ["same", "fields", "rows", "column"])
@pytest.mark.parametrize("found", [0, 2, 4])
def test_a_column_has_as_many_clients_as_it_must_have(kind, found):
    message, member = of_clients(found, kind)
    with pytest.raises(CardinalityError, match=f"Expected a value for each of 3 clients at .*, found {found} values"):
        Unpacker(max_bytes=PLENTY, clients=3).unpack(message, at_clients(member))


def test_the_columns_of_a_struct_have_one_length():
    _, message = packed(
        StructColumn((ScalarColumn(np.arange(3, dtype=np.int32)),), 3), at_clients(fl.StructType([("a", INT)]))
    )
    message.fields.clients = 2
    with pytest.raises(CardinalityError, match=r"Expected 2 clients in each column of the struct at .*, found \[3\]"):
        Unpacker(max_bytes=PLENTY).unpack(message, at_clients(fl.StructType([("a", INT)])))


def test_bytes_that_numpy_would_trust_to_be_bools_are_looked_at():
    type_spec = fl.TensorType(np.bool_, [LARGE])
    _, message = packed(np.zeros(LARGE, np.bool_), type_spec)
    for last, fits in [(0, True), (1, True), (2, False), (255, False)]:
        unpacker = Unpacker(max_bytes=PLENTY)
        received = unpacker.unpack(message, type_spec)
        unpacker.buffers[0][:] = bytes(LARGE - 1) + bytes([last])
        if fits:
            unpacker.finish()
            assert received[-1] == bool(last)
        else:
            with pytest.raises(InvalidValueError, match="Expected only bytes 0 and 1 for bool, found other"):
                unpacker.finish()


@pytest.mark.parametrize("content", [b"\2", b"\1\0"])
def test_what_is_in_the_message_is_looked_at_too(content):
    array = array_pb2.Array(dtype=data_type_pb2.DT_BOOL, shape=array_pb2.ArrayShape(dim=[1]), content=content)
    for message, type_spec in [
        (Packed(array=array), fl.TensorType(np.bool_, [1])),
        (Packed(column=array), at_clients(fl.TensorType(np.bool_))),
    ]:
        with pytest.raises(InvalidValueError):
            Unpacker(max_bytes=PLENTY).unpack(message, type_spec)


PAIR = fl.StructType([("a", INT), ("b", VECTOR)])
PAIR_PAYLOAD = (np.int32(1), np.zeros(2, np.float32))
SAMPLES = [
    (np.int32(1), INT),
    (np.float32(1), FLOAT),
    (np.zeros(2, np.float32), VECTOR),
    (np.zeros(LARGE, np.float32), fl.TensorType(np.float32, [LARGE])),
    (np.zeros(LARGE, np.int16), fl.TensorType(np.int16, [None])),
    (np.zeros((2, LARGE), np.float32), fl.TensorType(np.float32, [2, None])),
    (b"text", TEXT),
    (PAIR_PAYLOAD, PAIR),
    ((np.int32(1),), fl.StructType([INT])),
    ([np.int32(1)], fl.SequenceType(INT)),
    ([PAIR_PAYLOAD], fl.SequenceType(PAIR)),
    (ScalarColumn(np.arange(3, dtype=np.int32)), at_clients(INT)),
    (ScalarColumn(np.arange(LARGE, dtype=np.float32)), at_clients(FLOAT)),
    (ConstantColumn(b"text", 3), at_clients(TEXT)),
    (ListColumn([np.zeros(LARGE, np.float32)] * 3), at_clients(fl.TensorType(np.float32, [LARGE]))),
    (column_from_payloads([PAIR_PAYLOAD] * 3, PAIR), at_clients(PAIR)),
    (ListColumn([[np.int32(1)]] * 3), at_clients(fl.SequenceType(INT))),
    (computation_pb2.Computation(), fl.FunctionType(None, INT)),
]


@pytest.mark.slow
@pytest.mark.parametrize("sent", range(len(SAMPLES)))
@pytest.mark.parametrize("wanted", range(len(SAMPLES)))
def test_a_value_is_read_by_its_own_type_only(sent, wanted):
    payload, type_spec = SAMPLES[sent]
    other = SAMPLES[wanted][1]
    fits = other.is_assignable_from(type_spec)
    if fits and isinstance(other, fl.FederatedType) == isinstance(type_spec, fl.FederatedType):
        return
    if isinstance(type_spec, fl.SequenceType) and other == at_clients(type_spec):
        return  # one sequence is written as the sequences of one client are
    _, message = packed(payload, type_spec)
    with pytest.raises((TypeMismatchError, InvalidValueError), match="Expected .* at value.*, found |; at value"):
        Unpacker(max_bytes=PLENTY).unpack(message, other)


@pytest.mark.parametrize("type_spec", [type_spec for _, type_spec in SAMPLES])
def test_an_empty_message_is_no_value(type_spec):
    with pytest.raises(TypeMismatchError, match="found an empty message; at value"):
        Unpacker(max_bytes=PLENTY).unpack(Packed(), type_spec)


def test_a_misfit_is_reported_with_its_path():
    nested = fl.StructType([("x", fl.SequenceType(PAIR)), ("y", at_clients(PAIR))])
    payload = ([PAIR_PAYLOAD, PAIR_PAYLOAD], column_from_payloads([PAIR_PAYLOAD] * 2, PAIR))
    _, message = packed(payload, nested)
    message.struct.member[0].sequences.row.fields.column[1].column.dtype = data_type_pb2.DT_INT32
    with pytest.raises(TypeMismatchError, match=r"at value\.x\[\*\]\.b"):
        Unpacker(max_bytes=PLENTY).unpack(message, nested)
    _, message = packed(payload, nested)
    message.struct.member[1].fields.column[1].column.dtype = data_type_pb2.DT_INT32
    with pytest.raises(TypeMismatchError, match=r"at value\.y\.b"):
        Unpacker(max_bytes=PLENTY).unpack(message, nested)
    _, message = packed(ListColumn([b"a", b"b"]), at_clients(TEXT))
    message.clients.member[1].array.string_list.value.append(b"c")
    with pytest.raises(InvalidValueError, match=r"at value, client 1"):
        Unpacker(max_bytes=PLENTY).unpack(message, at_clients(TEXT))


@pytest.mark.parametrize(
    ("payload", "type_spec", "message"),
    [
        (np.int64(1), INT, "found int64; at arg"),
        (np.zeros(LARGE, np.float64), VECTOR, r"found float64\[16384\]; at arg"),
        (np.zeros(LARGE, np.float32), fl.TensorType(np.float32, [7]), r"found float32\[16384\]; at arg"),
        (ListColumn([np.zeros(LARGE, np.float64)]), at_clients(VECTOR), r"found float64\[16384\]; at arg"),
        ([np.zeros(3, np.float32)], at_clients(fl.TensorType(np.float32, [2])), "at arg"),
        ((np.int32(1),), PAIR, "Expected 2 members of <a=int32,b=float32\\[\\?\\]>, found 1; at arg"),
        (np.int32(1), PAIR, "found `int32`; at arg"),
        ((np.int32(1), b"b"), PAIR, "at arg.b"),
        (iter([np.int32(1)]), fl.SequenceType(INT), "found a one-shot iterator `list_iterator`; at arg"),
        ([b"b", np.int32(1)], fl.SequenceType(TEXT), r"at arg\[1\]"),
        ({"a": 1}, at_clients(INT), "found `dict`; at arg"),
        ([b"a", np.int32(1)], at_clients(TEXT), "at arg, client 1"),
        (np.int32(1), fl.FunctionType(None, INT), "found `int32`; at arg"),
        (np.int32(1), fl.PlacementType(), "found `int32`; at arg"),
    ],
)
def test_what_is_no_payload_of_the_type_is_not_sent(payload, type_spec, message):
    with pytest.raises(TypeMismatchError, match=message):
        Packer().pack(Packed(), payload, type_spec, "arg")


edits = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.floats(0, 0.999), st.integers(0, 255)), max_size=4
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(typed(), edits)
def test_mutated_bytes_are_unpacked_or_refused(typed, edits):
    type_spec, payload, clients = typed
    packer, message = packed(payload, type_spec)
    raw = bytearray(message.SerializeToString())
    for what, where, byte in edits:
        start = int(where * len(raw))
        raw[start : start + (what != "insert")] = b"" if what == "delete" else bytes([byte])
    try:
        mutated = Packed.FromString(bytes(raw))
    except DecodeError:
        return
    unpacker = Unpacker(max_bytes=1 << 20, clients=clients)
    try:
        unpacker.unpack(mutated, type_spec)
        reader = SegmentReader(unpacker.buffers)
        for frame in data_frames(packer.segments):
            reader.feed(parse_frame(frame).data)
        reader.finish()
        unpacker.finish()
    except FedstackError:
        return


@pytest.mark.long
def test_a_sequence_of_structs_takes_a_few_arrays_whatever_its_length():
    pairs = fl.SequenceType(fl.StructType([("x", np.float32), ("y", np.int32)]))
    payload = [(np.float32(i), np.int32(i)) for i in range(100_000)]
    packer, message = Packer(), Packed()
    packer.pack(message, payload, pairs)
    assert message.ByteSize() < 200
    assert packer.segment_bytes == 800_000
    assert_same(send(payload, pairs), payload, pairs)


@pytest.mark.parametrize("kind", ["same", "fields"])
def test_the_number_of_elements_that_take_no_bytes_is_bounded(kind):
    message = Packed()
    member = INT if kind == "same" else fl.StructType([])
    message.sequences.rows.append(100_001)
    getattr(message.sequences.row, kind).clients = 100_001
    if kind == "same":
        message.sequences.row.same.member.CopyFrom(packed(np.int32(1), INT)[1])
    with pytest.raises(ResourceLimitError, match="at most 100000 elements without content at .*, found 100001"):
        Unpacker(max_bytes=PLENTY).unpack(message, fl.SequenceType(member))


def test_elements_are_not_counted_as_clients():
    sequences = fl.FederatedType(fl.SequenceType(INT), fl.CLIENTS)
    payload = [[np.int32(i) for i in range(size)] for size in (5, 0)]
    assert_same(send(payload, sequences, clients=2), payload, sequences)
    with pytest.raises(CardinalityError):
        send(payload, sequences, clients=5)

"""Scalars and arrays survive the way through the language's `Array` message, in both of its encodings."""

import contextlib
import math

import federated_language
import ml_dtypes
import numpy as np
import pytest
from example_counts import examples
from federated_language.proto import array_pb2, data_type_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstack.computations.codec.arrays import array_from_proto, array_to_proto
from fedstack.errors import FedstackError, InvalidValueError, TypeMismatchError

NUMERIC = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16,
    ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128,
]  # fmt: skip
ALL = [*NUMERIC, np.str_]
STRING = np.dtype(np.str_)
dims = st.lists(st.integers(0, 4), max_size=3).map(tuple)
a_few = settings(max_examples=examples(30))  # of each dtype


def make(dtype, shape, data):
    """Returns a payload of any bits, or any strings, without a loop that could round them."""
    size = math.prod(shape)
    if dtype is np.str_:
        values = data.draw(st.lists(st.binary(max_size=6), min_size=size, max_size=size))
        if not shape:
            return values[0]
        array = np.empty(size, np.object_)
        array[:] = values
        return array.reshape(shape)
    length = size * np.dtype(dtype).itemsize
    raw = data.draw(st.binary(min_size=length, max_size=length))
    if dtype is np.bool_:
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype).reshape(shape)
    return array if shape else array[()]


def parts(array):
    """Splits complex numbers, so that a NaN in one part does not hide the other."""
    return np.atleast_1d(array).view(array.real.dtype) if array.dtype.kind == "c" else np.atleast_1d(array)


def assert_same(found, expected, *, bits=True):
    """Compares dtype, shape and content; NaNs are equal, and with `bits` they have the same bits."""
    assert type(found) is type(expected)
    if isinstance(expected, bytes):
        assert found == expected
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype == np.object_:
        assert found.tolist() == expected.tolist()
    elif bits:
        assert found.tobytes() == expected.tobytes()
    else:
        with np.errstate(invalid="ignore"):  # bfloat16 signals where it meets a signalling NaN
            assert np.array_equal(parts(found), parts(expected), equal_nan=found.dtype.kind in "fcV")


def reparse(proto):
    return array_pb2.Array.FromString(proto.SerializeToString())


@pytest.mark.parametrize("dtype", ALL)
@a_few
@given(shape=dims, data=st.data())
def test_array_survives_the_wire(dtype, shape, data):
    payload = make(dtype, shape, data)
    found = array_from_proto(reparse(array_to_proto(payload, np.dtype(dtype), shape)))
    # A scalar passes through a Python number, which makes a signalling NaN a quiet one.
    assert_same(found, payload, bits=bool(shape))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@given(bits=st.integers(0, 2**16 - 1))
def test_half_scalar_keeps_every_bit(dtype, bits):
    payload = np.array(bits, np.uint16).view(dtype)[()]
    found = array_from_proto(reparse(array_to_proto(payload, np.dtype(dtype))))
    assert np.asarray(found).view(np.uint16) == bits


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(), (0,), (2,), (2, 0, 3)])
def test_array_to_proto_writes_lists_for_scalars_and_strings_and_content_for_the_rest(dtype, shape):
    empty = b"" if dtype is np.str_ else dtype(0)
    payload = np.full(shape, empty, np.object_ if dtype is np.str_ else dtype) if shape else empty
    proto = array_to_proto(payload, np.dtype(dtype))
    is_list = not shape or dtype is np.str_
    assert (proto.WhichOneof("kind") is not None) == is_list
    assert proto.HasField("content") != is_list


@pytest.mark.parametrize("dtype", ALL)
@a_few
@given(shape=dims, data=st.data())
def test_a_literal_is_a_list_that_the_language_reads(dtype, shape, data):
    payload = make(dtype, shape, data)
    proto = reparse(array_to_proto(payload, np.dtype(dtype), shape, as_list=True))
    assert proto.WhichOneof("kind") is not None
    assert not proto.HasField("content")
    assert_same(array_from_proto(proto), payload, bits=False)
    with np.errstate(invalid="ignore"):  # bfloat16 signals where it meets a signalling NaN
        assert_same(federated_language.array_from_proto(proto), payload, bits=False)


def test_array_to_proto_writes_c_order_whatever_the_order_in_memory():
    payload = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    proto = array_to_proto(payload, payload.dtype)
    assert proto.content == bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0])
    assert_same(array_from_proto(proto), np.arange(6, dtype=np.int16).reshape(2, 3))


def test_array_from_proto_is_read_only_and_a_view():
    array = array_from_proto(array_to_proto(np.arange(3), np.dtype(np.int64)))
    assert not array.flags.owndata
    for payload in (np.arange(3), np.array([b"a"], np.object_)):
        dtype = STRING if payload.dtype == np.object_ else payload.dtype
        array = array_from_proto(array_to_proto(payload, dtype))
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[-1]
    assert not array_from_proto(federated_language.array_to_proto(np.arange(3))).flags.writeable


@pytest.mark.parametrize("value", [b"", b"\x00", b"a\x00\x00", b"\xff\xfe", "käse".encode()])
def test_strings_keep_nuls_and_bytes_that_are_no_text(value):
    assert array_from_proto(reparse(array_to_proto(value, STRING))) == value
    array = np.array([value, b"x"], np.object_)
    assert array_from_proto(reparse(array_to_proto(array, STRING))).tolist() == [value, b"x"]


@pytest.mark.parametrize("dtype", ALL)
@a_few
@given(shape=dims, data=st.data())
def test_array_from_proto_reads_the_lists_that_the_language_writes(dtype, shape, data):
    payload = make(dtype, shape, data)
    hint = dtype if isinstance(payload, bytes) or payload.size == 0 else None
    proto = federated_language.array_to_proto(payload, dtype_hint=hint)
    assert not proto.HasField("content")
    assert_same(array_from_proto(reparse(proto), np.dtype(dtype), shape), payload, bits=False)


@pytest.mark.parametrize("dtype", NUMERIC)
@a_few
@given(shape=dims, data=st.data())
def test_array_from_proto_reads_the_content_that_the_language_writes(dtype, shape, data):
    payload = make(dtype, shape, data)
    proto = federated_language.array_to_proto_content(payload)
    assert_same(array_from_proto(reparse(proto), np.dtype(dtype), shape), payload)


@pytest.mark.parametrize("dtype", ALL)
@a_few
@given(shape=dims, data=st.data())
def test_language_reads_what_array_to_proto_writes(dtype, shape, data):
    payload = make(dtype, shape, data)
    proto = reparse(array_to_proto(payload, np.dtype(dtype)))
    read = (
        federated_language.array_from_proto_content
        if proto.HasField("content")
        else federated_language.array_from_proto
    )
    assert_same(read(proto), payload, bits=False)


def test_array_from_proto_prefers_content_over_a_list():
    proto = array_to_proto(np.array([1, 2], np.int32), np.dtype(np.int32))
    proto.int32_list.value.extend([3, 4])
    assert array_from_proto(proto).tolist() == [1, 2]


def test_array_from_proto_reads_the_content_of_a_scalar():
    proto = array_pb2.Array(dtype=data_type_pb2.DT_FLOAT, content=np.float32(1.5).tobytes())
    assert_same(array_from_proto(proto), np.float32(1.5))


def array(dtype=data_type_pb2.DT_INT32, dim=(2,), **fields):
    return array_pb2.Array(dtype=dtype, shape=array_pb2.ArrayShape(dim=dim), **fields)


INTS = array_pb2.Array.IntList


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        pytest.param(
            array(content=bytes(7)), "8 bytes of content for int32[2] at arg.weights[2], found 7", id="short content"
        ),
        pytest.param(array(content=bytes(9)), "found 9", id="long content"),
        pytest.param(
            array(dim=(), content=b""), "4 bytes of content for int32 at arg.weights[2], found 0", id="empty scalar"
        ),
        pytest.param(array(dim=(2**40, 2**40), content=bytes(8)), "found 8", id="huge shape"),
        pytest.param(array(dim=(2**62,) * 64, content=bytes(8)), "found 8", id="huger shape"),
        pytest.param(array(dim=(2**40, 2**40, 0), content=b""), "that NumPy supports", id="huge empty shape"),
        pytest.param(
            array(dim=(1,) * 65, content=bytes(4)), "at most 64 dimensions at arg.weights[2], found 65", id="rank"
        ),
        pytest.param(array(dim=(-1,), content=bytes(4)), "found the dimension -1", id="open dimension"),
        pytest.param(array(dim=(2**40,), int32_list=INTS(value=[1])), "found 1", id="short list"),
        pytest.param(array(dim=(), int32_list=INTS(value=[1, 2, 3])), "Expected 1 entries", id="long scalar"),
        pytest.param(
            array(dim=(), int32_list=INTS()),
            "Expected 1 entries in `int32_list` for int32 at arg.weights[2], found 0",
            id="none",
        ),
        pytest.param(array(int64_list=array_pb2.Array.Int64List(value=[1, 2])), "found `int64_list`", id="wrong list"),
        pytest.param(
            array(), "`int32_list` or `content` for int32[2] at arg.weights[2], found no such field", id="no list"
        ),
        pytest.param(array(dtype=data_type_pb2.DT_INT8, int8_list=INTS(value=[1, 300])), "[-128, 127]", id="int8"),
        pytest.param(array(dtype=data_type_pb2.DT_UINT16, uint16_list=INTS(value=[1, -1])), "[0, 65535]", id="uint16"),
        pytest.param(array(dtype=data_type_pb2.DT_HALF, float16_list=INTS(value=[1, 65536])), "[0, 65535]", id="half"),
        pytest.param(
            array(dtype=data_type_pb2.DT_COMPLEX64, complex64_list=array_pb2.Array.FloatList(value=[1, 2, 3])),
            "Expected 4 entries in `complex64_list` for complex64[2] at arg.weights[2], found 3",
            id="half a complex",
        ),
        pytest.param(array(dtype=data_type_pb2.DT_BOOL, content=b"\x01\x02"), "Expected only bytes 0 and 1", id="bool"),
        pytest.param(
            array(dtype=data_type_pb2.DT_STRING, content=b"ab"), "found strings in `content`", id="string content"
        ),
        pytest.param(
            array(dtype=data_type_pb2.DT_STRING, bool_list={"value": [True] * 2}), "`string_list` for", id="str"
        ),
        pytest.param(array(dtype=data_type_pb2.DT_INVALID, content=b""), "found 0", id="no dtype"),
        pytest.param(array(dtype=11, content=bytes(2)), "found 11", id="quantized"),
        pytest.param(array(dtype=9999, content=bytes(2)), "found 9999", id="unknown dtype"),
        pytest.param(
            array_pb2.Array(
                dtype=data_type_pb2.DT_INT32, shape=array_pb2.ArrayShape(unknown_rank=True), content=bytes(4)
            ),
            "found an unknown rank",
            id="unknown rank",
        ),
    ],
)
def test_array_from_proto_refuses_what_contradicts_itself(proto, message):
    with pytest.raises(InvalidValueError) as caught:
        array_from_proto(proto, path="arg.weights[2]")
    assert message in str(caught.value)
    assert " at arg.weights[2]" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        (np.float64, None, "Expected float64 of any shape, found float32[2,3]"),
        (np.float32, (), "Expected float32, found float32[2,3]"),
        (np.float32, (2, 4), "Expected float32[2,4], found float32[2,3]"),
        (np.float32, (None,), "Expected float32[?], found float32[2,3]"),
        (np.str_, (2, 3), "Expected str[2,3], found float32[2,3]"),
    ],
)
def test_array_from_proto_refuses_another_dtype_or_shape_than_asked_for(dtype, shape, message):
    proto = array_to_proto(np.zeros((2, 3), np.float32), np.dtype(np.float32))
    with pytest.raises(TypeMismatchError) as caught:
        array_from_proto(proto, np.dtype(dtype), shape)
    assert message in str(caught.value)


@pytest.mark.parametrize("shape", [None, (2, 3), (None, 3), (None, None)])
def test_array_from_proto_takes_any_size_where_the_shape_is_open(shape):
    proto = array_to_proto(np.zeros((2, 3), np.float32), np.dtype(np.float32), shape)
    assert array_from_proto(proto, np.dtype(np.float32), shape).shape == (2, 3)


@pytest.mark.parametrize(
    ("payload", "dtype", "shape", "message"),
    [
        (1.0, np.float32, (), "Expected float32, found `float`"),
        (np.float64(1), np.float32, (), "Expected float32, found float64"),
        (np.zeros(2, ">f4"), np.float32, (2,), "Expected float32[2], found >f4[2]"),
        (np.zeros(2, np.float32), np.float32, (), "Expected float32, found float32[2]"),
        (np.zeros(2, np.float32), np.float32, (3,), "Expected float32[3], found float32[2]"),
        ("text", np.str_, (), "for str at arg.x, found `str`"),
        (np.array(["a"]), np.str_, (1,), "found `ndarray`"),
        (np.array([b"a", "b"], np.object_), np.str_, (2,), "found `str`"),
        (np.array([b"a"], np.object_), np.str_, (2,), "Expected str[2], found object[1]"),
        (np.zeros(1, "M8[s]"), "M8[s]", (1,), "Expected a dtype of the language at arg.x, found datetime64[s]"),
    ],
)
def test_array_to_proto_refuses_what_does_not_fit(payload, dtype, shape, message):
    with pytest.raises(TypeMismatchError) as caught:
        array_to_proto(payload, np.dtype(dtype), shape, path="arg.x")
    assert message in str(caught.value)
    assert " at arg.x" in str(caught.value)


@given(raw=st.binary(max_size=64))
def test_array_from_proto_decodes_or_refuses_random_bytes(raw):
    with contextlib.suppress(DecodeError, FedstackError):
        array_from_proto(array_pb2.Array.FromString(raw))


@given(
    dtype=st.integers(0, 30),
    dim=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 3), max_size=4),
    field=st.sampled_from(["content", *(f.name for f in array_pb2.Array.DESCRIPTOR.oneofs_by_name["kind"].fields)]),
    raw=st.binary(max_size=16),
)
def test_array_from_proto_decodes_or_refuses_random_messages(dtype, dim, field, raw):
    proto = array(dtype=dtype, dim=dim)
    if field == "content":
        proto.content = raw
    else:
        values = getattr(proto, field).value
        values.extend({"bool_list": map(bool, raw), "string_list": [raw]}.get(field, raw))
    try:
        payload = array_from_proto(proto)
    except FedstackError:
        return
    assert payload is not None

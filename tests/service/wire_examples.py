"""Encodes values of every kind of type, to show how they travel."""

from collections.abc import Iterator
from typing import Any

import federated_language as fl
import ml_dtypes
import numpy as np
from wire_text import message_text

import fedstack
from fedstack.computations.codec.arrays import array_to_proto
from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.value_messages import value_to_proto
from fedstack.computations.types.language import Type, computation_pb2, data_type_pb2
from fedstack.computations.values.columns import ConstantColumn
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.proto import carriers_pb2, executor_pb2, extensions_pb2
from fedstack.transport.wire.frames import data_frames, header_frame, heartbeat_frame
from fedstack.transport.wire.parcels import Parcel, write_goes_on, write_whole

DTYPES: tuple[Any, ...] = (
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128),
)

PAIR = fl.StructType([("weights", (np.float32, [2])), ("steps", np.int32)])
FUNCTION = fl.FunctionType(np.float32, np.float32)
HALF = computation_pb2.Computation(type=FUNCTION.to_proto(), data={})
HALF.data.content.Pack(carriers_pb2.PythonReference(module="thermometers", qualname="half"))


def dtype_table() -> Iterator[str]:
    """Yields the rows of a table of dtypes, and how the number 1 of each is written."""
    yield "| dtype | `DataType` | list field | 1 as an entry | 1 in `content` |"
    yield "| --- | --- | --- | --- | --- |"
    for kind in DTYPES:
        dtype = np.dtype(kind)
        scalar = array_to_proto(kind(1), dtype)
        field = scalar.WhichOneof("kind")
        assert field is not None
        entries = ", ".join(str(value) for value in getattr(scalar, field).value)
        content = array_to_proto(np.array([1], dtype), dtype).content.hex(" ")
        yield _row(dtype.name, _number(scalar.dtype), f"`{field}`", entries, f"`{content}`")
    text = array_to_proto(b"1", np.dtype(np.str_))
    yield _row("str", _number(text.dtype), "`string_list`", '"1"', "never")


def _number(number: Any) -> str:
    return f"`{data_type_pb2.DataType.Name(number)}` = {number}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


VALUES: tuple[tuple[object, object], ...] = (
    (np.float32, 1.5),
    ((np.float32, [2]), np.array([1.5, 2.5], np.float32)),
    ((np.str_, [2]), np.array([b"a", b"\xff"], np.object_)),
    (PAIR, {"weights": np.array([1.5, 2.5], np.float32), "steps": 3}),
    (fl.SequenceType(PAIR), [{"weights": np.array([1.5, 2.5], np.float32), "steps": 3}]),
    (fl.FederatedType(np.int32, fl.CLIENTS), [3, 4]),
    (fl.FederatedType(np.int32, fl.CLIENTS, all_equal=True), 3),
    (fl.FederatedType(np.int32, fl.SERVER), 3),
)


def value_examples() -> Iterator[str]:
    """Yields a `Value` for each kind of type."""
    for given, value in VALUES:
        type_spec = fl.to_type(given)
        payload = normalize_argument(value, type_spec, "value")
        yield from _example(type_spec, message_text(value_to_proto(payload, type_spec)))
    yield from _example(FUNCTION, message_text(executor_pb2.Value(computation=HALF)))


def _example(type_spec: Type, text: str) -> list[str]:
    return [f"# {type_spec}", *text.splitlines(), ""]


MANY = 5000
PACKED: tuple[tuple[object, object, str], ...] = (
    (np.float32, 1.5, ""),
    ((np.float32, [2]), np.array([1.5, 2.5], np.float32), ""),
    ((np.float32, [None]), np.zeros(MANY, np.float32), ""),
    (np.str_, b"a", ""),
    (PAIR, {"weights": np.array([1.5, 2.5], np.float32), "steps": 3}, ""),
    (fl.SequenceType(np.int32), [3, 4], ""),
    (fl.FederatedType(np.int32, fl.SERVER), 3, ""),
    (fl.FederatedType(np.int32, fl.CLIENTS, all_equal=True), 3, ""),
    (fl.FederatedType(np.int32, fl.CLIENTS), [3, 4], "a number per client"),
    (fl.FederatedType((np.float32, [2]), fl.CLIENTS), [[1.5, 2.5], [3.5, 4.5]], "arrays of one shape"),
    (fl.FederatedType((np.int8, [MANY]), fl.CLIENTS), [np.zeros(MANY, np.int8)] * 4, "large arrays of one shape"),
    (fl.FederatedType((np.float32, [None]), fl.CLIENTS), [[1.5], [2.5, 3.5]], "arrays of several shapes"),
    (fl.FederatedType(np.str_, fl.CLIENTS), ["a", "b"], "a string per client"),
    (fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS), [[3], [4, 5]], "a sequence per client"),
    (fl.FederatedType([np.int32, np.bool_], fl.CLIENTS), [[3, True], [4, False]], "a struct per client"),
)


SEQUENCES = (
    (np.int32, [[3], [4, 5]], "the sequences of above"),
    (
        (np.float32, [None]),
        [fedstack.batches(np.array([1.5, 2.5, 3.5], np.float32), 2, shuffle_seed=7, round=1)],
        "batches of two rows, in a new order in each pass",
    ),
)


def packed_examples() -> Iterator[str]:
    """Yields a `Packed` for each kind of type and each form."""
    for given, value, remark in PACKED:
        type_spec = fl.to_type(given)
        value = _as_arrays(value) if isinstance(type_spec, fl.FederatedType) else value
        payload = normalize_argument(value, type_spec, "value")
        text, followed = _packed(payload, type_spec)
        yield f"# {type_spec}{': ' if remark else ''}{remark}"
        yield from text.splitlines()
        if followed:
            yield f"# followed by {followed} bytes in data frames"
        yield ""
    type_spec = fl.FederatedType(np.int32, fl.CLIENTS)
    yield f"# {type_spec}: one number for all of 1000 clients, such as what was broadcast"
    yield from _packed(ConstantColumn(np.int32(3), 1000), type_spec)[0].splitlines()
    yield ""
    for given, value, remark in SEQUENCES:
        type_spec = fl.FederatedType(fl.SequenceType(given), fl.CLIENTS)
        yield f"# {type_spec}: {remark}"
        yield from _packed(normalize_argument(value, type_spec), type_spec)[0].splitlines()
        yield ""


def _as_arrays(value: object) -> object:
    if isinstance(value, list) and value and isinstance(value[0], list) and isinstance(value[0][0], float):
        return [np.array(item, np.float32) for item in value]
    return value


def _packed(payload: object, type_spec: Type) -> tuple[str, int]:
    packer = Packer()
    message = extensions_pb2.Packed()
    packer.pack(message, payload, type_spec)
    return message_text(message), sum(map(len, packer.segments))


def frame_table() -> Iterator[str]:
    """Yields frames as bytes."""
    header = extensions_pb2.EvaluateRequest()
    header.value_ref.id = "v3"
    data = next(data_frames([memoryview(np.array([1.5, 2.5], "<f4").tobytes())]))
    long = next(data_frames([memoryview(bytes(200))]))
    yield "| frame | bytes |"
    yield "| --- | --- |"
    begin = header_frame(header.SerializeToString())
    yield _row('a header, here of 6 bytes: `value_ref { id: "v3" }`', f"`{begin.hex(' ')}`")
    yield _row("data: the float32 numbers 1.5 and 2.5", f"`{data.hex(' ')}`")
    yield _row("data: 200 bytes of zeros, whose length takes two bytes", f"`{long[:6].hex(' ')} …`")
    yield _row("a heartbeat: 7 clients done, 2 running", f"`{heartbeat_frame(7, 2).hex(' ')}`")
    yield _row("a heartbeat without numbers", f"`{heartbeat_frame().hex(' ')}`")


def whole_table() -> Iterator[str]:
    """Yields parcels in one message as bytes."""
    header = extensions_pb2.EvaluateRequest()
    header.value_ref.id = "v3"
    data = memoryview(np.array([1.5, 2.5], "<f4").tobytes())
    yield "| message | bytes |"
    yield "| --- | --- |"
    whole = write_whole(Parcel(header.SerializeToString(), [data]))
    yield _row("a header of 6 bytes, and the float32 numbers 1.5 and 2.5", f"`{whole.hex(' ')}`")
    yield _row("the call continues as `c1`", f"`{write_goes_on('c1').hex(' ')}`")

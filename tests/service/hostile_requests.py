"""Requests that mean harm: nested beyond measure, of huge numbers, small to send and large to unfold."""

from collections.abc import Iterator

import federated_language as fl
import foreign_bytes as fb
import numpy as np
from foreign_bytes import message, number
from fuzz_requests import ADD, CLIENTS, INT, Request

from fedstack.computations.types.language import computation_pb2
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.proto.extensions_pb2 import Packed
from fedstack.testing.computation_builder import at_clients, block, function, literal, reference, struct
from fedstack.transport.wire.frames import header_frame

LEVELS = [20, 30, 45, 90, 10_000]
FLOAT_TYPE = fb.tensor_type(fb.FLOAT)
INT_TYPE = fb.tensor_type(fb.INT32)


def nested(levels: int, inner: bytes, wrap) -> bytes:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def deep_type(levels: int) -> bytes:
    return nested(levels, FLOAT_TYPE, lambda inner: fb.struct_type((b"x", inner)))


def deep_values(levels: int) -> Iterator[bytes]:
    yield nested(levels, fb.array(fb.listed(fb.FLOAT, [1])), fb.struct_of)
    yield nested(levels, fb.array(fb.listed(fb.FLOAT, [1])), lambda inner: fb.federated(b"server", inner))
    yield fb.federated(b"clients", member=deep_type(levels))
    yield fb.sequence(element_type=deep_type(levels))
    for computation in deep_computations(levels):
        yield message(2, computation)


def deep_computations(levels: int) -> Iterator[bytes]:
    one = fb.computation(FLOAT_TYPE, 14, message(1, fb.listed(fb.FLOAT, [1])))
    signature = fb.function_type(FLOAT_TYPE, FLOAT_TYPE)
    lambda_, block_, call, struct_, selection = 4, 5, 7, 8, 9
    yield nested(levels, one, lambda inner: fb.computation(FLOAT_TYPE, selection, message(1, inner)))
    yield nested(levels, one, lambda inner: fb.computation(FLOAT_TYPE, struct_, message(1, message(2, inner))))
    yield nested(levels, one, lambda inner: fb.computation(FLOAT_TYPE, block_, message(2, inner)))
    yield nested(levels, one, lambda inner: fb.computation(FLOAT_TYPE, call, message(1, inner)))
    yield nested(levels, one, lambda inner: fb.computation(signature, lambda_, message(1, b"x") + message(2, inner)))
    yield fb.computation(deep_type(levels), 14, message(1, fb.listed(fb.FLOAT, [1])))


def deep_packed(levels: int) -> bytes:
    return nested(levels, b"", lambda inner: message(3, message(1, inner)))


def typed(type_spec: bytes, packed: bytes) -> bytes:
    return message(1, type_spec) + message(2, packed)


def deep(session: str) -> Iterator[Request]:
    executor = message(1, session.encode())
    for levels in LEVELS:
        for value in deep_values(levels):
            yield Request("CreateValue", [message(1, value) + message(2, executor)])
        for computation in deep_computations(levels):
            creation = message(1, b"deep") + message(3, computation)
            yield Request("Evaluate", [message(1, message(1, executor) + message(2, creation))])
            yield Request("RunPhase", [message(1, message(1, executor) + number(3, CLIENTS) + message(4, computation))])
        value = typed(deep_type(levels), deep_packed(levels))
        creation = message(1, b"deep") + message(2, value)
        yield Request("Evaluate", [message(1, message(1, executor) + message(2, creation))])
        entry = message(1, message(7, fb.placement(b"clients", False, deep_type(levels)))) + message(
            2, deep_packed(levels)
        )
        yield Request("RunPhase", [message(1, message(1, executor) + number(3, CLIENTS) + message(5, entry))])


FIVE = literal(np.int32(5), np.int32)
HUGE = [2**31 - 1, 2**40, 2**62, 2**63 - 1]
FLOATS = fl.TensorType(np.float32, None)


def huge_packed() -> Iterator[tuple[fl.Type, Packed]]:
    for size in HUGE:
        for dims in ([size], [size, 0], [size, size], [1, size], [0, size], [size] * 8):
            yield FLOATS, Packed(raw=Packed.Raw(dtype=1, dim=dims))
            yield at_clients(FLOATS), Packed(rows=Packed.Raw(dtype=1, dim=dims))
            array = plain.Value(array=fb_array(dims)).array
            yield FLOATS, Packed(array=array)
            yield at_clients(FLOATS), Packed(column=array)
        yield at_clients(fl.StructType([])), Packed(fields=Packed.Fields(clients=size))
        one = Packed(array=plain.Value.FromString(fb.array(fb.listed(fb.INT32, [1]))).array)
        yield at_clients(INT), Packed(same=Packed.Same(clients=size, member=one))


def fb_array(dims: list[int]):
    return plain.Value.FromString(fb.array(fb.raw(fb.FLOAT, b"", dims))).array


def huge(session: str) -> Iterator[Request]:
    executor = plain.ExecutorId(id=session)
    for type_spec, packed in huge_packed():
        value = extended.TypedValue(type=type_spec.to_proto(), value=packed)
        creation = extended.Creation(id="huge", value=value)
        evaluate = extended.EvaluateRequest(executor=executor, creation=[creation] * 3)
        yield Request("Evaluate", [header_frame(evaluate.SerializeToString())])
    for first in HUGE:
        request = extended.PhaseRequest(executor=executor, first_client=first, clients=CLIENTS)
        yield Request("RunPhase", [header_frame(request.SerializeToString())])
        request.clients = first
        yield Request("RunPhase", [header_frame(request.SerializeToString())])
    many = extended.PhaseRequest(executor=executor, clients=CLIENTS, held=range(100_000))
    many.program.CopyFrom(function(lambda: struct(FIVE)).proto)
    yield Request("RunPhase", [header_frame(many.SerializeToString())])
    refs = [plain.ValueRef(id=str(k)) for k in range(20_000)]
    yield Request("Dispose", [plain.DisposeRequest(executor=executor, value_ref=refs).SerializeToString()])
    creations = [extended.Creation(id="again") for _ in range(20_000)]
    again = extended.EvaluateRequest(executor=executor, creation=creations)
    yield Request("Evaluate", [header_frame(again.SerializeToString())])
    text = "x" * 2_000_000
    yield Request("GetExecutor", [fb.get_executor(**{text: 1})])
    yield Request("Compute", [fb.compute(session.encode(), text.encode())])
    yield Request("Compute", [fb.compute(text.encode(), b"0")])
    yield Request("CreateValue", [fb.create_value(session.encode(), fb.struct_of((text.encode(), fb.array(b""))))])
    name = computation_pb2.Computation(type=INT.to_proto(), reference=computation_pb2.Reference(name=text))
    yield Request(
        "CreateValue",
        [plain.CreateValueRequest(value=plain.Value(computation=name), executor=executor).SerializeToString()],
    )
    # Lengths that are said and not there.
    for method in ("CreateValue", "RunPhase", "Evaluate", "Start", "Update"):
        for size in HUGE:
            yield Request(method, [fb.varint(1 << 3 | 2) + fb.varint(size)])


def doubling_calls(levels: int):
    """A function that calls twice the function before, and so on."""
    signature = fl.FunctionType(INT, INT)
    bound = [("f0", function(lambda x: ADD(x, x), INT))]
    for level in range(1, levels):
        before = reference(f"f{level - 1}", signature)
        bound.append((f"f{level}", function(lambda x, before=before: before(before(x)), INT)))
    return function(lambda x: block(bound, reference(f"f{levels - 1}", signature)(x)), INT)


def unfolding(session: str, argument: str) -> Iterator[Request]:
    """Computations of a few kilobytes that are millions of steps; the ids of creations are chosen."""
    executor = plain.ExecutorId(id=session)
    for levels in (5, 10, 20, 40):
        computation = doubling_calls(levels).proto
        created = extended.Creation(id=f"unfolding-{levels}", computation=computation)
        called = extended.Creation(id=f"unfolded-{levels}")
        called.call.function_ref.id, called.call.argument_ref.id = created.id, argument
        request = extended.EvaluateRequest(executor=executor, creation=[created, called])
        yield Request("Evaluate", [header_frame(request.SerializeToString())])

"""What a worker sends in place of a box is an error of fedstack, or another value."""

import random

import numpy as np
import pytest

from fedstack.errors import FedstackError, InvalidComputationError
from fedstack.proto.methods_pb2 import ListMethodsResponse
from fedstack.service.coordinator.calls.boxes import box, unboxed
from fedstack.service.rpc.signatures import read_signature

VALUES = [
    {"a": 1, "b": [2.5, "text"], "c": np.arange(3)},
    (True, np.float32(1.5), b"bytes", [np.ones((2, 3), np.int8)]),
    7,
    [{"x": 1, "y": (2, {"z": 3.0})}],
]


def mutated(content: bytes, draw: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) or 1)
        kind = draw.randrange(4)
        if kind == 0 and found:
            found[at] = draw.randrange(256)
        elif kind == 1 and found:
            del found[at : at + draw.randint(1, 8)]
        elif kind == 2:
            found[at:at] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 4)))
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_damaged_box_is_another_value_or_an_error_of_fedstack(number) -> None:
    draw, content = random.Random(number), bytes(box(VALUES[number], "function"))
    refused = 0
    for _ in range(1500):
        try:
            unboxed(np.frombuffer(mutated(content, draw), np.uint8))
        except FedstackError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize("size", [1, 15, 16, 40])
def test_bytes_that_are_no_box_are_refused(size) -> None:
    with pytest.raises(FedstackError, match="Expected"):
        unboxed(np.full(size, 255, np.uint8))


@pytest.mark.parametrize("levels", [40, 90, 200])
def test_methods_whose_types_nest_too_deep_are_refused(levels) -> None:
    described = ListMethodsResponse().method.add(name="deep")
    inner = described.type.function.result
    for _ in range(levels):
        inner = inner.sequence.element
    with pytest.raises(InvalidComputationError):
        read_signature(described)

"""A value with its type is one message, and what is beside it; whoever reads it may refuse the type first."""

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.codec.packing import Packer, write_typed
from fedstack.computations.codec.unpacking import Unpacker, read_typed
from fedstack.errors import InvalidValueError
from fedstack.foundations.segments import SegmentReader, memory_of
from fedstack.proto.extensions_pb2 import Creation, TypedValue

LARGE = fl.TensorType(np.float32, [10_000])
PAIR = fl.StructType([("large", LARGE), ("small", np.int32)])
VALUE = np.arange(10_000, dtype=np.float32), np.int32(7)


def written() -> tuple[TypedValue, Packer]:
    packer = Packer()
    return TypedValue.FromString(write_typed(VALUE, PAIR, packer).SerializeToString()), packer


def test_a_value_comes_back_with_its_type() -> None:
    typed, packer = written()
    unpacker = Unpacker()
    (large, small), type_spec = read_typed(typed, unpacker)
    reader = SegmentReader(unpacker.buffers)
    for segment in packer.segments:
        reader.feed(segment)
    reader.finish()
    unpacker.finish()
    assert type_spec == PAIR
    assert np.array_equal(large, VALUE[0])
    assert small == 7


def test_memory_that_has_arrived_is_not_copied() -> None:
    typed, packer = written()
    unpacker = Unpacker(memory_of(packer.segments))
    (large, _), _ = read_typed(typed, unpacker)
    unpacker.finish()
    assert np.shares_memory(large, VALUE[0])
    assert not large.flags.writeable


@pytest.mark.parametrize("arrived", [[], [np.zeros(39_999, np.uint8)], [np.zeros(40_001, np.uint8)]])
def test_memory_that_has_arrived_must_be_what_was_announced(arrived: list[np.ndarray]) -> None:
    typed, _ = written()
    unpacker = Unpacker(arrived)
    with pytest.raises(InvalidValueError, match="more bytes of"):
        read_typed(typed, unpacker)
        unpacker.finish()


def test_a_value_is_written_into_the_message_around_it() -> None:
    creation = Creation(id="1")
    write_typed(np.int32(3), fl.TensorType(np.int32), Packer(), creation.value)
    assert read_typed(creation.value, Unpacker())[0] == 3


def test_a_type_may_be_refused_before_anything_is_unpacked() -> None:
    typed, _ = written()
    unpacker = Unpacker()

    def refuse(_: object) -> fl.Type:
        raise InvalidValueError("Expected another type")

    with pytest.raises(InvalidValueError, match="another type"):
        read_typed(typed, unpacker, refuse)
    assert unpacker.buffers == []

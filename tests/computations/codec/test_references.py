"""Sequences that are elsewhere travel as references, in a few bytes each, to peers that read them themselves."""

import attrs
import federated_language as fl
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any
from test_packing import at_clients

from fedstack.computations.codec.packing import Packer
from fedstack.computations.codec.references import Reference, ReferenceGroup, reference_of
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.values.columns import ScalarColumn
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import CarrierError, FedstackError, InvalidValueError
from fedstack.proto.client_references_pb2 import ClientDataset
from fedstack.proto.extensions_pb2 import Packed

NUMBERS = fl.SequenceType(np.int64)


class Lengths:
    """Reads of each reference as many numbers as its key has bytes."""

    def blocks(self, group, place):
        yield ScalarColumn(np.arange(len(group.keys[place])))


def source(name: str) -> Any:
    packed = Any()
    packed.Pack(ClientDataset(dispatcher=name, digest=bytes(32)))
    return packed


def references(keys, name="here:1"):
    group = ReferenceGroup(source(name), keys, fl.to_type(np.int64), Lengths().blocks)
    return [Reference(group, place) for place in range(len(keys))]


def packed(values, type_spec=NUMBERS, *, reads=True) -> Packed:
    found = Packed()
    Packer(references=reads).pack(found, normalize_argument(values, type_spec), fl.to_type(type_spec))
    return found


def unpacked(message, type_spec=NUMBERS):
    return Unpacker(max_bytes=1000).unpack(Packed.FromString(message.SerializeToString()), fl.to_type(type_spec))


def test_a_reference_takes_a_few_bytes_and_its_source_is_sent_once() -> None:
    keys = [f"client {number}".encode() for number in range(1000)]
    message = packed(references(keys), at_clients(NUMBERS))
    assert message.ByteSize() < 200 + sum(len(key) + 2 for key in keys)
    arrived = [reference_of(payload) for payload in unpacked(message, at_clients(NUMBERS)).items()]
    assert [found.key for found in arrived] == keys
    assert {found.group.source.value for found in arrived} == {source("here:1").value}
    assert len({found.group for found in arrived}) == 1  # so that they can be read ahead


def test_references_to_several_sources_arrive_in_order() -> None:
    here, there = references([b"a", b"bb"]), references([b"c"], "there:1")
    arrived = unpacked(packed([here[0], there[0], here[1]], at_clients(NUMBERS)), at_clients(NUMBERS))
    found = [(one.group.source.value, one.key) for one in map(reference_of, arrived.items())]
    assert found == [
        (source(name).value, key) for name, key in (("here:1", b"a"), ("there:1", b"c"), ("here:1", b"bb"))
    ]


def test_a_part_of_a_column_is_sent_alone() -> None:
    column = normalize_argument(references([b"a", b"bb", b"ccc"]), at_clients(NUMBERS)).slice(1, 3)
    message = Packed()
    Packer(references=True).pack(message, column, at_clients(NUMBERS))
    assert list(message.references.key) == [b"bb", b"ccc"]


def test_a_reference_may_stand_beside_lists_and_in_structs() -> None:
    pairs = at_clients(fl.to_type([("data", NUMBERS), ("seed", np.int32)]))
    values = [{"data": data, "seed": 1} for data in (references([b"a"])[0], [1, 2])]
    first, second = unpacked(packed(values, pairs), pairs).items()
    assert reference_of(first[0]).key == b"a"
    assert list(second[0]) == [1, 2]


def test_one_reference_may_be_a_value_by_itself() -> None:
    assert reference_of(unpacked(packed(references([b"abc"])[0]))).key == b"abc"


def test_peers_that_read_no_references_get_the_elements() -> None:
    message = packed(references([b"a", b"bb"]), at_clients(NUMBERS), reads=False)
    assert [list(one) for one in unpacked(message, at_clients(NUMBERS)).items()] == [[0], [0, 1]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda message: message.ClearField("source"),
        lambda message: message.of.extend([0]),
        lambda message: message.of.extend([0, 7]),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(spoil) -> None:
    message = packed(references([b"a", b"bb"]), at_clients(NUMBERS))
    spoil(message.references)
    with pytest.raises(InvalidValueError, match="Expected a source for each of 2 references"):
        unpacked(message, at_clients(NUMBERS))


def test_references_are_refused_where_no_sequence_is_expected() -> None:
    message = packed(references([b"a"])[0])
    for other in (fl.to_type(np.int64), at_clients(np.int64)):
        with pytest.raises(FedstackError, match="references"):
            unpacked(message, other)


def test_a_worker_reads_nothing_that_its_operator_has_not_named() -> None:
    own = references([b"abc"])[0]
    for_others = WorkScope(policy=CarrierPolicy())
    with for_others.entered(), pytest.raises(CarrierError, match="--data-service ADDRESS"):
        next(own.blocks())
    with attrs.evolve(for_others, reads=Lengths().blocks).entered():
        assert next(own.blocks()).values.tolist() == [0, 1, 2]

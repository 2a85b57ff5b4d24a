"""Sequences travel as the rows of all of them, whatever they are made of; what a peer makes up is refused."""

import tracemalloc

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from federated_language.proto import array_pb2, data_type_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing import PLENTY, at_clients, packed, send

import fedstack
from fedstack.computations.codec.packing import LARGE_BYTES
from fedstack.computations.codec.unpacking import Unpacker
from fedstack.computations.values.column_sequence import ColumnSequence, SequenceColumn
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.errors import FedstackError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.segments import Rows
from fedstack.proto.extensions_pb2 import Packed

FLOATS = fl.SequenceType(np.float32)
POINTS = fl.SequenceType((np.float32, [2]))
PAIRS = fl.SequenceType(fl.to_type([("x", np.float32), ("y", np.int64)]))
BATCH = fl.to_type([("x", (np.float32, [None, 2])), ("y", (np.int32, [None]))])
BATCHES = fl.SequenceType(BATCH)
WORDS = fl.SequenceType((np.str_, [None]))


def plain(payload):
    """Returns what a payload has, to be compared."""
    if isinstance(payload, tuple):
        return tuple(map(plain, payload))
    if isinstance(payload, np.ndarray):
        return payload.dtype.str, payload.tolist()
    return (type(payload), payload)


def passes(sequence, count=2):
    return [[plain(element) for element in sequence.in_pass(number)] for number in range(count)]


def arrived(values, sequence):
    """Returns the sequences of clients, and what arrives of them."""
    column = normalize_argument(values, at_clients(sequence))
    found = send(column, at_clients(sequence), clients=len(values))
    return column.items(), found.items()


def xy(rows, batch_size=4, **options):
    arrays = {"y": np.arange(rows, dtype=np.int32), "x": np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)}
    return fedstack.batches(arrays, batch_size, **options)


floats = st.lists(st.floats(width=32, allow_nan=False), max_size=6)
pairs = st.lists(st.tuples(st.floats(width=32, allow_nan=False), st.integers(-5, 5)), max_size=6)
points = st.lists(st.integers(0, 5).map(lambda k: np.full(2, k, np.float32)), max_size=6)
orders = st.just({}) | st.fixed_dictionaries(
    {"shuffle_seed": st.integers(0, 2**1024 - 1), "round": st.integers(0, 2**64 - 1)}
)
batched = st.builds(
    lambda rows, size, order, drop: xy(rows, size, drop_remainder=drop, **order),
    st.integers(0, 20),
    st.integers(1, 9),
    orders,
    st.booleans(),
)
lists_of_batches = batched.map(list)
KINDS = {FLOATS: floats, PAIRS: pairs, POINTS: points, BATCHES: batched | lists_of_batches}


@st.composite
def clients(draw):
    sequence = draw(st.sampled_from(list(KINDS)))
    kinds = KINDS[sequence]
    kinds |= kinds.map(list).map(lambda held: fedstack.from_generator(lambda: iter(held)))
    if sequence is POINTS:
        kinds |= kinds.map(list).filter(bool).map(np.stack)
    return sequence, draw(st.lists(kinds, min_size=1, max_size=4))


@pytest.mark.long
@settings(deadline=None, max_examples=examples(300))
@given(clients())
def test_sequences_of_clients_arrive_as_they_were_whatever_they_are_made_of(drawn):
    sequence, values = drawn
    sent, found = arrived(values, sequence)
    for one, other in zip(sent, found, strict=True):
        assert [plain(element) for element in one] == [plain(element) for element in other]
        if isinstance(one, ColumnSequence):
            assert passes(one) == passes(other)


@pytest.mark.parametrize("options", [{}, {"drop_remainder": True}, {"shuffle_seed": 3, "round": 2**63}])
@pytest.mark.parametrize("rows", [0, 3, 4, 10])
def test_batches_arrive_as_arrays_and_how_they_are_cut(rows, options):
    sent, found = arrived([xy(rows, **options), xy(9, 2, **options)], BATCHES)
    for one, other in zip(sent, found, strict=True):
        assert len(one) == len(other)
        assert passes(one) == passes(other)
        assert not any(array.flags.writeable for batch in other for array in batch)


def test_the_arrays_of_batches_are_sent_from_where_they_lie_and_received_in_one_piece():
    many = LARGE_BYTES // 8
    values = [xy(many, 7), xy(many, 9)]
    column = normalize_argument(values, at_clients(BATCHES))
    packer, message = packed(column, at_clients(BATCHES))
    assert message.ByteSize() < 200
    for segment, name in zip(packer.segments, ("x", "y"), strict=True):
        assert isinstance(segment, Rows)
        assert all(
            np.shares_memory(np.frombuffer(view, np.uint8), value.arrays[name])
            for view, value in zip(segment.views(), values, strict=True)
        )
    found = send(column, at_clients(BATCHES))
    assert isinstance(found, SequenceColumn)
    first, second = found.items()
    assert np.shares_memory(next(iter(first))[0], found.rows.field(0).values)
    assert plain(list(second)[-1]) == plain(list(column.items()[1])[-1])


def test_batches_of_other_dtypes_are_cast_once_and_travel_as_arrays():
    arrays = {"x": np.ones((5, 2), np.float32), "y": np.arange(5, dtype=np.int8)}
    words = np.array(["a", "b\0", "ü"], np.object_)
    for batches, sequence in [(fedstack.batches(arrays, 2), BATCHES), (fedstack.batches(words, 2), WORDS)]:
        sent, found = arrived([batches], sequence)
        assert passes(sent[0]) == passes(found[0])
        message = packed(normalize_argument([batches], at_clients(sequence)), at_clients(sequence))[1]
        assert len(message.sequences.batching) == 1


def test_arrays_that_differ_at_the_end_of_a_sequence_only_travel_as_batches():
    values = [list(xy(10, 4)), list(xy(9, 3)), []]  # the last one has no batches at all
    column = normalize_argument(values, at_clients(BATCHES))
    message = packed(column, at_clients(BATCHES))[1]
    assert list(message.sequences.rows) == [10, 9, 0]
    assert [batching.size for batching in message.sequences.batching] == [4, 3, 1]
    sent, found = arrived(values, BATCHES)
    assert list(map(passes, found)) == [[[plain(e) for e in one]] * 2 for one in sent]


@pytest.mark.parametrize("lengths", [[1, 2], [2, 1, 2], [2, 0], [0, 2], [2, 2, 3]])
def test_arrays_of_any_shapes_travel_one_by_one(lengths):
    sequence = fl.SequenceType((np.float32, [None]))
    values = [[np.full(length, length, np.float32) for length in lengths], [], [np.zeros(7, np.float32)] * 2]
    sent, found = arrived(values, sequence)
    for one, other in zip(sent, found, strict=True):
        assert [plain(element) for element in one] == [plain(element) for element in other]


def test_the_last_array_has_the_shape_that_the_type_says():
    values = [[np.zeros(2, np.float32), np.zeros(1, np.float32)]]
    with pytest.raises(TypeMismatchError, match=r"shape \[2\] .*, found shape \[1\]; at arg\[client 0\]\[1\]"):
        normalize_argument(values, at_clients(POINTS))


def test_a_sequence_of_scalars_takes_a_few_bytes_more_than_they_do():
    values = [[float(i) for i in range(1000)] for _ in range(100)]
    column = normalize_argument(values, at_clients(FLOATS))
    packer, message = packed(column, at_clients(FLOATS))
    assert message.ByteSize() < 500
    assert packer.segment_bytes == 400_000


@pytest.mark.parametrize("placement", [None, fl.SERVER, fl.CLIENTS])
def test_sequences_in_structs_take_a_few_bytes_more_wherever_they_are_placed(placement):
    struct = fl.to_type([("pairs", PAIRS), ("batches", BATCHES), ("n", np.int32)])
    type_spec = struct if placement is None else fl.FederatedType(struct, placement, True)
    value = {"pairs": [(1.0, 2)] * 1000, "batches": xy(4000), "n": 1}
    packer, message = packed(normalize_argument(value, type_spec), type_spec)
    numbers = 1000 * (4 + 8) + 4000 * (4 + 2 * 4)
    assert message.ByteSize() + packer.segment_bytes < numbers + 500


def rows_of(count, **fields):
    message = Packed(sequences=Packed.Sequences(rows=[count], **fields))
    message.sequences.row.column.CopyFrom(
        array_pb2.Array(dtype=data_type_pb2.DT_FLOAT, shape=array_pb2.ArrayShape(dim=[2, 2]), content=bytes(16))
    )
    return message


def batching(size=1, **fields):
    return [Packed.Batching(size=size, **fields)]


@pytest.mark.parametrize(
    ("message", "sequence", "error", "said"),
    [
        (
            rows_of(3),
            POINTS,
            InvalidValueError,
            "Expected the sequences at value to have 3 rows in total, found 2 rows",
        ),
        (
            rows_of(2**64 - 1),
            POINTS,
            InvalidValueError,
            "at value to have 18446744073709551615 rows in total, found 2 rows",
        ),
        (rows_of(2), FLOATS, TypeMismatchError, "at value"),
        (rows_of(2, batching=batching(0)), BATCHES, InvalidValueError, "at least one row"),
        (rows_of(2, batching=batching()), POINTS, TypeMismatchError, "at value"),
        (rows_of(2, batching=batching()), PAIRS, TypeMismatchError, "found batches of rows; at value"),
        (
            rows_of(2, batching=batching() * 3),
            POINTS,
            InvalidValueError,
            "or one for each of 1 sequences, at value, found 3",
        ),
        (
            rows_of(2, batching=batching(seed=bytes(129))),
            POINTS,
            InvalidValueError,
            "found batches of 1 rows and a seed of 129 bytes",
        ),
        (rows_of(2, batching=batching(3)), fl.SequenceType((np.float32, [3, 2])), TypeMismatchError, "of another size"),
        (Packed(sequences=Packed.Sequences(rows=[1])), FLOATS, TypeMismatchError, "found an empty message; at value"),
        (Packed(sequences=Packed.Sequences()), FLOATS, InvalidValueError, "one sequence at value, found 0 sequences"),
        (
            Packed(sequences=Packed.Sequences(rows=[0, 0])),
            FLOATS,
            InvalidValueError,
            "Expected one sequence at value, found 2",
        ),
    ],
)
def test_sequences_that_contradict_themselves_are_refused(message, sequence, error, said):
    with pytest.raises(error, match=said):
        Unpacker(max_bytes=PLENTY).unpack(message, sequence)


def announced(kind, rows):
    raw = Packed.Raw(dtype=data_type_pb2.DT_FLOAT, dim=[rows, *({"empty": [0], "batches": [0]}.get(kind, [2]))])
    message = Packed(sequences=Packed.Sequences(rows=[rows]))
    if kind == "same":
        message.sequences.row.same.clients = rows
        message.sequences.row.same.member.CopyFrom(packed(np.zeros(2, np.float32), POINTS.element)[1])
    else:
        message.sequences.row.rows.CopyFrom(raw)
    if kind == "batches":
        message.sequences.batching.extend(batching(2**40))
    sequence = {"empty": (np.float32, [0]), "batches": (np.float32, [None, 0])}.get(kind, (np.float32, [2]))
    return message, fl.SequenceType(sequence)


@pytest.mark.parametrize("kind", ["bytes", "empty", "same", "batches"])
def test_counts_without_bytes_are_refused_before_memory_is_taken(kind):
    message, sequence = announced(kind, 2**40)
    tracemalloc.start()
    try:
        with pytest.raises(ResourceLimitError):
            Unpacker(max_bytes=1 << 20).unpack(message, sequence)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_rows_of_batches_are_arrays():
    message, _ = announced("same", 4)
    message.sequences.batching.extend(batching(2))
    with pytest.raises(FedstackError, match=r"Expected a column of float32\[2\], found same; at value"):
        Unpacker(max_bytes=PLENTY).unpack(message, fl.SequenceType((np.float32, [None, 2])))


def test_clients_without_elements_keep_those_with_batches_together():
    values = [[], xy(5), fedstack.batches({"x": np.zeros((0, 7)), "y": np.zeros(0)}, 2), xy(0)]
    column = normalize_argument(values, at_clients(BATCHES))
    message = packed(column, at_clients(BATCHES))[1]
    assert list(message.sequences.rows) == [0, 5, 0, 0]
    sent, found = arrived(values, BATCHES)
    assert list(map(passes, sent)) == list(map(passes, found))


def test_an_empty_list_and_an_empty_table_in_batches_arrive_as_no_elements():
    sent, found = arrived([[], xy(0, 1), []], BATCHES)
    assert [list(sequence) for sequence in (*sent, *found)] == [[]] * 6

import copy

import federated_language as fl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstack
from fedstack.computations.values import federated_values
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import ListColumn, ScalarColumn, StructColumn
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.computations.values.values import normalize
from fedstack.data.client_data import batches
from fedstack.errors import TypeMismatchError

SIZES = st.integers(0, 3000)


def pairs(size: int) -> ColumnSequence:
    numbers = ScalarColumn(np.arange(size, dtype=np.int32))
    words = ListColumn([b"%d" % number for number in range(size)])
    return ColumnSequence(StructColumn((numbers, words), size))


@given(SIZES)
def test_iterating_again_and_again_gives_the_elements_in_order(size):
    sequence, wanted = pairs(size), [(number, b"%d" % number) for number in range(size)]
    assert list(sequence) == wanted
    assert list(sequence) == wanted
    assert len(sequence) == size


@given(SIZES)
def test_lists_have_all_elements(size):
    assert [element for some in pairs(size).lists() for element in some] == list(pairs(size))


@given(st.integers(0, 50), st.slices(60))
def test_slices_are_those_of_a_list(size, part):
    assert list(pairs(size)[part]) == list(pairs(size))[part]


@given(st.integers(1, 50), st.data())
def test_indices_are_those_of_a_list(size, data):
    index = data.draw(st.integers(-size, size - 1))
    assert pairs(size)[index] == list(pairs(size))[index]


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_is_an_error(index):
    with pytest.raises(IndexError):
        pairs(3)[index]


@given(
    rows=st.integers(0, 200),
    size=st.integers(1, 30),
    width=st.sampled_from([0, 1, 3, 5000]),
    seed=st.none() | st.integers(0, 9),
    drop=st.booleans(),
    number=st.integers(0, 2),
)
def test_batches_as_a_payload_are_those_that_users_see(rows, size, width, seed, drop, number):
    x, y = np.arange(rows * width, dtype=np.float32).reshape(rows, width), np.arange(rows)
    sequence = batches({"x": x, "rest": {"y": y}}, size, shuffle_seed=seed, drop_remainder=drop)
    element = fl.to_type({"x": (np.float32, [None, width]), "rest": {"y": (np.int64, [None])}})
    payload = normalize(sequence, fl.SequenceType(element))
    seen = list(sequence.in_pass(number))
    assert isinstance(payload, ColumnSequence)
    assert len(payload) == len(seen)
    for (found_x, (found_y,)), batch in zip(payload.in_pass(number), seen, strict=True):
        np.testing.assert_array_equal(found_x, batch["x"])
        np.testing.assert_array_equal(found_y, batch["rest"]["y"])
        assert not found_x.flags.writeable
        assert not found_y.flags.writeable
        assert np.shares_memory(found_y, y) == (seed is None)
    for index, batch in enumerate(sequence.in_pass(0)):
        np.testing.assert_array_equal(payload[index][0], batch["x"])


def test_batches_that_have_been_used_fit_other_types_and_can_be_copied():
    sequence = batches(np.arange(6, dtype=np.int32), 4)
    first = normalize(sequence, fl.SequenceType(fl.TensorType(np.int32, [None])))
    second = normalize(copy.copy(sequence), fl.SequenceType(fl.TensorType(np.int64, [None])))
    again = normalize(sequence, fl.SequenceType(fl.TensorType(np.int32, None)))
    for found, dtype in ((first, np.int32), (second, np.int64), (again, np.int32)):
        assert [(batch.tolist(), batch.dtype) for batch in found] == [([0, 1, 2, 3], dtype), ([4, 5], dtype)]


NUMBERS = fl.SequenceType(np.float32)


@pytest.mark.parametrize(
    ("value", "type_spec", "found"),
    [
        ([1.0, 2.0], NUMBERS, lambda payload: payload),
        ([1.0, 2.0], fl.FederatedType(NUMBERS, fl.SERVER), lambda payload: payload),
        (([1.0, 2.0], 3), [NUMBERS, np.int32], lambda payload: payload[0]),
        (([1.0, 2.0], 3), fl.FederatedType([NUMBERS, np.int32], fl.SERVER), lambda payload: payload[0]),
        ([([1.0, 2.0], 3)], fl.FederatedType([NUMBERS, np.int32], fl.CLIENTS), lambda column: column.items()[0][0]),
    ],
)
def test_a_list_becomes_columns_without_a_look_at_each_element_wherever_it_stands(monkeypatch, value, type_spec, found):
    looked_at = []

    def read(value, tensor, path):
        looked_at.append(value)
        return tensor.dtype.type(value)

    monkeypatch.setattr(federated_values, "normalize_tensor", read)
    payload = found(normalize_argument(value, fl.to_type(type_spec)))
    assert isinstance(payload, ColumnSequence)
    assert list(payload) == [1.0, 2.0]
    assert 1.0 not in looked_at


def test_an_element_that_does_not_fit_is_named_in_a_sequence_inside_a_struct_at_the_server():
    type_spec = fl.FederatedType(fl.to_type({"a": NUMBERS}), fl.SERVER)
    with pytest.raises(TypeMismatchError, match=r"found str 'x'; at arg\.a\[1\]"):
        normalize_argument({"a": [1.0, "x"]}, type_spec)


def test_a_list_that_a_function_returns_becomes_columns():
    @fedstack.python_computation([np.float32], (NUMBERS, np.float32))
    def counted(x):
        return [x, 2.0], x

    @fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
    def at_clients(values):
        return fl.federated_map(counted, values)

    with fedstack.create_sync_local_execution_context():
        assert counted(1.0) == ([1.0, 2.0], 1.0)
        assert at_clients([1.0, 5.0]) == [([1.0, 2.0], 1.0), ([5.0, 2.0], 5.0)]

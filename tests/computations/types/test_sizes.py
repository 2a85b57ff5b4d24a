"""Sizes of types and payloads, where members are shared and a walk along every path would never end."""

import tracemalloc

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.codec.payload_sizes import is_quick, known_bytes
from fedstack.computations.types.type_sizes import count_leaves, struct_depth, type_text
from fedstack.computations.types.type_structure import exact_bytes, full_array, least_bytes
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import ConstantColumn, ListColumn, ScalarColumn

INT = fl.TensorType(np.int32)


def doubled(levels: int) -> tuple[fl.Type, object]:
    """Returns the type and a payload of a struct of twice the struct before it, and so on."""
    type_spec, payload = INT, np.int32(1)
    for _ in range(levels):
        type_spec, payload = fl.StructType([type_spec, type_spec]), (payload, payload)
    return type_spec, payload


def test_what_comes_several_times_counts_each_time():
    type_spec, _ = doubled(60)
    assert count_leaves(type_spec) == 1 << 60
    assert struct_depth(type_spec) == 60
    assert least_bytes(type_spec) == exact_bytes(type_spec) == 4 << 60


@pytest.mark.parametrize(
    ("type_spec", "size"),
    [
        (np.float64, 8),
        ((np.int16, [2, 3]), 12),
        ((np.float32, [None]), None),
        (np.str_, None),
        ([np.int8, (np.float32, [4])], 17),
        ([np.int8, np.str_], None),
        (fl.SequenceType(np.int32), None),
        ([], 0),
        ((np.float32, [0]), 0),
    ],
)
def test_bytes_of_a_type_are_those_of_its_arrays_unless_they_depend_on_the_data(type_spec, size):
    assert exact_bytes(fl.to_type(type_spec)) == size


def test_an_empty_struct_counts_like_a_tensor():
    assert count_leaves(fl.StructType([fl.StructType([]), INT])) == 2


def test_members_of_sequences_functions_and_placed_values_count():
    pair = fl.StructType([INT, fl.StructType([INT])])
    function = fl.FunctionType(fl.SequenceType(pair), fl.FederatedType(pair, fl.CLIENTS))
    assert (count_leaves(function), struct_depth(function)) == (4, 2)


def test_a_small_type_is_written_as_the_language_does():
    type_spec = fl.FunctionType(fl.StructType([("x", INT), ("y", fl.SequenceType(INT))]), INT)
    assert type_text(type_spec) == str(type_spec)


def test_a_large_type_is_cut_and_says_so():
    type_spec, _ = doubled(10)
    function = fl.FunctionType(fl.SequenceType(type_spec), fl.FederatedType(type_spec, fl.CLIENTS))
    assert "… 1 more>" in type_text(function)
    assert len(type_text(function)) < 5000
    wide = fl.StructType([(f"x{i}", INT) for i in range(1000)])
    assert type_text(wide).startswith("<x0=int32,x1=int32,")
    assert type_text(wide).endswith(",x99=int32,… 900 more>")


def test_names_of_any_length_leave_a_short_text():
    assert len(type_text(fl.StructType([("x" * 1_000_000, INT)]))) < 5000


def test_bytes_of_shared_members_count_each_time_without_walking_over_them_again():
    type_spec, payload = doubled(60)
    assert known_bytes(payload, type_spec) == 8 << 60


@pytest.mark.parametrize(
    ("payload", "type_spec", "found"),
    [
        (np.zeros(1000), fl.TensorType(np.float64, [1000]), 8000),
        (ScalarColumn(np.zeros(7, np.int32)), fl.FederatedType(INT, fl.CLIENTS), 28),
        (ConstantColumn(np.zeros(2), 5), fl.FederatedType(fl.TensorType(np.float64, [2]), fl.CLIENTS), 80),
        (ColumnSequence(ListColumn([b"abc", b"d"])), fl.SequenceType(fl.TensorType(np.str_)), 4),
        ((b"abc", np.float32(1)), fl.StructType([np.str_, np.float32]), 11),
    ],
)
def test_bytes_are_those_of_the_arrays(payload, type_spec, found):
    assert known_bytes(payload, type_spec) == found


@pytest.mark.parametrize(
    ("payload", "type_spec", "quick"),
    [
        (np.int32(1), INT, True),
        (np.zeros(1 << 24), fl.TensorType(np.float64, [None]), False),
        (*reversed(doubled(5)), True),
        (*reversed(doubled(20)), False),
        (ScalarColumn(np.zeros(100, np.int32)), fl.FederatedType(INT, fl.CLIENTS), True),
        (ScalarColumn(np.zeros(100_000, np.int32)), fl.FederatedType(INT, fl.CLIENTS), False),
        (ColumnSequence(ScalarColumn(np.zeros(100, np.int32))), fl.SequenceType(INT), True),
        ([np.int32(1)], fl.SequenceType(INT), False),
    ],
)
def test_what_is_small_and_runs_no_code_of_users_is_quick(payload, type_spec, quick):
    assert is_quick(payload, type_spec) is quick


def test_a_large_array_that_is_full_of_one_value_takes_no_memory():
    tracemalloc.start()
    try:
        full = full_array(fl.TensorType(np.float32, [1 << 40]), (1 << 40,), np.nan)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert (full.dtype, full.shape) == (np.float32, (1 << 40,))
    assert np.isnan(full[:: 1 << 36]).all()

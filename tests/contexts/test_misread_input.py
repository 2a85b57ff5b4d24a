"""Odd input that was once taken for something else."""

import asyncio

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError, TypeMismatchError

PAIR = fl.TensorType(np.float64, [2])


@pytest.fixture(autouse=True)
def context(fedstack_context):
    return fedstack_context


def weighted_mean(value_dtype, weight_dtype):
    @fl.federated_computation(fl.FederatedType(value_dtype, fl.CLIENTS), fl.FederatedType(weight_dtype, fl.CLIENTS))
    def mean(values, weights):
        return fl.federated_mean(values, weights)

    return mean


@pytest.mark.parametrize(
    ("value", "weight", "weights"),
    [
        (np.float64, np.int64, [2**63 - 1] * 2),
        (np.float32, np.int64, [2**62] * 2),
        (np.float64, np.uint64, [2**64 - 1] * 2),
        (np.float32, np.float64, [1e39] * 2),
        (np.float32, np.float64, [1e-60] * 2),
        (np.float16, np.int8, [127] * 2),
    ],
)
def test_a_mean_with_extreme_weights_neither_wraps_nor_overflows(value, weight, weights):
    assert weighted_mean(value, weight)([1.0, 2.0], weights) == 1.5


@fedstack.python_computation([PAIR], PAIR)
def square(x):
    return x * x


def test_subclasses_of_arrays_are_plain_arrays_to_a_leaf_and_masked_ones_are_refused():
    class Doubled(np.ndarray):
        def __mul__(self, other):
            return np.zeros(2)

    assert square(np.array([2.0, 3.0]).view(Doubled)).tolist() == [4.0, 9.0]
    with pytest.raises(TypeMismatchError, match="found a masked array; at arg; .*filled"):
        square(np.ma.array([1.0, 100.0], mask=[0, 1]))


def test_numpy_strings_become_bytes_like_any_other():
    @fedstack.python_computation([np.str_], np.bool_)
    def is_bytes(text):
        return type(text) is bytes

    @fl.federated_computation(fl.FederatedType(np.str_, fl.CLIENTS))
    def check(texts):
        return fl.federated_map(is_bytes, texts)

    assert check([np.str_("a"), "b", np.bytes_(b"c"), b"d"]) == [True] * 4


def test_an_exception_whose_text_raises_is_still_a_leaf_error():
    class Bad(Exception):
        def __str__(self):
            return self.missing

    @fedstack.python_computation([PAIR], PAIR)
    def fail(x):
        raise Bad

    with pytest.raises(LeafError, match="Bad: whose text raises AttributeError"):
        fail([1.0, 2.0])


def test_a_cancellation_that_comes_out_of_a_leaf_is_a_leaf_error():
    @fedstack.python_computation([PAIR], PAIR)
    def fail(x):
        raise asyncio.CancelledError("mine")

    with pytest.raises(LeafError, match="CancelledError: mine"):
        fail([1.0, 2.0])


def test_forgotten_parentheses_are_pointed_out():
    with pytest.raises(InvalidComputationError, match="found the function 'bare'; write @fedstack.python_computation"):

        @fedstack.python_computation
        def bare(x):
            return x


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (3, r"found int 3; for example, pass fedstack\.create_sync_local_execution_context\(\)"),
        (None, r"found None; for example, pass fedstack\.create_sync_local_execution_context\(\)"),
        (fedstack.create_sync_local_execution_context, r"found function .*; call the function, for example"),
    ],
)
def test_something_that_is_no_context_is_refused(context, message):
    with pytest.raises(TypeError, match=f"Expected an execution context, {message}"), fedstack.use_context(context):
        pass


@pytest.mark.parametrize("kind", [fedstack.contexts.SyncExecutionContext, fedstack.contexts.AsyncExecutionContext])
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (None, r"found None; for example, pass fedstack\.local_executor_factory\(\)"),
        (fedstack.local_executor_factory, r"found function .*; call the function, for example fedstack\.local"),
        (fedstack.executors.LeafExecutor(), r"found LeafExecutor .*; for example, pass fedstack\.local"),
    ],
)
def test_something_that_is_no_factory_is_refused_when_a_context_is_made(kind, factory, message):
    with pytest.raises(InvalidValueError, match=f"Expected an executor factory, {message}"):
        kind(factory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_thread": 3},
            "other than client_failures, clients_per_thread, .*, found max_thread; write max_concurrent_clients$",
        ),
        ({"colour": 3}, "other than client_failures, clients_per_thread, .*, found colour; remove it$"),
    ],
)
def test_unknown_options_are_refused_with_those_that_there_are(options, message):
    with pytest.raises(TypeError, match=f"Expected no options {message}"):
        fedstack.create_sync_local_execution_context(**options)


def test_ids_of_a_list_keep_their_digits_and_their_kinds():
    large = fedstack.by_client({"user": [2**63 + 1000, 2**63 + 1001, 17], "x": [1.0, 2.0, 3.0]}, "user")
    assert {key: value["x"].tolist() for key, value in large.items()} == {
        17: [3.0],
        2**63 + 1000: [1.0],
        2**63 + 1001: [2.0],
    }
    mixed = fedstack.by_client({"user": [1, "1", 2], "x": [1.0, 2.0, 3.0]}, "user")
    assert {key: value["x"].tolist() for key, value in mixed.items()} == {1: [1.0], "1": [2.0], 2: [3.0]}

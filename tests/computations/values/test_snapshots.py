"""What a function returned stays as it was, and is copied only where the function, or somebody, still has it."""

import functools

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.leaves.python_functions import PythonLeaf
from fedstack.computations.values.columns import ListColumn

VECTOR = fl.TensorType(np.float32, [3])
PAIR = fl.to_type({"a": VECTOR, "b": (VECTOR, np.float32)})


def leaf(function, parameter=VECTOR, result=VECTOR):
    return PythonLeaf(function, "function", parameter, result)


def payload(*values):
    array = np.array(values or (1, 2, 3), np.float32)
    array.flags.writeable = False
    return array


def memory_of(array):
    return array.__array_interface__["data"][0]


kept = np.zeros(3, np.float32)
state = {"a": np.zeros(3, np.float32), "b": (np.zeros(3, np.float32), np.float32(1))}


def refilled(x):
    kept[:] = x
    return kept


def refilled_state(x):
    state["a"][:] = x
    state["b"][0][:] = x
    return state


@functools.lru_cache
def remembered(_):
    return np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "function",
    [
        refilled,
        lambda x: refilled(x)[::-1],
        lambda x: refilled(x)[:],
        lambda x: np.broadcast_to(refilled(x)[0], 3),
        lambda x: refilled(x).reshape(3, 1)[:, 0],
        lambda x: np.frombuffer(memoryview(refilled(x)), np.float32),
    ],
)
def test_what_a_function_fills_anew_is_copied(function):
    made = leaf(function)
    results = [made.call(payload(1, 1, 1), 0)]
    results += made.call_column(ListColumn([payload(2, 2, 2), payload(3, 3, 3)]), 1, 2).items()
    assert [list(result) for result in results] == [[1] * 3, [2] * 3, [3] * 3]
    assert list(made.call(payload(4, 4, 4))) == [4] * 3
    assert [list(result) for result in results] == [[1] * 3, [2] * 3, [3] * 3]


def test_a_struct_that_a_function_keeps_and_changes_is_copied_through_and_through():
    made = leaf(refilled_state, result=PAIR)
    results = [made.call(payload(number, number, number), number) for number in (1, 2)]
    assert [[list(a), list(b)] for a, (b, _) in results] == [[[1] * 3] * 2, [[2] * 3] * 2]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: (x + 1)[::-1],
        lambda x: np.stack([x, x]).T[:, 0],
        lambda x: np.zeros(6, np.float32)[::2],
    ],
)
def test_what_a_function_lets_go_of_is_not_copied(function, monkeypatch):
    monkeypatch.setattr("fedstack.computations.values.ownership.read_only", lambda array: pytest.fail("it was copied"))
    assert leaf(function).call(payload(), 0).shape == (3,)
    assert leaf(lambda x: {"a": function(x), "b": (function(x), np.float32(1))}, result=PAIR).call(payload(), 0)


@pytest.mark.parametrize("function", [lambda x: x, lambda x: x[::-1], lambda x: np.broadcast_to(x[:1], 3)])
def test_arguments_that_are_passed_on_are_not_copied(function):
    argument = np.array([1, 2, 3], np.float32).view()
    argument.flags.writeable = False
    result = leaf(function).call(argument, 0)
    assert np.shares_memory(result, argument)


def test_what_is_remembered_for_the_next_call_is_copied():
    made = leaf(remembered, parameter=fl.TensorType(np.int32))
    first, second = made.call(np.int32(1), 0), made.call(np.int32(1), 1)
    assert memory_of(first) != memory_of(second)


def test_what_nobody_can_write_into_is_not_copied():
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    assert memory_of(leaf(lambda x: frozen).call(payload(), 0)) == memory_of(frozen)
    content = np.zeros(3, np.float32).tobytes()
    result = leaf(lambda x: np.frombuffer(content, np.float32)).call(payload(), 0)
    assert not result.flags.writeable

"""Functions by value take along the computations that they call."""

import collections
import gc
from typing import NamedTuple

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.function_pickles import dumps, loads

CLIENTS_FLOATS = fl.FederatedType(np.float32, fl.CLIENTS)


class Point(NamedTuple):
    x: object
    y: object


def again(value):
    """What arrives of a value at another process; functions made inside tests go by value."""
    return loads(dumps(value))


@pytest.fixture(autouse=True)
def context(fedstack_context):
    return fedstack_context


def doubled_and_summed():
    """A leaf computation, and a federated one that maps it, which go by value: no module has their names."""

    @fedstack.python_computation([np.float32], np.float32)
    def double(x):
        return 2 * x

    @fl.federated_computation(CLIENTS_FLOATS)
    def total(values):
        return fl.federated_sum(fl.federated_map(double, values))

    return double, total


def test_a_function_calls_a_leaf_computation_that_it_refers_to():
    @fedstack.python_computation([np.float32], np.float32)
    def double(number):
        return 2 * number

    assert again(lambda x: double(x) + double(number=x))(3.0) == 12.0


def test_a_function_calls_a_federated_computation_that_it_refers_to():
    _, total = doubled_and_summed()
    assert again(lambda x: total([x, x]))(3.0) == 12.0


def test_a_leaf_computation_may_call_itself():
    @fedstack.python_computation([np.int32], np.int32)
    def factorial(n):
        return np.int32(1) if n == 0 else n * factorial(n - 1)

    assert again(lambda n: factorial(n))(5) == 120


def test_a_leaf_computation_may_call_a_computation_that_maps_it():
    @fedstack.python_computation([np.int32], np.int32)
    def down(n):
        return np.int32(0) if n == 0 else np.int32(1) + total([n - np.int32(1)])

    @fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(fl.federated_map(down, values))

    assert again(lambda n: down(n))(3) == 3
    assert again(lambda values: total(values))([3, 4]) == 7


def test_a_computation_that_came_in_can_be_built_into_others():
    double, total = doubled_and_summed()

    def built_into(arrived, leaf):
        @fl.federated_computation(CLIENTS_FLOATS)
        def both(values):
            return arrived(values), fl.federated_sum(fl.federated_map(leaf, values))

        return both

    both = built_into(*again((total, double)))
    gc.collect()
    assert tuple(again(lambda values: both(values))([1.0, 2.0])) == (6.0, 6.0)


@pytest.mark.parametrize("container", [dict, collections.OrderedDict, Point])
def test_computations_keep_the_containers_of_their_types(container):
    members = [("y", fl.TensorType(np.float32)), ("x", fl.TensorType(np.float32))]
    if container is Point:
        members.reverse()
    struct = fl.StructWithPythonType(members, container)
    seen = []

    @fedstack.python_computation([struct], struct)
    def same(value):
        seen.append(value)
        return value

    @fl.federated_computation(fl.FederatedType(struct, fl.CLIENTS))
    def total(values):
        return fl.federated_sum(values)

    @fl.federated_computation(struct)
    def copied(value):
        return value

    argument = container(**{name: 1.0 for name, _ in members})
    for call in (same, copied, lambda value: total([value])):
        expected, found = call(argument), again(lambda value, call=call: call(value))(argument)
        assert type(found) is type(expected)
        assert found == expected
        assert list(found) == list(expected)


def test_a_computation_arrives_with_its_name_and_type():
    @fedstack.python_computation([np.float32, np.int32], np.float32)
    def scaled(x, n):
        """Scales."""
        return x * np.float32(n)

    found = again(scaled)
    assert (found.__name__, found.__doc__) == ("scaled", "Scales.")
    assert found.type_signature == scaled.type_signature
    assert repr(found) == repr(scaled)


def test_writing_a_computation_twice_gives_the_same_bytes():
    double, total = doubled_and_summed()

    function = lambda: (total([1.0]), double(1.0))  # noqa: E731
    assert dumps(function) == dumps(function)

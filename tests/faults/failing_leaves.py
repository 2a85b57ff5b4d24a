"""Computations that are wrong in one way each. Workers import this module, so its functions travel by reference."""

import federated_language as fl
import numpy as np

import fedstack
from fedstack.computations.types.language import CLIENTS, FederatedType, computation_pb2
from fedstack.testing.computation_builder import computation, data, function, intrinsic

CLIENT_INTS = FederatedType(np.int32, CLIENTS)
PAIR = fl.StructWithPythonType([("a", np.int32), ("b", np.float32)], dict)


class OwnError(Exception):
    """An error that only this module knows."""

    def __str__(self) -> str:
        return f"with {len(self.args)} arguments, ünïcödé and\nanother line"


def helper(x):
    return {1: 10}[int(x)]


@fedstack.python_computation([np.int32], np.int32)
def raises(x):
    if x == 3:
        raise ValueError("three")
    return x


@fedstack.python_computation([np.int32], np.int32)
def raises_inside(x):
    return np.int32(helper(x))


@fedstack.python_computation([np.int32], np.int32)
def raises_own(x):
    try:
        helper(x)
    except KeyError as error:
        raise OwnError(1, 2) from error
    return x


@fedstack.python_computation([np.int32], np.int32)
def stops(x):
    raise StopIteration


@fedstack.python_computation([np.int32], np.int32)
def returns_text(x):
    return "three" if x == 3 else x


@fedstack.python_computation([np.int32], np.int32)
def returns_fractions(x):
    return float(x) / 2


@fedstack.python_computation([np.int32], np.int32)
def returns_too_much(x):
    return np.full(3, x, np.int32)


@fedstack.python_computation([np.int32], PAIR)
def returns_half_a_struct(x):
    return {"a": x}


@fedstack.python_computation([np.int32], [PAIR, np.int32])
def returns_text_in_a_struct(x):
    return {"a": x, "b": "three" if x == 3 else 1.0}, x


@fedstack.python_computation([np.int32], np.int32)
def returns_nothing(x):
    if x != 3:
        return x


@fedstack.python_computation([np.int32], np.int32)
def raises_a_type_error(x):
    return x + "one"


LEAVES = {
    "raises": raises,
    "raises inside": raises_inside,
    "raises an error of its own": raises_own,
    "stops an iteration": stops,
    "returns text": returns_text,
    "returns fractions": returns_fractions,
    "returns too much": returns_too_much,
    "returns half a struct": returns_half_a_struct,
    "returns text in a struct": returns_text_in_a_struct,
    "returns nothing": returns_nothing,
    "raises a type error": raises_a_type_error,
}


@fedstack.python_computation([np.int32, np.int32], np.int32)
def sum_of_two(x, y):
    if y == 3:
        raise ValueError("three")
    return x + y


@fl.federated_computation(CLIENT_INTS, CLIENT_INTS)
def of_both(xs, ys):
    return fl.federated_sum(fl.federated_map(sum_of_two, (xs, ys)))


@fl.federated_computation(CLIENT_INTS)
def accumulated(xs):
    return fl.federated_aggregate(xs, np.int32(0), sum_of_two, sum_of_two, returns_text)


def over_sequences(reduces):
    """Returns the computation whose clients have a function run for each element of a sequence, and what becomes of it.

    Args:
      reduces: Whether the elements are reduced at the clients; else each is mapped, lazily, and they are the result.
    """

    @fl.federated_computation(fl.SequenceType(np.int32))
    def of_elements(xs):
        return fl.sequence_reduce(xs, np.int32(0), sum_of_two) if reduces else fl.sequence_map(raises, xs)

    @fl.federated_computation(FederatedType(fl.SequenceType(np.int32), CLIENTS))
    def at_clients(xs):
        return fl.federated_map(of_elements, xs)

    return at_clients


@fedstack.python_computation([fl.SequenceType(np.int32)], np.int32)
def total(xs):
    return sum(xs, np.int32(0))


@fedstack.python_computation([fl.SequenceType(np.int32)], np.int32)
def count(xs):
    return len(xs)


@fedstack.python_computation([fl.SequenceType(np.int32)], np.int32)
def count_and_last(xs):
    return 100 * len(xs) + xs[-1] + 0 * len(list(xs)) if xs else -1


def of_sequences(leaf):
    """Returns the computation that maps a function over the clients' sequences."""

    @fl.federated_computation(FederatedType(fl.SequenceType(np.int32), CLIENTS))
    def at_clients(xs):
        return fl.federated_map(leaf, xs)

    return at_clients


def mapped(leaf):
    """Returns the computation that maps a function over the clients and returns what each got."""

    @fl.federated_computation(CLIENT_INTS)
    def at_clients(xs):
        return fl.federated_map(leaf, xs)

    return at_clients


def with_unknown_function():
    """Returns a computation whose function is the content of a `data` block that nobody knows."""
    content = (
        mapped(raises).to_proto().SerializeToString().replace(b"fedstack.v1.PythonHandle", b"fedstack.v1.PythonHandel")
    )
    return fl.framework.ConcreteComputation.from_proto(computation_pb2.Computation.FromString(content))


def with_unknown_data():
    """Returns a computation whose clients need data that nobody knows."""

    def body(xs):
        return intrinsic("federated_map", function(lambda x: data("somewhere://else", np.int32), np.int32), xs)

    return computation(body, CLIENT_INTS)

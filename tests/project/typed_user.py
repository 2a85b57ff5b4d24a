"""What a user writes, for type checkers: `test_user_types.py` shows it to them, and nothing runs it.

Both checkers report an error on the lines with `# error`, and none on any other.
"""

import asyncio
from typing import Any

import federated_language as fl
import numpy as np
from typing_extensions import assert_type

import fedstack

VALUE = np.float32
VECTOR = (np.float32, [3])
AT_CLIENTS = fl.FederatedType(VALUE, fl.CLIENTS)


# Leaf computations.


@fedstack.python_computation([VALUE], VALUE)
def half(x: np.float32) -> np.float32:
    """Returns the half."""
    return x / np.float32(2)


@fedstack.python_computation({"x": VALUE, "times": np.int32})
def scaled(x: np.float32, times: np.int32) -> np.float32:
    return x * np.float32(times)


@fedstack.python_computation([VALUE])
def without_annotations(x):
    return x * 2


@fedstack.python_computation(None, VALUE)
def zero() -> np.float32:
    return np.float32(0)


@fedstack.python_computation(VALUE)
def of_one_type(x: np.float32) -> np.float32:
    return x


@fedstack.python_computation([fl.TensorType(np.float32, [None])])
def of_a_language_type(x: "np.ndarray[Any, np.dtype[np.float32]]") -> np.float32:
    return x.sum()


assert_type(half(np.float32(1)), np.float32)
assert_type(half(x=np.float32(1)), np.float32)
assert_type(half(np.float32(1)) + np.float32(1), np.float32)
assert_type(half.__wrapped__(np.float32(1)), np.float32)
assert_type(scaled(np.float32(1), times=np.int32(2)), np.float32)
assert_type(without_annotations(1), Any)
assert_type(zero(), np.float32)
assert_type(of_one_type(np.float32(1)), np.float32)
half.type_signature.compact_representation()
half("text")  # error: not what the function takes
half(np.float32(1), np.float32(1))  # error: too many
half(y=np.float32(1))  # error: another name
scaled(np.float32(1))  # error: too few
scaled(np.float32(1), times="twice")  # error


class Model:
    step = half


assert_type(Model().step(np.float32(1)), np.float32)


# Federated computations.


@fl.federated_computation(AT_CLIENTS)
def mean_of_halves(values):
    return fl.federated_mean(fl.federated_map(half, values))


@fl.federated_computation(fl.FederatedType(VECTOR, fl.SERVER), fl.FederatedType(VECTOR, fl.CLIENTS))
def with_two(model: fl.Value, updates: fl.Value) -> tuple[fl.Value, fl.Value]:
    seen = fl.federated_zip((fl.federated_broadcast(model), updates))
    return fl.federated_sum(seen[1]), model


@fl.federated_computation(AT_CLIENTS)
def called(value: fl.Value) -> fl.Value:
    assert_type(half(value), fl.Value)
    assert_type(scaled(value, np.int32(2)), fl.Value)
    assert_type(without_annotations(value), fl.Value)
    return fl.federated_map(without_annotations, value)


@fl.federated_computation(AT_CLIENTS)
def mistaken(values: fl.Value) -> fl.Value:
    values * 2.0  # error: a value of the language has no arithmetic
    fl.federated_map(half, values) + 1  # error
    fl.federated_map(lambda x: x / 2, values)  # error: not decorated
    fl.federated_map(values)  # error: too few
    return fl.federated_averge(values)  # error: no such name


@fl.federated_computation
def without_types():
    return fl.federated_value(np.float32(1), fl.SERVER)


@fl.federated_computation()
def without_types_either():
    return fl.federated_value(np.float32(1), fl.SERVER)


by_hand = fl.federated_computation(lambda values: fl.federated_sum(values), AT_CLIENTS)
of_a_struct = fl.federated_computation(lambda pair: fl.federated_sum(pair[0]), [AT_CLIENTS, ("b", AT_CLIENTS)])
on_a_type = fl.federated_computation(np.int32)(lambda x: x)

mean_of_halves([1.0, 2.0]) + 1
by_hand(values=[1.0])[0]
of_a_struct([1.0], [2.0])
on_a_type(3)
without_types() + without_types_either()
mean_of_halves.type_signature.compact_representation()
mean_of_halves.type_signature.compct_representation()  # error: a misspelt method
model, updates = with_two(np.zeros(3, np.float32), [np.ones(3, np.float32)])
fl.framework.ConcreteComputation.from_proto  # noqa: B018
fl.framework.create_federated_sum  # noqa: B018

# Contexts.

with fedstack.use_context(fedstack.create_sync_local_execution_context(max_concurrent_clients=1)) as context:
    mean_of_halves([1.0])
fedstack.set_sync_local_execution_context(progress=True, debug=True)
fedstack.set_sync_local_execution_context(progess=True)  # error: a misspelt option


async def main() -> None:
    with fedstack.use_context(fedstack.create_async_local_execution_context()):
        await mean_of_halves([1.0])
        await asyncio.gather(mean_of_halves([1.0]), mean_of_halves([2.0]))

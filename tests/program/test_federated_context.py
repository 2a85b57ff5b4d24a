"""The context of programs: calls return references at once, and clients' values stay out of sight."""

import asyncio

import attrs
import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import ContextError, InvalidComputationError, TypeMismatchError
from fedstack.program import FederatedContext

CLIENTS = fl.FederatedType(np.float32, fl.CLIENTS)


@fl.federated_computation(CLIENTS)
def totals(x):
    return {"sum": fl.federated_sum(x), "mean": fl.federated_mean(x)}


@fl.federated_computation(CLIENTS)
def unchanged(x):
    return x


@pytest.fixture(autouse=True)
def context():
    with fedstack.use_context(FederatedContext(fedstack.create_async_local_execution_context())):
        yield


def test_a_call_returns_references_which_further_calls_take() -> None:
    @fl.federated_computation(fl.FederatedType(np.float32, fl.SERVER), CLIENTS)
    def added(total, x):
        return fl.federated_sum(x), total

    async def program() -> object:
        found = totals([1.0, 3.0])
        assert isinstance(found["mean"], fl.program.MaterializableValueReference)
        return await fl.program.materialize_value(added(found["mean"], [5.0]))

    assert list(asyncio.run(program())) == [5.0, 2.0]


def test_values_of_clients_and_calls_without_a_loop_are_refused() -> None:
    async def program() -> None:
        unchanged([1.0])

    with pytest.raises(InvalidComputationError, match="a program does not see clients' values"):
        asyncio.run(program())
    with pytest.raises(ContextError, match="Expected a running event loop"):
        totals([1.0])


VECTOR = fl.TensorType(np.float32, [2])
MODEL = fl.StructType([("a", VECTOR), ("b", fl.StructType([VECTOR]))])


@attrs.define
class Pair:
    a: object
    b: object


@pytest.mark.parametrize("make", [lambda x: {"b": [x], "a": x}, lambda x: [x, (x,)], lambda x: Pair(x, [x])])
def test_a_call_has_the_arrays_of_the_server_as_they_were_when_it_was_made(make) -> None:
    @fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), CLIENTS)
    def beside(model, x):
        return model, fl.federated_sum(x)

    async def program() -> object:
        array, clients = np.zeros(2, np.float32), [1.0, 2.0]
        found = beside(make(array), clients)
        array += 5
        clients.append(4.0)
        return await fl.program.materialize_value(found)

    model, total = asyncio.run(program())
    assert [*model["a"], *model["b"][0], total] == [0, 0, 0, 0, 3]


@pytest.mark.parametrize("place", [lambda t: t, lambda t: fl.FederatedType(t, fl.SERVER)])
def test_other_members_are_told_when_the_call_is_made(place) -> None:
    @fl.federated_computation(place(fl.StructType([("a", np.float32), ("b", np.float32)])))
    def same(x):
        return x

    async def program(given: object) -> object:
        same(given)

    for given, message in (
        ({"a": 1.0}, "found no 'b'"),
        ([1.0], "Expected 2 members of .*, found 1"),
        (5.0, "found float 5.0"),
    ):
        with pytest.raises(TypeMismatchError, match=f"{message}.*at arg"):
            asyncio.run(program(given))

"""The context of programs: calls return references at once, and clients' values stay out of sight."""

import asyncio

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import ContextError, InvalidComputationError
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

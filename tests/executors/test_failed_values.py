"""A call that has failed keeps none of its values: they go when it does, and not when the garbage collector comes."""

import asyncio
import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import LeafError
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub

VECTOR = fl.TensorType(np.float32, [None])
VECTORS = fl.FederatedType(VECTOR, fl.CLIENTS)


seen: list["weakref.ref[np.ndarray]"] = []


@fedstack.python_computation([VECTOR], VECTOR)
def double(x):
    seen.append(weakref.ref(x))
    return x * 2


@fedstack.python_computation([VECTOR], np.float32)
def fail(x):
    seen.append(weakref.ref(x))
    raise ValueError(f"of {len(x)}")


def fail_all(xs: Any) -> Any:
    return fl.federated_sum(fl.federated_map(fail, xs))


@fl.federated_computation(VECTORS)
def at_clients(xs):
    return fl.federated_sum(fl.federated_map(fail, fl.federated_map(double, xs)))


@fl.federated_computation(VECTORS, VECTORS)
def side_by_side(xs, ys):
    return fail_all(xs), fail_all(ys)


@fl.federated_computation(VECTOR)
def at_the_server(x):
    return fail(double(x)), fail(x)


ARGUMENTS: dict[Any, Callable[[Any], list[Any]]] = {
    at_clients: lambda array: [[array, array]],
    side_by_side: lambda array: [[array], [array]],
    at_the_server: lambda array: [array],
}


@pytest.fixture
def no_collector() -> Iterator[None]:
    seen.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def stub_of(service: ExecutorService) -> ExecutorStub:
    return ExecutorStub(InMemoryConnection(service))


@pytest.fixture(params=["local", "remote"])
def factory(request: pytest.FixtureRequest, service: ExecutorService) -> Any:
    if request.param == "local":
        return fedstack.local_executor_factory()
    return fedstack.remote_executor_factory([stub_of(service), stub_of(service)])


def array() -> np.ndarray:
    return np.ones(100_000, np.float32)


def all_are_gone() -> bool:
    # Python 3.10 keeps the errors of cancelled futures, with their frames, in circles that only the collector ends.
    if sys.version_info < (3, 11):
        gc.collect()
    return bool(seen) and all(reference() is None for reference in seen)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("computation", ARGUMENTS, ids=["at clients", "side by side", "at the server"])
def test_a_synchronous_call_that_fails_keeps_nothing(factory: Any, computation: Any, eventually: Any) -> None:
    context = SyncExecutionContext(factory)
    with fedstack.use_context(context):
        with contextlib.suppress(LeafError):
            computation(*ARGUMENTS[computation](array()))
    asyncio.run(eventually(all_are_gone))
    context.close()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("computation", ARGUMENTS, ids=["at clients", "side by side", "at the server"])
async def test_an_asynchronous_call_that_fails_keeps_nothing(factory: Any, computation: Any, eventually: Any) -> None:
    context = AsyncExecutionContext(factory)
    with fedstack.use_context(context):
        with contextlib.suppress(LeafError):
            await computation(*ARGUMENTS[computation](array()))
    await eventually(all_are_gone)
    context.close()


@pytest.fixture(params=["local", "remote"])
def executor(request: pytest.FixtureRequest, make_remote: Any) -> Iterator[Any]:
    made = fedstack.local_executor_factory().create_executor({}) if request.param == "local" else make_remote()
    yield made
    made.close()


async def call(executor: Any, function: Any) -> Any:
    argument = await executor.create_value(array(), VECTOR)
    return await executor.create_call(await executor.create_value(function), argument)


@pytest.mark.usefixtures("no_collector")
async def test_a_value_that_cannot_be_computed_goes_with_its_last_reference(executor: Any, eventually: Any) -> None:
    called = await call(executor, fail)
    for _ in range(2):
        with contextlib.suppress(LeafError):
            await called.compute()
    assert seen
    del called
    await eventually(all_are_gone)


@pytest.mark.usefixtures("no_collector")
async def test_a_value_that_nobody_computes_goes_with_its_last_reference(executor: Any, eventually: Any) -> None:
    reference = weakref.ref(await call(executor, double))
    await eventually(lambda: reference() is None)


def test_an_error_tells_the_lines_of_the_user_and_not_ours() -> None:
    context = fedstack.create_sync_local_execution_context()
    with fedstack.use_context(context):
        with pytest.raises(LeafError) as caught:
            at_clients([np.ones(3, np.float32)])
    context.close()
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    traceback = cause.__traceback__
    assert traceback is not None
    assert traceback.tb_next is None
    assert traceback.tb_frame.f_code.co_name == "fail"
    assert len(traceback.tb_frame.f_locals["x"]) == 3

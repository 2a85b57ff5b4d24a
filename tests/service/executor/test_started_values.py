"""Values that are started in a session: what fails fails its own outcome, and what is cancelled is given up."""

import asyncio
import threading

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import LeafError
from fedstack.executors import RemoteExecutor
from fedstack.service import ExecutorService, GrpcServer, ServerThread

runs: list[int] = []
entered = threading.Event()
go = threading.Event()


@fedstack.python_computation([np.int32], np.int32)
def tenth(x):
    runs.append(int(x))
    if x < 0:
        raise ValueError("below zero")
    return x // 10


@fedstack.python_computation([np.int32], np.int32)
def blocked(x):
    runs.append(int(x))
    entered.set()
    assert go.wait(30)
    return x


@pytest.fixture
def executor():
    runs.clear()
    entered.clear()
    go.clear()
    with ServerThread(GrpcServer([ExecutorService(fedstack.local_executor_factory())])) as server:
        with RemoteExecutor.connect(server.target) as made:
            made.set_cardinalities({fl.CLIENTS: 0})
            yield made
            go.set()


async def call(executor, function, number):
    argument = await executor.create_value(number, np.int32)
    return await executor.create_call(await executor.create_value(function), argument)


async def ended(executor, values):
    outcomes = {}
    while len(outcomes) < len(values):
        outcomes.update(await executor.start([value for value in values if value not in outcomes]))
    return [outcomes[value] for value in values]


async def test_each_of_a_batch_has_its_own_outcome(executor):
    values = [await call(executor, tenth, number) for number in (70, -1, 50)]
    good, bad, other = await ended(executor, values)
    assert (good, other) == (None, None)
    assert isinstance(bad, LeafError)
    assert [await value.compute() for value in (values[0], values[2])] == [7, 5]
    assert sorted(runs) == [-1, 50, 70], "each ran once"


async def test_a_value_that_others_need_runs_once_while_it_runs(executor):
    first = await call(executor, blocked, 30)
    second = await executor.create_call(await executor.create_value(tenth), first)
    starting = asyncio.ensure_future(ended(executor, [first, second]))
    assert await asyncio.to_thread(entered.wait, 30)
    needed = asyncio.ensure_future(second.compute())
    go.set()
    assert await starting == [None, None]
    assert await needed == 3
    assert runs == [30, 30], "blocked once, and tenth once"


async def test_a_value_that_is_stopped_goes_on_for_those_that_need_it(executor):
    first = await call(executor, blocked, 30)
    second = await executor.create_call(await executor.create_value(tenth), first)
    starting = asyncio.ensure_future(executor.start([first, second]))
    assert await asyncio.to_thread(entered.wait, 30)
    await executor.stop([first])
    go.set()
    assert (await ended(executor, [second])) == [None]
    assert await second.compute() == 3
    assert runs == [30, 30]
    starting.cancel()

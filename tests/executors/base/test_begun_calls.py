"""A call that has begun runs once, whoever needs it meanwhile."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

import fedstack
from fedstack.executors import LeafExecutor
from fedstack.executors.base.lazy_values import LazyValue

go = threading.Event()
runs = []


@fedstack.python_computation([], np.int32)
def seven():
    runs.append("seven")
    assert go.wait(20)
    return 7


@fedstack.python_computation([[np.int32, np.int32]], np.int32)
def added(pair):
    runs.append("added")
    return pair[0] + pair[1]


@pytest.fixture
def executor():
    go.clear()
    runs.clear()
    made = LeafExecutor()
    yield made
    go.set()
    made.close()


async def call(executor: LeafExecutor, function: object, *members: object) -> LazyValue:
    argument = await executor.create_struct(list(members)) if members else None
    made = await executor.create_call(await executor.create_value(function), argument)
    assert isinstance(made, LazyValue)
    return made


async def test_what_needs_a_call_that_runs_waits_for_that(executor):
    first = await call(executor, seven)
    second = await call(executor, added, first, first)
    begun = asyncio.ensure_future(first.compute())
    needed = asyncio.ensure_future(second.compute())
    go.set()
    assert await begun == 7
    assert await needed == 14
    assert runs == ["seven", "added"]


async def test_that_a_value_is_known_is_told_at_once_however_often_structs_share_it(executor):
    value = await executor.create_value(1, np.int32)
    for _ in range(60):  # 2^60 ways lead to it
        value = await executor.create_struct([value, value])
    assert isinstance(value, LazyValue)
    assert value.is_known


async def test_a_call_that_has_run_keeps_nothing_of_what_it_was_made_of(executor):
    go.set()
    first = await call(executor, seven)
    await first.compute()
    second = await call(executor, added, first, first)
    assert await second.pull() == 14
    gone = weakref.ref(first)
    del first
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    assert await second.compute() == 14

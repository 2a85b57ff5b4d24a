"""A call that was begun on a thread runs once, whoever needs it meanwhile."""

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


async def test_what_needs_a_call_that_was_begun_waits_for_that(executor):
    first = await call(executor, seven)
    second = await call(executor, added, first, first)
    begun = first.begin()
    assert begun is not None
    assert first.begin() is None, "it has begun"
    assert second.begin() is None, "it has to wait for the first"
    needed = asyncio.ensure_future(second.compute())
    go.set()
    assert await begun == 7
    assert await needed == 14
    assert runs == ["seven", "added"]


async def test_a_call_of_what_is_known_is_begun_once_its_arguments_have_run(executor):
    go.set()
    first = await call(executor, seven)
    second = await call(executor, added, first, first)
    assert await first.compute() == 7
    begun = second.begin()
    assert begun is not None
    assert await begun == 14
    assert runs == ["seven", "added"]


async def test_that_a_value_is_known_is_told_at_once_however_often_structs_share_it(executor):
    value = await executor.create_value(1, np.int32)
    for _ in range(60):  # 2^60 ways lead to it
        value = await executor.create_struct([value, value])
    assert isinstance(value, LazyValue)
    assert value.is_known


@pytest.mark.parametrize("begins", [True, False], ids=["begun", "pulled"])
async def test_a_call_that_has_run_keeps_nothing_of_what_it_was_made_of(executor, begins):
    go.set()
    first = await call(executor, seven)
    await first.compute()
    second = await call(executor, added, first, first)
    found = second.begin() if begins else second.pull()
    assert found is not None
    assert await found == 14
    gone = weakref.ref(first)
    del first, found
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    assert await second.compute() == 14

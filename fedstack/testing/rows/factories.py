"""Conformance rows about executor factories: executors for numbers of clients, cleaning up, and closing."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import CLIENTS
from fedstack.contexts.contexts import AsyncExecutionContext
from fedstack.contexts.in_force import use_context
from fedstack.errors import ClosedError
from fedstack.testing.computation_builder import at_clients, computation, intrinsic
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import double
from fedstack.testing.meeting import LIMIT_SECONDS, until_set
from fedstack.testing.promises import promise_of_stacks
from fedstack.testing.subjects import StackSubject


async def _doubled(executor: Any, number: int) -> object:
    function = await executor.create_value(double)
    return await (await executor.create_call(function, await executor.create_value(number, np.int32))).compute()


@promise_of_stacks()
async def factories_make_executors_for_cardinalities(subject: StackSubject) -> None:
    """A factory creates executors for any number of clients, including zero, and for cardinalities without clients."""
    factory = subject.factory()
    for cardinalities in ({}, {CLIENTS: 0}, {CLIENTS: 1}, {CLIENTS: 7}):
        executor = factory.create_executor(cardinalities)
        expect_same(await _doubled(executor, 4), np.int32(8))
        clients = cardinalities.get(CLIENTS, subject.default_num_clients)
        values = await executor.create_value([1] * clients, at_clients(np.int32))
        expect_same(await values.compute(), [np.int32(1)] * clients)


@promise_of_stacks(tag="timing")
async def cleaning_up_closes_the_executor(subject: StackSubject) -> None:
    """Cleaning up closes the executor of the cardinalities, if it exists. The next executor for them is a new one."""
    factory = subject.factory()
    factory.clean_up_executor({CLIENTS: 3})
    executor, other = factory.create_executor({CLIENTS: 2}), factory.create_executor({CLIENTS: 1})
    expect_same(await _doubled(executor, 4), np.int32(8))
    factory.clean_up_executor({CLIENTS: 2})
    factory.clean_up_executor({CLIENTS: 2})
    await expect_error(executor.create_value(3, np.int32), ClosedError, "closed")
    expect_same(await _doubled(other, 4), np.int32(8))
    expect_same(await _doubled(factory.create_executor({CLIENTS: 2}), 4), np.int32(8))


@promise_of_stacks(needs=["same process"], tag="timing")
async def cleaning_up_spares_who_is_at_work(subject: StackSubject) -> None:
    """Cleaning up during an invocation lets the invocation finish."""
    await _finishes_after(subject, lambda context: context.executor_factory.clean_up_executor({CLIENTS: 2}))


# What is lost after the context has been closed is not retried.
@promise_of_stacks(needs=["same process", "one attempt"], tag="timing")
async def closing_spares_who_is_at_work(subject: StackSubject) -> None:
    """Closing a context during an invocation lets the invocation finish."""
    await _finishes_after(subject, AsyncExecutionContext.close)


async def _finishes_after(subject: StackSubject, end: Callable[[AsyncExecutionContext], None]) -> None:
    """Checks that a running invocation finishes when `end` is called on its context."""
    started, released = threading.Event(), threading.Event()

    @python_computation([np.int32], np.int32)
    def wait(x: Any) -> Any:
        started.set()
        released.wait(LIMIT_SECONDS)
        return x

    made = computation(lambda x: intrinsic("federated_map", wait, x), at_clients(np.int32))
    context = subject.async_context()
    with use_context(context):
        called = made([1, 2])
    running = asyncio.create_task(called)
    await until_set(started, running)
    end(context)
    released.set()
    expect_same(await running, [np.int32(1), np.int32(2)])


@promise_of_stacks(tag="errors")
async def negative_numbers_of_clients_are_refused(subject: StackSubject) -> None:
    """A negative number of clients raises a `ValueError` that names the number."""
    factory = subject.factory()

    async def create() -> object:
        return factory.create_executor({CLIENTS: -1})

    await expect_error(create(), ValueError, "-1")


@promise_of_stacks(tag="errors")
async def the_last_block_closes_the_factory(subject: StackSubject) -> None:
    """`with` and `async with` return the factory, if it can be closed. It closes when the outermost block ends."""
    factory: Any = subject.factory()
    if not hasattr(factory, "close"):
        return  # factories of the language need not have a `close` method
    async with factory as entered:
        expect(entered is factory, "the block to return the factory itself", repr(entered))
        with factory:
            executor = factory.create_executor({CLIENTS: 2})
        expect_same(await _doubled(executor, 4), np.int32(8))
    await expect_error(executor.create_value(3, np.int32), ClosedError, "closed")
    await expect_error(factory.__aenter__(), ClosedError, "closed")

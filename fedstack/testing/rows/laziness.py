"""Conformance rows about the time of execution: lazily, once, concurrently, and not after a cancellation."""

import asyncio
import threading
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import ConcreteComputation
from fedstack.errors import LeafError
from fedstack.testing.computation_builder import as_expression, block, computation, reference, struct
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import double, fail
from fedstack.testing.meeting import LIMIT_SECONDS, Meeting, until_set
from fedstack.testing.promises import promise_of_both, promise_of_executors
from fedstack.testing.subjects import ExecutorSubject, Runner


class Noted:
    """A leaf function that adds one to its argument, and records its arguments."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.leaf = python_computation([np.int32], np.int32)(self._call)

    def _call(self, x: Any) -> Any:
        self.calls.append(int(x))
        return x + np.int32(1)

    def expect_calls(self, *expected: int) -> None:
        """Expects that the function was called with exactly these arguments, in any order."""
        expect(
            sorted(self.calls) == sorted(expected), f"calls with the arguments {sorted(expected)}", sorted(self.calls)
        )


@promise_of_executors(needs=["same process"], tag="timing")
async def what_nobody_pulls_never_runs(subject: ExecutorSubject) -> None:
    """Creating a value runs no function. Computing a member of a struct or result runs only the member's functions."""
    noted, other = Noted(), Noted()
    executor = subject.executor()
    called = await subject.call(executor, noted.leaf, 1)
    failing = await subject.call(executor, fail, 1)
    made = await executor.create_struct([called, failing])
    pair = await subject.call(
        executor, computation(lambda x: struct(as_expression(other.leaf)(x), as_expression(fail)(x)), np.int32), 5
    )
    noted.expect_calls()
    other.expect_calls()
    expect_same(await (await executor.create_selection(made, 0)).compute(), np.int32(2))
    expect_same(await (await executor.create_selection(pair, 0)).compute(), np.int32(6))
    await expect_error((await executor.create_selection(pair, 1)).compute(), LeafError, "no luck with 5")
    noted.expect_calls(1)
    other.expect_calls(5)


@promise_of_both(needs=["same process"], tag="timing")
async def unused_locals_never_run(runner: Runner) -> None:
    """A local that the result does not use never runs, so an error in it is never raised."""
    noted = Noted()
    called = computation(
        lambda x: block(
            [
                ("unused", as_expression(noted.leaf)(x)),
                ("failing", as_expression(fail)(x)),
                ("used", as_expression(double)(x)),
            ],
            reference("used", np.int32),
        ),
        np.int32,
    )
    expect_same(await runner.run(called, 4), np.int32(8))
    noted.expect_calls()


@promise_of_both(needs=["same process", "one attempt"], tag="timing")
async def a_shared_local_runs_once(runner: Runner) -> None:
    """A local that several parts of the result use runs once."""
    noted = Noted()
    shared = reference("shared", np.int32)
    body = struct(as_expression(double)(shared), shared, as_expression(noted.leaf)(shared))
    called = computation(lambda x: block([("shared", as_expression(noted.leaf)(x))], body), np.int32)
    expect_same(await runner.run(called, 4), (np.int32(10), np.int32(5), np.int32(6)))
    noted.expect_calls(4, 5)


@promise_of_executors(needs=["same process"], tag="timing")
async def a_value_is_computed_once_and_kept(subject: ExecutorSubject) -> None:
    """A call runs once, regardless of how often it is computed, alone or as a part of other values."""
    noted = Noted()
    executor = subject.executor()
    called = await subject.call(executor, noted.leaf, 1)
    expect_same(list(await asyncio.gather(called.compute(), called.compute())), [np.int32(2)] * 2)
    twice = await executor.create_call(await executor.create_value(double), called)
    expect_same(await twice.compute(), np.int32(4))
    expect_same(await (await executor.create_struct([called, twice])).compute(), (np.int32(2), np.int32(4)))
    noted.expect_calls(1)


@promise_of_executors(needs=["same process"], tag="timing")
async def an_error_is_kept_like_a_value(subject: ExecutorSubject) -> None:
    """A failed value raises the same error, without running again, when it or a dependent value is computed."""
    calls: list[int] = []

    @python_computation([np.int32], np.int32)
    def failing(x: Any) -> Any:
        calls.append(int(x))
        raise KeyError("no luck")

    executor = subject.executor()
    called = await subject.call(executor, failing, 1)
    dependent = await executor.create_call(await executor.create_value(double), called)
    for value in (called, called, dependent, await executor.create_struct([called])):
        await expect_error(value.compute(), LeafError, "KeyError", "no luck")
    expect(calls == [1], "one call, with the argument 1", calls)


@promise_of_both(needs=["same process", "concurrency"], tag="timing")
async def independent_nodes_run_side_by_side(runner: Runner) -> None:
    """Independent parts of a result run concurrently."""
    left, right = _who_meet("left", "right")
    called = computation(lambda x: struct(as_expression(left)(x), as_expression(right)(x)), np.int32)
    expect_same(await runner.run(called, 3), (np.int32(3), np.int32(3)))


@promise_of_executors(needs=["same process", "concurrency"], tag="timing")
async def values_that_are_computed_together_run_side_by_side(subject: ExecutorSubject) -> None:
    """Values that are computed at the same time, and the members of a struct, run concurrently."""
    executor = subject.executor()
    values = [await subject.call(executor, leaf, 1) for leaf in _who_meet("left", "right")]
    expect_same(list(await asyncio.gather(*(value.compute() for value in values))), [np.int32(1)] * 2)
    values = [await subject.call(executor, leaf, 2) for leaf in _who_meet("left", "right")]
    expect_same(await (await executor.create_struct(values)).compute(), (np.int32(2), np.int32(2)))


def _who_meet(*names: str) -> list[ConcreteComputation]:
    """Returns leaf functions that return their argument once all of these functions are running."""
    meeting = Meeting(*names)

    def make(name: str) -> ConcreteComputation:
        @python_computation([np.int32], np.int32)
        def meet(x: Any) -> Any:
            meeting.arrive(name)
            return x

        return meet

    return [make(name) for name in names]


@promise_of_executors(needs=["same process"], tag="timing")
async def leaf_work_does_not_block_the_event_loop(subject: ExecutorSubject) -> None:
    """The event loop stays responsive while a leaf function runs, so that a coroutine can unblock the function."""
    started, released = threading.Event(), threading.Event()

    @python_computation([np.int32], np.bool_)
    def wait(x: Any) -> Any:
        started.set()
        return np.bool_(released.wait(LIMIT_SECONDS))

    async def release() -> None:
        await until_set(started)
        released.set()

    called = await subject.call(subject.executor(), wait, 1)
    found, _ = await asyncio.gather(called.compute(), release())
    expect_same(found, np.bool_(True), "whether the event loop released the function")


class Held:
    """A leaf function that blocks until it is released, and a following one that must not run after a cancellation."""

    def __init__(self) -> None:
        self.started, self.released, self.returned = threading.Event(), threading.Event(), threading.Event()
        self.starts: list[int] = []
        self.after: list[int] = []
        held = python_computation([np.int32], np.int32)(self._held)
        following = python_computation([np.int32], np.int32)(self._following)
        self.computation = computation(lambda x: as_expression(following)(as_expression(held)(x)), np.int32)

    def _held(self, x: Any) -> Any:
        self.starts.append(int(x))
        self.started.set()
        self.released.wait(LIMIT_SECONDS)
        self.returned.set()
        return x

    def _following(self, x: Any) -> Any:
        self.after.append(int(x))
        return x


@promise_of_executors(needs=["same process"], tag="timing")
async def cancelling_one_of_several_waiters_leaves_the_others(subject: ExecutorSubject) -> None:
    """A node keeps running as long as a task waits for it."""
    held = Held()
    executor = subject.executor()
    called = await subject.call(executor, held.computation, 3)
    first, second = asyncio.create_task(called.compute()), asyncio.create_task(called.compute())
    await until_set(held.started, first, second)
    # On a remote executor, the call of the second waiter is sent before this call.
    expect_same(await (await executor.create_value(np.int32(4), np.int32)).compute(), np.int32(4))
    first.cancel()
    await asyncio.wait([first], timeout=LIMIT_SECONDS)
    expect(first.cancelled(), "a cancelled task", first)
    held.released.set()
    expect_same(await second, np.int32(3))
    expect(held.starts == [3], "one call, with the argument 3", held.starts)


@promise_of_executors(needs=["same process"], tag="timing")
async def cancelling_the_last_waiter_cancels_the_node(subject: ExecutorSubject) -> None:
    """Cancelling the last waiter takes effect at once and skips later functions. The node can be computed again."""
    held = Held()
    executor = subject.executor()
    called = await subject.call(executor, held.computation, 3)
    waiters = [asyncio.create_task(called.compute()) for _ in range(2)]
    await until_set(held.started, *waiters)
    # On a remote executor, the call of the second waiter is sent before this call. Otherwise it may start a new run.
    expect_same(await (await executor.create_value(np.int32(4), np.int32)).compute(), np.int32(4))
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters, timeout=LIMIT_SECONDS)
    expect(all(waiter.cancelled() for waiter in waiters), "cancelled tasks", waiters)
    expect(
        not held.returned.is_set(), "a cancellation that does not wait for the function", "a cancellation that waited"
    )
    # On a remote executor, the cancellation is sent before this call.
    expect_same(await (await subject.call(executor, double, 1)).compute(), np.int32(2))
    held.released.set()
    await until_set(held.returned)
    # The effects of the first function's return precede this call.
    expect_same(await (await subject.call(executor, double, 1)).compute(), np.int32(2))
    expect(held.after == [], "no call of the following function", held.after)
    expect_same(await called.compute(), np.int32(3))
    expect(held.starts == [3, 3], "two calls, with the argument 3", held.starts)

"""Conformance rows about contexts: arguments, results, concurrent invocations, errors, and closing."""

import asyncio
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import ConcreteComputation, StructType, get_context_stack, to_type
from fedstack.contexts.in_force import use_context
from fedstack.errors import ClosedError, InvalidComputationError, LeafError
from fedstack.testing.computation_builder import (
    as_expression,
    at_clients,
    at_server,
    computation,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import double, fail, identity
from fedstack.testing.meeting import LIMIT_SECONDS, Meeting, until_set
from fedstack.testing.promises import promise_of_stacks
from fedstack.testing.subjects import StackSubject


class _PointTypes(NamedTuple):
    x: Any
    y: Any


@attrs.define
class _PairTypes:
    x: Any
    y: Any


def _total(member: object = np.int32) -> ConcreteComputation:
    return computation(lambda x: intrinsic("federated_sum", x), at_clients(member))


def _run_in(context: Any, called: Callable[[], Any]) -> Any:
    with use_context(context):
        return called()


class _Side:
    """Calls computations concurrently: in tasks with an async context, or in threads with a sync context."""

    def __init__(self, subject: StackSubject, threads: bool) -> None:
        self._threads = threads
        self._context: Any = subject.sync_context() if threads else subject.async_context()

    async def all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Returns the result or the error of each call."""
        in_context = [functools.partial(_run_in, self._context, call) for call in calls]
        if self._threads:
            return await _in_threads(in_context)
        return await asyncio.gather(*(call() for call in in_context), return_exceptions=True)


async def _in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs each function in its own thread, and returns the result or the error of each function."""
    outcomes: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            outcomes[index] = calls[index]()
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 2 * LIMIT_SECONDS)
        expect(not thread.is_alive(), "the call to finish", "a hanging call")
    return outcomes


@promise_of_stacks(intrinsics=["federated_sum", "federated_map"])
async def sync_and_async_contexts_give_the_same(subject: StackSubject) -> None:
    """A call in a sync context returns the result. In an async context it returns a coroutine with the same result."""
    made = computation(
        lambda x: struct(intrinsic("federated_sum", x), intrinsic("federated_map", double, x)), at_clients(np.int32)
    )
    expected = (np.int32(6), [np.int32(2), np.int32(4), np.int32(6)])
    expect_same(_run_in(subject.sync_context(), lambda: made([1, 2, 3])), expected)
    called = _run_in(subject.async_context(), lambda: made([1, 2, 3]))
    expect(asyncio.iscoroutine(called), "a coroutine", called)
    expect_same(await called, expected)


@promise_of_stacks(intrinsics=["federated_sum", "federated_map"])
async def results_come_in_the_annotated_containers(subject: StackSubject) -> None:
    """Result structs have the containers of the annotated type: named tuple, attrs class, dictionary, tuple or list."""
    context = subject.sync_context()
    members = (np.int32(1), np.float32(2))
    containers: list[tuple[Any, Any]] = [
        (_PointTypes(np.int32, np.float32), _PointTypes(*members)),
        (_PairTypes(np.int32, np.float32), _PairTypes(*members)),
        (OrderedDict(b=np.int32, a=np.float32), OrderedDict(b=members[0], a=members[1])),
        ({"b": np.int32, "a": np.float32}, {"b": members[0], "a": members[1]}),
        ((np.int32, np.float32), members),
        ([np.int32, np.float32], list(members)),
    ]
    for container, expected in containers:
        annotated = to_type(container)
        leaf = identity(annotated)
        made = computation(
            lambda x, leaf=leaf: struct(
                as_expression(leaf)(x[0]),
                intrinsic("federated_map", leaf, x[1]),
                intrinsic("federated_sum", x[1]),
                x[0],
            ),
            StructType([annotated, at_clients(annotated)]),
        )
        with use_context(context):
            found: Any = made([expected, [expected, expected]])
        for value in (found[0], found[1][0], found[1][1], found[3]):
            expect(type(value) is type(expected), f"a {type(expected).__name__}", repr(value))
            expect_same(value, expected)
        expect(type(found[2]) is type(expected), f"a {type(expected).__name__} as the sum", repr(found[2]))
    with use_context(context):
        plain = computation(lambda s, u: s, StructType([("a", np.int32)]), np.int32)((1,), 0)
        pair = computation(lambda s, u: s, StructType([np.int32]), np.int32)((1,), 0)
    expect(type(plain) is OrderedDict, "an OrderedDict for a named struct without a container", repr(plain))
    expect(type(pair) is tuple, "a tuple for an unnamed struct without a container", repr(pair))


@promise_of_stacks(tag="errors")
async def results_with_names_for_some_members_are_refused(subject: StackSubject) -> None:
    """A result struct with both named and unnamed members raises an error that says to name all members or none."""
    some = computation(lambda x: struct(x, named_one=x), np.int32)
    await expect_error(subject.run(some, 1), InvalidComputationError, "named_one", "no members")


@promise_of_stacks(intrinsics=["federated_sum"])
async def arguments_are_matched_before_clients_are_counted(subject: StackSubject) -> None:
    """Several arguments may be passed by name in any order. Only client values determine the number of clients."""
    made = computation(
        lambda x, rest: struct(intrinsic("federated_sum", x), rest), at_clients(np.int32), to_type([np.int32] * 3)
    )
    context = subject.sync_context()
    with use_context(context):
        expect_same(made(rest=[1, 2, 3], x=[5]), (np.int32(5), [np.int32(k) for k in (1, 2, 3)]))
        named = computation(
            lambda s: intrinsic("federated_sum", s["a"]),
            StructType([("a", at_clients(np.int32)), ("b", at_server(np.int32))]),
        )
        expect_same(named({"b": 7, "a": [1, 2]}), np.int32(3))


@promise_of_stacks(intrinsics=["federated_sum"], tag="errors")
async def numbers_of_clients_must_agree(subject: StackSubject) -> None:
    """Client values of different lengths in a call raise an error that names both lengths and both parameters."""
    made = computation(
        lambda x, y: struct(intrinsic("federated_sum", x), intrinsic("federated_sum", y)),
        at_clients(np.int32),
        at_clients(np.int32),
    )
    await expect_error(subject.run(made, [1, 2], [1, 2, 3]), ValueError, "2", "3", "arg.x", "arg.y")
    expect_same(await subject.run(made, [1, 2], [3, 4]), (np.int32(3), np.int32(7)))


@promise_of_stacks(intrinsics=["federated_eval_at_clients", "federated_sum", "federated_value_at_clients"])
async def the_default_number_of_clients_is_used(subject: StackSubject) -> None:
    """The default number of clients applies to calls without client values; otherwise the client values decide."""
    clients = subject.default_num_clients
    counted = computation(
        lambda s: struct(
            intrinsic("federated_sum", intrinsic("federated_value_at_clients", literal(np.int32(1), np.int32))),
            intrinsic("federated_map", double, intrinsic("federated_broadcast", s)),
        ),
        at_server(np.int32),
    )
    expect_same(await subject.run(counted, 4), (np.int32(clients), [np.int32(8)] * clients))
    expect_same(await subject.run(_total(), [1] * (clients + 2)), np.int32(clients + 2))


@promise_of_stacks(intrinsics=["federated_sum"], tag="timing")
async def invocations_overlap(subject: StackSubject) -> None:
    """Any number of invocations of an async context may overlap, each with its own number of clients."""
    context = subject.async_context()
    calls = [_run_in(context, lambda n=n: _total()([1] * n)) for n in range(30)]
    expect_same(list(await asyncio.gather(*calls)), [np.int32(n) for n in range(30)])


@promise_of_stacks(tag="errors")
async def one_error_spares_the_others(subject: StackSubject) -> None:
    """If one of five concurrent invocations fails, the other four and later ones succeed, in tasks and in threads."""
    numbers = [3, 4, -1, 5, 6]

    @python_computation([np.int32], np.int32)
    def refuse_negative(x: Any) -> Any:
        if x < 0:
            raise ValueError("a negative number")
        return x

    made = computation(
        lambda x: intrinsic("federated_sum", intrinsic("federated_map", refuse_negative, x)), at_clients(np.int32)
    )
    for threads in (False, True):
        run = _Side(subject, threads)
        outcomes = await run.all([lambda n=n: made([n, 1]) for n in numbers])
        expect(isinstance(outcomes[2], LeafError), "a LeafError from the third invocation", repr(outcomes[2]))
        for number, outcome in zip(numbers, outcomes):
            if number >= 0:
                expect_same(outcome, np.int32(number + 1))
        expect_same(await run.all([lambda: made([1, 1])]), [np.int32(2)])


@promise_of_stacks(needs=["same process", "concurrency"], tag="timing")
async def clients_of_several_computations_run_side_by_side(subject: StackSubject) -> None:
    """Five concurrent computations whose clients all wait for each other finish, in tasks and in threads."""
    for threads in (False, True):
        made = _who_meet([(call, client) for call in range(5) for client in range(2)])
        outcomes = await _Side(subject, threads).all([lambda k=k, made=made: made([(k, 0), (k, 1)]) for k in range(5)])
        expect_same(outcomes, [np.int32(20 * k + 1) for k in range(5)])


def _who_meet(names: Sequence[object]) -> ConcreteComputation:
    """Returns a computation whose clients continue once all named clients, across invocations, have started."""
    meeting = Meeting(*names)

    @python_computation([np.int32, np.int32], np.int32)
    def meet(call: Any, client: Any) -> Any:
        meeting.arrive((int(call), int(client)))
        return call * np.int32(10) + client

    return computation(
        lambda x: intrinsic("federated_sum", intrinsic("federated_map", meet, x)),
        at_clients(StructType([np.int32, np.int32])),
    )


@promise_of_stacks(needs=["same process"], tag="timing")
async def cancelling_an_invocation_spares_the_others(subject: StackSubject) -> None:
    """A cancelled invocation ends at once, and other invocations of its context continue."""
    started, released = threading.Event(), threading.Event()

    @python_computation([np.int32], np.int32)
    def wait(x: Any) -> Any:
        started.set()
        released.wait(LIMIT_SECONDS)
        return x

    made = computation(lambda x: intrinsic("federated_sum", intrinsic("federated_map", wait, x)), at_clients(np.int32))
    context = subject.async_context()
    waiting = asyncio.create_task(_run_in(context, lambda: made([1])))
    other = asyncio.create_task(_run_in(context, lambda: made([2])))
    try:
        await until_set(started, waiting, other)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=LIMIT_SECONDS)
        expect(waiting.cancelled(), "a cancelled task", waiting)
    finally:
        released.set()
        outcomes = await asyncio.gather(waiting, other, return_exceptions=True)
    expect_same(outcomes[1], np.int32(2))
    expect_same(await _run_in(context, lambda: made([3])), np.int32(3))


@promise_of_stacks()
async def leaves_may_call_computations(subject: StackSubject) -> None:
    """A leaf function that calls a computation receives the result, both in a sync and in an async context."""
    inner = _total()

    @python_computation([np.int32], np.int32)
    def outer(x: Any) -> Any:
        return inner([x, x]) + np.int32(1)

    made = computation(lambda x: intrinsic("federated_map", outer, x), at_clients(np.int32))
    expected = [np.int32(3), np.int32(5)]
    expect_same(_run_in(subject.sync_context(), lambda: made([1, 2])), expected)
    expect_same(await _run_in(subject.async_context(), lambda: made([1, 2])), expected)


@promise_of_stacks()
async def results_of_two_calls_share_nothing(subject: StackSubject) -> None:
    """Modifying a result changes neither later results of the same computation nor arguments."""
    mine = np.ones(3, np.float32)
    constant = literal(np.ones(3, np.float32), np.float32, [3])
    texts = literal(np.array([b"a", b"b"], object), np.str_, [2])
    made = computation(lambda x, y: struct(x, constant, texts), (np.float32, [3]), np.int32)
    expected = (np.ones(3, np.float32), np.ones(3, np.float32), np.array([b"a", b"b"], object))
    context = subject.sync_context()
    with use_context(context):
        for _ in range(2):
            found = made(mine, 0)
            expect_same(found, expected)
            for array in found:
                array[:] = 0
    expect_same(mine, np.ones(3, np.float32), "the argument")


@promise_of_stacks(tag="errors")
async def closed_contexts_refuse(subject: StackSubject) -> None:
    """A context can be closed repeatedly. Calls in a closed context raise `ClosedError`."""
    sync_context, async_context = subject.sync_context(), subject.async_context()
    expect_same(_run_in(sync_context, lambda: double(2)), np.int32(4))
    await expect_error(_run_in(async_context, lambda: fail(2)), LeafError)
    for _ in range(2):
        sync_context.close()
        async_context.close()

    async def call() -> object:
        return _run_in(sync_context, lambda: double(2))

    await expect_error(call(), ClosedError, "closed")
    await expect_error(_run_in(async_context, lambda: double(2)), ClosedError, "closed")


@promise_of_stacks(tag="errors")
async def a_block_puts_its_context_in_force(subject: StackSubject) -> None:
    """In a `with` or `async with` block, the context runs the calls of its thread. The outermost block closes it."""
    for context in (subject.sync_context(), subject.async_context()):
        other = subject.sync_context()
        async with context as entered:
            expect(entered is context, "the block to return the context itself", repr(entered))
            with other, context:
                expect(get_context_stack().current is context, "the context of the innermost block", "another context")
            expect(get_context_stack().current is context, "the context of the enclosing block", "another context")
            called: Any = double(2)
            expect_same(await called if asyncio.iscoroutine(called) else called, np.int32(4))
            await expect_error(_doubled_in(other), ClosedError, "closed")
        await expect_error(_doubled_in(context), ClosedError, "closed")
        await expect_error(context.__aenter__(), ClosedError, "closed")


async def _doubled_in(context: Any) -> object:
    called = _run_in(context, lambda: double(2))
    return await called if asyncio.iscoroutine(called) else called

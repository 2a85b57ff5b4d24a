"""`max_concurrent_clients` bounds all functions of users: at clients, at the server, in folds, in all calls."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.executors import LeafExecutor
from fedstack.executors.concurrency.coroutines import RunInline
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.transport.peers.io_loop import arrival

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)


class Gauge:
    """Counts how many functions run at the same time; each stays for a moment, so that others could come."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self._lock = threading.Lock()
        self._never = threading.Event()

    @contextlib.contextmanager
    def one(self):
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self._never.wait(0.003)
        yield
        with self._lock:
            self.running -= 1


gauge = Gauge()


@pytest.fixture(autouse=True)
def fresh_gauge():
    gauge.running = gauge.most = 0


def gauged(parameters, result):
    def decorate(function):
        def run(*arguments):
            with gauge.one():
                return function(*arguments)

        run.__name__ = function.__name__
        count = len(parameters)
        wrapped = {1: lambda x: run(x), 2: lambda x, y: run(x, y)}[count]
        return fedstack.python_computation(parameters, result)(wrapped)

    return decorate


@gauged([np.int32], np.int32)
def double(x):
    return x + x


@gauged([np.int32, np.int32], np.int32)
def add(x, y):
    return x + y


@fl.federated_computation(INTS, INTS)
def everything(left, right):
    """Two phases and server work that could run side by side, with functions of users in folds."""
    mapped = fl.federated_map(double, left)
    folded = fl.federated_aggregate(fl.federated_map(double, right), np.int32(0), add, add, double)
    totals = [fl.federated_map(double, fl.federated_sum(values)) for values in (left, right)]
    return fl.federated_sum(mapped), folded, totals[0], totals[1]


EXPECTED = (12, 24, 12, 12)
VALUES = [1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_calls_on_many_threads_run_no_more_functions_at_the_same_time(most):
    context = fedstack.create_sync_local_execution_context(max_concurrent_clients=most)

    def call():
        with fedstack.use_context(context):
            return tuple(everything(VALUES, VALUES)), double(4)

    with context, ThreadPoolExecutor(8) as threads:
        for outcome in [threads.submit(call) for _ in range(16)]:
            assert outcome.result(LIMIT) == (EXPECTED, 8)
    assert 1 <= gauge.most <= most


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_calls_in_many_tasks_run_no_more_functions_at_the_same_time(most):
    async with fedstack.create_async_local_execution_context(max_concurrent_clients=most):
        calls = [everything(VALUES, VALUES) for _ in range(8)]
        assert [tuple(found) for found in await asyncio.gather(*calls)] == [EXPECTED] * 8
    assert 1 <= gauge.most <= most


@pytest.mark.parametrize("most", [2, 5])
def test_as_many_functions_as_are_allowed_run_at_the_same_time(most):
    everybody = threading.Barrier(most)

    @fedstack.python_computation([np.int32], np.int32)
    def meet(x):
        everybody.wait(LIMIT)
        return x

    context = fedstack.create_sync_local_execution_context(max_concurrent_clients=most)

    def call(number):
        with fedstack.use_context(context):
            return meet(number)

    with context, ThreadPoolExecutor(3 * most) as threads:
        outcomes = [threads.submit(call, number) for number in range(3 * most)]
        assert [outcome.result(LIMIT) for outcome in outcomes] == list(range(3 * most))


def test_a_function_that_calls_a_computation_does_not_wait_for_itself():
    inner = everything

    @fedstack.python_computation([np.int32], np.int32)
    def outer(x):
        return inner([x, x], [x, x])[0] + double(x)

    @fl.federated_computation(INTS)
    def total(values):
        return fl.federated_sum(fl.federated_map(outer, values))

    for options in ({}, {"debug": True}):
        with fedstack.create_sync_local_execution_context(max_concurrent_clients=1, **options):
            assert total([1, 2]) == 18

    async def awaited():
        async with fedstack.create_async_local_execution_context(max_concurrent_clients=1):
            return await total([1, 2])

    assert asyncio.run(awaited()) == 18


def test_functions_of_two_contexts_may_call_each_others_computations():
    first, second = (fedstack.create_sync_local_execution_context(max_concurrent_clients=1) for _ in range(2))

    @fedstack.python_computation([np.int32], np.int32)
    def in_second(x):
        with fedstack.use_context(second):
            return in_first(x)

    @fedstack.python_computation([np.int32], np.int32)
    def in_first(x):
        with fedstack.use_context(first):
            return everything([x, x], [x, x])[0]

    with first, second:
        assert in_second(3) == 12


def test_a_function_that_fails_makes_room_for_the_next():
    @fedstack.python_computation([np.int32], np.int32)
    def fail(x):
        raise KeyboardInterrupt if x else ValueError("no luck")

    with fedstack.create_sync_local_execution_context(max_concurrent_clients=1):
        for number, error in ((0, fedstack.FedstackError), (1, KeyboardInterrupt)):
            with pytest.raises(error):
                fail(number)
            assert double(number) == 2 * number


async def test_a_call_that_is_cancelled_while_its_function_goes_on_makes_room_too():
    begun, end = threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def hang(x):
        begun.set()
        assert end.wait(LIMIT)
        return x

    async with fedstack.create_async_local_execution_context(max_concurrent_clients=1):
        hanging = asyncio.ensure_future(hang(1))
        assert await asyncio.to_thread(begun.wait, LIMIT)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert await asyncio.wait_for(double(2), LIMIT) == 4
        end.set()


async def test_callers_and_threads_of_a_pool_make_room_for_each_other():
    threads = LeafThreads(1, counts_callers=True)

    async def here(work):
        with RunInline():
            return await threads.run(work)

    for number in range(5):
        assert await threads.run(lambda number=number: number) == number  # its thread stays for a while
        caller = asyncio.to_thread(lambda number=number: asyncio.run(here(lambda: -number)))
        assert await asyncio.wait_for(caller, LIMIT) == -number
    held, begun = threading.Event(), threading.Event()

    def hold():
        begun.set()
        return held.wait(LIMIT)

    holding = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(here(hold))))
    assert await asyncio.to_thread(begun.wait, LIMIT)
    queued = threads.submit(lambda: held.is_set())
    held.set()
    assert await arrival(queued)
    assert queued.result() is True
    assert await holding is True
    threads.close()


@pytest.mark.parametrize(
    "make",
    [
        fedstack.local_executor_factory,
        fedstack.sizing_executor_factory,
        fedstack.create_sync_local_execution_context,
        fedstack.set_async_local_execution_context,
        LeafExecutor,
    ],
)
def test_a_number_of_threads_is_refused_with_the_name_of_the_bound(make):
    with pytest.raises(TypeError, match="found max_threads; write max_concurrent_clients$"):
        make(max_threads=2)

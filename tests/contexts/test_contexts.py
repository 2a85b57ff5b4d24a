"""Execution contexts: where they work, how invocations share them, and how they end."""

import asyncio
import logging
import signal
import sys
import threading

import federated_language as fl
import numpy as np
import pytest
import uvloop

import fedstack
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext, invocation
from fedstack.errors import ClosedError, InvalidValueError, LeafError, RetryLimitError, WorkerUnavailableError

LIMIT = 20.0
INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * 2


@fl.federated_computation(INTS)
def total(xs):
    return fl.federated_sum(fl.federated_map(double, xs))


@pytest.fixture
def sync_context():
    made = fedstack.create_sync_local_execution_context()
    yield made
    made.close()


@pytest.fixture
def async_context():
    made = fedstack.create_async_local_execution_context()
    yield made
    made.close()


def in_thread(work):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(work()))
    thread.start()
    thread.join(LIMIT)
    assert outcome, "Expected an end of the thread's work"
    return outcome[0]


def test_the_default_context_belongs_to_the_thread_that_set_it():
    def set_and_run():
        fedstack.set_sync_local_execution_context()
        return total([1, 2])

    assert in_thread(set_and_run) == 6
    with pytest.raises(RuntimeError, match="Expected an execution context .*; first call fedstack.set_sync_local"):
        in_thread_raising(lambda: total([1]))


def in_thread_raising(work):
    def catch():
        try:
            return work()
        except Exception as error:
            return error

    outcome = in_thread(catch)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_a_sync_context_works_under_a_running_event_loop(sync_context):
    async def cell():
        with fedstack.use_context(sync_context):
            return total([1, 2])

    assert asyncio.run(cell()) == 6


@pytest.mark.fedstack_leak_check(False)  # uvloop keeps two file descriptors for the process
def test_both_kinds_of_context_work_under_uvloop(sync_context, async_context):
    async def run():
        with fedstack.use_context(async_context):
            first = await total([1, 2])
        with fedstack.use_context(sync_context):
            return first, total([3])

    loop = uvloop.new_event_loop()
    try:
        assert loop.run_until_complete(run()) == (6, 6)
    finally:
        loop.close()


def test_one_context_serves_two_threads_at_the_same_time(sync_context):
    barrier = threading.Barrier(2)

    @fedstack.python_computation([np.int32], np.int32)
    def meet(x):
        barrier.wait(LIMIT)
        return x

    def run(number):
        with fedstack.use_context(sync_context):
            return meet(number)

    outcomes = {}
    threads = [threading.Thread(target=lambda n=n: outcomes.update({n: run(n)})) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert outcomes == {1: 1, 2: 2}


def test_a_computation_called_inside_a_leaf_works_in_a_sync_context(sync_context):
    @fedstack.python_computation([np.int32], np.int32)
    def nested(x):
        return total([x, x])

    with fedstack.use_context(sync_context):
        assert nested(3) == 12


async def test_a_computation_called_inside_a_leaf_works_in_an_async_context(async_context):
    @fedstack.python_computation([np.int32], np.int32)
    def nested(x):
        return total([x, x])

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_sum(fl.federated_map(nested, xs))

    with fedstack.use_context(async_context):
        assert await asyncio.wait_for(run([1, 2]), LIMIT) == 12


def test_a_computation_called_inside_a_leaf_works_on_a_thread_of_the_pool(sync_context):
    barrier = threading.Barrier(2)

    @fedstack.python_computation([np.int32], np.int32)
    def nested(x):
        barrier.wait(LIMIT)  # two clients at once: one of them on a thread of the pool
        return total([x])

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_sum(fl.federated_map(nested, xs))

    with fedstack.use_context(sync_context):
        assert run([1, 2]) == 6


async def test_of_five_invocations_at_once_one_raises_and_four_succeed(async_context):
    barrier = threading.Barrier(5)

    @fedstack.python_computation([np.int32], np.int32)
    def picky(x):
        barrier.wait(LIMIT)
        if x == 3:
            raise ValueError("three")
        return x

    @fl.federated_computation(INTS)
    def run(xs):
        return fl.federated_sum(fl.federated_map(picky, xs))

    with fedstack.use_context(async_context):
        outcomes = await asyncio.gather(*(run([n]) for n in range(5)), return_exceptions=True)
    assert [o for o in outcomes if not isinstance(o, Exception)] == [0, 1, 2, 4]
    assert isinstance(outcomes[3], LeafError)


class FailingFactory(fl.framework.ExecutorFactory):
    def __init__(self, failures):
        self.inner = fedstack.local_executor_factory()
        self.failures = failures
        self.made = self.cleaned = 0

    def create_executor(self, cardinalities):
        self.made += 1
        if self.made <= self.failures:
            raise WorkerUnavailableError("Expected a worker, found none")
        return self.inner.create_executor(cardinalities)

    def clean_up_executor(self, cardinalities):
        self.cleaned += 1
        self.inner.clean_up_executor(cardinalities)


def test_retryable_errors_are_tried_again_and_the_last_attempt_may_succeed(caplog):
    caplog.set_level(logging.INFO)
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.001)
    factory = FailingFactory(2)
    context = SyncExecutionContext(factory, retry_policy=policy)
    with fedstack.use_context(context):
        assert total([1]) == 2
    assert (factory.made, factory.cleaned) == (3, 2)
    assert caplog.text.count("Retrying a computation") == 2
    context.close()
    factory.inner.close()


def test_a_factory_of_another_origin_cleans_up_after_a_failed_call_whose_error_tells_the_stack():
    factory = FailingFactory(0)
    context = SyncExecutionContext(factory)
    with fedstack.use_context(context):
        with pytest.raises(LeafError) as caught:
            stopping_with(lambda: 1 // 0)([1, 2])
        assert caught.value.executor_path[0] == "ReferenceResolvingExecutor"
        assert factory.cleaned == 1
        assert total([1]) == 2
    assert (factory.made, factory.cleaned) == (2, 1)
    context.close()
    factory.inner.close()


async def test_retries_are_bounded_and_say_so():
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.001)
    factory = FailingFactory(100)
    context = AsyncExecutionContext(factory, retry_policy=policy)
    with fedstack.use_context(context):
        with pytest.raises(RetryLimitError, match="limit: 3 attempts.*WorkerUnavailableError") as caught:
            await total([1])
    assert isinstance(caught.value.__cause__, WorkerUnavailableError)
    assert factory.made == 3
    context.close()
    factory.inner.close()


def test_debug_keeps_leaves_on_the_callers_thread_one_after_the_other():
    seen = []

    @fedstack.python_computation([np.int32], np.int32)
    def record(x):
        seen.append((int(x), threading.get_ident()))
        return x

    @fl.federated_computation(INTS, np.int32)
    def run(xs, k):
        return fl.federated_sum(fl.federated_map(record, xs)), record(k)

    context = fedstack.create_sync_local_execution_context(debug=True)
    with fedstack.use_context(context):
        run(list(range(20)), 100)
    assert {ident for _, ident in seen} == {threading.get_ident()}
    assert [x for x, _ in seen if x < 100] == list(range(20))
    context.close()


def stopping_with(stop):
    @fedstack.python_computation([np.int32], np.int32)
    def stops(x):
        return stop() if x == 2 else x

    return fl.federated_computation(lambda xs: fl.federated_map(stops, xs), INTS)


def interrupt():
    raise KeyboardInterrupt


def end_by_signal():
    signal.raise_signal(signal.SIGTERM)


class TimeUpError(Exception):
    """What an alarm of the program raises."""


def time_up(*_):
    raise TimeUpError


@pytest.mark.parametrize(
    ("stop", "handler", "error"),
    [
        (interrupt, signal.SIG_DFL, KeyboardInterrupt),
        (end_by_signal, lambda number, _: sys.exit(number), SystemExit),
        (end_by_signal, time_up, TimeUpError),
    ],
    ids=["Ctrl-C", "a handler that exits", "a handler with an error of its own"],
)
def test_what_is_meant_for_the_program_passes_through_a_leaf_and_the_context_works_on(
    sync_context, stop, handler, error
):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with fedstack.use_context(sync_context):
            with pytest.raises(error):
                stopping_with(stop)([1, 2])
            assert total([1]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("error", "seen"), [(KeyboardInterrupt, KeyboardInterrupt), (ValueError, LeafError)])
def test_what_ends_a_call_does_not_wait_for_later_clients_that_may_never_return(error, seen):
    entered, release, returned = threading.Event(), threading.Event(), threading.Event()

    @fedstack.python_computation([np.int32], np.int32)
    def first_fails(x):
        if threading.current_thread() is threading.main_thread():
            assert entered.wait(30)
            raise error
        entered.set()
        assert release.wait(30)
        returned.set()
        return x

    context = fedstack.create_sync_local_execution_context(max_concurrent_clients=2)
    with fedstack.use_context(context):
        with pytest.raises(seen):
            fl.federated_computation(lambda xs: fl.federated_map(first_fails, xs), INTS)([1, 2, 3, 4])
    assert not returned.is_set()
    release.set()
    context.close()


def give_up_generator():
    raise GeneratorExit


def cancel():
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("stop", "text"),
    [(lambda: sys.exit(3), "SystemExit: 3"), (give_up_generator, "GeneratorExit"), (cancel, "CancelledError")],
)
def test_what_a_leaf_raises_to_end_something_is_a_leaf_error_as_at_a_worker(sync_context, stop, text):
    with fedstack.use_context(sync_context):
        with pytest.raises(LeafError, match=f"'stops' raised {text}; at client 1") as caught:
            stopping_with(stop)([1, 2])
        assert caught.value.client_index == 1
        assert total([1]) == 2


def test_a_closed_context_raises_closed_error_and_closing_twice_is_no_error(sync_context):
    sync_context.close()
    sync_context.close()
    with fedstack.use_context(sync_context), pytest.raises(ClosedError, match="The context is closed; create a new"):
        total([1])


def test_five_hundred_rounds_with_varying_clients_keep_threads_and_executors_bounded(sync_context):
    before = threading.active_count()
    with fedstack.use_context(sync_context):
        for round_number in range(500):
            clients = round_number % 23
            assert total([1] * clients) == 2 * clients
    assert len(sync_context.executor_factory._entries) <= 10
    assert threading.active_count() <= before + 32


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(TypeError, match="found clients"):
        fedstack.create_sync_local_execution_context(clients=3)


def test_debug_is_refused_in_an_async_context():
    with pytest.raises(TypeError, match="The option debug is not available in an async context"):
        fedstack.create_async_local_execution_context(debug=True)


async def test_a_coroutine_as_argument_is_awaited(async_context):
    async def later():
        return [1, 2]

    with fedstack.use_context(async_context):
        assert await total(later()) == 6


async def test_the_event_loop_goes_on_while_many_values_are_checked(async_context, monkeypatch):
    loop, normalize = asyncio.get_running_loop(), invocation.normalize_argument

    def normalize_when_the_loop_has_gone_on(arg, parameter):
        gone_on = threading.Event()
        loop.call_soon_threadsafe(gone_on.set)
        assert gone_on.wait(LIMIT)
        return normalize(arg, parameter)

    monkeypatch.setattr(invocation, "normalize_argument", normalize_when_the_loop_has_gone_on)
    with fedstack.use_context(async_context):
        assert await total([1] * 50_000) == 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"progress": 1},
            "Expected progress to be True, False, or a function that accepts .*, found int 1",
        ),
        ({"retry_policy": 3}, "Expected retry_policy to be a fedstack.RetryPolicy, found int 3; "),
        ({"retry_policy": 0}, "Expected retry_policy to be a fedstack.RetryPolicy, found int 0; "),
        ({"default_num_clients": "a"}, "Expected default_num_clients .*, found str 'a'"),
        ({"max_fanout": 1.5}, "Expected max_fanout .*, found float 1.5"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize(
    "create",
    [
        fedstack.create_sync_local_execution_context,
        fedstack.create_async_local_execution_context,
        lambda **options: fedstack.create_sync_remote_execution_context("localhost:1", **options),
        lambda **options: fedstack.create_async_remote_execution_context("localhost:1", **options),
    ],
    ids=["sync", "async", "sync_remote", "async_remote"],
)
def test_options_of_the_wrong_kind_are_refused_when_a_context_is_made(create, options, message):
    with pytest.raises(InvalidValueError, match=f"^{message}"):
        create(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credentials": "abc"}, "Expected credentials of type fedstack.ClientCredentials, found str; "),
        ({"connect_seconds": "x"}, "Expected connect_seconds to be a number of at least 0, found str 'x'"),
        ({"connect_seconds": float("nan")}, "Expected connect_seconds of at least 0, found nan"),
        ({"dispose_batch_size": 0}, "Expected dispose_batch_size of at least 1, found 0"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_before_a_worker_is_dialled(options, message):
    for create in (fedstack.create_sync_remote_execution_context, fedstack.create_async_remote_execution_context):
        with pytest.raises(InvalidValueError, match=f"^{message}"):
            create("localhost:1", **options)

"""Pools as engines: what one says of itself, what is cancelled with a call, and what to do where it is of no use."""

import re
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.contexts import AsyncExecutionContext, SyncExecutionContext
from fedstack.errors import (
    ClosedError,
    InvalidValueError,
    LeafError,
    LostWorkersError,
    NoWorkersError,
)

INT = fl.TensorType(np.int32)
LIMIT = 20.0
# What runs tasks in a process stays for the next task, and here that is this process.
pytestmark = pytest.mark.fedstack_leak_check(False)
begun, may_end = threading.Event(), threading.Event()
called: list[int] = []


@fedstack.python_computation(INT, INT)
def doubled(value):
    return 2 * value


@fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(doubled, values))


@fedstack.python_computation(INT, INT)
def waits_or_fails(value):
    called.append(value)
    if value == 0:
        assert begun.wait(LIMIT)
        raise ValueError("no")
    begun.set()
    assert may_end.wait(LIMIT)
    return value


@fl.federated_computation(fl.FederatedType(INT, fl.CLIENTS))
def one_fails(values):
    return fl.federated_sum(fl.federated_map(waits_or_fails, values))


class SilentPool(Executor):
    """A pool that does not say how many workers it has; it runs what it gets at once, or ends as it is told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.was_shut_down = False

    def submit(self, fn, /, *args, **kwargs):
        future: Future[object] = Future()
        if self.error is None:
            future.set_result(fn(*args, **kwargs))
        else:
            future.set_exception(self.error)
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.was_shut_down = True


def sync_context(executor, *args, **options) -> SyncExecutionContext:
    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.01)
    return SyncExecutionContext(fedstack.pool_executor_factory(executor, *args, **options), retry_policy=policy)


def test_a_pool_of_threads_works_too() -> None:
    with ThreadPoolExecutor(3) as pool, sync_context(pool):
        assert total(list(range(10))) == 90


async def test_a_pool_serves_async_contexts() -> None:
    with ThreadPoolExecutor(2) as pool:
        async with AsyncExecutionContext(fedstack.pool_executor_factory(pool)):
            assert await total([1, 2, 3]) == 12


def test_a_context_leaves_a_pool_that_it_was_given_open() -> None:
    with ThreadPoolExecutor(1) as pool:
        with sync_context(pool):
            total([1])
        assert pool.submit(int).result(LIMIT) == 0


def test_a_pool_that_a_context_has_made_ends_with_it() -> None:
    made: list[SilentPool] = []

    def make() -> SilentPool:
        made.append(SilentPool())
        return made[-1]

    with sync_context(make, 2):
        assert not made
        assert (total([1]), total([2])) == (2, 4)
    assert [pool.was_shut_down for pool in made] == [True]


def test_a_pool_that_does_not_say_how_many_workers_it_has_needs_a_number() -> None:
    with pytest.raises(InvalidValueError, match="num_workers is required for a SilentPool, which does not report"):
        fedstack.pool_executor_factory(SilentPool())
    with sync_context(SilentPool(), 3):
        assert total([1, 2, 3, 4]) == 20


class Cluster:
    """What has a pool and is none."""

    def get_executor(self) -> SilentPool:
        return SilentPool()


@pytest.mark.parametrize(
    ("executor", "advice"), [(4, r"pass a ProcessPoolExecutor\(\)"), (Cluster(), r"its get_executor\(\)")]
)
def test_what_is_no_pool_is_refused(executor, advice: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Expected an executor of concurrent.futures.*{advice}"):
        fedstack.pool_executor_factory(executor)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"max_concurrent_clients": 0}, {"max_fanout": 1}])
def test_numbers_out_of_range_are_refused(options) -> None:
    with pytest.raises(InvalidValueError, match=f"Expected {next(iter(options))} of at least"):
        fedstack.pool_executor_factory(ThreadPoolExecutor(1), **options)


def test_a_pool_that_is_shut_down_says_so() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with (
        sync_context(pool),
        pytest.raises(ClosedError, match="The pool has been shut down .* create a new pool, and a context"),
    ):
        total([1])


def test_a_broken_pool_is_not_tried_again_and_names_the_clients() -> None:
    pool = SilentPool(BrokenExecutor("a process ended"))
    with sync_context(pool, 2), pytest.raises(NoWorkersError) as caught:
        total([1, 2, 3, 4])
    message = str(caught.value)
    assert message.startswith("The pool is broken and cannot be used again")
    assert "pass a function that creates pools" in message
    assert "these clients may have run on a worker that ended: clients 0 to 1, clients 2 to 3" in message


def test_a_pool_that_has_answered_before_it_broke_ran_the_clients() -> None:
    pool = SilentPool()
    with sync_context(pool, 2):
        total([1])
        pool.error = BrokenExecutor("a process ended")
        with pytest.raises(
            NoWorkersError, match="these clients ran on a worker that ended: clients 0 to 1, clients 2 to 3"
        ):
            total([1, 2, 3, 4])


def test_a_pool_that_never_answered_may_lack_the_guard_of_its_script_or_have_a_bad_initializer() -> None:
    with sync_context(SilentPool(BrokenExecutor("gone")), 1), pytest.raises(NoWorkersError) as caught:
        total([1])
    assert "if __name__ == '__main__'" in str(caught.value)
    assert "the pool's initializer raised" in str(caught.value)


class BrokenPool(SilentPool):
    """A pool that takes nothing, since it broke before."""

    def submit(self, fn, /, *args, **kwargs):
        raise BrokenExecutor("not usable anymore")


@pytest.mark.parametrize("has_answered", [False, True])
def test_no_clients_ran_in_a_pool_that_was_broken_before(has_answered: bool) -> None:
    pool = SilentPool()
    with sync_context(pool, 2):
        if has_answered:
            total([1])
        pool.submit = BrokenPool().submit
        with pytest.raises(NoWorkersError) as caught:
            total([1, 2])
    assert str(caught.value) == (
        "The pool is broken and cannot be used again; create a new pool and a context over it, or pass a function that "
        "creates pools instead of a pool (BrokenExecutor: not usable anymore)"
    )


def test_a_pool_of_threads_whose_initializer_raises_says_so(caplog) -> None:
    def fails() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1, initializer=fails) as pool, sync_context(pool):
        with pytest.raises(NoWorkersError, match=r"initializer .*\(BrokenThreadPool: A thread initializer failed"):
            total([1])
        with pytest.raises(
            NoWorkersError, match=r"cannot be used again; create a new pool(?s:.)*initializer failed.*\)$"
        ):
            total([1])


def test_a_function_that_makes_pools_makes_another_after_one_has_broken() -> None:
    made = [SilentPool(), SilentPool(BrokenExecutor("gone"))]
    broken = made[-1]
    with sync_context(made.pop, 2):
        assert total([1, 2, 3]) == 12
    assert broken.was_shut_down
    assert not made


def test_pools_that_break_each_time_end_the_call_and_name_the_clients() -> None:
    with sync_context(lambda: SilentPool(BrokenExecutor("gone")), 1), pytest.raises(LostWorkersError) as caught:
        total([1, 2, 3])
    assert "(limit: 3 attempts); check whether a client function ends the processes" in str(caught.value)
    assert "these clients may have run on a worker that ended: clients 0 to 2" in str(caught.value)


def test_what_a_cancelled_call_has_not_begun_is_cancelled_and_what_runs_is_counted() -> None:
    with ThreadPoolExecutor(2) as pool:
        factory = fedstack.pool_executor_factory(pool, 6)
        with SyncExecutionContext(factory), pytest.raises(LeafError, match="ValueError: no; at client 0"):
            one_fails(list(range(6)))
        # The thread that client 0 was on may have begun with another part before that was cancelled.
        assert re.search("(1 task|2 tasks) at work that (was|were) cancelled", repr(factory))
        may_end.set()
    assert "cancelled" not in repr(factory)
    assert len(called) <= 3

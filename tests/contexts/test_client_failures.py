"""Contexts with a policy for clients that fail."""

import asyncio
import contextlib
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from federated_language.framework import RetryableError
from watching import Diary

import fedstack
from fedstack import ClientFailure, ClientFailures, observe
from fedstack.contexts import AsyncExecutionContext, ProgressCounts, SyncExecutionContext
from fedstack.errors import (
    ClosedError,
    InvalidValueError,
    LeafError,
    TooManyClientFailuresError,
    TypeMismatchError,
)
from fedstack.observe import ClientFailed, ClientsRan

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)


@fedstack.python_computation([INT], INT)
def positive(x):
    if x < 0:
        raise ValueError(f"{x} is negative")
    return x


@fl.federated_computation(INTS)
def total(xs):
    return fl.federated_sum(fl.federated_map(positive, xs))


@fl.federated_computation(INTS)
def each(xs):
    return fl.federated_map(positive, xs)


def local(**options):
    return fedstack.create_sync_local_execution_context(**options)


def test_without_a_policy_an_error_ends_the_call() -> None:
    with local(), pytest.raises(LeafError, match="-2 is negative"):
        total([1, -2, 3])


def test_a_policy_is_an_option_of_contexts() -> None:
    with local(client_failures=ClientFailures(tolerate=1)):
        assert total([1, -2, 3]) == 4
        with pytest.raises(TooManyClientFailuresError):
            total([1, -2, -3])
    with SyncExecutionContext(fedstack.local_executor_factory(), client_failures=ClientFailures()):
        assert total([1, -2, 3]) == 4


def test_what_is_no_policy_is_refused() -> None:
    for policy in (0.2, {"tolerate": 1}):
        with pytest.raises(InvalidValueError, match=r"Expected client_failures to be a fedstack\.ClientFailures"):
            local(client_failures=policy)


def test_a_context_with_other_options_shares_the_executors() -> None:
    with local() as context:
        tolerant = context.with_options(client_failures=ClientFailures())
        assert tolerant.executor_factory is context.executor_factory
        with fedstack.use_context(tolerant):
            assert total([1, -2, 3]) == 4
        strict = tolerant.with_options(client_failures=None)
        with fedstack.use_context(strict), pytest.raises(LeafError):
            total([1, -2, 3])
        kept = tolerant.with_options(progress=lambda _: _Counting([]))
        with fedstack.use_context(kept):
            assert total([1, -2, 3]) == 4
        tolerant.close()
        assert total([1, 2]) == 3, "the executors are those of the first context"
        with fedstack.use_context(tolerant), pytest.raises(ClosedError):
            total([1])
    with fedstack.use_context(strict), pytest.raises(ClosedError):
        total([1])


def test_an_option_that_does_not_exist_is_refused() -> None:
    with local() as context, pytest.raises(TypeError, match="client_failures, progress, retry_policy"):
        context.with_options(client_failure=ClientFailures())


async def test_an_asynchronous_context_has_policies_too() -> None:
    async with AsyncExecutionContext(fedstack.local_executor_factory()) as context:
        tolerant = context.with_options(client_failures=ClientFailures())
        with fedstack.use_context(tolerant):
            found = await asyncio.gather(total([1, -2, 3]), total([-1, 5]))
        assert found == [4, 5]
        tolerant.close()
        assert await total([1, 2]) == 3


@pytest.mark.fedstack_leak_check(False)  # the service lives as long as the tests
@pytest.mark.parametrize("stack", ["local", "two workers"])
def test_a_computation_inside_a_leaf_knows_no_policy_unless_it_has_a_context_of_its_own(stack: str) -> None:
    @fedstack.python_computation([INT], INT)
    def inner(x):
        return total([1, int(x)])

    @fedstack.python_computation([INT], INT)
    def tolerant_inner(x):
        with local(client_failures=ClientFailures()):
            return total([1, int(x)])

    @fl.federated_computation(INTS)
    def outer(xs):
        return fl.federated_sum(fl.federated_map(inner, xs)), fl.federated_map(tolerant_inner, xs)

    factory = fedstack.local_executor_factory() if stack == "local" else remote_stacks.in_memory_workers(2)
    with SyncExecutionContext(factory, client_failures=ClientFailures(tolerate=0.5)):
        found, inside = outer([1, -2, 5])
    assert found == 2 + 6
    assert isinstance(inside[1], ClientFailure), "its first function has failed"
    assert (inside[0], inside[2]) == (2, 6)


def test_a_list_of_one_call_can_be_passed_to_the_next() -> None:
    with local(client_failures=ClientFailures(tolerate=1)):
        found = each([1, -2, 3])
        assert (found[0], found[2]) == (1, 3)
        assert total(found) == 4
        assert [type(one) for one in each(found)] == [np.int32, ClientFailure, np.int32]
        assert each(found)[1] == ClientFailure()
        with pytest.raises(TooManyClientFailuresError, match="2 failures among 4 clients, 1 absent, so that 1 is left"):
            total([*found[:2], -3, -4])


def test_without_a_policy_an_absent_client_is_a_wrong_value() -> None:
    with local(), pytest.raises(TypeMismatchError, match="ClientFailure.*client_failures"):
        total([1, ClientFailure(), 3])


def test_absent_clients_are_found_in_all_arguments() -> None:
    pair = fl.FederatedType([("a", INT), ("b", (np.float32, [2]))], fl.CLIENTS)
    first = fedstack.python_computation([pair.member, INT], INT)(lambda p, x: p["a"] + x)

    @fl.federated_computation(pair, INTS)
    def both(pairs, xs):
        return fl.federated_sum(fl.federated_map(first, (pairs, xs)))

    values = [{"a": k, "b": np.zeros(2, np.float32)} for k in range(4)]
    with local(client_failures=ClientFailures(tolerate=0)):
        assert both(values, [10, 20, ClientFailure(), 40]) == 0 + 1 + 3 + 70
        assert both([values[0], ClientFailure(), *values[2:]], [10, 20, ClientFailure(), 40]) == 53


def test_a_result_of_a_wrong_type_is_a_failure() -> None:
    @fedstack.python_computation([INT], INT)
    def misshapen(x):
        return "text" if x == 1 else x

    @fl.federated_computation(INTS)
    def totals(xs):
        return fl.federated_sum(fl.federated_map(misshapen, xs))

    with local(client_failures=ClientFailures()):
        assert totals([0, 1, 2, 3]) == 5


def test_a_retryable_error_is_no_failure() -> None:
    calls = []

    class Busy(RetryableError):
        pass

    @fedstack.python_computation([INT], INT)
    def flaky(x):
        calls.append(int(x))
        if calls.count(1) == 1 and x == 1:
            raise Busy("later")
        return x

    @fl.federated_computation(INTS)
    def totals(xs):
        return fl.federated_sum(fl.federated_map(flaky, xs))

    policy = fedstack.RetryPolicy(attempts=3, first_pause=0.0)
    with local(client_failures=ClientFailures(), retry_policy=policy, max_concurrent_clients=1):
        assert totals([0, 1, 2]) == 3


def test_ctrl_c_is_no_failure() -> None:
    @fedstack.python_computation([INT], INT)
    def interrupted(x):
        if x == 1:
            raise KeyboardInterrupt
        return x

    @fl.federated_computation(INTS)
    def totals(xs):
        return fl.federated_sum(fl.federated_map(interrupted, xs))

    with local(client_failures=ClientFailures()), pytest.raises(KeyboardInterrupt):
        totals([0, 1, 2])


class _Counting(ProgressCounts):
    """Counts, and keeps what it has counted."""

    def __init__(self, made: list["_Counting"]) -> None:
        super().__init__()
        made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def test_progress_counts_failed_clients_once_and_absent_ones_not_at_all() -> None:
    made: list[_Counting] = []
    with local(client_failures=ClientFailures(), progress=lambda _: _Counting(made)):
        total([1, -2, ClientFailure(), 3])
    (counts,) = made
    assert (counts.total, counts.done, counts.running, counts.failures) == (3, 2, 0, 1)


@pytest.mark.parametrize("recorded", [False, True])
def test_observers_are_told_what_outcomes_record(recorded: bool) -> None:
    diary = Diary()
    block = fedstack.client_outcomes() if recorded else contextlib.nullcontext()
    with local(client_failures=ClientFailures()), observe.add_observer(diary), block:
        total([1, -2, ClientFailure(), -3])
    told = diary.of(ClientFailed)
    assert [(one.client, one.number, one.kind, one.error) for one in told] == [
        (1, 0, "failed", "LeafError"),
        (3, 0, "failed", "LeafError"),
    ]
    assert "-2 is negative" in told[0].message
    assert all(one.seconds > 0 for one in told)
    ran = [(one.number, client) for one in diary.of(ClientsRan) for client in range(*ends_of(one))]
    assert sorted(ran) == [(0, 0), (0, 1), (0, 3)]


def ends_of(ran: ClientsRan) -> tuple[int, int]:
    return ran.first_client, ran.first_client + ran.clients


def test_failed_clients_keep_no_values_alive() -> None:
    class Large(np.ndarray):
        pass

    kept = []

    @fedstack.python_computation([INT], INT)
    def heavy(x):
        mine = np.zeros(1000).view(Large)
        kept.append(weakref.ref(mine))
        raise ValueError("with an array in its frame")

    @fl.federated_computation(INTS)
    def all_heavy(xs):
        return fl.federated_map(heavy, xs)

    with local(client_failures=ClientFailures(min_clients=0)):
        found = all_heavy([1, 2, 3])
    assert all(isinstance(one, ClientFailure) for one in found)
    gc.collect()
    assert not any(one() is not None for one in kept)


def test_executors_of_other_packages_are_refused() -> None:
    class Foreign(fl.framework.ExecutorFactory):
        def create_executor(self, cardinalities):
            return _ForeignExecutor()

        def clean_up_executor(self, cardinalities):
            pass

    class _ForeignExecutor(fl.framework.Executor):
        async def create_value(self, value, type_spec=None):
            raise AssertionError("nobody calls it")

        create_call = create_struct = create_selection = create_value

        def close(self):
            pass

    with SyncExecutionContext(Foreign(), client_failures=ClientFailures()):
        with pytest.raises(InvalidValueError, match="executor that supports client_failures"):
            total([1])


class Unreadable:
    """A sequence that cannot be read to its end."""

    def __iter__(self):
        yield np.int32(1)
        raise OSError("the disk is gone")


@pytest.mark.fedstack_leak_check(False)  # the service lives as long as the tests
@pytest.mark.parametrize(
    "make",
    [
        fedstack.local_executor_factory,
        lambda: remote_stacks.in_memory_workers(1),
        lambda: remote_stacks.in_memory_workers(3),
        lambda: fedstack.pool_executor_factory(ThreadPoolExecutor(2)),
    ],
)
@pytest.mark.parametrize("bad", [{1}, {0, 3, 4}, {0, 1, 2, 3, 4, 5}])
def test_a_client_whose_sequence_cannot_be_read_has_failed(make, bad) -> None:
    sequence = fl.SequenceType(np.int32)
    length = fedstack.python_computation([sequence], INT)(lambda elements: np.int32(len(list(elements))))

    @fl.federated_computation(fl.FederatedType(sequence, fl.CLIENTS))
    def lengths(values):
        found = fl.federated_map(length, values)
        return fl.federated_sum(found), found

    given = [Unreadable() if client in bad else [1, 2] for client in range(6)]
    with SyncExecutionContext(make(), client_failures=ClientFailures(min_clients=0)):
        total, found = lengths(given)
    assert total == 2 * (6 - len(bad))
    failed = {client for client, one in enumerate(found) if isinstance(one, ClientFailure)}
    assert failed == bad
    assert all("the disk is gone" in str(found[client].error) for client in bad)


def test_plain_peers_are_refused_by_name_under_a_policy() -> None:
    factory = remote_stacks.in_memory_workers(2, remote_stacks.PLAIN)
    with SyncExecutionContext(factory, client_failures=ClientFailures()):
        with pytest.raises(InvalidValueError, match=r"memory"):
            total([1, 2, 3])


def test_the_first_hundred_failures_have_tracebacks_and_the_rest_are_counted_by_kind() -> None:
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(tolerate=10)):
        with pytest.raises(TooManyClientFailuresError, match=r"150 failures among 200 clients") as caught:
            total([*range(-150, 0), *range(50)])
    failures = caught.value.failures
    assert len(failures) == 150
    assert [client for client, error in failures.items() if error.error.__cause__ is not None] == list(range(100))
    assert "ValueError in 'positive'" in str(caught.value)

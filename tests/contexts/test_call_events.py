"""What observers are told of calls, in this process."""

import asyncio
import contextlib
import itertools
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from watching import watched

import fedstack
from fedstack.contexts import ProgressCounts
from fedstack.errors import WorkerUnavailableError
from fedstack.observe import (
    CallEnded,
    CallRetried,
    CallStarted,
    ClientsChanged,
    ClientsRan,
    Folded,
    LeafLoaded,
    PhaseEnded,
    PhaseStarted,
)
from fedstack.observe.events import is_id

INTS = fl.FederatedType(np.int32, fl.CLIENTS)


@fedstack.python_computation([np.int32], np.int32)
def double(x: np.int32) -> np.int32:
    if x < 0:
        raise ValueError("negative")
    return x + x


@fl.federated_computation(INTS)
def double_all(values: fl.Value) -> fl.Value:
    return fl.federated_sum(fl.federated_map(double, values))


@pytest.fixture(autouse=True)
def local() -> Any:
    context = fedstack.create_sync_local_execution_context(
        max_concurrent_clients=1, retry_policy=fedstack.RetryPolicy(first_pause=0.001)
    )
    with context, fedstack.use_context(context):
        yield


def totals(changes: list[ClientsChanged]) -> tuple[int, int, int, int]:
    numbers = [(change.expected, change.started, change.done, change.failed) for change in changes]
    return tuple(map(sum, zip(*numbers)))  # pyright: ignore[reportReturnType]


def test_of_a_block_in_which_one_client_fails_each_client_is_counted_as_what_became_of_it() -> None:
    for _ in range(3):
        double_all(list(range(64)))  # it is known to be quick: later calls run it in large blocks
    with watched() as diary, pytest.raises(fedstack.errors.LeafError):
        double_all([-1 if client == 40 else client for client in range(64)])
    changes = diary.of(ClientsChanged)
    expected, started, done, failed = totals(changes)
    assert (expected, done, failed) == (64, 40, 1)
    assert sum(change.given_up for change in changes) == started - 41


def test_where_several_functions_run_for_a_block_none_of_its_clients_is_done_before_the_last_function() -> None:
    @fl.federated_computation(INTS)
    def quadruple_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(double, fl.federated_map(double, values))

    for _ in range(3):
        quadruple_all(list(range(64)))
    with watched() as diary, pytest.raises(fedstack.errors.LeafError):
        quadruple_all([-1 if client == 63 else client for client in range(64)])
    changes = diary.of(ClientsChanged)
    _, started, done, failed = totals(changes)
    assert failed == 1
    assert done + failed + sum(change.given_up for change in changes) == started


def test_clients_over_which_ctrl_c_comes_have_not_failed() -> None:
    @fedstack.python_computation([np.int32], np.int32)
    def interrupted(x: np.int32) -> np.int32:
        raise KeyboardInterrupt

    call = fl.federated_computation(lambda values: fl.federated_map(interrupted, values), INTS)
    with watched() as diary, pytest.raises(KeyboardInterrupt):
        call([1])
    changes = diary.of(ClientsChanged)
    assert totals(changes) == (1, 1, 0, 0)
    assert sum(change.given_up for change in changes) == 1


def test_a_call_is_told_of_with_its_phase_and_its_clients_in_order() -> None:
    with watched() as diary:
        assert double_all(list(range(10))) == 90
    kinds = [kind for kind, _ in itertools.groupby(diary.kinds(LeafLoaded))]
    phase_kinds = ["PhaseStarted", "ClientsChanged", "ClientsRan", "Folded", "PhaseEnded"]
    assert kinds == ["CallStarted", *phase_kinds, "CallEnded"]
    call, phase = diary.the(CallStarted), diary.the(PhaseStarted)
    assert (call.computation, phase.functions, phase.first_client, phase.clients) == ("double_all", "double", 0, 10)
    assert totals(diary.of(ClientsChanged)) == (10, 10, 10, 0)
    assert (diary.the(Folded).what, diary.the(Folded).clients) == ("federated_sum", 10)
    end = diary.the(CallEnded)
    assert (end.computation, end.clients, end.error) == ("double_all", 10, "")
    assert 0 < diary.the(PhaseEnded).seconds <= end.seconds
    times = [event.time for event in diary.events]
    assert times == sorted(times)


def test_events_of_a_call_have_its_id_and_nest() -> None:
    with watched() as diary:
        double_all([1])
        double_all([2])
    first, second = diary.of(CallStarted)
    assert is_id(first.call)
    assert (first.parent, first.trace) == ("", first.call)
    assert second.call != first.call
    for started in (first, second):
        mine = [event for event in diary.events if event.call == started.call]
        assert len(mine) == len(diary.events) / 2
        (phase,) = (event for event in mine if isinstance(event, PhaseStarted))
        assert is_id(phase.phase)
        assert phase.parent == started.call
        assert {event.parent for event in mine if isinstance(event, Folded)} == {phase.phase}
        assert {event.phase for event in mine if isinstance(event, PhaseEnded)} == {phase.phase}
        assert {event.trace for event in mine} == {started.call}


def test_a_call_that_fails_is_told_of_by_the_class_of_its_error() -> None:
    with watched() as diary, pytest.raises(fedstack.FedstackError):
        double_all([1, -1])
    assert diary.the(CallEnded).error == diary.the(PhaseEnded).error == "LeafError"
    assert totals(diary.of(ClientsChanged))[3] > 0


def test_each_attempt_that_fails_is_told_of_and_the_call_ends_once() -> None:
    attempts = itertools.count(1)

    @fedstack.python_computation([np.int32], np.int32)
    def lose(x: Any) -> Any:
        if x == 1 and next(attempts) < 3:
            raise WorkerUnavailableError("lost")
        return x

    @fl.federated_computation(INTS)
    def lose_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(lose, values)

    with watched() as diary:
        lose_all([0, 1])
    assert diary.kinds(ClientsChanged, ClientsRan, LeafLoaded) == [
        "CallStarted",
        "PhaseStarted",
        "PhaseEnded",
        "CallRetried",
        "PhaseStarted",
        "PhaseEnded",
        "CallRetried",
        "PhaseStarted",
        "PhaseEnded",
        "CallEnded",
    ]
    assert [event.attempt for event in diary.of(CallRetried)] == [1, 2]
    assert {event.error for event in diary.of(CallRetried)} == {"WorkerUnavailableError"}
    assert len({event.call for event in diary.events}) == 1
    last = max(index for index, event in enumerate(diary.events) if isinstance(event, CallRetried))
    assert totals([event for event in diary.events[last:] if isinstance(event, ClientsChanged)]) == (2, 2, 2, 0)


def test_a_call_inside_a_leaf_function_is_within_the_phase_that_runs_it() -> None:
    @fedstack.python_computation([np.int32], np.int32)
    def outer(x: Any) -> Any:
        return np.int32(double_all([x]))

    @fl.federated_computation(INTS)
    def outer_all(values: fl.Value) -> fl.Value:
        return fl.federated_map(outer, values)

    with watched() as diary:
        outer_all([5])
    whole, inner = diary.of(CallStarted)
    phase = next(event for event in diary.of(PhaseStarted) if event.functions == "outer")
    assert (inner.computation, inner.parent, inner.trace) == ("double_all", phase.phase, whole.call)
    assert inner.call not in ("", whole.call)
    assert [event.call for event in diary.of(CallEnded)] == [inner.call, whole.call]


@fl.federated_computation(np.int32)
def at_server(x: fl.Value) -> fl.Value:
    return double(x)


@fl.federated_computation
def of_nothing() -> fl.Value:
    return double(np.int32(4))


@pytest.mark.parametrize(
    ("call", "name"),
    [(lambda: double(1), "double"), (lambda: at_server(1), "at_server"), (of_nothing, "of_nothing")],
)
def test_a_computation_is_told_of_by_the_name_of_its_function(call: Any, name: str) -> None:
    with watched() as diary:
        call()
    assert diary.kinds(LeafLoaded) == ["CallStarted", "CallEnded"]
    assert diary.the(CallEnded).computation == name


def test_calls_that_overlap_are_kept_apart() -> None:
    async def main() -> None:
        with fedstack.use_context(fedstack.create_async_local_execution_context()):
            await asyncio.gather(*(double_all([number]) for number in range(5)))

    with watched() as diary:
        asyncio.run(main())
    calls = {event.call for event in diary.of(CallStarted)}
    assert len(calls) == 5
    assert sorted(event.parent for event in diary.of(PhaseStarted)) == sorted(calls)


def test_events_have_plain_data_only() -> None:
    with watched() as diary, pytest.raises(fedstack.FedstackError):
        double_all([1, -1])
    for event in diary.events:
        for name in event.__attrs_attrs__:  # pyright: ignore[reportAttributeAccessIssue]
            assert type(getattr(event, name.name)) in (str, int, float)


def test_progress_and_observers_count_the_same() -> None:
    counts = ProgressCounts()
    context = fedstack.create_sync_local_execution_context(progress=lambda _: contextlib.nullcontext(counts))
    with watched() as diary, context, fedstack.use_context(context):
        double_all(list(range(100)))
    assert totals(diary.of(ClientsChanged)) == (counts.total, 100, counts.done, 0)

"""Faults by a plan: reproducible, bounded, and survived by contexts that try again."""

import threading

import attrs
import numpy as np
import pytest

import fedstack
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import InvalidValueError, RetryLimitError, WorkerUnavailableError
from fedstack.testing import Fault, FaultInjectingExecutor, FaultPlan
from fedstack.testing.computation_builder import at_clients, computation, intrinsic
from fedstack.testing.leaves import double

TOTAL = computation(lambda x: intrinsic("federated_sum", intrinsic("federated_map", double, x)), at_clients(np.int32))


def context_over(plan: FaultPlan, attempts: int = 1) -> SyncExecutionContext:
    factory = fedstack.local_executor_factory(wrap_clients=lambda target: FaultInjectingExecutor(target, plan))
    return SyncExecutionContext(factory, retry_policy=fedstack.RetryPolicy(attempts=attempts, first_pause=0.0))


def run(plan: FaultPlan, values: list[int], attempts: int = 1) -> object:
    context = context_over(plan, attempts)
    try:
        with fedstack.use_context(context):
            return TOTAL(values)
    finally:
        context.close()


def test_a_plan_of_nothing_changes_nothing() -> None:
    plan = FaultPlan.none()
    assert run(plan, [1, 2, 3]) == 12
    assert plan.injected == []


def test_two_plans_of_one_seed_decide_the_same() -> None:
    first, second = (FaultPlan(seed=5, latency=0.1, error_rate=0.2, drop_rate=0.2) for _ in range(2))
    other = FaultPlan(seed=6, latency=0.1, error_rate=0.2, drop_rate=0.2)
    decisions = [[plan.next_phase(range(3, 40)) for _ in range(5)] for plan in (first, second, other)]
    assert decisions[0] == decisions[1]
    assert decisions[0] != decisions[2]
    assert first.injected == second.injected
    assert {fault.outcome for fault in first.injected} == {"ok", "error", "drop"}
    assert all(0 <= fault.latency <= 0.1 for fault in first.injected)


def test_plans_are_compared_by_what_they_are_to_do() -> None:
    first, second = FaultPlan(seed=5, error_rate=0.5), FaultPlan(seed=5, error_rate=0.5)
    first.next_phase(range(10))
    assert first == second
    assert attrs.evolve(first, seed=6) != second
    assert "seed=5" in repr(first)


def test_a_client_that_fails_raises_a_retryable_error_that_names_it() -> None:
    with pytest.raises(RetryLimitError, match="WorkerUnavailableError: Expected client 0 to run"):
        run(FaultPlan(error_rate=1.0), [1, 2])


def test_the_error_is_the_plans() -> None:
    with pytest.raises(OSError, match="Expected client 0 to run"):
        run(FaultPlan(error_rate=1.0, error=OSError), [1, 2])


def test_work_whose_result_gets_lost_has_been_done() -> None:
    calls = []

    @fedstack.python_computation([np.int32], np.int32)
    def note(x):
        calls.append(int(x))
        return x

    mapped = computation(lambda x: intrinsic("federated_map", note, x), at_clients(np.int32))
    plan = FaultPlan(drop_rate=1.0, failures_in_a_row=1)
    context = context_over(plan, attempts=2)
    with fedstack.use_context(context):
        assert mapped([1, 2]) == [1, 2]
    context.close()
    assert calls == [1, 2, 1, 2]
    assert plan.injected == [Fault(0, 0, 0.0, "drop"), Fault(0, 1, 0.0, "drop")]


def test_after_so_many_failures_in_a_row_a_phase_succeeds() -> None:
    plan = FaultPlan(error_rate=1.0, failures_in_a_row=3)
    assert run(plan, [1, 2], attempts=4) == 6
    assert [fault.phase for fault in plan.injected if fault.client == 0] == [0, 1, 2]
    with pytest.raises(RetryLimitError):
        run(FaultPlan(error_rate=1.0, failures_in_a_row=3), [1, 2], attempts=3)


def test_slow_clients_overtake_each_other_and_the_result_is_the_same() -> None:
    order = []
    lock = threading.Lock()

    @fedstack.python_computation([np.float32], np.float32)
    def note(x):
        with lock:
            order.append(float(x))
        return x

    values = [float(value) for value in range(20)]
    mapped = computation(lambda x: intrinsic("federated_map", note, x), at_clients(np.float32))
    context = context_over(FaultPlan(seed=1, latency=0.02))
    with fedstack.use_context(context):
        assert mapped(values) == values
    context.close()
    assert order != values
    assert sorted(order) == values


def test_an_error_of_a_slow_client_is_the_callers() -> None:
    @fedstack.python_computation([np.int32], np.int32)
    def refuse(x):
        raise ValueError("no luck")

    mapped = computation(lambda x: intrinsic("federated_map", refuse, x), at_clients(np.int32))
    context = context_over(FaultPlan(latency=0.001), attempts=3)
    with fedstack.use_context(context), pytest.raises(RuntimeError, match="no luck"):
        mapped([1, 2])
    context.close()


def test_long_vectors_are_not_folded_past_the_plan() -> None:
    plan = FaultPlan(error_rate=1.0)
    total = computation(lambda x: intrinsic("federated_sum", x), at_clients((np.float32, [5000])))
    context = context_over(plan)
    with fedstack.use_context(context), pytest.raises(RetryLimitError):
        total([np.ones(5000, np.float32)] * 4)
    context.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({field: -1}, field) for field in ("seed", "error_rate", "drop_rate", "latency", "failures_in_a_row")),
        *(({field: float("nan")}, field) for field in ("seed", "error_rate", "drop_rate", "latency")),
        *(({field: "0.1"}, f"{field} .*found str") for field in ("seed", "error_rate", "latency")),
        ({"error_rate": 1.5}, "error_rate to be a rate from 0 to 1, found 1.5"),
        ({"latency": float("inf")}, "latency of at least 0, and finite"),
        ({"seed": 1.0}, "seed to be a whole number of at least 0, found float"),
        ({"failures_in_a_row": None}, "failures_in_a_row to be a whole number of at least 0, found None"),
        ({"error_rate": 0.7, "drop_rate": 0.4}, "to be at most 1, .* found 0.7 and 0.4; lower"),
        ({"error": "no luck"}, "error to be an exception class or a function .*, found str 'no luck'"),
    ],
)
def test_what_a_plan_cannot_be_made_of_is_refused_by_name(fields, message) -> None:
    with pytest.raises(InvalidValueError, match=message):
        FaultPlan(**fields)


def test_an_executor_is_made_of_an_executor_and_a_plan() -> None:
    with pytest.raises(InvalidValueError, match="Expected an executor to wrap, found None; pass"):
        FaultInjectingExecutor(None, FaultPlan.none())
    with pytest.raises(InvalidValueError, match="Expected a FaultPlan, found int 3; pass FaultPlan.none"):
        FaultInjectingExecutor(fedstack.executors.LeafExecutor(), 3)


def test_its_repr_shows_the_plan_and_the_target() -> None:
    executor = FaultInjectingExecutor(
        fedstack.executors.LeafExecutor(), FaultPlan(seed=3, error=WorkerUnavailableError)
    )
    assert "seed=3" in repr(executor)
    assert "over <LeafExecutor>" in repr(executor)


def test_dropouts_and_delays_depend_on_seed_round_and_client_alone() -> None:
    plan, values = FaultPlan(seed=3, dropout_rate=0.3, delay=0.5), list(range(200))
    first, again, other = plan.present(values, 0), plan.present(values[:100], 0), plan.present(values, 1)
    gone = [client for client, value in enumerate(first) if isinstance(value, fedstack.ClientFailure)]
    assert 40 < len(gone) < 80
    assert again == first[:100]
    assert other != first
    assert all(value == client for client, value in enumerate(first) if client not in gone)
    delays = plan.delays(200, 4)
    assert delays[:10] == plan.delays(10, 4)
    assert delays[7] == plan.client_seconds(3, 4, 7) != plan.client_seconds(4, 4, 7)
    assert 0.3 < sum(delays) / 200 < 0.8
    assert FaultPlan(seed=3).delays(2, 0) == [0.0, 0.0]


def test_rounds_with_dropouts_are_the_same_on_any_stack() -> None:
    plan = FaultPlan(seed=1, dropout_rate=0.4)
    totals = []
    for parts in (1, 3):
        factory = fedstack.contexts.ResourceManagingExecutorFactory(lambda found, parts=parts: composed(found, parts))
        with SyncExecutionContext(factory, client_failures=fedstack.ClientFailures(tolerate=0)):
            totals.append([TOTAL(plan.present(list(range(30)), number)) for number in range(3)])
    assert totals[0] == totals[1]
    assert len(set(totals[0])) == 3


def composed(cardinalities, parts: int):
    import stacks

    return stacks.composed(cardinalities[stacks.CLIENTS], parts)


@pytest.mark.parametrize("number", [-1, "a", 1.5])
def test_a_round_that_is_no_number_is_refused_by_name(number: object) -> None:
    plan = FaultPlan(dropout_rate=0.5, delay=1.0)
    for draw in (lambda: plan.present([1, 2], number), lambda: plan.delays(2, number)):
        with pytest.raises(InvalidValueError, match="Expected number "):
            draw()

"""What became of each client, told while somebody asks."""

import json
import math

import federated_language as fl
import numpy as np
import pytest
import remote_stacks

import fedstack
from fedstack import ClientFailure, ClientFailures
from fedstack.contexts import SyncExecutionContext
from fedstack.errors import InvalidValueError, LeafError, TooManyClientFailuresError

INT = fl.TensorType(np.int32)
INTS = fl.FederatedType(INT, fl.CLIENTS)


@fedstack.python_computation([INT], INT)
def positive(x):
    if x < 0:
        raise ValueError("negative")
    return x


@fedstack.python_computation([INT, INT], INT)
def below(x, most):
    if x == 5:
        raise KeyError("five")
    return most - x


@fl.federated_computation(INTS)
def total(xs):
    kept = fl.federated_map(positive, xs)
    most = fl.federated_broadcast(fl.federated_max(kept))
    return fl.federated_sum(fl.federated_map(below, (kept, most)))


@pytest.fixture(scope="module", autouse=True)
def servers():
    remote_stacks.start_servers()
    yield
    remote_stacks.stop_servers()


@pytest.mark.fedstack_leak_check(False)
@pytest.mark.parametrize(
    "make", [fedstack.local_executor_factory, lambda: remote_stacks.in_memory_workers(2), remote_stacks.lossy_workers]
)
def test_each_client_of_each_phase_is_told_of(make) -> None:
    policy = fedstack.RetryPolicy(attempts=100, first_pause=0.001, longest_pause=0.01)
    values = [1, -2, ClientFailure(), 4, 5, *range(6, 12)]
    with SyncExecutionContext(make(), client_failures=ClientFailures(), retry_policy=policy):
        with fedstack.client_outcomes() as outcomes:
            total(values)
            total([1, 2])
        total([1])
    found = [(one.call, one.phase, one.client, one.kind) for one in outcomes]
    first = [(0, 0, client, {1: "failed", 2: "absent"}.get(client, "done")) for client in range(11)]
    second = [(0, 1, client, {1: "absent", 2: "absent", 4: "failed"}.get(client, "done")) for client in range(11)]
    assert found == [*first, *second, *[(1, phase, client, "done") for phase in range(2) for client in range(2)]]
    assert "negative" in str(outcomes[1].error)
    assert {one.worker != "" for one in outcomes if one.kind != "absent"} == {
        make is not fedstack.local_executor_factory
    }
    assert all(one.seconds >= 0 for one in outcomes if one.kind != "absent")
    assert all(one.seconds is None for one in outcomes.of_kind("absent"))


def test_without_a_policy_clients_that_are_done_are_told_of() -> None:
    with fedstack.create_sync_local_execution_context(), fedstack.client_outcomes() as outcomes:
        total([1, 2])
        with pytest.raises(LeafError):
            total([-1])
    assert [(one.call, one.phase, one.client, one.kind) for one in outcomes] == [
        (0, phase, client, "done") for phase in range(2) for client in range(2)
    ]


def test_nobody_is_told_of_when_nobody_asks() -> None:
    with fedstack.create_sync_local_execution_context():
        with fedstack.client_outcomes() as outcomes:
            pass
        total([1])
    assert len(outcomes) == 0


@pytest.mark.fedstack_leak_check(False)
def test_a_replay_has_the_same_bits_and_does_not_call_who_failed(tmp_path) -> None:
    calls: list[int] = []
    times = [0]

    @fedstack.python_computation([INT], np.float32)
    def flaky(x):
        calls.append(int(x))
        if x % 5 == 2 and times[0] == 0:
            raise ValueError(f"{x} failed this time")
        return np.float32(np.sin(x) * 1e3)

    @fl.federated_computation(INTS)
    def mean(xs):
        found = fl.federated_map(flaky, xs)
        return fl.federated_mean(found), found

    values = list(range(23))
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            first, second = mean(values), mean(values[:7])
    outcomes.save(tmp_path / "outcomes.json")
    loaded = fedstack.ClientOutcomes.load(tmp_path / "outcomes.json")
    assert list(loaded) == list(outcomes)
    times[0] = 1
    calls.clear()
    policy = ClientFailures(replay=loaded)
    for make in (fedstack.local_executor_factory, lambda: remote_stacks.in_memory_workers(3)):
        with SyncExecutionContext(make(), client_failures=policy):
            again, once_more = mean(values), mean(values[:7])
            with pytest.raises(
                InvalidValueError, match="outcomes of 7 clients in phase 0 .*, found no call with clients .*; replay"
            ):
                mean(values[:7])
        assert again[0].tobytes() == first[0].tobytes()
        assert once_more[0].tobytes() == second[0].tobytes()
        assert [str(one) for one in again[1]] == [str(one) for one in first[1]]
    assert not any(client % 5 == 2 for client in calls)


def test_a_replay_of_other_calls_is_refused(tmp_path) -> None:
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            total([1, -2, 3])
    for values, message in (
        ([1, -2], "Expected the outcomes of 2 clients in phase 0 of the call to replay, found 3"),
        ([1, -2, -3], "found a failure of client 2 in phase 0"),
    ):
        with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
            with pytest.raises(InvalidValueError, match=message):
                total(values)
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
        total([1, -2, 3])
        with pytest.raises(InvalidValueError, match="found no call with clients that is left to replay; replay calls"):
            total([1, -2, 3])
    with pytest.raises(InvalidValueError, match="one of the kinds done, failed, late, absent, found 'fail'"):
        outcomes.of_kind("fail")
    short = '{"format": "fedstack client outcomes 2", "rows": [[1]]}'
    for content in ("{", "[]", '{"format": "another", "rows": []}', short):
        (tmp_path / "file").write_text(content)
        with pytest.raises(InvalidValueError, match="Expected the outcomes of clients in .*file, found"):
            type(outcomes).load(tmp_path / "file")


def test_a_replay_with_other_clients_absent_is_refused() -> None:
    for recorded, given in (([1, ClientFailure(), 3], [1, 2, 3]), ([1, 2, 3], [1, ClientFailure(), 3])):
        with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
            with fedstack.client_outcomes() as outcomes:
                total(recorded)
        with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
            with pytest.raises(InvalidValueError, match="client 1 is absent in only one of the two; replay calls of"):
                total(given)


def test_a_replay_of_another_computation_is_refused(tmp_path) -> None:
    @fl.federated_computation(INTS)
    def lowest(xs):
        return fl.federated_min(fl.federated_map(positive, xs))

    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            lowest([1, 2, 3])
    outcomes.save(tmp_path / "outcomes.json")
    loaded = fedstack.ClientOutcomes.load(tmp_path / "outcomes.json")
    for replay in (outcomes, loaded):
        with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=replay)):
            with pytest.raises(
                InvalidValueError, match=r"'?positive → federated_min\), found another phase \(positive →"
            ):
                largest([1, 2, 3])


KEYS = fl.FederatedType(fl.TensorType(np.int32, [1]), fl.CLIENTS)


@pytest.mark.parametrize("stack", ["local", "two workers"])
def test_a_selection_that_no_phase_reads_counts_as_a_phase(stack: str, tmp_path) -> None:
    @fedstack.python_computation([INT, np.int32], INT)
    def plus(x, key):
        return x + key

    @fl.federated_computation(INTS, KEYS)
    def selected(xs, keys):
        sum_of_all = fl.federated_sum(fl.federated_map(positive, xs))
        chosen = fl.federated_select(keys, fl.federated_value(np.int32(3), fl.SERVER), sum_of_all, plus)
        return chosen, sum_of_all

    make = {"local": fedstack.local_executor_factory, "two workers": lambda: remote_stacks.in_memory_workers(2)}[stack]
    keys = [[0], [9], [1], [2]]
    with SyncExecutionContext(make(), client_failures=ClientFailures()), fedstack.client_outcomes() as outcomes:
        found, sum_of_all = selected([1, 2, 3, -4], keys)
    assert [(one.phase, one.client) for one in outcomes.of_kind("failed")] == [(0, 3), (1, 1)]
    assert [(one.phase, one.client) for one in found if isinstance(one, ClientFailure)] == [(1, 1), (0, 3)]
    outcomes.save(tmp_path / "outcomes.json")
    loaded = fedstack.ClientOutcomes.load(tmp_path / "outcomes.json")
    with SyncExecutionContext(make(), client_failures=ClientFailures(replay=loaded)):
        again, same_sum = selected([1, 2, 3, 4], keys)
    assert sum_of_all == same_sum == 6
    assert str(again) == str(found)
    with SyncExecutionContext(make()), fedstack.client_outcomes() as outcomes:
        selected([1, 2, 3, 4], [[0]] * 4)
    assert [one.phase for one in outcomes] == [0] * 4 + [1] * 4


def test_calls_inside_of_functions_count_neither_as_recorded_nor_as_replayed() -> None:
    @fedstack.python_computation([INT], INT)
    def calls(x):
        return total([int(x)]) + x

    @fl.federated_computation(INTS)
    def outer(xs):
        return fl.federated_sum(fl.federated_map(calls, xs))

    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            first, second = outer([1, 2]), total([1, -2, 3])
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
        assert (outer([1, 2]), total([1, 7, 3])) == (first, second)


@fl.federated_computation(INTS)
def largest(xs):
    return fl.federated_max(fl.federated_map(positive, xs))


def test_a_call_with_fewer_phases_is_no_replay() -> None:
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        with fedstack.client_outcomes() as outcomes:
            total([1, -2, 3])
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(replay=outcomes)):
        with pytest.raises(InvalidValueError, match="outcomes of 1 phase of the call to replay, found those of 2"):
            largest([1, -2, 3])


DONE = [0, 0, 0, "done", "", 0.1, None, None]
FAILED = [0, 0, 1, "failed", "w", None, "LeafError", "no"]


@pytest.mark.parametrize(
    "rows",
    [
        [[0.5, *DONE[1:]]],
        [[0, True, *DONE[2:]]],
        [[0, 0, -1, *DONE[3:]]],
        [[*DONE[:3], "weird", *DONE[4:]]],
        [[*DONE[:4], None, *DONE[5:]]],
        [[*DONE[:5], "x", None, None]],
        [[*DONE[:6], "LeafError", "no"]],
        [DONE, [*FAILED[:6], None, None]],
        [DONE, DONE],
        [DONE, [*FAILED[:2], 0, *FAILED[3:]]],
        [FAILED],
        [DONE, [0, 0, 2, *FAILED[3:]]],
        [DONE, [0, 10**9, 0, *DONE[3:]]],
        [[0, 1, 0, *DONE[3:]]],
        [DONE[:7]],
        [None],
    ],
)
def test_rows_that_are_no_outcomes_of_whole_phases_are_refused(rows, tmp_path) -> None:
    path = tmp_path / "outcomes.json"
    fedstack.ClientOutcomes().save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "rows": rows}))
    with pytest.raises(InvalidValueError, match="Expected the outcomes of clients in .*, found ValueError|TypeError"):
        fedstack.ClientOutcomes.load(path)
    rows, phases = [DONE, FAILED, [2, 0, 0, *DONE[3:]]], [[0, 0, "work"], [2, 0, "work"]]
    path.write_text(json.dumps({**content, "rows": rows, "phases": phases}))
    assert len(fedstack.ClientOutcomes.load(path)) == 3
    for wrong in ([], phases[:1], [*phases, [3, 0, "work"]], [[0, True, "work"], phases[1]], [[0, 0, 1], phases[1]]):
        path.write_text(json.dumps({**content, "rows": rows, "phases": wrong}))
        with pytest.raises(InvalidValueError, match="Expected the outcomes of clients in .*, found"):
            fedstack.ClientOutcomes.load(path)


@pytest.mark.parametrize("row", [[*DONE[:5], -1.0, None, None], [*DONE[:5], math.nan, None, None]])
def test_times_that_cannot_be_are_refused(row, tmp_path) -> None:
    path = tmp_path / "outcomes.json"
    content = {"format": "fedstack client outcomes 2", "rows": [row], "phases": [[0, 0, "work"]]}
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match="Expected the outcomes of clients in .*, found ValueError"):
        fedstack.ClientOutcomes.load(path)


def test_a_client_that_raised_is_not_late(tmp_path) -> None:
    path = tmp_path / "outcomes.json"
    row = [*FAILED[:2], 0, "late", *FAILED[4:]]
    path.write_text(json.dumps({"format": "fedstack client outcomes 2", "rows": [row], "phases": [[0, 0, "work"]]}))
    with pytest.raises(InvalidValueError, match="found ValueError: a client that is late with LeafError"):
        fedstack.ClientOutcomes.load(path)


def test_a_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        fedstack.ClientOutcomes().save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_text_that_is_nested_too_deeply_is_refused(tmp_path) -> None:
    path = tmp_path / "outcomes.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidValueError, match="Expected the outcomes of clients"):
        fedstack.ClientOutcomes.load(path)


def test_too_few_clients_are_refused_from_the_start_and_late_ones_are_named() -> None:
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(min_clients=5)):
        for clients in ([1, 2, 3], []):
            with pytest.raises(TooManyClientFailuresError, match="Expected at least 5 clients to be left"):
                total(clients)
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures()):
        assert total([]) == 0
    with fedstack.create_sync_local_execution_context(client_failures=ClientFailures(enough=2, min_clients=5)):
        with pytest.raises(TooManyClientFailuresError, match=r"among 6 clients, \d late, .*increase enough to wait"):
            total([1, 2, 3, 4, 6, 7])

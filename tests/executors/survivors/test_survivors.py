"""Policies for clients that fail, and the account of those that are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack import ClientFailure, ClientFailures
from fedstack.errors import (
    CarrierError,
    InvalidValueError,
    LeafError,
    RemoteError,
    ResourceLimitError,
    TooManyClientFailuresError,
    TypeMismatchError,
    WorkerUnavailableError,
)
from fedstack.executors.survivors.survivors import Survivors
from fedstack.executors.survivors.tolerance import Tolerance, is_own


@pytest.mark.parametrize(
    ("tolerate", "clients", "most"),
    [(0, 10, 0), (3, 10, 3), (30, 10, 30), (0.0, 10, 0), (0.2, 10, 2), (0.29, 100, 29), (0.999, 10, 9), (1.0, 7, 7)],
)
def test_a_policy_tolerates_a_number_or_a_share_of_the_clients(tolerate: float, clients: int, most: int) -> None:
    assert ClientFailures(tolerate=tolerate).most(clients) == most


@pytest.mark.parametrize("tolerate", [-1, 1.5, -0.1, float("nan"), "2", True, None])
def test_what_is_neither_a_number_nor_a_share_is_refused(tolerate: object) -> None:
    with pytest.raises(InvalidValueError, match="tolerate"):
        ClientFailures(tolerate=tolerate)


def test_what_are_no_outcomes_cannot_be_replayed() -> None:
    with pytest.raises(InvalidValueError, match="Expected replay to be a fedstack.ClientOutcomes, found list"):
        ClientFailures(replay=[1])


@pytest.mark.parametrize("least", [-1, 0.5, "2", True])
def test_the_least_number_of_clients_is_a_whole_number(least: object) -> None:
    with pytest.raises(InvalidValueError, match="min_clients"):
        ClientFailures(min_clients=least)


@given(st.sets(st.integers(0, 40)), st.integers(0, 20), st.integers(0, 20))
def test_a_range_is_split_into_parts_that_are_present_or_absent(absent: set[int], start: int, size: int) -> None:
    clients = range(start, start + size)
    parts = list(Tolerance(sorted(absent)).parts(clients))
    assert [client for part, _ in parts for client in part] == list(clients)
    assert all((client not in absent) is is_present for part, is_present in parts for client in part)
    assert all(len(part) for part, _ in parts)


def test_errors_of_functions_and_values_are_those_of_a_client_and_others_are_not() -> None:
    named = RemoteError("a row of its data cannot be read")
    named.client_index = 3
    for error in (LeafError("x"), TypeMismatchError("x"), InvalidValueError("x"), named):
        assert is_own(error)
    for error in (
        WorkerUnavailableError("x"),
        CarrierError("x"),
        ResourceLimitError("x"),
        RemoteError("x"),
        ValueError("not raised by fedstack"),
        KeyboardInterrupt(),
    ):
        assert not is_own(error)


def error_of(client: int, name: str = "step", kind: str = "ValueError") -> LeafError:
    return LeafError(f"'{name}' raised {kind}: no; at client {client}", computation_name=name, client_index=client)


def test_a_client_counts_as_failed_in_the_first_phase_only() -> None:
    survivors = Survivors(ClientFailures(tolerate=1), {5: ClientFailure()})
    survivors.settle({2: error_of(2)}, 10)
    survivors.settle({2: error_of(2), 5: error_of(5)}, 10)
    assert survivors.tolerance([7]).absent == [2, 5, 7]
    assert (survivors.absent[2].client, survivors.absent[2].phase) == (2, 0)
    assert survivors.absent[5].error is None
    with pytest.raises(TooManyClientFailuresError, match="2 failures among 10 clients, 1 absent, so that 7 are left"):
        survivors.settle({3: error_of(3)}, 10)


def test_the_error_lists_failures_by_kind_with_the_first_clients() -> None:
    survivors = Survivors(ClientFailures(tolerate=0.1), {})
    failures = {client: error_of(client, kind="KeyError" if client == 7 else "ValueError") for client in range(30)}
    with pytest.raises(TooManyClientFailuresError) as caught:
        survivors.settle(failures, 40)
    text = str(caught.value)
    assert "clients 0, 1, 2, 3, 4, 5, 6, 8, 9, 10 and 19 others: ValueError in 'step'" in text
    assert "client 7: KeyError in 'step'" in text
    assert "tolerate=0.1, min_clients=1" in text
    assert caught.value.survivors == 10
    assert list(caught.value.failures) == list(range(30))


def test_the_last_clients_may_be_required() -> None:
    survivors = Survivors(ClientFailures(min_clients=2), {})
    survivors.settle({0: error_of(0)}, 3)
    with pytest.raises(TooManyClientFailuresError, match="so that 1 is left"):
        survivors.settle({1: error_of(1)}, 3)


def test_clients_that_are_absent_from_the_start_are_not_left() -> None:
    absent = {client: ClientFailure() for client in range(8)}
    Survivors(ClientFailures(tolerate=0, min_clients=2), absent).settle({}, 10)
    with pytest.raises(
        TooManyClientFailuresError,
        match=r"at least 3 clients to be left .*, found 0 failures among 10 clients, 8 absent, so that 2 .*more$",
    ):
        Survivors(ClientFailures(tolerate=0, min_clients=3), absent).settle({}, 10)


def test_that_nobody_is_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    survivors = Survivors(ClientFailures(min_clients=0), {})
    survivors.settle({0: error_of(0)}, 1)
    survivors.settle({}, 1)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "No client is left after phase 0: sums are 0 and means NaN; check what all clients raise, and set min_clients"
    ]


def test_that_most_clients_have_failed_is_said_once_unless_the_policy_has_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings(clients: int = 6, **options: object) -> list[str]:
        caplog.clear()
        survivors = Survivors(ClientFailures(**options), {client: ClientFailure() for client in range(6, clients)})
        for failed in ([0, 1, 2], [3], [4]):
            survivors.settle({client: error_of(client) for client in failed}, clients)
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    (found,) = warnings()
    assert found.startswith("4 of 6 clients have failed in a call, and are left out of its results, as tolerate=1.0")
    assert f"The first: {error_of(0)}" in found
    assert warnings(clients=9) == [found], "those that do not take part do not count"
    assert warnings(tolerate=0.9) == warnings(tolerate=5) == []


def test_a_failure_in_a_list_is_one_short_line() -> None:
    shown = repr(ClientFailure(3, 0, RemoteError("'step' raised ValueError: no\n" + "  File x\n" * 50)))
    assert shown == "<ClientFailure of client 3 in phase 0: 'step' raised ValueError: no>"
    assert len(repr(ClientFailure(3, 0, RemoteError("x" * 5000)))) < 200
    assert repr(ClientFailure()) == "<ClientFailure: does not take part>"


def test_a_failure_says_what_happened() -> None:
    assert (
        str(ClientFailure(3, 0, error_of(3))) == "client 3 failed in phase 0: 'step' raised ValueError: no; at client 3"
    )
    assert str(ClientFailure()) == "a client that does not take part"
    assert ClientFailure(3, 0, error_of(3)) == ClientFailure(3, 0, error_of(3))
    assert ClientFailure(3, 0, error_of(3)) != ClientFailure(3, 1, error_of(3))

"""What is remembered of work that was lost with workers, and what that says of it."""

import signal
from collections.abc import Callable

import pytest

from fedstack.membership.ledger import ENOUGH, LossLedger, Suspects, may_be_its_own

PHASE, OTHER = object(), object()


def test_clients_in_the_ranges_of_two_losses_are_suspects() -> None:
    ledger = LossLedger()
    ledger.lose(PHASE, "a:1", range(10, 15))
    assert ledger.suspects(PHASE) == []
    ledger.lose(PHASE, "b:2", range(12, 18))
    assert ledger.suspects(PHASE) == [Suspects(range(12, 15), [], ["a:1", "b:2"])]
    assert [ledger.losses(PHASE, client) for client in (11, 13, 17, 18)] == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 5), (5, 10)], []),
        ([(0, 5), (0, 5)], [(0, 5)]),
        ([(0, 10), (0, 20), (15, 25)], [(0, 10), (15, 20)]),
        ([(0, 10), (5, 15), (3, 12)], [(3, 12)]),
    ],
)
def test_suspects_come_in_the_order_of_clients(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    for order in (ranges, ranges[::-1]):
        ledger = LossLedger()
        for start, stop in order:
            ledger.lose(PHASE, "a:1", range(start, stop))
        found = [some.clients for some in ledger.suspects(PHASE)]
        assert [(clients.start, clients.stop) for clients in found] == expected


def test_clients_of_different_phases_are_not_the_same() -> None:
    ledger = LossLedger()
    ledger.lose(PHASE, "a:1", range(5))
    ledger.lose(OTHER, "a:1", range(5))
    assert ledger.suspects(PHASE) == ledger.suspects(OTHER) == []


def test_a_phase_without_anybody_to_blame_begins_anew() -> None:
    ledger = LossLedger()
    for phase in (PHASE, PHASE, OTHER):
        ledger.lose(phase, "a:1", range(5))
    ledger.forget(PHASE)
    assert ledger.suspects(PHASE) == []
    ledger.lose(OTHER, "a:1", range(5))
    assert len(ledger.suspects(OTHER)) == 1


def test_what_heartbeats_named_is_kept_where_it_can_be() -> None:
    ledger = LossLedger()
    ledger.lose(PHASE, "a:1", range(10, 15), running=[13, 14, 99])
    ledger.lose(PHASE, "a:1", range(12, 18), running=[13, 17])
    assert ledger.suspects(PHASE) == [Suspects(range(12, 15), [13, 14], ["a:1", "a:1"])]
    assert (
        ledger.told()
        == "\n  these clients ran on two workers that ended: clients 12 to 14; last reported as running: 13, 14"
    )


def test_losses_are_told_as_far_as_they_go() -> None:
    ledger = LossLedger()
    assert (ledger.told(), bool(ledger), repr(ledger)) == ("", False, "<LossLedger of 0 losses>")
    ledger.lose(PHASE, "a:1", range(3, 4))
    assert ledger.told() == "\n  these clients ran on a worker that ended: client 3"
    ledger.lose(OTHER, "a:1", range(5, 9))
    assert ledger.told() == "\n  these clients ran on a worker that ended: client 3, clients 5 to 8"
    ledger.lose(OTHER, "a:1", range(9, 10), is_sure=False)
    assert ledger.told().startswith("\n  these clients may have run on a worker that ended: client 3, ")


def test_work_of_one_unit_is_suspected_after_two_losses_and_given_up_after_four() -> None:
    ledger, found = LossLedger(), list[tuple[bool, bool]]()
    for _ in range(ENOUGH):
        ledger.lose(PHASE, "a:1")
        found.append((ledger.is_suspected(PHASE), ledger.is_enough(PHASE)))
    assert found == [(False, False), (True, False), (True, False), (True, True)]
    assert not ledger.is_suspected(OTHER)
    ledger.forget(PHASE)
    assert (ledger.losses(PHASE), ledger.is_suspected(PHASE)) == (0, False)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="has no such signal")
def test_a_worker_that_was_killed_makes_no_suspicion_and_is_told_of_all_the_same() -> None:
    ledger = LossLedger()
    for status in (-9, -9, -9, None):
        ledger.lose(PHASE, "a:1", range(5), find_status=lambda status=status: status)
    assert (ledger.suspects(PHASE), ledger.losses(PHASE, 3)) == ([], 1)
    assert ledger.told() == "\n  these clients ran on a worker that ended: clients 0 to 4"
    ledger.lose(PHASE, "b:2", range(3), find_status=lambda: -11)
    assert ledger.suspects(PHASE) == [Suspects(range(3), [], ["a:1", "b:2"])]


def test_a_status_is_asked_for_until_it_is_known() -> None:
    ledger, known = LossLedger(), list[int]()
    find: Callable[[], int | None] = lambda: known.pop() if known else None  # noqa: E731
    for _ in range(2):
        ledger.lose(PHASE, "a:1", range(5), find_status=find)
    assert len(ledger.suspects(PHASE)) == 1
    known[:] = [-9, -9]
    assert ledger.suspects(PHASE) == ledger.suspects(PHASE) == []


def test_signals_that_others_send_say_nothing() -> None:
    own = [None, 0, 1, 3, -11, -6, -7, -4, -8]
    assert all(map(may_be_its_own, own))
    sent = [name for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    assert not any(may_be_its_own(-getattr(signal, name)) for name in sent)

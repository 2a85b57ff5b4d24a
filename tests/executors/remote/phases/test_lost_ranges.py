"""What an invocation remembers of the clients that ran where workers ended."""

import pytest

from fedstack.executors.remote.phases.lost_ranges import LostRanges, Suspects

PHASE, OTHER = object(), object()


def test_clients_in_the_ranges_of_two_losses_are_suspects() -> None:
    lost = LostRanges()
    lost.add(PHASE, range(10, 15))
    assert lost.suspects(PHASE) == []
    lost.add(PHASE, range(12, 18))
    assert lost.suspects(PHASE) == [Suspects(range(12, 15), [], 2)]
    assert [lost.ended_with(PHASE, client) for client in (11, 13, 17, 18)] == [1, 2, 1, 0]


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
        lost = LostRanges()
        for start, stop in order:
            lost.add(PHASE, range(start, stop))
        found = [some.clients for some in lost.suspects(PHASE)]
        assert [(clients.start, clients.stop) for clients in found] == expected


def test_clients_of_different_phases_are_not_the_same() -> None:
    lost = LostRanges()
    lost.add(PHASE, range(5))
    lost.add(OTHER, range(5))
    assert lost.suspects(PHASE) == lost.suspects(OTHER) == []


def test_a_phase_without_anybody_to_blame_begins_anew() -> None:
    lost = LostRanges()
    for phase in (PHASE, PHASE, OTHER):
        lost.add(phase, range(5))
    lost.forget(PHASE)
    assert lost.suspects(PHASE) == []
    lost.add(OTHER, range(5))
    assert len(lost.suspects(OTHER)) == 1


def test_what_heartbeats_named_is_kept_where_it_can_be() -> None:
    lost = LostRanges()
    lost.add(PHASE, range(10, 15), [13, 14, 99])
    lost.add(PHASE, range(12, 18), [13, 17])
    assert lost.suspects(PHASE) == [Suspects(range(12, 15), [13, 14], 2)]
    assert lost.told() == "\n  these ran where two workers ended: clients 12 to 14; last heard of: 13, 14"


def test_losses_are_told_as_far_as_they_go() -> None:
    lost = LostRanges()
    assert (lost.told(), bool(lost), repr(lost)) == ("", False, "<LostRanges none>")
    lost.add(PHASE, range(3, 4))
    assert lost.told() == "\n  these ran where a worker ended: client 3"
    lost.add(OTHER, range(5, 9))
    assert lost.told() == "\n  these ran where a worker ended: client 3, clients 5 to 8"
    lost.add(OTHER, range(9, 10), is_sure=False)
    assert lost.told().startswith("\n  these may have run where a worker ended: client 3, ")

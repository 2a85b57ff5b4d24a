"""Which worker runs which clients: whatever happens to workers, every client is done exactly once."""

import hypothesis
import pytest
from hypothesis import strategies as st

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.executors.base.hand_ins import Origin, Why


def begun(clients: range, *counts: int) -> tuple[Assignments, list[Assignment]]:
    assignments = Assignments(clients)
    return assignments, assignments.begin([f"w{index}" for index in range(len(counts))], counts)


def hand_in_all(assignments: Assignments, assignment: Assignment) -> None:
    assert all(assignments.handed_in(assignment, left) for left in list(assignment.left))
    assert assignments.ended(assignment)


def test_a_phase_begins_with_a_range_per_worker_and_is_done_when_all_are_handed_in() -> None:
    assignments, (first, second) = begun(range(5, 12), 4, 3)
    assert (first.worker, first.clients, second.worker, second.clients) == ("w0", range(5, 9), "w1", range(9, 12))
    hand_in_all(assignments, first)
    assert not assignments.is_done
    hand_in_all(assignments, second)
    assert assignments.is_done


def test_a_worker_without_clients_is_not_asked() -> None:
    _, started = begun(range(2), 1, 0, 1)
    assert [one.worker for one in started] == ["w0", "w2"]


def test_lost_clients_are_divided_among_the_workers_that_are_there_then() -> None:
    assignments, (first, _) = begun(range(10), 6, 4)
    assignments.lost(first, since=1.0)
    assert not assignments.start(2.0), "nobody has said yet who is there"
    assignments.present(["w1", "w2"])
    assert not assignments.start(0.5), "the pause is not over"
    started = assignments.start(1.0)
    assert [(one.clients, one.losses) for one in started] == [(range(3), 1), (range(3, 6), 1)]
    assert {one.worker for one in started} == {"w2"}, "w1 has more to do"


def test_a_worker_that_loses_the_same_clients_twice_does_not_get_them_again_while_there_are_others() -> None:
    assignments, (busy, lost) = begun(range(10), 9, 1)
    for others, expected in [(["w0", "w1"], "w1"), (["w0", "w1"], "w0"), (["w1"], "w1")]:
        assignments.lost(lost, 0.0)
        assignments.present(others)
        (lost,) = assignments.start(0.0)
        assert (lost.worker, lost.clients) == (expected, range(9, 10))
    assert busy in assignments.running


def test_who_runs_clients_of_another_worker_knows_why_and_whose_they_were() -> None:
    assignments, (first, second) = begun(range(12), 6, 6)
    assert first.origin is None
    (copied,) = assignments.copy(second, ["w2"])
    assert copied.origin == Origin(Why.COPIED, "w1")
    (moved,) = assignments.move(first, 4, ["w1"])
    assert moved.origin == Origin(Why.MOVED, "w0")
    assignments.lost(first, since=0.0)
    assignments.present(["w1"])
    (lost,) = assignments.start(0.0)
    assert (lost.clients, lost.origin) == (range(4), Origin(Why.LOST, "w0"))
    lost.begun = 2
    assignments.lost(lost, since=0.0)
    assignments.present(["w2"])
    again = assignments.start(0.0)
    assert [(one.clients, one.losses, one.origin) for one in again] == [
        (range(2), 2, Origin(Why.LOST, "w1")),
        (range(2, 4), 1, Origin(Why.LOST, "w1")),
    ]


def test_what_was_handed_in_is_not_run_again() -> None:
    assignments, (first, _) = begun(range(10), 6, 4)
    assert assignments.handed_in(first, range(2))
    assert assignments.handed_in(first, range(3, 4))
    assignments.lost(first, since=0.0)
    assignments.present(["w1"])
    assert [one.clients for one in assignments.start(0.0)] == [range(2, 3), range(4, 6)]


def test_a_contribution_counts_once_and_only_from_whom_the_clients_are_assigned_to() -> None:
    assignments, (first, second) = begun(range(10), 6, 4)
    assert assignments.handed_in(first, range(4))
    assert not assignments.handed_in(first, range(4))
    assert not assignments.handed_in(first, range(3, 5))
    assert not assignments.handed_in(first, range(4, 7))
    assert not assignments.handed_in(second, range(4, 6))
    assignments.lost(first, since=0.0)
    assert not assignments.handed_in(first, range(4, 6))
    assignments.lost(first, since=0.0)
    assignments.present(["w1"])
    (again,) = assignments.start(0.0)
    assert again.clients == range(4, 6)


def test_clients_before_a_failed_one_run_and_clients_behind_it_are_dropped() -> None:
    assignments, (first, second, third) = begun(range(9), 3, 3, 3)
    assignments.failed(second)
    assert assignments.dropped == [third]
    assert list(assignments.running) == [first]
    assert not assignments.handed_in(third, range(6, 9))
    assert not assignments.is_done
    assignments.lost(first, since=0.0)
    assignments.present(["w0"])
    (again,) = assignments.start(0.0)
    hand_in_all(assignments, again)
    assert assignments.is_done


def test_waiting_clients_behind_a_failed_one_are_dropped_too() -> None:
    assignments, (first, second) = begun(range(6), 3, 3)
    assignments.lost(second, since=0.0)
    assignments.failed(first)
    assert assignments.is_done
    assignments.present(["w0"])
    assert not assignments.start(0.0)


def test_suspects_wait_until_a_search_has_ended_and_others_do_not() -> None:
    assignments, (first, _) = begun(range(10), 6, 4)
    assignments.lost(first, since=0.0)
    assignments.hold([range(2, 4)])
    assignments.present(["w1"])
    assert [one.clients for one in assignments.start(0.0)] == [range(2), range(4, 6)]
    assert assignments.wakes_at is None
    assignments.release()
    assert [one.clients for one in assignments.start(0.0)] == [range(2, 4)]


def test_clients_move_to_other_workers_and_what_was_handed_in_stays() -> None:
    assignments, (first, _) = begun(range(20), 10, 10)
    assert assignments.handed_in(first, range(4))
    moved = assignments.move(first, 6, ["w1", "gone"])
    assert [(one.worker, one.clients) for one in moved] == [("w1", range(6, 10))]
    assert first.left == [range(4, 6)]
    assert not assignments.handed_in(first, range(4, 10)), "it has left some of these to others"
    assert assignments.handed_in(first, range(4, 6))
    assert assignments.ended(first)


def test_clients_that_move_wait_if_no_worker_is_named() -> None:
    assignments, (first, _) = begun(range(20), 10, 10)
    assert not assignments.move(first, 6, [])
    assert [one.clients for one in assignments.start(0.0)] == [range(6, 8), range(8, 10)]


def test_what_a_worker_left_without_anybody_knowing_waits_when_it_ends() -> None:
    assignments, (first, _) = begun(range(20), 10, 10)
    assert assignments.handed_in(first, range(6))
    assert not assignments.ended(first), "nobody has asked it to leave any"
    first.is_shared = True
    assert assignments.ended(first)
    assert {one.clients for one in assignments.start(0.0)} == {range(6, 8), range(8, 10)}


def test_of_two_copies_the_first_counts_and_the_other_worker_is_dropped() -> None:
    assignments, (first, second) = begun(range(8), 4, 4)
    hand_in_all(assignments, second)
    assert assignments.handed_in(first, range(1))
    (copy,) = assignments.copy(first, ["w1"])
    assert copy.clients == range(1, 4)
    assert assignments.handed_in(copy, range(1, 3))
    assert first.left == [range(3, 4)]
    assert not assignments.handed_in(first, range(1, 4)), "some of these have counted"
    assert assignments.handed_in(copy, range(3, 4))
    assert assignments.dropped == [first]
    assert assignments.ended(copy)
    assert assignments.is_done


def test_a_copy_may_end_without_what_the_first_worker_has_handed_in_meanwhile() -> None:
    assignments, (first, second) = begun(range(8), 4, 4)
    hand_in_all(assignments, second)
    (copy,) = assignments.copy(first, ["w1"])
    assert assignments.handed_in(first, range(2))
    assert copy.left == [range(2, 4)]
    assert not assignments.handed_in(copy, range(4)), "half of these have counted"
    assert assignments.ended(copy)
    assert not assignments.start(0.0), "the first worker still runs them"
    assert assignments.handed_in(first, range(2, 4))
    assert assignments.ended(first)
    assert assignments.is_done


def test_clients_that_another_worker_runs_too_do_not_wait_after_a_loss() -> None:
    assignments, (first, second) = begun(range(8), 4, 4)
    hand_in_all(assignments, second)
    (copy,) = assignments.copy(first, ["w1"])
    assignments.lost(first, since=0.0)
    assignments.present(["w0", "w1"])
    assert not assignments.start(0.0)
    assignments.lost(copy, since=0.0)
    assignments.present(["w0"])
    assert [one.clients for one in assignments.start(0.0)] == [range(4)]


def test_a_client_that_fails_on_one_of_two_workers_is_no_longer_needed_from_the_other() -> None:
    assignments, (first, second) = begun(range(8), 4, 4)
    hand_in_all(assignments, second)
    (copy,) = assignments.copy(first, ["w1"])
    assert assignments.handed_in(copy, range(2))
    assignments.failed(copy)
    assert assignments.dropped == [first]
    assert assignments.is_done


def test_many_clients_of_a_general_aggregation_are_divided_at_its_blocks() -> None:
    assignments = Assignments(range(3, 3003), cuts_blocks=False)
    started = assignments.begin(["w0", "w1"], assignments.counts(2))
    assert [one.clients for one in started] == [range(3, 1496), range(1496, 3003)]
    assignments.lost(started[1], since=0.0)
    assignments.present(["w0", "w1", "w2"])
    stops = [one.clients.stop for one in assignments.start(0.0)]
    assert [stop % 8 for stop in stops] == [0, 0, 3003 % 8]
    assert max(stops[0] - 1496, stops[1] - stops[0], 3003 - stops[1]) <= 1507 // 3 + 8
    moved = assignments.move(started[0], 1000, ["w1", "w2"])
    assert all(one.clients.stop % 8 == 0 for one in moved)
    few = Assignments(range(10), cuts_blocks=False)
    assert few.counts(4) == [3, 3, 2, 2], "cutting blocks saves time"


def test_clients_can_be_left_to_other_workers_that_run_all_of_them() -> None:
    assignments, (first, second) = begun(range(8), 4, 4)
    assert not assignments.left_to_others(first, range(4), lambda other: True), "nobody else runs them"
    hand_in_all(assignments, second)
    (copy,) = assignments.copy(first, ["w1"])
    assert not assignments.left_to_others(copy, range(4), lambda other: False)
    assert assignments.handed_in(first, range(1))
    assert assignments.left_to_others(copy, range(1, 2), lambda other: other is first)
    assert (copy.left, first.left) == ([range(2, 4)], [range(1, 4)])
    assert assignments.left_to_others(first, range(2, 4), lambda other: True)
    assert (copy.left, first.left) == ([range(2, 4)], [range(1, 2)])
    assert not assignments.left_to_others(first, range(1, 2), lambda other: True), "the copy was left to the first"
    assert assignments.handed_in(first, range(1, 2))
    assert assignments.ended(first)
    assert assignments.left_to_others(copy, range(2, 4), lambda other: True) is False
    hand_in_all(assignments, copy)
    assert assignments.is_done


def test_what_a_lost_worker_had_not_begun_does_not_count_as_lost() -> None:
    assignments, (first,) = begun(range(10), 10)
    assert assignments.handed_in(first, range(2))
    first.begun = 6
    assignments.lost(first, since=1.0)
    assignments.present(["w1"])
    assert [(one.clients, one.losses) for one in assignments.start(0.0)] == [(range(6, 10), 0)]
    assert [(one.clients, one.losses) for one in assignments.start(1.0)] == [(range(2, 6), 1)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@hypothesis.given(data=st.data())
def test_every_client_is_done_once_whatever_happens(workers: int, data: st.DataObject) -> None:
    clients = range(data.draw(st.integers(0, 9)), data.draw(st.integers(10, 40)))
    counts = [len(clients) // workers + (index < len(clients) % workers) for index in range(workers)]
    assignments, names = Assignments(clients), [f"w{index}" for index in range(workers)]
    running = assignments.begin(names, counts)
    done: list[int] = []
    failed: int | None = None
    for _ in range(300):
        if assignments.is_done:
            break
        assignments.present(names)
        running = [one for one in [*running, *assignments.start(0.0)] if one in assignments.running]
        one = data.draw(st.sampled_from(running))
        events = ["hand in", "hand in", "end", "end", "lose", "hold", "fail", "move", "copy", "leave"]
        event = data.draw(st.sampled_from(events))
        if event == "hand in":
            left = one.left[0]
            part = range(left.start, data.draw(st.integers(left.start + 1, left.stop)))
            assert assignments.handed_in(one, part)
            done += part
            if not one.left:
                assert assignments.ended(one)
        elif event == "lose":
            assignments.lost(one, since=0.0)
        elif event == "move":
            stop = data.draw(st.integers(one.left[0].start + 1, one.left[-1].stop))
            running += assignments.move(one, stop, data.draw(st.lists(st.sampled_from(names), unique=True)))
        elif event == "copy":
            running += assignments.copy(one, data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
        elif event == "leave":
            left = data.draw(st.sampled_from(one.left))
            assignments.left_to_others(one, left, lambda other: data.draw(st.booleans()))
        elif event == "hold":
            assignments.hold([range(one.clients.start, one.clients.stop)])
            assignments.release()
        elif event == "fail" and data.draw(st.integers(0, 9)) == 0:
            first = one.left[0].start
            failed = first if failed is None else min(failed, first)
            assignments.failed(one)
        else:
            for left in list(one.left):
                assert assignments.handed_in(one, left)
                done += left
            assert assignments.ended(one)
        assert all(one.left[-1].stop <= (clients.stop if failed is None else failed) for one in assignments.running)
    hypothesis.assume(assignments.is_done)
    assert len(done) == len(set(done))
    assert {client for client in clients if failed is None or client < failed} <= set(done) <= set(clients)

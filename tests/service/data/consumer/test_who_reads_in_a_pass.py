"""Which workers a consumer asks, for what and when, and what becomes of a range whose worker got lost."""

import pytest
from pass_plans import AT_LEAST, AT_MOST, EXACTLY, GONE, arrive, consume, plan_with, ranges, send

from fedstack.errors import WorkerUnavailableError
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan, Read


def asked(plan: PassPlan) -> list[tuple[bytes, int]]:
    """Which workers are asked now, and for which ranges."""
    return [(read.worker, read.range.id) for read in plan.reads()]


# The list of workers.


def test_an_idle_worker_that_is_not_on_the_list_any_more_is_forgotten() -> None:
    plan = plan_with([], [b"a", b"b"])
    assert plan.list_workers([b"b"]) == []
    assert plan.has_workers
    assert plan.list_workers([]) == []
    assert not plan.has_workers


def test_a_lost_worker_is_looked_for_as_long_as_it_is_on_the_list() -> None:
    plan = plan_with([], [b"a", b"b"])
    plan.lose(b"a", GONE)
    assert plan.away == [b"a"]
    assert plan.list_workers([b"a", b"b"]) == []
    assert plan.away == [b"a"]
    plan.list_workers([b"b"])
    assert plan.away == []


def test_a_worker_reads_its_range_to_the_end_though_there_is_none_on_the_list_any_more() -> None:
    plan = plan_with(ranges(1, 2))
    (read,) = plan.reads()
    assert plan.list_workers([]) == [b"a"]
    assert plan.has_workers
    for size in (3, 4):
        arrive(plan, read, size)
        assert consume(plan) == size
        (read,) = plan.reads()
        assert (read.range.id, read.begins) == (1, False)
    arrive(plan, read)
    assert not plan.has_workers
    assert plan.list_workers([]) == []
    assert plan.reads() == []


def test_a_worker_that_is_lost_and_not_on_the_list_is_forgotten() -> None:
    plan = plan_with(ranges(1))
    plan.reads()
    assert plan.list_workers([b"b"]) == [b"a"]
    plan.lose(b"a", GONE)
    assert plan.away == []
    assert plan.list_workers([b"b"]) == []
    assert asked(plan) == [(b"b", 1)]


def test_a_worker_that_is_on_the_list_again_reads_on_and_begins_the_next_range() -> None:
    plan = plan_with(ranges(1, 2))
    (read,) = plan.reads()
    assert plan.list_workers([]) == [b"a"]
    assert plan.list_workers([b"a"]) == []
    arrive(plan, read, 3)
    send(plan)
    assert asked(plan) == [(b"a", 2)]


# Lost and found.


def test_a_lost_worker_is_asked_again_once_it_is_found() -> None:
    plan = plan_with(ranges(1), [b"a", b"b"])
    assert plan.lose(b"a", GONE) == 0, "it was not reading"
    assert plan.has_workers, "the other one"
    assert asked(plan) == [(b"b", 1)]
    plan.lose(b"b", GONE)
    assert not plan.has_workers
    assert plan.reads() == []
    plan.found(b"a")
    assert plan.away == [b"b"]
    assert asked(plan) == [(b"a", 1)]


def test_a_worker_that_nobody_knows_can_be_lost_and_found() -> None:
    plan = plan_with(ranges(1), [])
    assert plan.lose(b"x", GONE) == 0
    plan.found(b"x")
    assert (plan.away, plan.has_workers, plan.reads()) == ([], False, [])


def test_what_a_lost_worker_still_sends_does_not_count() -> None:
    plan = plan_with(ranges(1))
    (first,) = plan.reads()
    plan.lose(b"a", GONE)
    arrive(plan, first, 3)
    plan.found(b"a")
    (second,) = plan.reads()
    arrive(plan, first)
    assert (second.range.rows, second.begins, plan.next()) == (0, True, None)
    plan.list_workers([])
    plan.lose(b"a", GONE)
    arrive(plan, second, 3)
    assert plan.next() is None
    assert plan.has_work


@pytest.mark.parametrize(("guarantee", "rows"), [(AT_MOST, 3), (AT_LEAST, 0), (EXACTLY, 3)])
def test_another_worker_reads_on_or_from_the_beginning(guarantee: Guarantee, rows: int) -> None:
    plan = plan_with(ranges(1), [b"a"], guarantee)
    send(plan, 3)
    plan.reads()
    plan.list_workers([b"a", b"b"])
    assert plan.lose(b"a", GONE) == 0
    (read,) = plan.reads()
    assert (read.worker, read.range.rows, read.begins) == (b"b", rows, True)


def test_a_range_whose_worker_got_lost_is_read_before_those_that_were_taken_ahead() -> None:
    plan = plan_with(ranges(1, 2, 3), [b"a", b"b"])
    plan.reads()
    plan.lose(b"a", GONE)
    plan.found(b"a")
    assert asked(plan) == [(b"a", 1)]


def lose_in_a_row(plan: PassPlan, times: int, was_there: bool = True) -> list[int]:
    """Loses the worker as often over what it reads; returns how many elements that costs each time."""
    found: list[int] = []
    for _ in range(times):
        (read,) = plan.reads()
        found.append(plan.lose(read.worker, GONE, was_there))
        plan.found(read.worker)
    return found


def test_losses_count_from_the_last_element_on() -> None:
    plan = plan_with(ranges(1), guarantee=EXACTLY)
    for _ in range(3):
        lose_in_a_row(plan, 3)
        send(plan, 1)
        consume(plan)
    lose_in_a_row(plan, 3)
    with pytest.raises(WorkerUnavailableError, match="at element 3 of splits 10 to 19"):
        lose_in_a_row(plan, 1)


def test_losses_count_on_where_what_was_here_before_is_read_again() -> None:
    plan = plan_with(ranges(1), guarantee=AT_LEAST)
    for size in (3, 4):
        send(plan, size)
        consume(plan)
        lose_in_a_row(plan, 1)
    for size in (4, 2):
        send(plan, size)
        consume(plan)
        lose_in_a_row(plan, 1)
    send(plan, 3)
    with pytest.raises(WorkerUnavailableError, match="4 workers in a row were lost at element 4 of splits 10"):
        lose_in_a_row(plan, 1)


def test_a_worker_that_did_not_get_what_it_was_sent_was_not_ended_by_that() -> None:
    plan = plan_with(ranges(1), guarantee=EXACTLY)
    lose_in_a_row(plan, 9, was_there=False)
    lose_in_a_row(plan, 3)
    lose_in_a_row(plan, 9, was_there=False)
    assert asked(plan) == [(b"a", 1)]


# What is left out.


def test_all_that_is_left_out_is_counted_and_done_with() -> None:
    plan = plan_with(ranges(1, 2, 3), one_each=True)
    send(plan, 3)
    assert lose_in_a_row(plan, 4) == [0, 0, 0, 7]
    assert lose_in_a_row(plan, 4) == [0, 0, 0, 10]
    assert plan.missing == 17
    assert consume(plan) == 3
    plan.acknowledge(3)
    assert plan.leave().finished == (1, 2), "no others are to read those"
    assert asked(plan) == [(b"a", 3)]


def test_nothing_is_missing_of_a_range_that_has_come_but_for_its_end() -> None:
    plan = plan_with(ranges(1), one_each=True)
    send(plan, 10)
    assert lose_in_a_row(plan, 4) == [0, 0, 0, 0]
    assert plan.missing == 0


def test_nobody_knows_how_much_is_missing_where_splits_have_any_number_of_elements() -> None:
    plan = plan_with(ranges(1, 2))
    assert plan.missing == 0
    assert lose_in_a_row(plan, 4) == [0, 0, 0, -1]
    assert plan.missing is None
    assert lose_in_a_row(plan, 4) == [0, 0, 0, -1]
    assert plan.missing is None


# Whom a range is bound to.


def test_a_range_waits_for_the_worker_that_is_to_read_it() -> None:
    plan = plan_with([*ranges(1, worker=b"b"), *ranges(2, worker=b"b"), *ranges(3)], [b"a", b"b"])
    assert asked(plan) == [(b"a", 3), (b"b", 1)]


def test_a_range_of_a_worker_that_is_lost_before_it_begins_is_read_by_any() -> None:
    plan = plan_with(ranges(1, worker=b"b"), [b"a", b"b"])
    plan.lose(b"b", GONE)
    assert asked(plan) == [(b"a", 1)]


def test_a_range_of_a_worker_that_is_not_on_the_list_any_more_is_read_by_any() -> None:
    plan = plan_with(ranges(1, 2, worker=b"b"), [b"a", b"b"])
    assert asked(plan) == [(b"b", 1)]
    plan.list_workers([b"a"])
    assert asked(plan) == [(b"a", 2)]


def test_a_range_that_nobody_knows_the_worker_of_is_read_by_any() -> None:
    assert asked(plan_with(ranges(1, worker=b"x"))) == [(b"a", 1)]


def test_a_range_is_not_kept_for_a_worker_that_got_lost_over_it() -> None:
    plan = plan_with(ranges(1, worker=b"b"), [b"a", b"b"])
    assert asked(plan) == [(b"b", 1)]
    plan.lose(b"b", GONE)
    plan.found(b"b")
    assert asked(plan) == [(b"a", 1)]


# How much is asked for.


def test_a_worker_is_asked_until_two_blocks_wait() -> None:
    plan = plan_with(ranges(1))
    send(plan, 1)
    send(plan, 1)
    assert plan.reads() == []
    assert plan.next() is not None
    send(plan, 1)
    assert plan.reads() == []


def test_all_workers_are_asked_and_two_blocks_of_each_may_wait() -> None:
    plan = plan_with(ranges(1, 2, 3), [b"a", b"b", b"c"])
    for _ in range(2):
        reads = plan.reads()
        assert [read.worker for read in reads] == [b"a", b"b", b"c"]
        for read in reads:
            arrive(plan, read, 1)
    assert plan.reads() == []


def test_what_is_on_its_way_takes_room() -> None:
    plan = plan_with(ranges(1, 2, 3), [b"a", b"b", b"c"], max_requests=2)
    first, second = plan.reads()
    assert (first.worker, second.worker) == (b"a", b"b")
    assert plan.reads() == []
    arrive(plan, first, 1)
    assert plan.reads() == []
    consume(plan)
    assert [read.worker for read in plan.reads()] == [b"a"]


def test_a_worker_is_asked_for_one_thing_at_a_time_and_holds_up_no_other() -> None:
    plan = plan_with(ranges(1), [b"a", b"b"])
    assert asked(plan) == [(b"a", 1)]
    plan.took(ranges(2, 3), False)
    assert asked(plan) == [(b"b", 2)]
    assert plan.reads() == []


def test_a_range_begins_once() -> None:
    plan = plan_with(ranges(1, 2))
    reads: list[Read] = [send(plan, 2), send(plan, 2)]
    consume(plan)
    reads += [send(plan), send(plan)]
    assert [(read.range.id, read.begins) for read in reads] == [(1, True), (1, False), (1, False), (2, True)]
    assert reads[0].range.rows == 4
    assert not plan.has_work


def test_a_pass_is_over_without_workers_where_there_is_nothing_to_read() -> None:
    assert plan_with([], [], is_exhausted=True).is_over
    assert not plan_with([], [], is_exhausted=False).is_over
    assert not plan_with(ranges(1), [], is_exhausted=True).is_over


def test_a_pass_is_not_over_while_one_of_its_workers_reads() -> None:
    plan = plan_with(ranges(1), [b"a", b"b"], is_exhausted=True)
    (read,) = plan.reads()
    assert not plan.is_over
    arrive(plan, read)
    assert plan.is_over

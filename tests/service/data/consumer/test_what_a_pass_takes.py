"""What a consumer asks its dispatcher for, what it tells it, and what it leaves to others."""

import pytest
from pass_plans import AT_LEAST, AT_MOST, EXACTLY, GONE, arrive, consume, plan_with, ranges, send

from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan, Take, TakenRange


def test_a_pass_takes_two_ranges_for_each_worker_and_numbers_what_it_asks() -> None:
    plan = PassPlan(AT_MOST)
    plan.list_workers([b"a"])
    assert plan.take() == Take(0, 2)
    plan.took(ranges(1, 2), False)
    plan.list_workers([b"a", b"b", b"c"])
    assert plan.take() == Take(1, 4)
    plan.took([], False)
    assert plan.take() == Take(2, 4)


def test_a_pass_without_workers_takes_as_much_as_one_needs() -> None:
    assert PassPlan(AT_MOST).take() == Take(0, 2)


@pytest.mark.parametrize(("ahead", "want"), [(0, 6), (2, 4), (3, 3), (4, 0), (6, 0), (9, 0)])
def test_more_is_taken_once_half_of_what_was_taken_ahead_is_gone(ahead: int, want: int) -> None:
    plan = plan_with(ranges(*range(ahead)), [b"a", b"b", b"c"])
    take = plan.take()
    assert (0 if take is None else take.want) == want


def test_nothing_is_taken_ahead_for_a_worker_that_is_lost() -> None:
    plan = PassPlan(AT_MOST)
    plan.list_workers([b"a", b"b", b"c"])
    plan.lose(b"b", GONE)
    assert plan.take() == Take(0, 4)


def test_nothing_is_taken_ahead_for_a_worker_that_is_not_on_the_list_any_more() -> None:
    plan = plan_with(ranges(1, 2), [b"a", b"b"])
    plan.reads()
    plan.list_workers([b"b"])
    assert plan.take() == Take(1, 2)


def test_a_range_is_any_workers_and_part_of_the_dataset_from_its_first_element_on_unless_it_says_otherwise() -> None:
    one = TakenRange(1, 10, 20)
    assert (one.worker, one.whole, one.shard, one.rows) == (b"", False, False, 0)


def test_a_pass_that_has_taken_everything_asks_only_to_show_that_it_is_there() -> None:
    plan = plan_with(ranges(1), is_exhausted=True)
    assert plan.take() is None
    assert plan.take(must=True) == Take(1, 0)
    plan.took([], False)
    assert plan.is_exhausted
    assert plan.take() is None


def test_what_is_done_with_is_told_once() -> None:
    plan = plan_with(ranges(1, 2, 3))
    send(plan, 3)
    send(plan)
    assert consume(plan) == 3
    plan.pass_over(9)
    plan.acknowledge(3)
    assert plan.take(must=True) == Take(1, 0, (9, 1))
    plan.took([], False)
    assert plan.take(must=True) == Take(2, 0)


# A pass that goes on.


def test_a_pass_that_resumes_reads_what_it_had_taken_after_what_its_consumer_had() -> None:
    plan = PassPlan(EXACTLY)
    plan.list_workers([b"a", b"b"])
    plan.resume(ranges(1, 2, 3, 4), Position((1,), {2: 4}), 7)
    assert [(read.range.id, read.range.rows) for read in plan.reads()] == [(2, 4), (3, 0)]
    assert plan.position(0) == Position((1,), {2: 4})
    assert plan.take() == Take(7, 3, (1,)), "which the dispatcher may not have heard"


def test_a_pass_that_has_resumed_gives_back_what_its_consumer_has_had_nothing_of() -> None:
    plan = PassPlan(EXACTLY)
    plan.resume(ranges(1, 2, 3), Position((1,), {2: 4}), 7)
    assert plan.leave() == Take(7, 0, (1,), (3,))


# What others wait for.


@pytest.mark.parametrize(("guarantee", "others_wait"), [(AT_MOST, False), (AT_LEAST, True), (EXACTLY, False)])
def test_others_wait_for_a_consumer_that_has_nothing_where_they_may_get_what_it_had(
    guarantee: Guarantee, others_wait: bool
) -> None:
    assert PassPlan(guarantee).others_wait is others_wait
    assert plan_with(ranges(1), guarantee=guarantee).others_wait is False


def test_nobody_waits_for_a_consumer_that_has_something_to_read_or_to_consume() -> None:
    plan = plan_with(ranges(1), guarantee=AT_LEAST)
    assert not plan.others_wait, "it is to be read"
    (read,) = plan.reads()
    assert not plan.others_wait, "it is being read"
    arrive(plan, read, 3)
    send(plan)
    assert not plan.has_work
    assert not plan.others_wait, "it is to be consumed"
    consume(plan)
    assert plan.others_wait


def test_nobody_waits_once_everything_is_taken() -> None:
    assert not plan_with([], guarantee=AT_LEAST, is_exhausted=True).others_wait


def read_to_the_end(plan: PassPlan, count: int) -> None:
    """Reads so many ranges, each of three elements, and hands them out."""
    for _ in range(count):
        send(plan, 3)
        send(plan)
        consume(plan)


def test_others_are_told_once_of_each_range_that_is_done_with_while_the_dispatcher_does_not_answer() -> None:
    plan = plan_with(ranges(1, 2), guarantee=AT_LEAST)
    read_to_the_end(plan, 2)
    assert plan.take() == Take(1, 2)
    assert plan.news_for_others() is None, "nothing is done with"
    plan.acknowledge(3)
    assert plan.news_for_others() == Take(1, 0, (1,))
    assert plan.news_for_others() is None
    plan.acknowledge(6)
    assert plan.news_for_others() == Take(1, 0, (1, 2))
    plan.took(ranges(3), False)
    read_to_the_end(plan, 1)
    assert plan.take() == Take(2, 2, (1, 2)), "the dispatcher hears it again"
    assert plan.news_for_others() is None
    plan.acknowledge(9)
    assert plan.news_for_others() == Take(2, 0, (3,))


@pytest.mark.parametrize("guarantee", [AT_MOST, AT_LEAST, EXACTLY])
def test_a_consumer_waits_that_keeps_elements_and_asks_for_others(guarantee: Guarantee) -> None:
    plan = plan_with(ranges(1), guarantee=guarantee)
    plan.ask()
    assert not plan.waits, "there is something to read"
    send(plan, 3)
    send(plan)
    consume(plan)
    assert not plan.waits, "it works on what it got"
    plan.ask()
    assert plan.waits == (guarantee is AT_LEAST)
    assert plan.take() == Take(1, 2, waits=plan.waits)
    plan.acknowledge(3)
    assert not plan.waits, "it keeps nothing"


def test_a_consumer_does_not_wait_while_what_it_got_is_in_work_elsewhere() -> None:
    plan = plan_with(ranges(1), guarantee=AT_LEAST)
    read_to_the_end(plan, 1)
    plan.work_on(2)
    plan.ask()
    assert not plan.waits
    plan.work_on(0)
    assert plan.waits


def test_others_are_told_once_that_a_consumer_waits_while_the_dispatcher_does_not_answer() -> None:
    plan = plan_with(ranges(1), guarantee=AT_LEAST)
    read_to_the_end(plan, 1)
    assert plan.take() == Take(1, 2)
    plan.ask()
    assert plan.news_for_others() == Take(1, 0, waits=True)
    assert plan.news_for_others() is None
    plan.took([], False)
    assert plan.take() == Take(2, 2, waits=True), "the dispatcher may have been started again"
    assert plan.news_for_others() is None
    plan.took(ranges(3), False)
    assert not plan.waits
    plan.took([], True)
    read_to_the_end(plan, 1)
    plan.ask()
    assert not plan.waits, "it has heard the end"


def test_nobody_is_told_anything_beside_a_question() -> None:
    plan = plan_with(ranges(1), guarantee=AT_LEAST)
    read_to_the_end(plan, 1)
    plan.acknowledge(3)
    assert plan.others_wait
    assert plan.news_for_others() is None
    assert plan.take() == Take(1, 2, (1,))


def test_nobody_is_told_anything_while_there_is_something_to_read() -> None:
    plan = plan_with(ranges(1, 2), guarantee=AT_LEAST)
    read_to_the_end(plan, 1)
    plan.take(must=True)
    plan.acknowledge(3)
    assert plan.news_for_others() is None
    read_to_the_end(plan, 1)
    assert plan.news_for_others() == Take(1, 0, (1,))


# The end.


def test_the_last_that_the_dispatcher_hears_has_what_it_has_not_confirmed_and_what_came_since() -> None:
    plan = plan_with(ranges(1, 2, 3))
    read_to_the_end(plan, 2)
    plan.acknowledge(3)
    plan.take(must=True)
    plan.acknowledge(6)
    assert plan.leave() == Take(2, 0, (1, 2), (3,))
    assert plan.leave(may_resume=True) == Take(2, 0, (1,)), "the dispatcher has not answered yet"


def test_others_get_what_this_consumer_has_had_nothing_of_wherever_it_is() -> None:
    plan = plan_with(ranges(6, 5, 4, 3, 2, 1), [b"a", b"b", b"c"], max_requests=9)
    reads = plan.reads()
    assert [read.range.id for read in reads] == [6, 5, 4]
    for read in reads[:2]:
        arrive(plan, read, 3)
    arrive(plan, plan.reads()[1])  # the whole of 5 is here
    assert plan.next() is not None  # of 6
    assert plan.leave().given_back == (1, 2, 3, 4, 5)


def test_others_get_nothing_of_a_range_that_this_consumer_has_begun() -> None:
    plan = plan_with(ranges(1, 2, 3), [b"a", b"b", b"c"])
    for read in plan.reads():
        arrive(plan, read, 3)
    plan.next()
    plan.acknowledge(3)
    plan.next()
    assert plan.leave().given_back == (3,)

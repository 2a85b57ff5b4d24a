"""The account of what a consumer has been given, and of how much of that it has done with."""

import pytest

from fedstack.service.data.consumer.acknowledgements import Acknowledgements, Position

# Of 1 five elements and the end, three of 2 and two of 3 in turns, and the end of 3.
GIVEN = [(1, 5), (1, 0), (2, 2), (3, 2), (2, 1), (3, 0)]
PLACES = {
    0: Position(),
    3: Position((), {1: 3}),
    5: Position((1,), {}),
    6: Position((1,), {2: 1}),
    8: Position((1,), {2: 2, 3: 1}),
    9: Position((1,), {2: 2, 3: 2}),
    10: Position((1, 3), {2: 3}),
}


def given(*parts: tuple[int, int]) -> Acknowledgements:
    """What there is once these blocks of ranges have been handed out; one of no elements is the end of its range."""
    acknowledgements = Acknowledgements()
    for id, rows in parts:
        acknowledgements.hand_out(id, rows, not rows)
    return acknowledgements


@pytest.mark.parametrize("rows", PLACES)
@pytest.mark.parametrize("done", [0, 3, 5, 6, 8, 9])
def test_a_position_is_the_same_however_much_of_what_is_before_it_is_done_with(rows: int, done: int) -> None:
    acknowledgements = given(*GIVEN)
    acknowledgements.acknowledge(min(done, rows))
    found = acknowledgements.position(rows)
    assert set(found.finished) == set(PLACES[rows].finished)
    assert found.rows == PLACES[rows].rows


def test_a_position_has_what_was_done_with_before() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin(1, 4)
    acknowledgements.begin(2, 4)
    acknowledgements.finish(2)
    acknowledgements.hand_out(1, 3, False)
    assert acknowledgements.position(2) == Position((2,), {1: 6})
    acknowledgements.acknowledge(3)
    assert acknowledgements.position(3) == Position((2,), {1: 7})


def test_a_range_is_done_with_when_its_elements_are_and_its_end_is_here() -> None:
    acknowledgements = given(*GIVEN)
    assert acknowledgements.take_finished() == []
    acknowledgements.acknowledge(4)
    assert acknowledgements.take_finished() == []
    acknowledgements.acknowledge(5)
    assert list(acknowledgements.finished_since) == [1]
    assert acknowledgements.take_finished() == [1]
    acknowledgements.acknowledge(9)
    assert list(acknowledgements.finished_since) == []
    acknowledgements.acknowledge(10)
    assert acknowledgements.take_finished() == [3]
    acknowledgements.hand_out(2, 0, True)
    assert acknowledgements.take_finished() == [2], "nothing waits before that"
    assert acknowledgements.take_finished() == []


def test_all_that_was_given_is_done_with_where_no_number_is_said() -> None:
    acknowledgements = given(*GIVEN, (4, 0))
    acknowledgements.acknowledge(None)
    assert acknowledgements.take_finished() == [1, 3, 4]
    assert acknowledgements.position(10).rows == {2: 3}


def test_ranges_are_told_in_the_order_in_which_they_are_done_with() -> None:
    acknowledgements = given((2, 1), (1, 1), (2, 0), (1, 0))
    acknowledgements.finish(3)
    acknowledgements.acknowledge(None)
    assert acknowledgements.take_finished() == [3, 2, 1]


def test_a_range_has_begun_with_the_first_element_that_is_given() -> None:
    acknowledgements = given((1, 2), (2, 2))
    acknowledgements.acknowledge(2)
    acknowledgements.begin(3, 4)
    acknowledgements.begin(4, 0)
    acknowledgements.finish(5)
    assert [id for id in range(1, 8) if acknowledgements.has_begun(id)] == [1, 2, 3, 5]
    acknowledgements.hand_out(6, 1, False)
    assert [id for id in range(1, 8) if acknowledgements.has_begun(id)] == [1, 2, 3, 5, 6]

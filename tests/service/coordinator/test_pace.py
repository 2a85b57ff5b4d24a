"""What is known of how long calls take at one worker."""

import pytest

from fedstack.service.coordinator.queues import Pace

QUICK = 0.05


def paced(*seconds: float, name: str = "work") -> Pace:
    """Returns what is known after calls that took so long, all of which ended at the time 100."""
    pace = Pace()
    for each in seconds:
        pace.note(name, each, 100.0)
    return pace


def test_of_what_has_never_run_nothing_is_known() -> None:
    pace = paced(0.5, name="other")
    assert pace.slow_seconds("work", 100.0) is None
    assert pace.fast_seconds("work", 1000.0) is None


@pytest.mark.parametrize(("seconds", "is_quick"), [((), False), ((QUICK,), True), ((0.06,), False), ((1.0, 0.0), True)])
def test_a_place_is_quick_when_its_last_call_took_next_to_no_time(seconds: tuple[float, ...], is_quick: bool) -> None:
    assert paced(*seconds).is_quick is is_quick
    assert not paced(*seconds, 0.9).is_quick


def test_each_call_moves_what_is_known_by_two_fifths_of_the_way() -> None:
    assert paced(1.0).slow_seconds("work", 100.0) == 1.0
    assert paced(1.0, 2.0).slow_seconds("work", 100.0) == pytest.approx(1.4)
    assert paced(1.0, 2.0, 0.4).slow_seconds("work", 100.0) == pytest.approx(1.0)
    assert paced(1.0, 2.0).fast_seconds("work", 10.0) == pytest.approx(1.4)


def test_calls_of_each_name_count_on_their_own() -> None:
    pace = paced(1.0)
    pace.note("other", 9.0, 100.0)
    assert pace.slow_seconds("work", 100.0) == 1.0
    assert pace.slow_seconds("other", 100.0) == 9.0


def test_no_call_takes_no_time_at_all() -> None:
    seconds = paced(0.0, 0.0).fast_seconds("work", 1.0)
    assert seconds is not None
    assert 0 < seconds < 0.001


@pytest.mark.parametrize("seconds", [0.06, 0.5, 8.0])
def test_a_place_is_slow_for_ten_times_as_long_as_its_calls_took(seconds: float) -> None:
    pace = paced(seconds)
    assert pace.slow_seconds("work", 100.0 + 10 * seconds) == seconds
    assert pace.slow_seconds("work", 100.0 + 10.01 * seconds) is None


def test_calls_that_are_over_at_once_make_no_place_slow() -> None:
    assert paced(QUICK).slow_seconds("work", 100.0) is None
    assert paced(0.051).slow_seconds("work", 100.0) == 0.051


def test_a_place_is_fast_where_others_take_two_and_a_half_times_as_long() -> None:
    pace = paced(2.0)
    assert pace.fast_seconds("work", 5.0) == 2.0
    assert pace.fast_seconds("work", 4.99) is None
    assert pace.fast_seconds("work", 2.0) is None


def test_of_many_names_those_are_known_that_were_heard_of_last() -> None:
    pace = Pace()
    for number in range(100):
        pace.note(f"{number}", 1.0, 100.0)
    pace.note("0", 1.0, 100.0)
    assert pace.fast_seconds("1", 9.0) == 1.0
    pace.note("100", 1.0, 100.0)
    known = [number for number in range(101) if pace.fast_seconds(f"{number}", 9.0) is not None]
    assert known == [number for number in range(101) if number != 1]

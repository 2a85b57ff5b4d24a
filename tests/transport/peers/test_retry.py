"""How often something is tried again, and after which pauses."""

import pytest

from fedstack.errors import InvalidValueError
from fedstack.transport.peers.retry import RetryPolicy


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def longest_draws(monkeypatch):
    """Every pause is as long as it may be."""
    monkeypatch.setattr("fedstack.transport.peers.retry.draw_seconds", lambda most, what: most)


@pytest.mark.usefixtures("longest_draws")
def test_the_bounds_of_pauses_grow_up_to_the_longest():
    policy = RetryPolicy(attempts=6, first_pause=1.0, multiplier=3.0, longest_pause=20.0)
    assert list(policy.pauses()) == [1.0, 3.0, 9.0, 20.0, 20.0]


@pytest.mark.usefixtures("longest_draws")
def test_not_even_the_first_pause_is_longer_than_the_longest():
    assert list(RetryPolicy(attempts=2, first_pause=5.0, longest_pause=2.0).pauses()) == [2.0]


@pytest.mark.usefixtures("longest_draws")
def test_by_default_there_are_five_tries_within_a_second_and_no_pause_of_more_than_ten():
    assert list(RetryPolicy().pauses()) == [0.05, 0.1, 0.2, 0.4]
    assert max(RetryPolicy(attempts=20).pauses()) == 10.0


def test_pauses_are_drawn_at_random_below_their_bounds():
    pauses = [next(RetryPolicy(first_pause=1.0).pauses()) for _ in range(100)]
    assert len(set(pauses)) > 90
    assert all(0 <= pause <= 1 for pause in pauses)


def test_a_single_try_has_no_pause():
    assert list(RetryPolicy.none().pauses()) == []


@pytest.mark.usefixtures("longest_draws")
def test_no_try_begins_after_the_longest_total():
    clock = Clock()
    pauses = RetryPolicy(attempts=9, first_pause=1.0, longest_total=5.0).pauses(clock)
    clock.now += 2.0  # the first try
    assert next(pauses) == 1.0
    clock.now += 1.0
    assert next(pauses) == 2.0
    clock.now += 2.0
    assert next(pauses, None) is None


def test_the_first_try_may_use_up_the_longest_total():
    clock = Clock()
    pauses = RetryPolicy(longest_total=5.0).pauses(clock)
    clock.now += 6.0
    assert list(pauses) == []


def test_the_longest_total_may_be_for_ever():
    assert len(list(RetryPolicy(attempts=3, longest_total=float("inf")).pauses())) == 2


def test_the_limits_can_be_told():
    assert RetryPolicy.none().limits == "1 attempt"
    assert RetryPolicy(attempts=3).limits == "3 attempts"
    assert RetryPolicy(attempts=3, longest_total=60).limits == "3 attempts and 60 seconds"


@pytest.mark.parametrize(
    ("options", "found"), [({"attempts": 0}, 0), ({"first_pause": -1.0}, -1.0), ({"longest_total": -2.0}, -2.0)]
)
def test_a_limit_that_makes_no_sense_is_refused(options, found):
    with pytest.raises(InvalidValueError, match=f"Expected {next(iter(options))} of at least ., found {found}"):
        RetryPolicy(**options)


@pytest.mark.parametrize("hedging", ["no", 1, None])
def test_hedging_is_on_or_off(hedging):
    with pytest.raises(InvalidValueError, match="Expected hedging to be True or False, found"):
        RetryPolicy(hedging=hedging)

"""Leases last as long as they are renewed or held, and no longer."""

import pytest
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fedstack.errors import InvalidValueError, ResourceLimitError
from fedstack.transport.peers.leases import Leases


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leases(clock):
    return Leases(max_leases=3, clock=clock)


def test_a_lease_runs_out(leases, clock):
    leases.open("a", 10.0)
    clock.now += 9.0
    assert "a" in leases
    assert leases.expired() == []
    assert leases.next_expiry() == leases.seconds_left("a") == 1.0
    clock.now += 1.0
    assert "a" not in leases
    assert leases.next_expiry() == leases.seconds_left("a") == 0.0
    assert leases.expired() == ["a"]
    assert leases.expired() == []
    assert leases.next_expiry() is None


def test_a_renewed_lease_begins_anew(leases, clock):
    leases.open("a", 10.0)
    clock.now += 9.0
    assert leases.renew("a")
    clock.now += 9.0
    assert leases.expired() == []
    assert leases.next_expiry() == 1.0


def test_a_lease_that_has_ended_is_not_renewed(leases, clock):
    assert not leases.renew("never opened")
    leases.open("a", 10.0)
    leases.open("b", 10.0)
    leases.end("b")
    leases.end("b")
    clock.now += 10.0
    assert not leases.renew("a")
    assert not leases.renew("b")
    assert leases.expired() == ["a"]


def test_a_lease_may_be_short(leases, clock):
    leases.open("a", 0.5)
    assert leases.next_expiry() == 0.5
    clock.now += 0.25
    assert "a" in leases
    clock.now += 0.25
    assert leases.expired() == ["a"]


def test_a_lease_that_there_is_not_has_no_time_left(leases):
    assert leases.seconds_left("never opened") == 0.0
    assert "never opened" not in leases


def test_a_lease_is_idle_since_it_was_opened_or_renewed_and_never_while_it_is_held(leases, clock):
    assert leases.idle_seconds("never opened") == 0.0
    leases.open("a", 10.0)
    clock.now += 4.0
    assert leases.idle_seconds("a") == 4.0
    leases.renew("a")
    assert leases.idle_seconds("a") == 0.0
    leases.hold("a")
    clock.now += 4.0
    assert leases.idle_seconds("a") == 0.0
    leases.release("a")
    clock.now += 12.0
    assert leases.idle_seconds("a") == 12.0


def test_a_held_lease_does_not_run_out_and_begins_anew_when_it_is_released(leases, clock):
    leases.open("a", 10.0)
    assert leases.hold("a")
    assert leases.hold("a")
    clock.now += 1000.0
    leases.release("a")
    clock.now += 1000.0
    assert leases.expired() == []
    assert leases.next_expiry() is None
    assert leases.seconds_left("a") == 10.0
    assert leases.renew("a")
    leases.release("a")
    clock.now += 9.0
    assert leases.next_expiry() == 1.0
    clock.now += 1.0
    assert leases.expired() == ["a"]


def test_a_lease_that_has_run_out_cannot_be_held(leases, clock):
    leases.open("a", 10.0)
    clock.now += 10.0
    assert not leases.hold("a")
    leases.release("a")
    assert leases.expired() == ["a"]


def test_a_lease_can_be_ended_while_it_is_held(leases):
    leases.open("a", 10.0)
    leases.hold("a")
    leases.end("a")
    leases.release("a")
    assert len(leases) == 0


def test_a_release_too_many_does_no_harm(leases, clock):
    leases.open("a", 10.0)
    clock.now += 9.0
    leases.release("a")
    assert leases.seconds_left("a") == 1.0


def test_the_next_to_run_out_need_not_be_the_first_that_was_opened(leases, clock):
    leases.open("a", 30.0)
    leases.open("b", 10.0)
    leases.open("c", 20.0)
    assert leases.next_expiry() == 10.0
    clock.now += 20.0
    assert sorted(leases.expired()) == ["b", "c"]


def test_there_are_at_most_so_many(leases, clock):
    for key in "abc":
        leases.open(key, 10.0)
    with pytest.raises(ResourceLimitError, match=r"The maximum number of concurrent leases \(3\) is reached"):
        leases.open("d", 10.0)
    leases.end("b")
    leases.open("d", 10.0)
    clock.now += 10.0
    leases.expired()
    leases.open("e", 10.0)


def test_there_are_ten_thousand_unless_it_is_said_otherwise(clock):
    leases = Leases(clock=clock)
    for key in range(10_000):
        leases.open(key, 10.0)
    with pytest.raises(ResourceLimitError, match=r"concurrent leases \(10000\) is reached"):
        leases.open("one more", 10.0)


def test_a_key_has_one_lease(leases):
    leases.open("a", 10.0)
    with pytest.raises(InvalidValueError, match="The key 'a' already has a lease"):
        leases.open("a", 10.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_lease_lasts_some_time(leases, seconds):
    with pytest.raises(InvalidValueError, match="Expected a lease duration of more than 0 seconds"):
        leases.open("a", seconds)


def test_they_show_how_many_there_are(leases):
    leases.open("a", 10.0)
    leases.open("b", 10.0)
    leases.hold("a")
    assert repr(leases) == "<Leases: 2 of 3, 1 held>"


class LeasesAgainstAModel(RuleBasedStateMachine):
    """The model keeps, for each key, how long it lasts, since when, and its holds; it looks at the clock each time."""

    keys = st.sampled_from("abcd")

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.leases = Leases(max_leases=100, clock=self.clock)
        self.model = {}

    def alive(self, key):
        if key not in self.model:
            return False
        seconds, since, holds = self.model[key]
        return holds > 0 or self.clock.now < since + seconds

    @rule(key=keys, seconds=st.integers(1, 5))
    def open(self, key, seconds):
        if key not in self.model:
            self.leases.open(key, float(seconds))
            self.model[key] = [seconds, self.clock.now, 0]

    @rule(key=keys)
    def renew(self, key):
        assert self.leases.renew(key) == self.alive(key)
        if self.alive(key):
            self.model[key][1] = self.clock.now

    @rule(key=keys)
    def hold(self, key):
        assert self.leases.hold(key) == self.alive(key)
        if self.alive(key):
            self.model[key][2] += 1

    @rule(key=keys)
    def release(self, key):
        self.leases.release(key)
        if key in self.model and self.model[key][2]:
            self.model[key][2] -= 1
            self.model[key][1] = self.clock.now

    @rule(key=keys)
    def end(self, key):
        self.leases.end(key)
        self.model.pop(key, None)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule()
    def collect(self):
        gone = {key for key in self.model if not self.alive(key)}
        assert set(self.leases.expired()) == gone
        for key in gone:
            del self.model[key]

    @invariant()
    def the_same_are_alive(self):
        assert {key for key in "abcd" if key in self.leases} == {key for key in self.model if self.alive(key)}

    @invariant()
    def the_next_expiry_is_that_of_the_model(self):
        ends = [since + seconds for seconds, since, holds in self.model.values() if not holds]
        expected = max(0, min(ends) - self.clock.now) if ends else None
        assert self.leases.next_expiry() == expected


LeasesAgainstAModel.TestCase.settings = settings(stateful_step_count=30, max_examples=examples(50))
test_leases_do_as_the_model_does = LeasesAgainstAModel.TestCase

"""Whatever happens in whatever order, a scheduler keeps its promises."""

from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedstack.errors import WorkerUnavailableError
from fedstack.service.coordinator.scheduling.closures import Closure, Place, State
from fedstack.service.coordinator.scheduling.scheduler import Scheduler

MOST_RUNNING = 3
AWAY = WorkerUnavailableError("it is away")


class Scheduling(RuleBasedStateMachine):
    """Closures come, places come and go, and answer in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler = Scheduler(50, MOST_RUNNING, goes_on=True, clock=lambda: self.now)
        self.places: list[Place] = []
        self.closures: list[Closure] = []
        self.handles: dict[Closure, None] = {}
        self.calls: list[tuple[Place, list[Closure]]] = []

    @precondition(lambda self: self.scheduler.has_room)
    @rule(data=st.data(), repeatable=st.sampled_from([True, True, True, False]))
    def schedule(self, data: st.DataObject, repeatable: bool) -> None:
        needs = data.draw(st.lists(st.sampled_from(list(self.handles)), max_size=3)) if self.handles else []
        closure = Closure("a call", tuple(needs), repeatable, f"{len(self.closures)}")
        self.closures.append(closure)
        self.handles[closure] = None
        self.scheduler.schedule(closure)

    @precondition(lambda self: len(self.places) < 3)
    @rule()
    def join(self) -> None:
        place = Place(len(self.places), "a worker")
        self.places.append(place)
        self.scheduler.add_place(place)

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        self.places.remove(place)
        self.scheduler.lose_place(place, AWAY)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01]))
    def assign(self, seconds: float) -> None:
        self.now += seconds
        for place, closures in self.scheduler.assignments():
            assert closures
            assert not place.silent
            assert not place.draining
            self.scheduler.calls_begin(place, 1)
            for closure in closures:
                assert closure.state is State.RUNNING
                assert all(need.is_there for need in closure.needs)
            self.calls.append((place, closures))
        seconds = self.scheduler.seconds_to_assignments()
        assert seconds is None or seconds > 0

    @rule()
    def wait(self) -> None:
        """Where there is no time to ask again, time alone changes nothing."""
        self.assign(0.0)
        if self.scheduler.seconds_to_assignments() is None:
            self.now += 100.0
            assert self.scheduler.assignments() == []

    @precondition(lambda self: self.places)
    @rule(data=st.data(), what=st.sampled_from(["silent", "not silent", "drain"]))
    def stop(self, data: st.DataObject, what: str) -> None:
        place = data.draw(st.sampled_from(self.places))
        if what == "drain":
            self.scheduler.drain(place)
        else:
            self.scheduler.silent(place, what == "silent")
        saved = self.scheduler.held_only_by(place)
        assert all(closure.copy is None and place in closure.held for closure in saved)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]), comes_home=st.booleans())
    def answer(self, data: st.DataObject, fails: bool, comes_home: bool) -> None:
        place, closures = call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        for closure in closures:
            if fails:
                self.scheduler.failed(closure, place, ValueError(closure.name))
            else:
                self.scheduler.succeeded(closure, place, "held", ("the value",) if comes_home else None)
        self.scheduler.call_ended(place)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), what=st.sampled_from(["drop", "cancel", "need", "copied"]))
    def use(self, data: st.DataObject, what: str) -> None:
        closure = data.draw(st.sampled_from(list(self.handles)))
        if what == "drop":
            del self.handles[closure]
            self.scheduler.drop(closure)
        elif what == "cancel":
            had_ended = closure.has_ended
            assert self.scheduler.cancel(closure) is not had_ended
        elif what == "need":
            self.scheduler.need(closure)
        else:
            self.scheduler.copied(closure, "the value")

    @invariant()
    def values_are_where_they_are_said_to_be(self) -> None:
        for closure in self.closures:
            assert all(closure in place.values and place in self.places for place in closure.held)
            if closure.state is State.READY:
                assert closure.held or closure.copy is not None
            if closure.held:
                assert closure.users > 0
        for place in self.places:
            assert all(place in closure.held for closure in place.values)
            assert len(place.running) <= MOST_RUNNING

    @invariant()
    def nothing_is_forgotten(self) -> None:
        unfinished = [closure for closure in self.closures if not closure.has_ended]
        assert len(unfinished) == self.scheduler.unfinished
        assert self.scheduler.waiting == sum(closure.state is not State.RUNNING for closure in unfinished)
        for closure in unfinished:
            if closure.state is State.WAITING:
                assert closure.missing == sum(closure in need.dependents for need in set(closure.needs)) > 0
        ended = self.scheduler.take_ended()
        assert all(closure in self.closures for closure in ended)

    def teardown(self) -> None:
        """With a place that works, everything comes to its end, in a bounded number of steps."""
        self.join()
        for _ in range(300):
            if self.scheduler.is_idle:
                break
            self.now += 1.0
            given = self.scheduler.assignments()
            for place, _ in given:
                self.scheduler.calls_begin(place, 1)
            for place, closures in given + self.calls:
                for closure in closures:
                    self.scheduler.succeeded(closure, place, "held")
                self.scheduler.call_ended(place)
            self.calls = []
        assert self.scheduler.is_idle
        for closure in list(self.handles):
            self.scheduler.drop(closure)
        assert self.scheduler.values == 0


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

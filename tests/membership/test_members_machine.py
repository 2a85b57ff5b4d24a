"""Whatever happens to workers and callers in whatever order, a fleet keeps its promises."""

from example_counts import examples
from fake_members import AWAY, WRONG, FakeMembers
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedstack.errors import ResourceLimitError
from fedstack.executors.remote.workers import Worker
from fedstack.membership.member import HOPELESS, MemberState
from fedstack.membership.members import AGAIN_SECONDS, LONGEST_PAUSE
from fedstack.membership.waits import GiveUp, LookFor, Use, Wait

CONNECT_SECONDS = 10.0
# What a wait may add to that: for workers that are found again, and since pauses end late here.
MORE_SECONDS = 4.0
ERRORS = st.sampled_from([AWAY, WRONG])
PICKS = st.integers(0, 2**16)


class FleetPromises(RuleBasedStateMachine):
    """A driver without workers: it does what the fleet decides, and a test says what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = FakeMembers(CONNECT_SECONDS)
        self.waits: dict[Wait, float] = {}
        self.removed: set[Worker] = set()
        self.told: dict[Worker, MemberState] = {}

    @initialize(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.add(False)

    def pick(self, number: int, state: MemberState | None = None) -> Worker | None:
        among = [worker for worker in self.fleet.members if state is None or worker.state is state]
        return among[number % len(among)] if among else None

    def after(self) -> None:
        """Does what a driver does after each event, but for the waiting."""
        self.fleet.due()
        for change in self.fleet.take_changes():
            assert self.told.get(change.member, MemberState.NEW) is change.before is not change.after
            self.told[change.member] = change.after

    # What happens to workers.

    @rule(supervised=st.booleans())
    def add(self, supervised: bool) -> None:
        self.fleet.join(f"w{len(self.told)}", supervised=supervised)
        self.after()

    @rule(number=PICKS)
    def remove(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            self.fleet.remove(worker)
            self.removed.add(worker)
            self.after()

    @rule(number=PICKS, error=st.none() | ERRORS)
    def hear(self, number: int, error: Exception | None) -> None:
        """One that is being asked answers, or does not."""
        asking = [worker for worker in self.fleet.members if worker.asking]
        if asking:
            worker = asking[number % len(asking)]
            if error is None:
                self.fleet.answered(worker)
            else:
                self.fleet.failed(worker, error)
            self.after()

    @rule(number=PICKS, error=ERRORS, for_good=st.booleans())
    def lose(self, number: int, error: Exception, for_good: bool) -> None:
        worker = self.pick(number)
        if worker is not None:
            self.fleet.lost(worker, error, for_good=for_good)
            assert not worker.is_ready
            self.after()

    @rule(number=PICKS)
    def drain(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            was_ready = worker.is_ready
            self.fleet.drains(worker)
            assert not worker.is_ready
            assert not (was_ready and worker.asking)
            assert not was_ready or worker.state is MemberState.DRAINING
            self.after()

    @rule(number=PICKS)
    def come_back(self, number: int) -> None:
        worker = self.pick(number)
        if worker is not None:
            self.fleet.returned(worker)
            self.after()

    @rule(number=PICKS, is_full=st.booleans())
    def be_full(self, number: int, is_full: bool) -> None:
        worker = self.pick(number, MemberState.READY)
        if worker is not None:
            if is_full:
                self.fleet.full(worker, ResourceLimitError("no room"))
            else:
                self.fleet.has_room(worker)
            assert self.fleet.is_full(worker) is is_full
            self.after()

    @precondition(lambda self: self.removed)
    @rule(error=ERRORS)
    def late_news(self, error: Exception) -> None:
        """What is heard of a removed worker does not count."""
        for worker in self.removed:
            self.fleet.answered(worker)
            self.fleet.failed(worker, error)
            self.fleet.lost(worker, error)
            self.fleet.drains(worker)
            self.fleet.returned(worker)
        self.after()

    # What callers do.

    @rule()
    def want_all(self) -> None:
        wait = Wait(self.fleet)
        self.waits[wait] = self.fleet.time.now
        self.go_on(wait, 0)

    # What a driver does.

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 5.0]), listening=PICKS)
    def pass_time(self, seconds: float, listening: int) -> None:
        until = self.fleet.time.now + seconds
        while self.fleet.time.now < until:
            self.fleet.time.now += min(AGAIN_SECONDS, until - self.fleet.time.now)
            self.after()
            for wait in list(self.waits):
                self.go_on(wait, listening)

    def go_on(self, wait: Wait, listening: int) -> None:
        decision = wait.decide()
        while isinstance(decision, LookFor):
            self.look_for(decision, listening)
            decision = wait.decide()
        if isinstance(decision, Use):
            assert decision.members == [w for w in self.fleet.members if w.state is MemberState.READY] != []
        elif isinstance(decision, GiveUp):
            assert not any(worker.is_ready for worker in self.fleet.members)
        else:
            assert 0 < decision.seconds <= AGAIN_SECONDS
            assert not self.fleet.members or any(w.state not in HOPELESS for w in self.fleet.members)
            assert self.fleet.time.now - self.waits[wait] <= CONNECT_SECONDS + MORE_SECONDS
            return
        del self.waits[wait]

    def look_for(self, decision: LookFor, listening: int) -> None:
        for index, worker in enumerate(decision.members):
            assert worker.state not in HOPELESS
            assert worker not in self.removed
            if listening >> index & 1:
                self.fleet.returned(worker)
        self.after()

    # What holds at any time.

    @invariant()
    def a_worker_is_in_exactly_one_state(self) -> None:
        for worker in self.fleet.members:
            assert worker.state is self.told.get(worker, MemberState.NEW)
            assert worker.state is not MemberState.REMOVED
            assert (worker.cause is None) or not worker.is_ready
            assert (worker.cause is not None) or worker.state not in (
                MemberState.AWAY,
                MemberState.WRONG,
                MemberState.GONE,
            )
        for worker in self.removed:
            assert worker.state is MemberState.REMOVED
            assert worker not in self.fleet.members
        assert self.fleet.number_ready == len(self.fleet.ready)
        assert self.fleet.states == {worker.state for worker in self.fleet.members}

    @invariant()
    def exactly_those_are_asked_of_whom_that_tells_something(self) -> None:
        for worker in [*self.fleet.members, *self.removed]:
            is_asked = worker.asking or worker.ask_at is not None
            assert not (worker.asking and worker.ask_at is not None)
            if worker.state in (MemberState.READY, MemberState.DRAINING, MemberState.GONE, MemberState.REMOVED):
                assert not is_asked
            elif not worker.supervised or worker.state in (MemberState.NEW, MemberState.BACK):
                assert is_asked
        seconds = self.fleet.seconds_to_due()
        assert seconds is None or 0 <= seconds <= LONGEST_PAUSE


TestFleetPromises = FleetPromises.TestCase
TestFleetPromises.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

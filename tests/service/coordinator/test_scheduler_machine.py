"""Whatever happens in whatever order, a scheduler keeps its promises."""

from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fedstack.errors import WorkerUnavailableError
from fedstack.service.coordinator.calls.closures import (
    AskAgain,
    Closure,
    ClosureState,
    Fetch,
    Leave,
    Notify,
    RunClosures,
    Stop,
    WorkerState,
)
from fedstack.service.coordinator.losses import held_only_by
from fedstack.service.coordinator.scheduler import Scheduler

MOST_RUNNING = 3
AWAY = WorkerUnavailableError("it is away")


class Scheduling(RuleBasedStateMachine):
    """Closures come, workers come and go, and answer in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler = Scheduler(50, MOST_RUNNING, goes_on=True, clock=lambda: self.now)
        self.workers: list[WorkerState] = []
        self.closures: list[Closure] = []
        self.handles: dict[Closure, None] = {}
        self.calls: list[tuple[WorkerState, list[Closure]]] = []
        self.fetches: list[tuple[WorkerState, list[Closure]]] = []
        self.notified: dict[Closure, None] = {}

    @precondition(lambda self: self.scheduler.has_room)
    @rule(data=st.data(), repeatable=st.sampled_from([True, True, True, False]), prefetch=st.booleans())
    def schedule(self, data: st.DataObject, repeatable: bool, prefetch: bool) -> None:
        needs = data.draw(st.lists(st.sampled_from(list(self.handles)), max_size=3)) if self.handles else []
        closure = Closure("a call", tuple(needs), repeatable, prefetch, f"{len(self.closures)}")  # type: ignore[arg-type]
        closure.callbacks[lambda: self.notified.update({closure: None})] = None
        self.closures.append(closure)
        self.handles[closure] = None
        self.scheduler.schedule(closure)

    @precondition(lambda self: len(self.workers) < 3)
    @rule()
    def join(self) -> None:
        worker = WorkerState(len(self.workers), "a worker")
        self.workers.append(worker)
        self.scheduler.add_worker(worker)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self._lose(data.draw(st.sampled_from(self.workers)))

    def _lose(self, worker: WorkerState) -> None:
        self.workers.remove(worker)
        self.scheduler.lose_worker(worker, AWAY)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01]))
    def act(self, seconds: float) -> None:
        self.now += seconds
        self._act()

    def _act(self) -> float | None:
        """Does what the scheduler wants; returns when it is to be asked again."""
        again = None
        for action in self.scheduler.actions():
            match action:
                case RunClosures(worker, closures):
                    self._run(worker, list(closures))
                case Fetch(worker, closures):
                    assert worker in self.workers
                    assert all(closure in worker.fetching for closure in closures)
                    self.fetches.append((worker, list(closures)))
                case Stop(worker, closures):
                    assert all(closure.state is ClosureState.CANCELLED for closure in closures)
                    assert all(closure in worker.running for closure in closures)
                case Notify(callbacks):
                    for callback in callbacks:
                        callback()
                case Leave(worker):
                    assert worker.draining
                    assert not worker.running
                    assert all(closure in worker.refused for closure in held_only_by(worker))
                    self._lose(worker)
                case AskAgain(again):
                    assert again > 0
                case _:
                    assert not self.workers
        return again

    def _run(self, worker: WorkerState, closures: list[Closure]) -> None:
        assert closures
        assert not worker.silent
        assert not worker.draining
        self.scheduler.called(worker, 1)
        for closure in closures:
            assert closure.state is ClosureState.RUNNING
            assert all(need.is_there for need in closure.needs)
        self.calls.append((worker, closures))

    @rule()
    def wait(self) -> None:
        """Where there is no time to ask again, time alone changes nothing."""
        self._act()
        if self._act() is None:
            self.now += 100.0
            assert not any(isinstance(action, RunClosures | Fetch | Leave) for action in self.scheduler.actions())

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), what=st.sampled_from(["silent", "not silent", "drain"]))
    def stop(self, data: st.DataObject, what: str) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        if what == "drain":
            self.scheduler.drain(worker)
        else:
            self.scheduler.silent(worker, what == "silent")
        saved = held_only_by(worker)
        assert all(closure.copy is None and worker in closure.held for closure in saved)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def answer(self, data: st.DataObject, fails: bool) -> None:
        worker, closures = call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        for closure in closures:
            if fails:
                self.scheduler.failed(closure, worker, ValueError(closure.name))
            else:
                self.scheduler.succeeded(closure, worker, "held")
        self.scheduler.called(worker, -1)

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def bring(self, data: st.DataObject, fails: bool) -> None:
        worker, closures = fetch = data.draw(st.sampled_from(self.fetches))
        self.fetches.remove(fetch)
        for closure in closures:
            if fails:
                self.scheduler.not_fetched(closure, worker, ValueError(closure.name))
            else:
                self.scheduler.copied(closure, "the value", worker)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), what=st.sampled_from(["drop", "cancel", "need", "want", "unwant"]))
    def use(self, data: st.DataObject, what: str) -> None:
        closure = data.draw(st.sampled_from(list(self.handles)))
        if what == "drop":
            del self.handles[closure]
            for worker in self.scheduler.drop(closure):
                for sender, closures in self.fetches:
                    if sender is worker and closure in closures:
                        closures.remove(closure)
        elif what == "cancel":
            had_ended = closure.has_ended
            assert self.scheduler.cancel(closure) is not had_ended
        elif what == "need":
            self.scheduler.need(closure)
        elif what == "want":
            self.scheduler.want(closure)
        else:
            self.scheduler.unwant(closure)

    @invariant()
    def values_are_where_they_are_said_to_be(self) -> None:
        for closure in self.closures:
            assert all(closure in worker.values and worker in self.workers for worker in closure.held)
            if closure.state is ClosureState.READY:
                assert closure.held or closure.copy is not None
            if closure.held:
                assert closure.users > 0 or closure.state is ClosureState.RUNNING
            if closure.state is ClosureState.RUNNING and closure.held:
                assert closure.prefetch
        for worker in self.workers:
            assert all(worker in closure.held for closure in worker.values)
            assert len(worker.running) <= MOST_RUNNING

    @invariant()
    def what_is_wanted_comes(self) -> None:
        for closure in self.closures:
            senders = [worker for worker in self.workers if closure in worker.fetching]
            if closure.wanted and closure.is_there:
                assert closure.copy is not None or len(senders) == 1
            if closure.wanted and closure.has_ended:
                assert closure.state is not ClosureState.LOST

    @invariant()
    def nothing_is_forgotten(self) -> None:
        unfinished = [closure for closure in self.closures if not closure.has_ended]
        assert len(unfinished) == self.scheduler.unfinished
        assert self.scheduler.waiting == sum(closure.state is not ClosureState.RUNNING for closure in unfinished)
        for closure in unfinished:
            if closure.state is ClosureState.WAITING:
                assert closure.missing == sum(closure in need.dependents for need in set(closure.needs)) > 0

    def teardown(self) -> None:
        """With a worker that works, everything comes to its end, in a bounded number of steps."""
        self.join()
        for _ in range(300):
            self.now += 1.0
            self._act()
            for worker, closures in self.calls:
                for closure in closures:
                    self.scheduler.succeeded(closure, worker, "held")
                self.scheduler.called(worker, -1)
            for worker, closures in self.fetches:
                for closure in closures:
                    self.scheduler.copied(closure, "the value", worker)
            self.calls, self.fetches = [], []
            if self.scheduler.is_idle and not any(worker.draining or worker.fetching for worker in self.workers):
                break
        assert self.scheduler.is_idle
        self._act()
        assert set(self.notified) == set(self.closures)
        for closure in list(self.handles):
            assert closure.is_here or not closure.wanted
            self.scheduler.drop(closure)
        assert self.scheduler.values == 0


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

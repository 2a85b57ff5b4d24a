"""When a phase ends before all of its clients are done: whatever happens to workers, enough are in."""

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.early_end import EarlyEnd
from fedstack.executors.concurrency.progress import PartProgress, ProgressCounts
from fedstack.executors.survivors.ending import Ending


class Phase:
    """A phase of ten clients on two workers, which ends once some of its clients are done."""

    def __init__(self, enough: int = 8) -> None:
        self.assignments = Assignments(range(10))
        self.first, self.second = self.assignments.begin(["w0", "w1"], [5, 5])
        self.late: list[range] = []
        self.early = EarlyEnd(Ending(enough, 10), self.assignments, self.late.append)
        self.counts = {one: PartProgress(ProgressCounts()) for one in (self.first, self.second)}
        for one, counts in self.counts.items():
            self.early.begun(one, counts)

    def turn(self, now: float, *silent: Assignment) -> list[Assignment]:
        return list(self.early.turn(now, lambda one: one in silent))

    def hand_in(self, one: Assignment, clients: range, unfinished: int = 0) -> None:
        """Hands in clients, of which the last are not done."""
        assert self.assignments.handed_in(one, clients)
        self.counts[one].settled(len(clients) - unfinished)
        self.early.contributed(len(clients) - unfinished)
        if unfinished:
            self.assignments.wait(range(clients.stop - unfinished, clients.stop), is_held=False)
        if not one.left:
            assert self.assignments.ended(one)


def test_all_workers_are_asked_once_enough_clients_are_said_to_be_done() -> None:
    phase = Phase(enough=8)
    phase.counts[phase.first].finished(4)
    phase.counts[phase.second].finished(3)
    assert phase.turn(1.0) == []
    phase.counts[phase.second].finished(1)
    assert phase.turn(2.0) == [phase.first, phase.second]
    assert phase.early.is_asking
    assert phase.turn(2.1) == []
    phase.hand_in(phase.first, range(5), unfinished=1)
    assert phase.turn(2.2) == []
    phase.hand_in(phase.second, range(5, 10), unfinished=1)
    assert phase.turn(2.3) == []
    assert phase.early.is_over
    assert sorted(phase.late, key=lambda some: some.start) == [range(4, 5), range(9, 10)]
    assert phase.assignments.is_done


def test_what_has_been_handed_in_counts_once() -> None:
    phase = Phase(enough=8)
    phase.counts[phase.first].finished(5)
    phase.hand_in(phase.first, range(5))
    phase.counts[phase.second].finished(2)
    assert phase.turn(1.0) == []
    phase.counts[phase.second].finished(1)
    assert phase.turn(1.0) == [phase.second]


def test_clients_that_ran_on_a_worker_that_is_lost_meanwhile_run_again() -> None:
    phase = Phase(enough=8)
    phase.counts[phase.first].finished(4)
    phase.counts[phase.second].finished(4)
    assert phase.turn(1.0) == [phase.first, phase.second]
    phase.hand_in(phase.first, range(5), unfinished=1)
    phase.assignments.lost(phase.second, 1.0)
    assert phase.turn(1.1) == []
    assert not phase.early.is_asking
    assert not phase.early.is_over
    assert not phase.late
    phase.assignments.present(["w0"])
    started = phase.assignments.start(1.1)
    assert sorted(one.clients.start for one in started) == [4, 5]


def test_a_worker_that_does_not_answer_is_not_waited_for_if_the_others_are_enough() -> None:
    phase = Phase(enough=4)
    phase.counts[phase.first].finished(4)
    assert phase.turn(1.0) == [phase.first, phase.second]
    phase.hand_in(phase.first, range(5), unfinished=1)
    assert phase.turn(1.5) == []
    assert phase.early.wakes_at == 3.0
    assert phase.turn(3.0) == []
    assert phase.early.is_over
    assert phase.late == [range(5, 10), range(4, 5)]
    assert phase.assignments.dropped == [phase.second]


def test_workers_that_do_not_answer_are_asked_again_later() -> None:
    phase = Phase(enough=5)
    phase.counts[phase.first].finished(5)
    assert phase.turn(1.0) == [phase.first, phase.second]
    assert phase.turn(3.0) == []
    assert not phase.early.is_over
    assert not phase.early.is_asking
    assert phase.turn(4.9) == [], "not at once"
    assert phase.early.wakes_at == 5.0
    assert phase.turn(5.0) == [phase.first, phase.second]
    phase.hand_in(phase.first, range(5))
    assert phase.turn(7.0) == []
    assert phase.early.is_over
    assert phase.late == [range(5, 10)]


def test_of_clients_that_run_twice_only_the_worker_that_has_done_more_is_asked() -> None:
    phase = Phase(enough=5)
    phase.counts[phase.first].finished(5)
    phase.hand_in(phase.first, range(5))
    (copy,) = phase.assignments.copy(phase.second, ["w0"])
    phase.early.begun(copy, PartProgress(ProgressCounts()))
    phase.counts[phase.second].finished(1)
    assert phase.turn(1.0) == [phase.second]
    assert phase.assignments.dropped == [copy]


def test_a_silent_worker_is_not_asked_if_another_one_runs_its_clients() -> None:
    phase = Phase(enough=5)
    phase.counts[phase.first].finished(5)
    phase.hand_in(phase.first, range(5))
    (copy,) = phase.assignments.copy(phase.second, ["w0"])
    phase.early.begun(copy, PartProgress(ProgressCounts()))
    phase.counts[phase.second].finished(1)
    assert phase.turn(1.0, phase.second) == [copy]
    assert phase.assignments.dropped == [phase.second]

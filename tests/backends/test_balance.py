"""When clients move to idle workers, and when they run twice."""

import math

from fedstack.backends.elastic.assignment import Assignment
from fedstack.backends.elastic.assignments import Assignments
from fedstack.backends.elastic.balance import Ask, Balance
from fedstack.executors.base.hand_ins import Headway


class Phase:
    """A phase of 40 clients per worker that has begun, and the time."""

    def __init__(self, workers: int = 4, *, hedging: bool = True, each: int = 40) -> None:
        self.names = [f"w{index}" for index in range(workers)]
        self.assignments = Assignments(range(each * workers))
        self.balance = Balance(self.assignments, each * workers, 0.0, hedging=hedging)
        self.balance.present(self.names)
        self.at = {one.worker: one for one in self.assignments.begin(self.names, [each] * workers)}
        for one in self.at.values():
            self.balance.begun(one, 0.0)

    def end(self, *names: str, now: float) -> None:
        for name in names:
            one = self.at[name]
            for left in list(one.left):
                assert self.assignments.handed_in(one, left)
            assert self.assignments.ended(one)
            self.balance.ended(one, now)
        assert not self.balance.asks(now), "others may be about to end"

    def the_ask(self, now: float) -> Ask:
        (ask,) = self.balance.asks(now)
        return ask


def spans(assignments: list[Assignment]) -> list[tuple[str, range]]:
    return [(str(one.worker), one.clients) for one in assignments]


def test_idle_workers_take_over_clients_of_the_one_that_has_most_left() -> None:
    phase = Phase()
    assert phase.assignments.handed_in(phase.at["w2"], range(80, 100))
    phase.end("w0", "w1", now=0.4)
    ask = phase.the_ask(0.45)
    assert (ask.assignment, ask.workers) == (phase.at["w3"], ["w0", "w1"])
    assert math.isclose(ask.rate, 200.0)
    moved = phase.balance.answered(ask, Headway(130, 8), 0.45)
    assert spans(moved) == [("w0", range(130, 145)), ("w1", range(145, 160))]
    assert phase.at["w3"].left == [range(120, 130)]


def test_a_worker_is_asked_once_at_a_time_and_again_after_a_while_if_it_kept_all() -> None:
    phase = Phase(2)
    phase.end("w0", now=1.0)
    ask = phase.the_ask(1.1)
    assert not phase.balance.asks(1.2)
    assert not phase.balance.answered(ask, Headway(80, 10), 1.2)
    assert not phase.balance.asks(1.3)
    assert phase.the_ask(1.5).assignment is phase.at["w1"]


def test_a_worker_that_cannot_leave_clients_yet_is_asked_again_after_a_while() -> None:
    phase = Phase(2)
    phase.end("w0", now=1.0)
    assert not phase.balance.answered(phase.the_ask(1.1), None, 1.1)
    assert not phase.balance.asks(1.2)
    assert phase.balance.wakes_at(1.2) is not None
    assert phase.the_ask(1.4).assignment is phase.at["w1"]


def test_a_phase_that_has_just_begun_stays_as_it_is() -> None:
    phase = Phase(2)
    phase.end("w0", now=0.001)
    assert not phase.balance.asks(0.04)
    assert phase.balance.wakes_at(0.04) == 0.05
    assert phase.balance.asks(0.05)


def test_nobody_is_asked_while_everybody_is_busy() -> None:
    phase = Phase(2)
    assert not phase.balance.asks(1.0)
    assert phase.balance.wakes_at(1.0) is None


def test_a_worker_that_joins_takes_over_clients_at_the_pace_of_the_others() -> None:
    phase = Phase(2)
    phase.assignments.handed_in(phase.at["w0"], range(20))
    phase.assignments.present([*phase.names, "new"])
    phase.balance.present([*phase.names, "new"])
    assert not phase.balance.asks(2.0)
    ask = phase.the_ask(2.1)
    assert (ask.assignment, ask.workers) == (phase.at["w1"], ["new"])
    assert math.isclose(ask.rate, 20 / 2.1)


def test_the_pace_of_a_worker_is_that_of_all_that_it_has_run() -> None:
    phase = Phase(2)
    phase.end("w0", now=4.0)
    (more,) = phase.balance.answered(phase.the_ask(4.5), Headway(60, 20), 5.0)
    phase.balance.begun(more, 5.0)
    assert phase.assignments.handed_in(more, more.clients)
    assert phase.assignments.ended(more)
    phase.balance.ended(more, 6.0)
    assert not phase.balance.asks(6.0)
    assert math.isclose(phase.the_ask(6.5).rate, (40 + 20) / (4.0 + 1.0))


def test_a_worker_that_drains_is_asked_once_for_all_that_it_has_not_begun() -> None:
    phase = Phase(3)
    phase.assignments.present(["w0", "w1"])
    phase.balance.present(["w0", "w1"], {"w2"})
    ask = phase.the_ask(0.2)
    assert (ask.assignment, list(ask.workers), ask.rate) == (phase.at["w2"], [], math.inf)
    assert not phase.balance.answered(ask, Headway(90, 8), 0.2)
    assert not phase.balance.asks(0.3)
    started = phase.assignments.start(0.3)
    assert spans(started) == [("w0", range(90, 105)), ("w1", range(105, 120))]


def test_a_worker_that_drains_and_cannot_leave_clients_yet_is_asked_again_though_none_is_idle() -> None:
    phase = Phase(2)
    phase.balance.present(["w0"], {"w1"})
    assert not phase.balance.answered(phase.the_ask(0.2), None, 0.2)
    assert not phase.balance.asks(0.3)
    wakes_at = phase.balance.wakes_at(0.3)
    assert wakes_at == 0.4
    ask = phase.the_ask(wakes_at)
    assert (ask.assignment, ask.rate) == (phase.at["w1"], math.inf)
    assert phase.balance.wakes_at(0.4) is None
    assert not phase.balance.answered(ask, Headway(60, 0), 0.5)
    assert not phase.balance.asks(1.0)


def test_clients_of_a_worker_that_does_not_answer_run_twice_at_once() -> None:
    phase = Phase()
    phase.end("w0", "w1", "w2", now=1.0)
    phase.balance.answered(phase.the_ask(1.1), None, 2.1, is_silent=True)
    copies = phase.balance.copies(2.1)
    assert [clients for _, clients in spans(copies)] == [range(120, 134), range(134, 147), range(147, 160)]
    assert not phase.balance.copies(2.1), "once is enough"
    for copy in copies:
        assert phase.assignments.handed_in(copy, copy.clients)
        assert phase.assignments.ended(copy)
    assert phase.assignments.dropped == [phase.at["w3"]]
    assert phase.assignments.is_done


def test_the_last_clients_of_a_slow_worker_run_twice_if_they_are_few() -> None:
    for begun, is_copied in ((4, True), (6, False)):
        phase = Phase()
        slow = phase.at["w3"]
        phase.end("w0", "w1", "w2", now=1.0)
        phase.assignments.handed_in(slow, range(120, 160 - begun))
        phase.balance.answered(phase.the_ask(1.1), Headway(160, 40 - begun), 4.0)
        assert not phase.balance.copies(1.2), "another moment may be enough"
        assert bool(phase.balance.copies(4.0)) is is_copied


def test_the_clients_of_a_worker_that_is_as_fast_as_others_run_once_however_long_they_take() -> None:
    phase = Phase()
    phase.end("w0", "w1", "w2", now=1.0)
    phase.assignments.handed_in(phase.at["w3"], range(120, 159))
    phase.balance.answered(phase.the_ask(1.1), Headway(160, 39), 1.2)
    assert not phase.balance.copies(1.9)


def test_clients_that_were_lost_with_a_worker_do_not_run_twice() -> None:
    phase = Phase(3)
    phase.assignments.lost(phase.at["w2"], 0.2)
    phase.end("w0", "w1", now=1.0)
    phase.assignments.present(["w0", "w1", "w2"])
    again = phase.assignments.start(1.0)
    for one in again:
        phase.balance.begun(one, 1.0)
    first, *others = again
    for one in others:
        phase.assignments.handed_in(one, one.clients)
        assert phase.assignments.ended(one)
        phase.balance.ended(one, 1.1)
    for ask in phase.balance.asks(5.0):
        phase.balance.answered(ask, None, 6.0, is_silent=True)
    assert first.losses == 1
    assert not phase.balance.copies(7.0)


def test_nothing_runs_twice_without_hedging() -> None:
    phase = Phase(hedging=False)
    phase.end("w0", "w1", "w2", now=1.0)
    phase.balance.answered(phase.the_ask(1.1), None, 2.1, is_silent=True)
    assert not phase.balance.copies(10.0)


def test_an_answer_that_comes_after_the_end_changes_nothing() -> None:
    phase = Phase(2)
    phase.end("w0", now=1.0)
    ask = phase.the_ask(1.1)
    phase.end("w1", now=1.1)
    assert not phase.balance.answered(ask, Headway(60, 8), 1.2)
    assert phase.assignments.is_done

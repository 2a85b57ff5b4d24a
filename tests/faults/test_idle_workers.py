"""Workers that have nothing to do take over clients of workers that are slow, stand still, or are to stop."""

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_leaves import mean_visit, mean_visit_beside, sum_of_visits_or_failures
from fault_stacks import Background, Door, context_over, eventually, locally
from processes import Fleet
from serving import served
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.__main__ import main
from fedstack.observe import ClientsChanged, ClientsTakenOver, PhaseEnded

pytestmark = pytest.mark.slow

CLIENTS = 18
MODEL = np.ones(1_000_000, np.float32)
# On a busy machine, a worker that is only slow may seem to stand still, and its client would run twice.
NO_HEDGING = fedstack.RetryPolicy(hedging=False)


def bits(value: object) -> bytes:
    return np.asarray(value).tobytes()


def arguments(opened: Door, *waiting: tuple[int, Door]) -> list[tuple[int, float]]:
    """Returns clients that are let in at once, but for some that wait at other doors."""
    doors = dict(waiting)
    return [(doors.get(number, opened).port, 0.1 * number) for number in range(CLIENTS)]


def counts(diary: Diary) -> tuple[int, int]:
    """Returns how many clients are done, and how many have started and not ended."""
    changes = diary.of(ClientsChanged)
    done, started, ended = (
        sum(event.done for event in changes),
        sum(event.started for event in changes),
        sum(event.done + event.failed + event.given_up for event in changes),
    )
    return done, started - ended


def status(capsys: pytest.CaptureFixture[str], target: str) -> dict[str, Any]:
    """Returns what a worker reports about itself."""
    assert main(["status", target, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def origins(capsys: pytest.CaptureFixture[str], target: str) -> list[tuple[str, str]]:
    """Returns why a worker runs clients that it did not have from the beginning, and which worker had them."""
    found = [phase["origin"] for phase in status(capsys, target)["phases"] if phase["origin"]]
    return [(why, worker) for why, _, worker in (text.rpartition(" ") for text in found)]


@pytest.fixture
def opened(doors: Callable[[], Door]) -> Door:
    made = doors()
    made.open()
    return made


@pytest.fixture
def gate(doors: Callable[[], Door]) -> Door:
    """Where the first client waits until the second worker has begun with its own, or the first would take them."""
    return doors()


def test_an_idle_worker_runs_what_a_slow_one_has_not_begun(fleet: Fleet, door: Door, gate: Door, opened: Door) -> None:
    fast, slow = fleet.start(threads=1), fleet.start(threads=1)
    clients, diary = arguments(opened, (0, gate), (9, door)), Diary()
    with context_over([fast.target, slow.target], retry_policy=NO_HEDGING), observe.add_observer(diary):
        running = Background(lambda: mean_visit(clients))
        door.wait_for(running, slow.pid)
        gate.open()
        eventually(lambda: len(opened.visitors) == CLIENTS - 2)
        door.open()
        found = running.result()
        eventually(lambda: counts(diary) == (CLIENTS, 0))
        assert bits(found) == bits(locally(mean_visit, clients))
    assert set(opened.visitors[: CLIENTS - 2]) == {fast.pid}
    assert door.visitors[:1] == [slow.pid]
    moved = diary.of(ClientsTakenOver)
    assert {(event.worker, event.by, event.runs_twice) for event in moved} == {(slow.target, fast.target, False)}
    assert sum(event.clients for event in moved) == 8


def test_a_large_value_that_clients_share_is_not_sent_again_with_clients_that_move(
    fleet: Fleet, door: Door, gate: Door, opened: Door
) -> None:
    fast, slow = fleet.start(threads=1), fleet.start(threads=1)
    clients, diary = arguments(opened, (0, gate), (9, door)), Diary()
    with context_over([fast.target, slow.target], retry_policy=NO_HEDGING), observe.add_observer(diary):
        running = Background(lambda: mean_visit_beside(clients, MODEL))
        door.wait_for(running, slow.pid)
        gate.open()
        eventually(lambda: len(opened.visitors) == CLIENTS - 2)
        door.open()
        assert bits(running.result()) == bits(locally(mean_visit, clients))
    sent = [(event.worker, event.bytes_sent > MODEL.nbytes) for event in diary.of(PhaseEnded) if event.worker]
    assert sorted(sent) == sorted([(fast.target, True), (slow.target, True), *[(fast.target, False)] * (len(sent) - 2)])
    assert len(sent) > 2, "the fast worker took over clients"


def test_clients_of_a_worker_that_stands_still_run_elsewhere_and_it_may_wake(
    fleet: Fleet, door: Door, gate: Door, opened: Door
) -> None:
    left, still = fleet.start(threads=1), fleet.start(threads=1, heartbeat_seconds=60.0)
    clients, diary = arguments(opened, (0, gate), (9, door)), Diary()
    with context_over([left.target, still.target]), observe.add_observer(diary):
        running = Background(lambda: mean_visit(clients))
        door.wait_for(running, still.pid)
        gate.open()
        still.stop()
        eventually(lambda: left.pid in door.visitors)
        door.open()
        found = running.result()
        eventually(lambda: counts(diary) == (CLIENTS, 0))
        assert bits(found) == bits(locally(mean_visit, clients))
        assert any(event.runs_twice and event.worker != left.target for event in diary.of(ClientsTakenOver))
        still.wake()
        again = arguments(opened)
        assert bits(Background(lambda: mean_visit(again)).result()) == bits(locally(mean_visit, again))


def test_of_two_copies_the_one_that_is_not_needed_is_stopped_between_clients(
    fleet: Fleet, door: Door, gate: Door, opened: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    left, still = fleet.start(threads=1), fleet.start(threads=1, heartbeat_seconds=60.0)
    clients = arguments(opened, (0, gate), (9, door))
    with context_over([left.target, still.target]):
        running = Background(lambda: mean_visit(clients))
        door.wait_for(running, still.pid)
        gate.open()
        still.stop()
        eventually(lambda: left.pid in door.visitors)
        assert ("also at", still.target) in origins(capsys, left.target)
        door.let_in(left.pid)
        found = running.result()
        still.wake()
        eventually(lambda: not status(capsys, still.target)["phases"])
        door.open()
        eventually(lambda: not status(capsys, still.target)["busy_threads"])
        assert bits(found) == bits(locally(mean_visit, clients))
    assert still.pid not in opened.visitors, "clients 10 to 17 have not begun"


@pytest.mark.parametrize("stands_still", [False, True])
def test_a_client_that_fails_on_one_of_two_workers_is_done_if_the_other_responds(
    fleet: Fleet, door: Door, gate: Door, stands_still: bool
) -> None:
    fast, slow = fleet.start(threads=1), fleet.start(threads=1, heartbeat_seconds=60.0)
    clients, diary = [(0, 0)] * 80, Diary()
    clients[0], clients[40] = (gate.port, fast.pid), (door.port, slow.pid)
    policy = fedstack.ClientFailures()
    with context_over([fast.target, slow.target], client_failures=policy), observe.add_observer(diary):
        sum_of_visits_or_failures([(0, 0)] * 80)  # a new function would first run on one worker
        running = Background(lambda: sum_of_visits_or_failures(clients))
        door.wait_for(running, slow.pid)
        gate.open()
        if stands_still:
            slow.stop()
        eventually(lambda: any(event.runs_twice for event in diary.of(ClientsTakenOver)))
        if stands_still:
            assert running.result() == 79
            slow.wake()
        else:
            copies = [event for event in diary.of(ClientsTakenOver) if event.runs_twice]
            ends = {(event.by, event.first_client) for event in copies}
            eventually(lambda: running.ended or ends <= {(e.worker, e.first_client) for e in diary.of(PhaseEnded)})
            assert not running.ended
            door.open()
            assert running.result() == 80
        door.open()


def test_without_hedging_clients_do_not_run_twice(fleet: Fleet, door: Door, gate: Door, opened: Door, caplog) -> None:
    left, still = fleet.start(threads=1), fleet.start(threads=1)
    clients, diary = arguments(opened, (0, gate), (9, door)), Diary()
    with context_over([left.target, still.target], retry_policy=NO_HEDGING), observe.add_observer(diary):
        running = Background(lambda: mean_visit(clients))
        door.wait_for(running, still.pid)
        gate.open()
        still.stop()
        eventually(lambda: left.pid in door.visitors)  # once the worker's silence counts as a loss
        door.open()
        found = running.result()
        assert bits(found) == bits(locally(mean_visit, clients))
    assert not any(event.runs_twice for event in diary.of(ClientsTakenOver))
    assert "Running client" in caplog.text


def test_a_worker_that_comes_back_in_the_midst_of_a_phase_takes_part(
    fleet: Fleet, doors: Callable[[], Door], opened: Door, caplog
) -> None:
    busy, lost = fleet.start(threads=1), fleet.start(threads=1)
    first, second = doors(), doors()
    clients, diary = arguments(opened, (0, first), (9, second)), Diary()
    with context_over([busy.target, lost.target]), observe.add_observer(diary):
        running = Background(lambda: mean_visit(clients))
        first.wait_for(running, busy.pid)
        second.wait_for(running, lost.pid)
        back = fleet.restart(lost, threads=1)
        known = {busy.pid, lost.pid}
        eventually(lambda: set(opened.visitors) - known)  # a child of the worker that is back
        first.open()
        second.open()
        found = running.result()
        eventually(lambda: counts(diary) == (CLIENTS, 0))
        assert bits(found) == bits(locally(mean_visit, clients))
    assert "Running clients 9 to 17 again" in caplog.text
    assert any(event.worker == back.target for event in diary.of(PhaseEnded))


def test_a_worker_that_is_to_stop_ends_what_it_has_begun_and_leaves_the_rest(door: Door, opened: Door) -> None:
    clients = arguments(opened, (0, door), (9, door))
    with contextlib.ExitStack() as stack:
        stays, stops = (
            stack.enter_context(
                served("--allow-python-code", "--threads", "1", environment={"PYTHONPATH": str(Path(__file__).parent)})
            )
            for _ in range(2)
        )
        stack.enter_context(context_over([stays.target, stops.target]))
        running = Background(lambda: mean_visit(clients))
        door.wait_for(running, stays.process.pid, stops.process.pid)
        diary = Diary()
        with observe.add_observer(diary):
            stops.process.send_signal(signal.SIGTERM)
            eventually(lambda: diary.of(ClientsTakenOver) or running.ended)
        door.open()
        found = running.result()
        assert bits(found) == bits(locally(mean_visit, clients))
        assert stops.process.wait(30) == 0
        assert opened.visitors.count(stops.process.pid) == 0


def test_the_only_client_of_a_worker_that_stands_still_runs_elsewhere(fleet: Fleet, door: Door) -> None:
    workers = {worker.pid: worker for worker in (fleet.start(), fleet.start(heartbeat_seconds=60.0))}
    with context_over([worker.target for worker in workers.values()]):
        running = Background(lambda: mean_visit([(door.port, 0.5)]))
        eventually(lambda: door.visitors)
        (first,) = door.visitors
        workers[first].stop()
        eventually(lambda: len(door.visitors) > 1)
        door.open()
        found = running.result()
        assert bits(found) == bits(locally(mean_visit, [(door.port, 0.5)]))
    assert set(door.visitors[:2]) == set(workers)

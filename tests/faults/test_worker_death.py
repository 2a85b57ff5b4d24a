"""Workers that die or freeze in the midst of a round, and those that come back."""

import logging

import numpy as np
import pytest
from fault_leaves import MODEL, doubled_sum, mean_length, mean_visit, mean_wobble, models
from fault_stacks import Background, Door, context_over, eventually, locally, status_of
from processes import Fleet, WorkerProcess, command_line_worker
from tcp_proxy import Proxies
from watching import Diary

import fedstack
from fedstack import observe
from fedstack.errors import NoWorkersError, RetryLimitError, WorkerUnavailableError
from fedstack.observe import ClientsHandedIn, ClientsRetried

pytestmark = pytest.mark.slow

ENDINGS = pytest.mark.parametrize("end", [WorkerProcess.kill, WorkerProcess.stop], ids=["SIGKILL", "SIGSTOP"])
NUMBERS = [0.1 * number for number in range(37)]
# So that clients run again after a loss, and not because another worker is idle.
UNHEDGED = fedstack.RetryPolicy(hedging=False)


def bits(value: object) -> bytes:
    return b"".join(np.asarray(part).tobytes() for part in (value if isinstance(value, list) else [value]))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the warnings, but for those that a worker is still away, which come only if a test takes its time."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in found if not text.startswith("Continuing without the worker at")]


def check_one_retry(caplog: pytest.LogCaptureFixture, lost: WorkerProcess) -> None:
    (warning,) = warnings(caplog)
    assert warning.startswith("Running client")
    assert "WorkerUnavailableError: The worker at " in warning
    assert "was lost while it ran its part" in warning


@pytest.mark.long
@ENDINGS
def test_a_round_is_run_on_the_worker_that_is_left_if_one_ends_before_it_begins(fleet: Fleet, caplog, end) -> None:
    lost, left = fleet.start(), fleet.start()
    expected = locally(mean_wobble, NUMBERS)
    with context_over([lost.target, left.target], retry_policy=UNHEDGED):
        assert bits(mean_wobble(NUMBERS)) == bits(expected)
        end(lost)
        assert bits(Background(lambda: mean_wobble(NUMBERS)).result()) == bits(expected)
        check_one_retry(caplog, lost)
        assert bits(mean_wobble(NUMBERS)) == bits(expected)
    assert len(warnings(caplog)) == 1


@pytest.mark.long
@ENDINGS
def test_a_round_is_run_again_if_a_worker_ends_while_inputs_are_sent(
    fleet: Fleet, proxies: Proxies, caplog, end
) -> None:
    lost, left = fleet.start(), fleet.start()
    proxy = proxies.before(lost.target)
    inputs = [np.full(MODEL.shape, 0.001 * number, np.float32) for number in range(6)]
    expected = locally(mean_length, inputs)
    with context_over([proxy.target, left.target], retry_policy=UNHEDGED):
        doubled_sum([1, 2])
        is_sending = proxy.hold_after("up", 5_000_000)
        running = Background(lambda: mean_length(inputs))
        assert is_sending.wait(20)
        end(lost)
        assert bits(running.result()) == bits(expected)
    check_one_retry(caplog, lost)


@pytest.mark.long
@ENDINGS
def test_a_round_is_run_again_if_a_worker_ends_while_clients_run(fleet: Fleet, door: Door, caplog, end) -> None:
    lost, left = fleet.start(), fleet.start()
    arguments = [(door.port, number) for number in NUMBERS[:6]]
    with context_over([lost.target, left.target]):
        running = Background(lambda: mean_visit(arguments))
        door.wait_for(running, lost.pid, left.pid)
        end(lost)
        eventually(lambda: len(warnings(caplog)) == 1)
        door.open()
        assert bits(running.result()) == bits(locally(mean_visit, arguments))
    check_one_retry(caplog, lost)


def test_what_a_worker_has_handed_in_is_not_run_again(fleet: Fleet, door: Door, doors, caplog) -> None:
    """The first clients of each worker are let in, and handed in while the last one waits."""
    lost, left = fleet.start(), fleet.start()
    is_open, diary = doors(), Diary()
    is_open.open()
    arguments = [(door.port if number % 9 == 8 else is_open.port, 0.1 * number) for number in range(18)]
    with context_over([lost.target, left.target]), observe.add_observer(diary):
        running = Background(lambda: mean_visit(arguments))
        door.wait_for(running, lost.pid, left.pid)
        eventually(lambda: {event.worker for event in diary.of(ClientsHandedIn)} == {lost.target, left.target})
        lost.kill()
        eventually(lambda: diary.of(ClientsRetried))
        door.open()
        found, visits = running.result(), len(is_open.visitors)
        assert bits(found) == bits(locally(mean_visit, arguments))
    retried = diary.the(ClientsRetried)
    handed = sum(event.clients for event in diary.of(ClientsHandedIn) if event.worker == lost.target)
    assert (retried.first_client, retried.clients) == (handed, 9 - handed)
    assert visits == 16 + max(0, 8 - handed)
    check_one_retry(caplog, lost)


@pytest.mark.long
@ENDINGS
def test_a_round_is_run_again_if_a_worker_ends_while_results_come_back(
    fleet: Fleet, proxies: Proxies, caplog, end
) -> None:
    lost, left = fleet.start(), fleet.start()
    proxy = proxies.before(lost.target)
    arguments = [0.1, 0.2, 0.3, 0.4]
    expected = locally(models, arguments)
    with context_over([proxy.target, left.target], retry_policy=UNHEDGED):
        doubled_sum([1, 2])
        is_receiving = proxy.hold_after("down", 3_000_000)
        running = Background(lambda: models(arguments))
        assert is_receiving.wait(20)
        end(lost)
        assert bits(running.result()) == bits(expected)
    check_one_retry(caplog, lost)


@pytest.mark.long
def test_without_workers_the_retry_ends_and_names_them_and_why(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start()]
    with context_over([worker.target for worker in workers], connect_seconds=2.0):
        assert doubled_sum([1, 2, 3]) == 12
        for worker in workers:
            worker.kill()
        with pytest.raises(NoWorkersError, match="None of the 2 workers is ready") as caught:
            Background(lambda: doubled_sum([1, 2, 3])).result()
    for worker in workers:
        assert f"\n  {worker.target}: no server is listening (connection refused)" in str(caught.value)
    assert str(caught.value).count("\n") == 2
    assert isinstance(caught.value, WorkerUnavailableError)
    assert "fedstack serve" in str(caught.value)


@pytest.mark.long
def test_with_all_workers_frozen_the_retry_ends_too(fleet: Fleet) -> None:
    workers = [fleet.start(), fleet.start()]
    targets = [worker.target for worker in workers]
    with context_over(targets, connect_seconds=2.0, control_seconds=2.0):
        assert doubled_sum([1, 2, 3]) == 12
        for worker in workers:
            worker.stop()
        with pytest.raises(NoWorkersError, match="it does not answer|sent no message or heartbeat"):
            Background(lambda: doubled_sum([1, 2, 3])).result()


def test_a_worker_that_dies_at_the_last_attempt_is_the_cause_of_its_failure(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    with context_over([worker.target], retry_policy=fedstack.RetryPolicy.none()):
        running = Background(lambda: mean_visit([(door.port, 1.0)]))
        door.wait_for(running, worker.pid)
        worker.kill()
        with pytest.raises(
            RetryLimitError, match=f"lost workers in every .*; .*\n  {worker.target}: the connection"
        ) as caught:
            running.result()
    assert isinstance(caught.value.__cause__, WorkerUnavailableError)
    assert f"The worker at {worker.target} was lost while it ran its part" in str(caught.value.__cause__)


def test_the_only_worker_may_come_back_on_its_address_while_a_round_is_tried_again(fleet: Fleet, door: Door) -> None:
    worker = fleet.start()
    arguments = [(door.port, number) for number in NUMBERS[:3]]
    with context_over([worker.target], connect_seconds=20.0):
        running = Background(lambda: mean_visit(arguments))
        door.wait_for(running, worker.pid)
        anew = fleet.restart(worker)
        door.wait_for(running, anew.pid)
        door.open()
        assert bits(running.result()) == bits(locally(mean_visit, arguments))


def test_a_worker_that_comes_back_on_its_address_is_used_again(fleet: Fleet, door: Door) -> None:
    lost, left = fleet.start(), fleet.start()
    door.open()
    with context_over([lost.target, left.target]):
        assert doubled_sum([1, 2, 3]) == 12
        anew = fleet.restart(lost)

        def is_used() -> bool:
            mean_visit([(door.port, 1.0), (door.port, 2.0)])
            return anew.pid in door.visitors

        eventually(is_used)
        before = len(door.visitors)
        mean_visit([(door.port, 1.0), (door.port, 2.0)])
        assert sorted(door.visitors[before:]) == sorted([anew.pid, left.pid])


@pytest.mark.long
def test_the_only_worker_is_used_at_the_first_call_after_its_return_however_long_it_was_away(fleet: Fleet) -> None:
    worker = fleet.start()
    with context_over([worker.target], connect_seconds=4.0, retry_policy=fedstack.RetryPolicy.none()):
        assert doubled_sum([1, 2]) == 6
        worker.kill()
        for _ in range(2):
            with pytest.raises(WorkerUnavailableError):
                doubled_sum([1, 2])  # until it is given up pauses between dials have grown
        fleet.start(worker.port)
        assert doubled_sum([1, 2]) == 6


@pytest.mark.long
def test_a_worker_that_was_frozen_is_used_again_when_it_thaws(fleet: Fleet, door: Door) -> None:
    frozen, other = fleet.start(), fleet.start()
    door.open()
    arguments = [(door.port, 1.0), (door.port, 2.0)]
    with context_over([frozen.target, other.target], control_seconds=1.0):
        mean_visit(arguments)
        frozen.stop()
        mean_visit(arguments)
        assert door.visitors[-2:] == [other.pid] * 2
        frozen.wake()

        def is_used() -> bool:
            before = len(door.visitors)
            mean_visit(arguments)
            return frozen.pid in door.visitors[before:]

        eventually(is_used)
    # What it did not get to before it froze was not done afterwards, and nothing was left behind.
    eventually(lambda: status_of(frozen.target).running == 0)


def test_rounds_go_on_while_a_worker_is_told_to_stop(fleet: Fleet, door: Door, caplog) -> None:
    """Calls that it ends itself are tried elsewhere, and so are those that come while it is stopping."""
    left = fleet.start()
    with command_line_worker("--grace-seconds", "0") as (lost, lost_target):
        arguments = [(door.port, number) for number in NUMBERS[:4]]
        with context_over([lost_target, left.target]):
            running = Background(lambda: mean_visit(arguments))
            door.wait_for(running, lost.pid, left.pid)
            lost.terminate()
            eventually(lambda: warnings(caplog))
            door.open()
            assert bits(running.result()) == bits(locally(mean_visit, arguments))
            assert lost.wait(20) == 0
            assert bits(mean_visit(arguments)) == bits(locally(mean_visit, arguments))
    assert len(warnings(caplog)) <= 4  # its two clients are lost together, and then perhaps one by one


@pytest.mark.long
def test_a_worker_that_fedstack_serve_runs_may_be_killed_like_any_other(door: Door, caplog) -> None:
    with command_line_worker() as (lost, lost_target), command_line_worker() as (left, left_target):
        arguments = [(door.port, number) for number in NUMBERS[:4]]
        with context_over([lost_target, left_target]):
            running = Background(lambda: mean_visit(arguments))
            door.wait_for(running, lost.pid, left.pid)
            lost.kill()
            eventually(lambda: warnings(caplog))
            door.open()
            assert bits(running.result()) == bits(locally(mean_visit, arguments))
    assert len(warnings(caplog)) == 1

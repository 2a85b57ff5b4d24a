"""Consumers of the data service, while its dispatcher, its workers and they themselves are killed and stopped."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_functions import fails_at_500, slowly
from dispatching import Peer
from fault_stacks import Background
from processes import Fleet, Process, WorkerProcess, command_line_worker

from fedstack.errors import LeafError, StaleSessionError
from fedstack.service.data import Dataset, distribute, register_dataset

# What services decide when others are lost is in state machines without processes, which every Python runs.
pytestmark = pytest.mark.slow
WALL = 60.0
SIZE = 6000
EVERYTHING = list(range(SIZE))
GUARANTEES = ("at_most_once", "at_least_once", "exactly_once")
NUMBERS = Dataset.range(SIZE).map(slowly)


def read(dispatcher: WorkerProcess, at: int, then: Callable[[], None], **options: Any) -> tuple[list[int], int | None]:
    """Reads all numbers, and does something when some are here; returns them, and how many are missing."""

    def run() -> tuple[list[int], int | None]:
        elements = iter(NUMBERS.apply(distribute("distributed_epoch", dispatcher.target, **options)))
        found: list[int] = []
        for element in elements:
            found.append(int(element))
            if len(found) == at:
                then()
        return found, elements.missing

    return Background(run).result()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WALL
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def check(found: list[int], missing: int | None, guarantee: str) -> None:
    if guarantee == "at_least_once":
        assert set(found) == set(EVERYTHING)
    else:
        assert sorted(found) == EVERYTHING
    assert missing == 0


@pytest.mark.long
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_worker_is_killed_and_stays_away(fleet: Fleet, guarantee: str) -> None:
    dispatcher = fleet.start_dispatcher(worker_timeout_ms=1000)
    workers = [fleet.start_data_worker(dispatcher) for _ in range(2)]
    found, missing = read(dispatcher, SIZE // 3, workers[0].kill, guarantee=guarantee)
    check(found, missing, guarantee)


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["at_most_once", "exactly_once"])
def test_the_only_worker_is_killed_and_started_again_at_its_port(fleet: Fleet, guarantee: str) -> None:
    dispatcher = fleet.start_dispatcher(worker_timeout_ms=1000)
    worker = fleet.start_data_worker(dispatcher)

    def restart() -> None:
        worker.kill()
        fleet.start_data_worker(dispatcher, worker.port)

    found, missing = read(dispatcher, SIZE // 3, restart, guarantee=guarantee)
    check(found, missing, guarantee)


@pytest.mark.long
def test_a_worker_that_stops_in_good_order_sends_what_it_has_begun(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    with command_line_worker("--data-worker", dispatcher.target, "--allow-python-code") as (process, _):
        with Peer(dispatcher.target) as peer:
            until(lambda: len(peer.workers()) == 1)
            other: list[WorkerProcess] = []

            def stop() -> None:
                other.append(fleet.start_data_worker(dispatcher))
                until(lambda: len(peer.workers()) == 2)
                process.terminate()
                until(lambda: len(peer.workers()) == 1)

            found, missing = read(dispatcher, SIZE // 6, stop)
        assert process.wait(WALL) == 0
    assert (sorted(found), missing) == (EVERYTHING, 0)


@pytest.mark.long
def test_a_worker_that_stands_still_is_left_out(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher(worker_timeout_ms=1000)
    workers = [fleet.start_data_worker(dispatcher) for _ in range(2)]
    found, missing = read(dispatcher, SIZE // 3, workers[0].stop, guarantee="exactly_once")
    workers[0].wake()
    check(found, missing, "exactly_once")


@pytest.mark.long
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_dispatcher_is_killed_and_goes_on_with_its_journal(fleet: Fleet, tmp_path: Path, guarantee: str) -> None:
    config: dict[str, Any] = {"work_dir": str(tmp_path), "fault_tolerant_mode": True}
    dispatcher = fleet.start_dispatcher(**config)
    for _ in range(2):
        fleet.start_data_worker(dispatcher)

    def restart() -> None:
        dispatcher.kill()
        threading.Timer(1.0, lambda: fleet.start_dispatcher(dispatcher.port, **config)).start()

    found, missing = read(dispatcher, SIZE // 3, restart, guarantee=guarantee)
    assert sorted(found) == EVERYTHING
    assert missing == 0


@pytest.mark.long
def test_the_dispatcher_is_killed_at_any_moments_of_one_pass(fleet: Fleet, tmp_path: Path) -> None:
    kills = 30
    config: dict[str, Any] = {"work_dir": str(tmp_path), "fault_tolerant_mode": True}
    dispatchers = [fleet.start_dispatcher(**config)]
    for _ in range(2):
        fleet.start_data_worker(dispatchers[0])
    draw, done = random.Random(kills), threading.Event()

    def kill() -> None:
        for _ in range(kills):
            if done.wait(draw.uniform(0, 0.15)):
                return
            dispatchers[-1].kill()
            dispatchers.append(fleet.start_dispatcher(dispatchers[0].port, **config))

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        found, missing = read(dispatchers[0], -1, lambda: None, guarantee="exactly_once")
    finally:
        done.set()
        killing.join()
    check(found, missing, "exactly_once")


@pytest.mark.long
def test_a_dispatcher_without_a_journal_does_not_know_the_pass_any_more(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    fleet.start_data_worker(dispatcher)

    def restart() -> None:
        dispatcher.kill()
        fleet.start_dispatcher(dispatcher.port)

    with pytest.raises(StaleSessionError, match="without a journal.*work_dir and fault_tolerant_mode"):
        read(dispatcher, 100, restart)
    assert sorted(read(dispatcher, -1, lambda: None)[0]) == EVERYTHING, "it is registered again"


@pytest.mark.long
def test_a_pass_waits_for_workers(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    timer = threading.Timer(1.0, lambda: fleet.start_data_worker(dispatcher))
    timer.start()
    assert read(dispatcher, -1, lambda: None) == (EVERYTHING, 0)


@pytest.mark.long
def test_a_worker_joins_in_the_middle(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    fleet.start_data_worker(dispatcher)
    found, _ = read(dispatcher, 500, lambda: fleet.start_data_worker(dispatcher))
    assert sorted(found) == EVERYTHING
    assert found != EVERYTHING, "the other one reads too"


@pytest.mark.long
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_consumer_of_a_job_is_killed(fleet: Fleet, guarantee: str) -> None:
    dispatcher = fleet.start_dispatcher(consumer_timeout_ms=3000)
    for _ in range(2):
        fleet.start_data_worker(dispatcher)
    options = {"target": dispatcher.target, "job_name": "shared", "guarantee": guarantee}
    victim = fleet.start_client("consume", stop_at=600, cursor_at=600 if guarantee == "exactly_once" else -1, **options)
    other = fleet.start_client("consume", **options)
    said = victim.listen()["told"]
    victim.kill()
    found = other.listen()["answer"]["found"]
    if guarantee == "at_most_once":
        assert max(Counter(said["found"] + found).values()) == 1
    elif guarantee == "at_least_once":
        assert set(said["found"] + found) == set(EVERYTHING)
    else:
        resumed = NUMBERS.apply(
            distribute(
                "distributed_epoch",
                dispatcher.target,
                job_name="shared",
                guarantee="exactly_once",
                resume=bytes.fromhex(said["cursor"]),
            )
        )
        assert sorted([*said["found"], *found, *map(int, resumed)]) == EVERYTHING


@pytest.mark.long
def test_a_failing_function_ends_its_pass_and_leaves_others_alone(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    worker = fleet.start_data_worker(dispatcher)
    other = fleet.start_client("consume", target=dispatcher.target)
    dataset = Dataset.range(1000).map(fails_at_500).apply(distribute("distributed_epoch", dispatcher.target))
    with pytest.raises(LeafError, match=f"ValueError: no 500(?s:.*){worker.target.removeprefix('grpc://')}") as raised:
        list(dataset)
    assert "element" in str(raised.value)
    assert sorted(other.listen()["answer"]["found"]) == EVERYTHING


def test_another_process_reads_what_is_registered(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    fleet.start_data_worker(dispatcher)
    dataset_id = register_dataset(dispatcher.target, Dataset.range(100), dataset_id="numbers")
    reader = fleet.start_client("consume", target=dispatcher.target, dataset_id=dataset_id)
    assert reader.listen()["answer"]["found"] == list(range(100))


@pytest.mark.long
def test_a_slow_consumer_keeps_its_lease(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher(consumer_timeout_ms=2000)
    fleet.start_data_worker(dispatcher)
    found, _ = read(dispatcher, 10, lambda: time.sleep(5.0))
    assert found == EVERYTHING


def test_ctrl_c_ends_a_wait_for_elements(fleet: Fleet) -> None:
    dispatcher = fleet.start_dispatcher()
    waiting: Process = fleet.start_client("consume", target=dispatcher.target, stop_at=0)
    assert waiting.listen() == {"told": "it begins"}
    time.sleep(0.5)  # by then it waits; if not, it is interrupted a bit earlier
    os.kill(waiting.pid, signal.SIGINT)
    assert Background(waiting.listen).result()["answer"] == {"interrupted": True}

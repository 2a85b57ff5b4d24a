"""Simulated data services: passes over many seeds, what the disk of a dispatcher has after a loss of power."""

import asyncio
import itertools
import logging
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from data_programs import Job, fatal_passes, passes, rough_passes, run_job, take

from fedstack.errors import JournalError, ResourceLimitError
from fedstack.membership.reaching import answered
from fedstack.service.data import Dataset
from fedstack.service.data.consumer.descriptions import ShardingPolicy, Terms, described, read_cursor
from fedstack.service.data.consumer.distributed_dataset import DistributedSource
from fedstack.service.data.consumer.pass_plan import Guarantee
from fedstack.service.data.reading import blocks, budget
from fedstack.testing import SimulatedFaults, SimulationError
from fedstack.testing.simulation.simulated_data_cluster import SimulatedDataCluster
from fedstack.testing.simulation.simulated_disk import SimulatedDisk
from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.testing.simulation.virtual_loop import VirtualLoop

SEEDS = range(20)
# Seeds by tens: the first ten in each run.
TENS = [0, *(pytest.param(tens, marks=pytest.mark.long) for tens in range(1, len(SEEDS) // 10))]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Lost workers are what these tests are about."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("tens", TENS)
def test_each_guarantee_is_held_whatever_happens(tens: int) -> None:
    for seed in SEEDS[10 * tens : 10 * tens + 10]:
        rough_passes(seed)


def test_what_is_given_up_for_elements_that_end_workers_is_counted() -> None:
    told = "".join(fatal_passes(seed).trace for seed in (7, 8))
    assert re.search(r"at_most_once: [1-9]\d* of 400 elements, [1-9]\d* missing, None", told)
    assert "4 workers in a row were lost at element" in told


@pytest.mark.long
def test_every_guarantee_is_held_where_elements_end_workers() -> None:
    told = "".join(fatal_passes(seed).trace for seed in range(8, 40))
    for guarantee in Guarantee:
        assert f"{guarantee.value}: " in told


@pytest.mark.long
def test_a_calm_service_sends_everything_once_without_an_error() -> None:
    for seed in range(10):
        cluster = SimulatedDataCluster(2, 4, seed)
        cluster.run(passes)
        assert "Error" not in cluster.trace.replace("KilledError", "")


@pytest.mark.long
def test_rough_services_see_faults_of_all_kinds() -> None:
    told = "".join(rough_passes(seed).trace for seed in range(20))
    for kind in (
        "the power fails",
        "the disk is full",
        "== dispatcher crash",
        "== data-0:1 start 2",
        "== consumer-0 parted",
        "consumer-0 and dispatcher parted",
        "consumer-0 and data-0:1 joined",
        " is killed",
        "doubled",
        "StaleSessionError",
    ):
        assert kind in told, kind


@pytest.mark.long
def test_a_seed_does_the_same_again_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [rough_passes(seed).trace for seed in range(4)]
    # No machine makes elements so fast.
    monkeypatch.setattr(budget, "SECONDS_TOGETHER", 0.0)
    monkeypatch.setattr(blocks, "SECONDS_TOGETHER", 0.0)
    assert [rough_passes(seed).trace for seed in range(4)] == traces


@pytest.mark.long
def test_a_seed_does_the_same_again_in_another_process_too() -> None:
    program = (
        "import logging; logging.disable(logging.ERROR)\n"
        "from data_programs import rough_passes\n"
        "print(rough_passes(17).trace)"
    )
    again = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONHASHSEED": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.splitlines() == rough_passes(17).trace.splitlines()


def test_a_consumer_that_is_left_open_is_an_error() -> None:
    async def program(cluster: SimulatedDataCluster) -> None:
        terms = Terms(ShardingPolicy.DYNAMIC, Guarantee.AT_MOST_ONCE)
        source = DistributedSource(described(Dataset.range(9)), terms, cluster.connections(cluster.consumers[0]))
        left.append(source.begin())
        await asyncio.sleep(1.0)

    left: list[object] = []
    with pytest.raises(
        SimulationError, match="Expected no sessions on dispatcher after all leases have expired, found session"
    ):
        SimulatedDataCluster(1, 1).run(program)


def test_a_consumer_that_is_killed_is_forgotten_after_its_lease() -> None:
    async def program(cluster: SimulatedDataCluster) -> None:
        (process,) = cluster.consumers
        terms = Terms(ShardingPolicy.DYNAMIC, Guarantee.AT_MOST_ONCE)
        source = DistributedSource(described(Dataset.range(9)), terms, cluster.connections(process))
        driver = source.begin()
        await asyncio.sleep(1.0)
        assert len(cluster.dispatcher.sessions) == 1
        process.crash()
        driver.close()
        # A dispatcher without any worker that calls it looks after this, too, when it is started again.
        for worker in cluster.data_workers:
            worker.crash()
        cluster.dispatcher.crash()
        cluster.dispatcher.start()
        assert len(cluster.dispatcher.sessions) == 1
        await asyncio.sleep(11.0)
        assert not cluster.dispatcher.sessions

    SimulatedDataCluster(1, 1).run(program)


def test_who_has_lost_the_dispatcher_finds_it_a_moment_after_its_return() -> None:
    async def program(cluster: SimulatedDataCluster) -> None:
        stub = cluster.connections(cluster.consumers[0]).dispatcher
        await asyncio.sleep(2.0)
        assert len((await stub.list_workers()).worker) == 2
        cluster.dispatcher.crash()
        await asyncio.sleep(10.0)
        looking = asyncio.ensure_future(answered(stub, stub.list_workers, None))
        await asyncio.sleep(10.0)
        cluster.dispatcher.start()
        begun = cluster.time
        await looking
        assert cluster.time - begun < 0.2
        await asyncio.sleep(0.2)
        assert len((await stub.list_workers()).worker) == 2

    SimulatedDataCluster(2, 1).run(program)


@pytest.mark.long
@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_pass_holds_its_guarantee_at_whichever_write_of_the_journal_the_power_fails(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, elements = described(Dataset.range(40)), range(40)
    writes = itertools.count()
    fatal = 0
    monkeypatch.setattr(SimulatedDisk, "fails", lambda _: next(writes) == fatal)

    async def program(cluster: SimulatedDataCluster) -> None:
        job = Job("", known, elements, ShardingPolicy.DYNAMIC, guarantee)
        await run_job(cluster, job, cluster.consumers, random.Random(fatal))

    failures = 0
    for fatal in range(100):
        writes = itertools.count()
        cluster = SimulatedDataCluster(2, 1, fatal)
        cluster.run(program)
        failures += cluster.dispatcher.disk.failures
        if next(writes) <= fatal:
            break
    assert failures == fatal > 10


def test_a_disk_that_is_full_costs_the_requests_meanwhile_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    full = False
    monkeypatch.setattr(SimulatedDisk, "is_full", lambda _: full)

    async def program(cluster: SimulatedDataCluster) -> list[int]:
        nonlocal full
        terms = Terms(ShardingPolicy.DYNAMIC, Guarantee.EXACTLY_ONCE)
        known, (process,) = described(Dataset.range(400)), cluster.consumers
        source = DistributedSource(known, terms, cluster.connections(process))
        full = True
        driver = source.begin()
        with pytest.raises(ResourceLimitError, match="The disk of the dispatcher's journal is full"):
            await take(driver)
        driver.close()
        full = False
        driver = source.begin()
        found = [int(element) for element in await take(driver) or ()]
        driver.acknowledge(len(found))
        cursor = source.cursor(driver, len(found))
        full = True
        with pytest.raises(ResourceLimitError, match="The disk of the dispatcher's journal is full"):
            while (column := await take(driver)) is not None:
                driver.acknowledge(None)
        driver.close()
        full = False
        await asyncio.sleep(10.0)
        again = DistributedSource(known, attrs.evolve(terms, resume=read_cursor(cursor)), cluster.connections(process))
        driver = again.begin()
        while (column := await take(driver)) is not None:
            found += map(int, column)
            driver.acknowledge(None)
        driver.close()
        return found

    assert sorted(SimulatedDataCluster(2, 1).run(program)) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_a_disk_without_power_has_all_that_was_committed_and_nothing_by_half(tmp_path: Path, seed: int) -> None:
    loop = VirtualLoop()
    network = SimulatedNetwork(loop, seed, SimulatedFaults(power_loss_rate=0.2))
    losses: list[None] = []
    disk = SimulatedDisk(tmp_path, network, lambda: losses.append(None))
    committed = failures = 0
    journal = None
    while failures < 40:
        try:
            if journal is None:
                journal = disk.open()
                with journal.transaction() as tables:
                    found = [one for (one,) in tables.execute("SELECT dataset_id FROM names ORDER BY dataset_id")]
                    assert len(found) % 3 == 0, "a transaction adds three"
                    assert committed <= len(found) // 3 <= committed + 1
                    committed = len(found) // 3
            with journal.transaction() as tables:
                for part in "abc":
                    tables.execute("INSERT INTO names VALUES (?, ?)", (f"{committed:06}{part}", b"x" * 3000))
            committed += 1
        except JournalError:
            failures += 1
            journal = None
    assert failures == len(losses) == disk.failures
    disk.cut()
    loop.close()

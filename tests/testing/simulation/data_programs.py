"""Programs over simulated data services: passes whose guarantees are checked, whatever happens meanwhile."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

import fedstack
from fedstack.computations.values.columns import Column
from fedstack.errors import FedstackError, ResourceLimitError, StaleSessionError, WorkerUnavailableError
from fedstack.service.data import Dataset
from fedstack.service.data.consumer.descriptions import KnownDataset, ShardingPolicy, Terms, described, read_cursor
from fedstack.service.data.consumer.distributed_dataset import DistributedSource
from fedstack.service.data.consumer.pass_driver import PassDriver
from fedstack.service.data.consumer.pass_plan import Guarantee
from fedstack.testing import SimulatedFaults
from fedstack.testing.simulation.simulated_data_cluster import SimulatedDataCluster
from fedstack.testing.simulation.simulated_worker import SimulatedWorker

# How long things happen.
ROUGH_SECONDS = 60.0
# A worker that nobody hears of is given up after 10 s by those that read there, after 5 s by the dispatcher; a consumer
# after 10 s, and others read then what it has not finished. What is left is read in a moment.
LONGEST_REST = 60.0
# What may end a pass early; the last one is that of a full disk.
PROMISED = (WorkerUnavailableError, StaleSessionError, ResourceLimitError)


@fedstack.python_computation(np.int64, np.int64)
def thrice(value):
    return value * 3


@fedstack.python_computation(np.int64, np.bool_)
def is_even(value):
    return value % 2 == 0


@attrs.frozen
class Job:
    """What consumers share.

    Attributes:
      name: Its name; empty for one consumer alone.
      known: The dataset.
      elements: Its elements.
      policy: How it is divided.
      guarantee: How often elements come.
    """

    name: str
    known: KnownDataset
    elements: Sequence[int]
    policy: ShardingPolicy
    guarantee: Guarantee


def jobs(chance: random.Random) -> Iterator[Job]:
    """Draws jobs over datasets of different elements, each of which says by its value whose it is."""
    for number in range(chance.choice((1, 1, 2))):
        size, begin = chance.choice((0, 1, 7, 100, 400, 400)), number * 1_000_000
        dataset = Dataset.range(begin, begin + size)
        elements = list(range(begin, begin + size))
        if chance.random() < 0.3:
            dataset, elements = dataset.map(thrice), [3 * element for element in elements]
        if chance.random() < 0.3:
            dataset, elements = dataset.filter(is_even), [element for element in elements if element % 2 == 0]
        policy = chance.choice((ShardingPolicy.DYNAMIC, ShardingPolicy.DYNAMIC, ShardingPolicy.OFF))
        if policy is ShardingPolicy.OFF and chance.random() < 0.5:
            dataset, elements = dataset.skip(3), elements[3:]
        if chance.random() < 0.3:
            # At a worker that reads all of it, else where it is consumed: not here.
            dataset = dataset.shuffle(16, seed=number).batch(5)
        name = chance.choice(("", f"job {number}"))
        yield Job(name, described(dataset), elements, policy, chance.choice(tuple(Guarantee)))


async def passes(cluster: SimulatedDataCluster) -> None:
    """Passes of one job or two: the guarantee of each is held, and each ends soon when nothing happens any more."""
    chance = random.Random(cluster.seed)
    asyncio.get_running_loop().call_later(ROUGH_SECONDS, cluster.calm)
    await asyncio.gather(
        *(
            run_job(cluster, job, cluster.consumers[2 * number : 2 * number + 2], random.Random(chance.random()))
            for number, job in enumerate(jobs(chance))
        )
    )


async def run_job(
    cluster: SimulatedDataCluster, job: Job, processes: Sequence[SimulatedWorker], chance: random.Random
) -> None:
    """Has processes read a job, and checks that it was done as it was guaranteed."""
    cluster.say(f"{job.name or 'one consumer'}: {job.policy.name}, {job.guarantee.value}, {len(job.elements)} elements")
    consumers = [
        _Consumer(cluster, job, process, random.Random(chance.random()))
        for process in (processes if job.name else processes[:1])
    ]
    await asyncio.gather(*(consumer.run() for consumer in consumers))
    for consumer in consumers:
        found = len(consumer.found)
        cluster.say(f"{consumer.process.address}: {found} elements, {consumer.missing} missing, {consumer.failure!r}")
    check(job, consumers, sum(worker.starts for worker in cluster.data_workers))
    assert cluster.time < ROUGH_SECONDS + LONGEST_REST, f"the pass ended after {cluster.time} s"


class KilledError(Exception):
    """A process was killed."""


class _Consumer:
    """A process that takes part in a pass.

    Attributes:
      process: The process.
      found: The elements that it has got, or the batches of them.
      missing: How many it was told are missing; `None` if some are, and it does not know how many.
      failure: What ended its pass early.
    """

    def __init__(
        self, cluster: SimulatedDataCluster, job: Job, process: SimulatedWorker, chance: random.Random
    ) -> None:
        self.process = process
        self.found: list[object] = []
        self.missing: int | None = 0
        self.failure: Exception | None = None
        self._cluster = cluster
        self._job = job
        self._chance = chance
        self._pause = chance.choice((0.0, 0.5, 3.0))
        self._kill_rate = chance.choice((0.0, 0.05, 0.2))
        # As a batch does, it keeps back what does not fill one.
        self._batch = random.Random(f"{cluster.seed} {process.address}").choice((1, 7))
        # Where to go on, and how many elements there were then.
        self._cursor: bytes | None = None
        self._kept = 0

    async def run(self) -> None:
        """Reads the pass to its end, or to what ends it early."""
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 10.0)))
        while True:
            job, resume = self._job, self._cursor
            terms = Terms(job.policy, job.guarantee, job.name, resume=None if resume is None else read_cursor(resume))
            source = DistributedSource(job.known, terms, self._cluster.connections(self.process))
            driver = source.begin()
            try:
                await self._read(source, driver)
                self.missing, self.failure = driver.missing, None
                return
            except KilledError as error:
                self._cluster.say(f"{self.process.address} is killed")
                self.process.crash()
                self.failure = error
            except FedstackError as error:
                self._cluster.say(f"{self.process.address}: {error!r}")
                assert isinstance(error, PROMISED), f"{error!r} is not promised"
                self.failure = error
            finally:
                driver.close()
            await asyncio.sleep(self._chance.uniform(0.0, 20.0))
            self.process.start()
            if self._cursor is None:
                return
            del self.found[self._kept :]

    async def _read(self, source: DistributedSource, driver: PassDriver) -> None:
        begin, kept_back = len(self.found), list[object]()
        while True:
            column = await take(driver)
            if column is None:
                self.found += kept_back
                driver.acknowledge(None)
                return
            elements = [*kept_back, *column]
            whole = len(elements) - len(elements) % self._batch
            elements, kept_back = elements[:whole], elements[whole:]
            some = self._chance.randint(0, len(elements))
            self.found += elements[:some]
            if self._job.guarantee is Guarantee.EXACTLY_ONCE and self._chance.random() < 0.3:
                self._cursor, self._kept = source.cursor(driver, len(self.found) - begin), len(self.found)
            if self._cluster.time < ROUGH_SECONDS:
                await asyncio.sleep(self._chance.expovariate(1 / self._pause) if self._pause else 0.0)
                if self._chance.random() < self._kill_rate:
                    raise KilledError
            self.found += elements[some:]
            driver.acknowledge(len(self.found) - begin)


def check(job: Job, consumers: Sequence[_Consumer], copies: int) -> None:
    """Checks what was guaranteed."""
    counts = Counter(
        int(element) for consumer in consumers for some in consumer.found for element in np.atleast_1d(some)
    )
    strange = counts.keys() - set(job.elements)
    assert not strange, f"{sorted(strange)[:5]} are no elements of the dataset"
    most = max(counts.values(), default=0)
    lost = len(job.elements) - len(counts)
    are_through = all(consumer.failure is None for consumer in consumers)
    if job.guarantee is not Guarantee.AT_LEAST_ONCE:
        allowed = 1 if job.policy is ShardingPolicy.DYNAMIC else copies
        assert most <= allowed, f"an element came {most} times"
    missing = [consumer.missing for consumer in consumers]
    if job.guarantee is Guarantee.AT_MOST_ONCE:
        if are_through and job.policy is ShardingPolicy.DYNAMIC and None not in missing:
            assert lost == sum(number or 0 for number in missing), f"{lost} are missing, {missing} were counted"
        return
    assert not any(missing), f"{missing} elements were given up"
    if are_through or (job.guarantee is Guarantee.AT_LEAST_ONCE and any(c.failure is None for c in consumers)):
        assert not lost, f"{lost} of {len(job.elements)} elements are missing"
    if are_through and job.guarantee is Guarantee.EXACTLY_ONCE:
        assert len(set(counts.values())) <= 1, "some elements came more often than others"


# What computing an element does beside that.
_happens: dict[int, Callable[[], None]] = {}


@fedstack.python_computation(np.int64, np.int64)
def fatal(value):
    _happens.get(int(value), _nothing)()
    return value


def _nothing() -> None:
    pass


async def passes_over_fatal_elements(cluster: SimulatedDataCluster) -> None:
    """Passes over elements of which some end every worker that reads them: what is given up for those is counted."""
    chance = random.Random(cluster.seed)
    size, guarantee = chance.choice((1, 30, 400, 400)), chance.choice((Guarantee.AT_MOST_ONCE, *Guarantee))
    fatal_ones = chance.sample(range(size), chance.randint(0, min(3, size)))

    def end_workers() -> None:
        for worker in cluster.data_workers:
            worker.crash()
            asyncio.get_running_loop().call_later(chance.uniform(0.1, 2.0), worker.start)

    _happens.clear()
    _happens.update(dict.fromkeys(fatal_ones, end_workers))
    known, found = described(Dataset.range(size).map(fatal)), list[int]()
    terms = Terms(ShardingPolicy.DYNAMIC, guarantee)
    driver = DistributedSource(known, terms, cluster.connections(cluster.consumers[0])).begin()
    failure: Exception | None = None
    try:
        while (column := await take(driver)) is not None:
            found += map(int, column)
            driver.acknowledge(len(found))
        driver.acknowledge(None)
    except WorkerUnavailableError as error:
        failure = error
    finally:
        driver.close()
    cluster.say(f"{guarantee.value}: {len(found)} of {size} elements, {driver.missing} missing, {failure!r}")
    lost = size - len(set(found))
    assert not set(found) & set(fatal_ones), "what ends workers never comes"
    assert len(set(found)) == len(found) or guarantee is Guarantee.AT_LEAST_ONCE, "an element came twice"
    if guarantee is Guarantee.AT_MOST_ONCE:
        assert failure is None
        assert driver.missing == lost >= len(fatal_ones), f"{lost} are missing, {driver.missing} were counted"
    else:
        assert driver.missing == 0
        assert bool(lost) is bool(fatal_ones) is (failure is not None), f"{lost} are missing: {failure!r}"


async def take(driver: PassDriver) -> Column | None:
    """Returns the next elements of a pass; `None` at its end."""
    while not driver.has_news():
        driver.ask()
        await asyncio.sleep(0.01)  # a thread would wait here
    return driver.next()


def fatal_passes(seed: int) -> SimulatedDataCluster:
    """Runs the pass of a seed over fatal elements; returns what it ran over."""
    cluster = SimulatedDataCluster(1 + seed % 2, 1, seed)
    cluster.run(passes_over_fatal_elements)
    return cluster


def rough_passes(seed: int) -> SimulatedDataCluster:
    """Runs the passes of a seed; returns what they ran over."""
    chance = random.Random(seed)
    cluster = SimulatedDataCluster(chance.choice((1, 2, 3)), 4, seed, SimulatedFaults.rough())
    cluster.run(passes)
    return cluster

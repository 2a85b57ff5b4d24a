"""A definition costs what its elements cost, whoever has written it, and nothing once its reader has gone."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until
from catalogue import Catalogue, StartWorker
from data_reading import SECONDS, read, whole

import fedstack
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.errors import InvalidComputationError, InvalidValueError, ResourceLimitError
from fedstack.proto.data_service_pb2 import ListClientsRequest
from fedstack.proto.datasets_pb2 import DatasetDefinition, DatasetStep
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.service.data.datasets.definitions import definition_of, read_definition
from fedstack.service.data.datasets.pipeline import MOST_STEPS
from fedstack.service.data.reading import blocks, budget
from fedstack.service.data.reading.readers import Reader, reader_at
from fedstack.service.host.listening import GRPC, LOCAL
from fedstack.transport.peers.io_loop import io_loop

MANY = 2**62
INT = Dataset.range(1).element_type


@fedstack.python_computation([np.int64], np.bool_)
def never(x: Any) -> Any:
    return False


@fedstack.python_computation([np.int64], {"x": np.int64, "of": np.int64})
def owned(x: Any) -> Any:
    return {"x": x, "of": x}


WITHOUT_ELEMENTS = {
    "skip": Dataset.range(MANY).enumerate().skip(MANY // 2),
    "repeat": Dataset.range(4).repeat(MANY).skip(MANY // 2),
    "filter": Dataset.range(MANY).filter(never),
    "zip": Dataset.range(3).zip(Dataset.range(MANY).filter(never)),
    "prefetch": Dataset.range(MANY).filter(never).prefetch(10),
    "batch": Dataset.range(MANY).filter(never).batch(5),
    "concatenate": Dataset.range(MANY).filter(never).concatenate(Dataset.range(3)),
}


def reading_threads() -> int:
    """Returns how many threads make elements."""
    count = 0
    for frame in sys._current_frames().values():
        found: Any = frame
        while found is not None and found.f_code is not blocks.while_wanted.__code__:
            found = found.f_back
        count += found is not None
    return count


@pytest.mark.parametrize("protocol", [GRPC, LOCAL])
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_work_without_elements_ends_with_its_reader(
    name: str, protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = WITHOUT_ELEMENTS[name]
    digest, worker = catalogue.register(dataset), start_worker(protocol)

    async def begun(reader: Reader) -> None:
        reading = reader.open(whole(digest), dataset.element_type)
        try:
            await reading.next()
        finally:
            await reading.close()

    begin_and_go(worker.target, begun)


def test_listing_clients_ends_with_whoever_asks(catalogue: Catalogue, start_worker: StartWorker) -> None:
    definition = definition_of(Dataset.range(MANY).filter(never).map(owned), Destination(takes_code=True))
    definition.client_column = "of"
    digest, worker = catalogue.register_definition(definition), start_worker()
    begin_and_go(worker.target, lambda reader: reader.list_clients(ListClientsRequest(digest=digest)))


def begin_and_go(target: str, ask: Callable[[Reader], Coroutine[Any, Any, object]]) -> None:
    """Asks a worker for something, goes away when it is being made, and returns when nothing is any more."""

    async def begin() -> tuple[Reader, "asyncio.Task[object]"]:
        reader = reader_at(target)
        return reader, asyncio.ensure_future(ask(reader))

    async def go() -> None:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await reader.close()

    reader, asking = io_loop.run_sync(begin(), SECONDS)
    await_until(lambda: reading_threads() > 0)
    io_loop.run_sync(go(), SECONDS)
    await_until(lambda: not reading_threads())


def test_a_range_is_skipped_without_being_counted(catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.range(MANY).skip(MANY // 2).skip(MANY // 2 - 1)
    assert list(map(int, dataset)) == [MANY - 1]
    assert read(start_worker().target, whole(catalogue.register(dataset)), INT) == [MANY - 1]
    assert list(Dataset.range(5).skip(MANY)) == []
    assert list(map(int, Dataset.range(3).concatenate(Dataset.range(9)).skip(4).take(2))) == [1, 2]


def test_a_range_that_has_more_numbers_than_can_be_counted_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="in Dataset.range"):
        Dataset.range(-(2**63), 2**63 - 1)


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def many(x: Any) -> Any:
    return [x] * 200_000


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def single(x: Any) -> Any:
    return [x]


@fedstack.python_computation([np.int64], (np.int64, [None]))
def wide(x: Any) -> Any:
    return np.zeros(200_000, np.int64)


@fedstack.python_computation([np.int64], (np.int64, [None]))
def narrow(x: Any) -> Any:
    return np.zeros(1, np.int64)


GATHERING = {
    "interleave": Dataset.range(100).interleave(many, cycle_length=100),
    "interleave of very many": Dataset.range(10**4).interleave(single, cycle_length=10**4),
    "flat_map": Dataset.range(3).flat_map(many).take(1),
    "unbatch": Dataset.range(3).map(wide).unbatch().take(1),
    "padded_batch": Dataset.range(3).map(narrow).padded_batch(1, padded_shapes=[200_000]),
    "padded_batch of one shape": Dataset.range(8)
    .batch(2, drop_remainder=True)
    .padded_batch(2, padded_shapes=[200_000]),
    "zip": Dataset.range(20_000).zip(*[Dataset.range(20_000)] * 20, Dataset.range(20_000).map(narrow)),
    "shuffle of very many": Dataset.range(20_000).map(narrow).shuffle(20_000, seed=1),
    "shuffle": Dataset.range(10**12).shuffle(10**12, seed=1).take(1),
    "endless shuffle": Dataset.range(3).repeat().shuffle(10**12, seed=1).take(1),
    "batch": Dataset.range(10**12).batch(10**10).take(1),
    "endless batch": Dataset.range(3).repeat().batch(10**10, drop_remainder=True).take(1),
    "window": Dataset.range(10**12).window(10**10).take(1),
    "cache": Dataset.range(10**12).cache().skip(10**11),
    "prefetch": Dataset.range(10**9)
    .batch(10**5)
    .prefetch(100)
    .map(fedstack.python_computation([(np.int64, [None])], np.int64)(len))
    .take(1),
}


@pytest.mark.parametrize("name", GATHERING)
def test_what_steps_gather_is_bounded(name: str, catalogue: Catalogue, start_worker: StartWorker) -> None:
    worker = start_worker(limits=DataWorkerLimits(max_gathered_bytes=1_000_000))
    dataset, step = GATHERING[name], name.split(" of ")[0].split()[-1]
    for _ in range(2):
        with pytest.raises(ResourceLimitError, match=rf"for .*{step}\b.*--max-gathered-bytes"):
            read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)
    small = Dataset.range(1000).shuffle(10**12, seed=1).batch(10**12)
    (found,) = read(worker.target, whole(catalogue.register(small)), small.element_type)
    assert sorted(np.asarray(found)) == [*range(1000)]
    await_until(lambda: not worker._service._gathered.taken)


def test_windows_of_large_elements_are_made_a_few_at_a_time() -> None:
    kilobytes = fedstack.python_computation([np.int64], (np.int64, [None]))(lambda x: np.zeros(1250, np.int64))
    windows = Dataset.range(200).map(kilobytes).window(50, 1, drop_remainder=True)
    assert max(map(len, windows.blocks())) * 50 * 10_000 <= budget.BLOCK_BYTES


def test_the_number_of_steps_is_bounded() -> None:
    dataset = Dataset.range(7)
    for _ in range(MOST_STEPS):
        dataset = dataset.take(5)
    assert list(map(int, dataset)) == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidComputationError, match=f"at most {MOST_STEPS} consecutive steps"):
        dataset.take(5)
    with pytest.raises(InvalidComputationError, match=f"at most {MOST_STEPS} consecutive steps"):
        dataset.zip(dataset)
    definition = DatasetDefinition()
    definition.CopyFrom(definition_of(Dataset.range(7), Destination(takes_code=True)))
    definition.step.extend([DatasetStep(take=5)] * 100_000)
    with pytest.raises(InvalidComputationError, match=f"at most {MOST_STEPS} consecutive steps"):
        read_definition(definition)


@pytest.mark.parametrize("step", ["map", "filter", "enumerate_and_pick", "batch_and_pick", "shuffle", "prefetch"])
def test_as_many_steps_as_there_may_be_can_be_run(step: str) -> None:
    add = fedstack.python_computation([np.int64], np.int64)(lambda x: x)
    every = fedstack.python_computation([np.int64], np.bool_)(lambda x: True)
    pick = fedstack.python_computation([(np.int64, np.int64)], np.int64)(lambda x: x[1])
    first = fedstack.python_computation([(np.int64, [None])], np.int64)(lambda x: x[0])
    make = {
        "map": lambda d: d.map(add),
        "filter": lambda d: d.filter(every),
        "enumerate_and_pick": lambda d: d.enumerate().map(pick),
        "batch_and_pick": lambda d: d.batch(1).map(first),
        "shuffle": lambda d: d.shuffle(3, seed=1),
        "prefetch": lambda d: d.prefetch(1),
    }[step]
    dataset = Dataset.range(3)
    while dataset.depth < MOST_STEPS:
        dataset = make(dataset)
    assert sorted(map(int, dataset)) == [0, 1, 2]


def test_batches_of_batches_have_no_more_dimensions_than_arrays(
    catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.range(7)
    for _ in range(32):
        dataset = dataset.batch(1)
    assert [one.shape for one in dataset.take(1)] == [(1,) * 32]
    with pytest.raises(InvalidComputationError, match="at most 32 dimensions in .*, found 33"):
        dataset.batch(1)
    definition = definition_of(Dataset.range(7), Destination(takes_code=True))
    definition.step.extend([DatasetStep(batch=DatasetStep.Batch(size=1))] * 65)
    with pytest.raises(InvalidComputationError, match="at most 32 dimensions"):
        read(start_worker().target, whole(catalogue.register_definition(definition)), INT)

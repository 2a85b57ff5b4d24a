"""What is read at a data worker is the same over a connection and without one."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator

import federated_language as fl
import numpy as np
import pytest
from catalogue import Catalogue, StartWorker
from data_reading import read, read_blocks, some, whole

import fedstack
from fedstack.computations.codec import received_bytes
from fedstack.computations.values.columns import Column, ListColumn, RowsColumn
from fedstack.errors import InvalidValueError, LeafError, RemoteError, ResourceLimitError
from fedstack.executors.concurrency.leaf_threads import LOOP_COPY_BYTES
from fedstack.service.data import Dataset, DataWorkerLimits
from fedstack.service.data.reading import local_reader
from fedstack.service.data.reading.budget import AHEAD, SENT_BYTES
from fedstack.service.data.reading.readers import reader_at
from fedstack.service.host.listening import GRPC, LOCAL
from fedstack.transport.peers.io_loop import io_loop

PROTOCOLS = pytest.mark.parametrize("protocol", [GRPC, LOCAL])
# What elements are is made of them before they are sent: a connection is used by one Python only, many times.
ALL_PROTOCOLS = pytest.mark.parametrize("protocol", [pytest.param(GRPC, marks=pytest.mark.slow), LOCAL])


@fedstack.python_computation([np.int64], np.int64)
def square(x):
    return x * x


@fedstack.python_computation([np.int64], np.int64)
def fails_at_500(x):
    if x == 500:
        raise ValueError("no 500")
    return x


@fedstack.python_computation([np.int64], (np.float32, [None]))
def zeros(n):
    return np.zeros(n % 7, np.float32)


@fedstack.python_computation([np.int64], np.bool_)
def is_odd(x):
    return x % 2 == 1


@fedstack.python_computation([np.int64], np.bool_)
def is_even(x):
    return x % 2 == 0


TEXTS = {"name": np.array(["ä" * (k % 5) for k in range(3000)]), "n": np.arange(3000, dtype=np.int32)}
DATASETS = {
    "mapped": Dataset.range(20_000).map(square),
    "filtered": Dataset.range(5000).filter(is_odd),
    "texts": Dataset.from_arrays(TEXTS),
    "nested": Dataset.from_arrays({"a": np.arange(20.0).reshape(10, 2), "b": (np.arange(10), np.ones(10, np.bool_))}),
    "ragged": Dataset.range(1000).map(zeros),
    "large": Dataset.from_arrays(np.arange(3 << 18, dtype=np.float64).reshape(6, -1)),
    "empty": Dataset.range(0),
    "batched": Dataset.range(1000).batch(7).shuffle(30, seed=1).repeat(2),
    "ordered": Dataset.range(100).skip(3).take(90).enumerate(),
    "zipped": Dataset.range(10).zip(Dataset.range(20).map(square)),
    "no bytes": Dataset.from_arrays(np.empty((50, 0), np.float32)),
}  # fmt: skip


@ALL_PROTOCOLS
@pytest.mark.parametrize("name", DATASETS)
def test_a_worker_reads_what_the_dataset_has(
    protocol: str, name: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = DATASETS[name]
    worker = start_worker(protocol)
    digest = catalogue.register(dataset)
    payloads = [item for block in dataset.blocks() for item in block.items()]
    assert_same(read(worker.target, whole(digest), dataset.element_type), payloads)
    assert_same(read(worker.target, whole(digest, 4), dataset.element_type), payloads[4:])


@pytest.mark.slow
def test_a_machine_that_stands_still_while_elements_are_made_loses_none(
    catalogue: Catalogue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start_worker(LOCAL)
    dataset = Dataset.range(50_000)
    digest = catalogue.register(dataset)
    monkeypatch.setattr(local_reader, "SECONDS_TOGETHER", 0.0)
    assert_same(read(worker.target, whole(digest), dataset.element_type), list(dataset))


@pytest.mark.long
@ALL_PROTOCOLS
@pytest.mark.parametrize("name", DATASETS)
def test_ranges_of_splits_together_have_all_elements(
    protocol: str, name: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = DATASETS[name].divided().split
    worker = start_worker(protocol)
    digest, splits = catalogue.register(DATASETS[name]), dataset.num_splits
    cuts = sorted({0, splits // 3, splits // 2, splits})
    found = [
        item
        for first, last in itertools.pairwise(cuts)
        for item in read(worker.target, some(digest, splits, first, last), dataset.element_type)
    ]
    assert_same(found, [item for block in dataset.blocks() for item in block.items()])
    later = read(worker.target, some(digest, splits, 0, splits, 2), dataset.element_type)
    assert_same(later, found[2:])


def assert_same(found: list[object], expected: list[object]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_equal(one, other)
        np.testing.assert_equal(getattr(one, "dtype", None), getattr(other, "dtype", None))


@PROTOCOLS
@pytest.mark.parametrize("name", ["large", "nested"])
def test_elements_are_read_only(protocol: str, name: str, catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = DATASETS[name]
    blocks = read_blocks(start_worker(protocol).target, whole(catalogue.register(dataset)), dataset.element_type)
    assert arrays_of(blocks)
    assert not any(array.flags.writeable for array in arrays_of(blocks))


def arrays_of(blocks: list[Column]) -> list[np.ndarray]:
    columns = [field for block in blocks for field in getattr(block, "fields", (block,))]
    rows = [column.values for column in columns if isinstance(column, RowsColumn)]
    return [*rows, *(item for block in blocks if isinstance(block, ListColumn) for item in block.items())]


def test_a_large_element_is_the_memory_in_which_it_came(catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.from_arrays(np.arange(6 << 17, dtype=np.float64).reshape(6, -1))
    blocks = read_blocks(start_worker().target, whole(catalogue.register(dataset)), dataset.element_type)
    elements = arrays_of(blocks)
    assert_same(elements, list(dataset))
    assert all(element.flags.aligned for element in elements)
    # Over gRPC the bytes of a frame, over a stream an array of bytes. The first came in one message.
    memories = [memory_of(element) for element in elements[1:]]
    assert all(isinstance(memory, bytes) or np.asarray(memory).dtype == np.uint8 for memory in memories)


def memory_of(array: object) -> object:
    while isinstance(array, (np.ndarray, memoryview)):
        owner = array.base if isinstance(array, np.ndarray) else array.obj
        if owner is None:
            return array
        array = owner
    return array


def test_elements_that_are_cut_on_their_way_are_put_together(catalogue: Catalogue, start_worker: StartWorker) -> None:
    rows = 300_001  # of which none fits into a frame beside another, and most lie in two
    dataset = Dataset.from_arrays(np.arange(5 * rows, dtype=np.int32).reshape(5, rows))
    blocks = read_blocks(start_worker().target, whole(catalogue.register(dataset)), dataset.element_type)
    assert_same([item for block in blocks for item in block.items()], list(dataset))
    small = Dataset.range(3 << 20)
    blocks = read_blocks(start_worker().target, whole(catalogue.register(small)), small.element_type)
    np.testing.assert_array_equal(np.concatenate(arrays_of(blocks)), np.arange(3 << 20))


@pytest.mark.parametrize(
    "shapes",
    [{"a": (3, 5 << 20)}, dict.fromkeys("abc", (200, 30 << 10))],
    ids=["larger than a frame", "of many small arrays"],
)
def test_the_loop_does_not_put_large_elements_together(
    shapes: dict[str, tuple[int, ...]],
    catalogue: Catalogue,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: Counter[object] = Counter()

    taken = received_bytes.ReceivedBytes._taken

    def watched(memory: received_bytes.ReceivedBytes, size: int, path: str) -> np.ndarray:
        if size > len(memory._pieces[0]) and io_loop.is_current():
            sizes[memory] += size
        return taken(memory, size, path)

    monkeypatch.setattr(received_bytes.ReceivedBytes, "_taken", watched)
    dataset = Dataset.from_arrays({name: np.ones(shape, np.uint8) for name, shape in shapes.items()})
    blocks = read_blocks(start_worker().target, whole(catalogue.register(dataset)), dataset.element_type)
    assert sum(map(len, blocks)) == next(iter(shapes.values()))[0]
    assert max(sizes.values(), default=0) <= LOOP_COPY_BYTES


@PROTOCOLS
def test_elements_before_one_that_fails_come_first_and_the_error_says_where_it_was(
    protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.range(1000).map(fails_at_500)
    worker, digest = start_worker(protocol), catalogue.register(dataset)
    blocks: list[Column] = []
    with pytest.raises(LeafError) as raised:
        read_blocks(worker.target, some(digest, 1000, 0, 1000), dataset.element_type, blocks)
    assert [item for block in blocks for item in block.items()] == list(range(500))
    message = str(raised.value)
    assert "raised ValueError: no 500; at element 500 of map(fails_at_500); in splits 0 to 1000 of dataset" in message
    assert digest.hex()[:16] in message
    assert f"read by the data worker at {worker.target.removeprefix('grpc://')}" in message


@PROTOCOLS
def test_an_error_names_the_element_within_the_whole_dataset_where_that_is_known(
    protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    worker = start_worker(protocol)
    mapped = Dataset.range(1000).map(fails_at_500)
    for start in (0, 30):
        what = some(catalogue.register(mapped), 1000, 450, 600, start)
        with pytest.raises(LeafError, match=r"at element 500 of map\(fails_at_500\); in splits 450 to 600"):
            read(worker.target, what, mapped.element_type)
    filtered = Dataset.range(1001).filter(is_even).map(fails_at_500)
    what = some(catalogue.register(filtered), 1001, 450, 600)
    with pytest.raises(LeafError, match=r"at element 25 of map\(fails_at_500\), counted from split 450; in splits 450"):
        read(worker.target, what, filtered.element_type)


@PROTOCOLS
def test_a_range_without_the_failing_element_is_read(
    protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.range(1000).map(fails_at_500)
    worker, digest = start_worker(protocol), catalogue.register(dataset)
    assert read(worker.target, some(digest, 1000, 501, 600), dataset.element_type) == list(range(501, 600))
    assert read(worker.target, some(digest, 1000, 450, 600, 51), dataset.element_type) == list(range(501, 600))


@PROTOCOLS
def test_what_is_not_there_is_an_error(protocol: str, catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.range(10)
    worker, digest, element = start_worker(protocol), catalogue.register(dataset), dataset.element_type
    with pytest.raises(InvalidValueError, match="Expected a dataset that is registered"):
        read(worker.target, whole(bytes(32)), element)
    with pytest.raises(InvalidValueError, match="Expected a digest of 32 bytes, found 3"):
        read(worker.target, whole(b"abc"), element)
    with pytest.raises(InvalidValueError, match="Expected a dataset of 11 splits, as on the dispatcher, found 10"):
        read(worker.target, some(digest, 11, 0, 5), element)
    with pytest.raises(InvalidValueError, match="Expected a range within the 10 splits, found 3 to 11"):
        read(worker.target, some(digest, 10, 3, 11), element)
    with pytest.raises(InvalidValueError, match="Expected a range within the 10 splits, found 7 to 5"):
        read(worker.target, some(digest, 10, 7, 5), element)
    assert read(worker.target, some(digest, 10, 10, 10), element) == []
    assert read(worker.target, some(digest, 10, 0, 10, 2**63), element) == []


def test_within_a_process_elements_are_the_memory_of_the_worker(
    catalogue: Catalogue, start_worker: StartWorker
) -> None:
    dataset = Dataset.from_arrays(np.arange(3 << 17, dtype=np.float64).reshape(3, -1))
    worker, digest = start_worker(LOCAL), catalogue.register(dataset)
    first, again = (
        arrays_of(read_blocks(worker.target, some(digest, 3, 0, 3), dataset.element_type)) for _ in range(2)
    )
    assert all(np.shares_memory(one, other) for one, other in zip(first, again, strict=True))


def test_blocks_have_the_size_that_was_asked_for(catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.from_arrays(np.zeros(100_000))
    worker = start_worker(limits=DataWorkerLimits(max_block_bytes=40_000))
    what = some(catalogue.register(dataset), 100_000, 0, 100_000)
    what.block_bytes = 16_000
    assert max(map(len, read_blocks(worker.target, what, dataset.element_type))) == 2000
    what.block_bytes = 2**63
    assert max(map(len, read_blocks(worker.target, what, dataset.element_type))) == 5000
    what.block_bytes = 1
    what.splits.last = 10
    assert [len(block) for block in read_blocks(worker.target, what, dataset.element_type)] == [1] * 10


def test_an_element_larger_than_a_value_may_be_is_refused(catalogue: Catalogue, start_worker: StartWorker) -> None:
    dataset = Dataset.from_arrays(np.zeros((2, 1000)))
    worker = start_worker(service_limits=fedstack.service.ServiceLimits(max_value_bytes=7999))
    with pytest.raises(
        ResourceLimitError, match="at most 7999 bytes in a value or phase, found an element of about 8000"
    ):
        read(worker.target, whole(catalogue.register(dataset)), dataset.element_type)


def test_another_server_than_a_data_worker_says_so(dispatcher: str) -> None:
    with pytest.raises(RemoteError, match="Expected a data worker at .*, found a server of another kind"):
        read(dispatcher, whole(bytes(32)), fl.TensorType(np.int64))


MADE: list[int] = []


def megabytes(split: int) -> Iterator[np.ndarray]:
    for number in range(200):
        MADE.append(number)
        yield np.full(1 << 17, number, np.float64)


SLOWLY_READ = Dataset.from_generator(megabytes, (np.float64, [1 << 17]), name="test_readers.megabytes")


@PROTOCOLS
def test_what_a_slow_consumer_has_not_asked_for_is_not_made(
    protocol: str, catalogue: Catalogue, start_worker: StartWorker
) -> None:
    worker, digest = start_worker(protocol), catalogue.register(SLOWLY_READ)
    MADE.clear()

    async def work() -> None:
        reader = reader_at(worker.target)
        reading = reader.open(whole(digest), SLOWLY_READ.element_type)
        assert await reading.next()
        await asyncio.sleep(0.3)
        per_block = SENT_BYTES >> 20
        assert len(MADE) <= (1 + 2 * AHEAD + 1) * per_block + 1 < 200
        await reading.close()
        await reader.close()

    io_loop.run_sync(work(), 20)

"""An iterator that goes on from a cursor yields what would have come, whatever the steps are."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.computations.values.columns import Column
from fedstack.errors import ClosedError, InvalidComputationError
from fedstack.proto.data_service_pb2 import Commit, OpenPassRequest
from fedstack.service.data import Dataset, ShardingPolicy
from fedstack.service.data.consumer.acknowledgements import Position
from fedstack.service.data.consumer.connections import Opening
from fedstack.service.data.consumer.descriptions import Terms, described, position_of, read_cursor
from fedstack.service.data.consumer.distributed_dataset import DistributedDataset, DistributedSource
from fedstack.service.data.consumer.pass_plan import Guarantee, PassPlan, Read, TakenRange
from fedstack.service.data.reading.budget import pieces

WORKER = b"w"


@fedstack.python_computation([np.int64], np.int64)
def tripled(x: Any) -> Any:
    return x * 3


@fedstack.python_computation([np.int64], np.bool_)
def is_odd(x: Any) -> Any:
    return x % 2 == 1


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def some(x: Any) -> Any:
    return [x + 1000 * k for k in range(x % 3)]


@fedstack.python_computation([np.int64], fl.TensorType(np.int64, [None]))
def row(x: Any) -> Any:
    return np.full([x % 3], x)


@fedstack.python_computation([fl.TensorType(np.int64, [None])], np.int64)
def total(x: Any) -> Any:
    return (x * np.arange(1, 1 + len(x))).sum()


@fedstack.python_computation([fl.TensorType(np.int64, [None, None])], np.int64)
def total_of_rows(x: Any) -> Any:
    return (x * np.arange(1, 1 + x.size).reshape(x.shape)).sum()


FEW = st.integers(1, 5)
FLAG = st.booleans()
# Each makes numbers of numbers; with a cursor after distribute, and without.
WITH_CURSOR = st.one_of(
    st.just(lambda d: d.map(tripled)),
    st.just(lambda d: d.prefetch(2)),
    st.builds(lambda n, drop: lambda d: d.batch(n, drop).map(total), FEW, FLAG),
    st.builds(lambda n, drop: lambda d: d.map(row).padded_batch(n, drop_remainder=drop).map(total_of_rows), FEW, FLAG),
    st.builds(
        lambda n, by, stride, drop: lambda d: d.window(n, by, stride, drop).map(total),
        *(FEW, st.integers(1, 20), FEW, FLAG),
    ),
    st.builds(lambda n, k: lambda d: d.shard(n, k % n), st.integers(1, 20), st.integers(0, 20)),
)
WITHOUT: dict[str, Callable[[Dataset], Dataset]] = {
    "filter": lambda d: d.filter(is_odd),
    "flat_map": lambda d: d.flat_map(some),
    "interleave": lambda d: d.interleave(some, 2, 1),
    "unbatch": lambda d: d.map(row).unbatch(),
    "take": lambda d: d.take(25),
    "skip": lambda d: d.skip(3),
    "enumerate": lambda d: d.enumerate(),
    "shuffle": lambda d: d.shuffle(4, 1),
    "repeat": lambda d: d.repeat(2),
    "cache": lambda d: d.cache(),
}
NUMBERS = [step for name, step in WITHOUT.items() if name != "enumerate"]
AT_WORKERS = st.lists(st.one_of(st.sampled_from(NUMBERS), WITH_CURSOR), max_size=2)


@attrs.define(eq=False)
class Journal:
    """What a dispatcher and its only worker know of the one pass that there is.

    Attributes:
      local: The dataset.
      splits: How many splits a range has.
      rows: How many elements a block has.
      handed_out: The ranges that the consumer has taken.
    """

    local: Dataset
    splits: int
    rows: int
    handed_out: list[tuple[int, int]] = attrs.field(factory=list)


class Driver:
    """Does what a `PassDriver` does, without waiting. A prefetch may ask on its thread while it is closed."""

    commit = Commit(number=1)
    missing = 0

    def __init__(self, journal: Journal, request: OpenPassRequest, position: Position) -> None:
        known = described(journal.local)
        self.opening = Opening(request, known.description.num_splits, known.split_element, position, 60.0, 1)
        self._journal = journal
        self._plan = PassPlan(Guarantee.EXACTLY_ONCE)
        self._plan.list_workers([WORKER])
        self._plan.resume(map(self._range, range(len(journal.handed_out))), position, 0)
        self._reading: Iterator[Column] = iter(())
        self._split = journal.local.divided().split
        self._lock = threading.Lock()
        self._is_closed = False

    def _range(self, number: int) -> TakenRange:
        return TakenRange(number + 1, *self._journal.handed_out[number])

    def _took(self, want: int) -> None:
        known, splits = self._journal, self._split.num_splits
        begin = len(known.handed_out)
        for _ in range(want):
            first = known.handed_out[-1][1] if known.handed_out else 0
            if first < splits:
                known.handed_out.append((first, min(splits, first + known.splits)))
        is_over = bool(known.handed_out) and known.handed_out[-1][1] == splits
        self._plan.took(map(self._range, range(begin, len(known.handed_out))), is_over or not splits)

    def _read(self, read: Read) -> None:
        one = read.range
        if read.begins:
            blocks = self._split.read(one.first, one.last, one.rows)
            self._reading = itertools.chain.from_iterable(pieces(block, self._journal.rows) for block in blocks)
        self._plan.arrive(read, list(itertools.islice(self._reading, 1)))

    def take(self) -> Column | None:
        with self._lock:
            while not (self._plan.has_arrived or self._plan.is_over):
                if self._is_closed:
                    raise ClosedError("Expected a consumer, found that it has closed the pass")
                asked = self._plan.take()
                if asked is not None:
                    self._took(asked.want)
                for read in self._plan.reads():
                    self._read(read)
            return self._plan.next()

    def work_on(self, blocks: int) -> None:
        self._plan.work_on(blocks)

    def acknowledge(self, rows: int | None) -> None:
        self._plan.acknowledge(rows)

    def position(self, rows: int) -> Position:
        return self._plan.position(rows)

    def close(self, seconds: float = 0.0) -> None:
        with self._lock:
            self._is_closed = True


class Source(DistributedSource):
    """The elements of a pass that a journal knows."""

    def __init__(self, journal: Journal, resume: bytes | None) -> None:
        self._resume = None if resume is None else read_cursor(resume)
        terms = Terms(ShardingPolicy.DYNAMIC, Guarantee.EXACTLY_ONCE, resume=self._resume)
        super().__init__(described(journal.local), terms, None)  # type: ignore[arg-type]
        self._journal = journal

    def begin(self) -> Any:
        request = OpenPassRequest(digest=b"d", consumer=b"c")
        return Driver(self._journal, request, Position() if self._resume is None else position_of(self._resume))


def distributed(journal: Journal, resume: bytes | None = None) -> Dataset:
    known = described(journal.local)
    return DistributedDataset(Source(journal, resume), tuple(step.apart() for step in known.after), known.element)


def after(dataset: Dataset, steps: list[Callable[[Dataset], Dataset]]) -> Dataset:
    for step in steps:
        dataset = step(dataset)
    return dataset


@settings(max_examples=examples(60))
@example(size=60, at_workers=[], here=[lambda d: d.shard(20, 0)], cuts=[1, 1], splits=2, rows=3)
@example(size=8, at_workers=[WITHOUT["filter"], WITHOUT["interleave"]], here=[lambda d: d], cuts=[1], splits=1, rows=1)
@given(
    size=st.integers(1, 60),
    at_workers=AT_WORKERS,
    here=st.lists(WITH_CURSOR, min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    splits=FEW,
    rows=FEW,
)
def test_a_cursor_goes_on_exactly_there_after_all_steps_that_have_one(
    size: int, at_workers: list[Any], here: list[Any], cuts: list[int], splits: int, rows: int
) -> None:
    local = after(Dataset.range(size), at_workers)
    if any(step.taken(1) is None for step in local.divided().after):
        local = local.skip(0)  # what asks for the order has all before it done at the workers
    # Without a stop: `interleave` on each split by itself has another order than on all of them.
    expected = list(map(int, after(distributed(Journal(local, splits, rows)), here)))
    journal, found, cursor = Journal(local, splits, rows), list[int](), None
    for cut in cuts:
        elements: Any = iter(after(distributed(journal, cursor), here))
        before = len(found)
        found += map(int, itertools.islice(elements, min(cut, len(expected) - before)))
        if len(found) > before:
            cursor = elements.cursor()
        elements.close()
    found += map(int, after(distributed(journal, cursor), here))
    assert found == expected


@pytest.mark.parametrize("step", WITHOUT)
def test_a_step_that_does_not_say_which_elements_are_behind_it_has_no_cursor(step: str) -> None:
    elements: Any = iter(WITHOUT[step](distributed(Journal(Dataset.range(9), 2, 2))))
    next(elements)
    with pytest.raises(InvalidComputationError, match="create the cursor from an iterator over the dataset without"):
        elements.cursor()

"""How datasets are read split by split, and what may be."""

import itertools
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.service.data import Dataset
from fedstack.service.data.datasets.steps import BatchStep


@fedstack.python_computation([np.int64], np.int64)
def double(x: Any) -> Any:
    return x * 2


@fedstack.python_computation([np.int64], np.bool_)
def is_even(x: Any) -> Any:
    return x % 2 == 0


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def up_to(x: Any) -> Any:
    return list(range(x % 5))


def read(dataset: Dataset, first: int, last: int, start: int = 0) -> list[Any]:
    blocks: list[Column] = list(dataset.read(first, last, start))
    assert all(len(block) for block in blocks)
    return [element for block in blocks for element in block.items()]


LARGE = 20_000
DATASETS = [
    Dataset.range(LARGE),
    Dataset.from_arrays(np.arange(LARGE)),
    Dataset.range(LARGE).map(double),
    Dataset.range(LARGE).filter(is_even).prefetch(3),
    Dataset.range(LARGE).concatenate(Dataset.range(5).take(3), Dataset.range(4)),
    Dataset.range(30).shuffle(7, 1).batch(3).take(5).enumerate(),
    Dataset.from_generator(lambda split: range(split, split + 5), np.int64, 3),
    Dataset.range(5).zip(Dataset.range(100)),
    Dataset.range(LARGE).flat_map(up_to),
    Dataset.range(LARGE).window(7, 3, 2),
    Dataset.range(LARGE).shard(7, 3),
    Dataset.from_arrays(np.arange(LARGE).reshape(-1, 4)).unbatch(),
    Dataset.range(LARGE).padded_batch(7).cache(only_for_repetitions=True),
]


@pytest.mark.parametrize("dataset", DATASETS, ids=repr)
def test_the_splits_together_are_the_dataset(dataset: Dataset) -> None:
    cuts = sorted({0, 1, dataset.num_splits // 3, dataset.num_splits - 1, dataset.num_splits})
    together = [element for first, last in itertools.pairwise(cuts) for element in read(dataset, first, last)]
    assert list(map(str, together)) == [str(element) for block in dataset.blocks() for element in block.items()]


@pytest.mark.long
@pytest.mark.parametrize("dataset", DATASETS, ids=repr)
@pytest.mark.parametrize("start", [0, 1, 4, 1000, 10**6])
def test_splits_can_be_read_from_any_element_on(dataset: Dataset, start: int) -> None:
    last = dataset.num_splits
    for first in {0, last // 2}:
        whole = list(map(str, read(dataset, first, last)))
        assert list(map(str, read(dataset, first, last, start))) == whole[start:]


def test_a_split_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="Expected splits from 0 to 5 of .*, found 4 to 6"):
        Dataset.range(5).read(4, 6)
    assert read(Dataset.range(5), 3, 3) == []


def test_work_on_elements_is_done_split_by_split_and_work_on_all_of_them_after_it() -> None:
    division = Dataset.range(LARGE).map(double).filter(is_even).batch(5).map(batch_sum).divided()
    assert repr(division.split) == f"<Dataset range(0, {LARGE}) → map(double) → filter(is_even): int64*>"
    assert division.split.num_splits == LARGE
    assert list(map(repr, division.after)) == ["batch(5)", "map(batch_sum)"]


@fedstack.python_computation([(np.int64, [None])], np.int64)
def batch_sum(x: Any) -> Any:
    return x.sum()


def test_what_asks_for_the_order_stays_on_one_split_with_all_before_it() -> None:
    division = Dataset.range(LARGE).batch(2).take(5).map(batch_sum).batch(3).divided()
    assert repr(division.split) == f"<Dataset range(0, {LARGE}) → batch(2) → take(5) → map(batch_sum): int64*>"
    assert division.split.num_splits == 1
    assert division.after == (BatchStep(3),)


def test_a_generator_function_is_called_with_the_number_of_a_split() -> None:
    element = {"split": np.int32, "i": np.int64}
    dataset = Dataset.from_generator(lambda split: ({"split": split, "i": i} for i in range(2)), element, 2)
    assert [(int(e["split"]), int(e["i"])) for e in dataset] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dataset.cardinality is None


def test_what_a_generator_function_yields_is_checked() -> None:
    with pytest.raises(TypeMismatchError, match=r"Expected int64, found float 0.5; at split 0 of generator.*\[1\]"):
        list(Dataset.from_generator(lambda split: [1, 0.5], np.int64))


def test_a_one_shot_iterator_is_refused_by_name() -> None:
    with pytest.raises(
        TypeMismatchError, match="from_generator to receive .*, found the one-shot iterator `generator`"
    ):
        Dataset.from_generator((i for i in range(3)), np.int64)  # type: ignore[arg-type]
    shared = iter([1, 2])
    dataset = Dataset.from_generator(lambda split: shared, np.int64)
    with pytest.raises(InvalidValueError, match="Expected a new iterator from each call"):
        list(dataset.repeat(2))


def test_a_name_belongs_to_one_generator_function() -> None:
    def one(split: int) -> Any:
        return [1]

    def other(split: int) -> Any:
        return [2]

    Dataset.from_generator(one, np.int64, name="test_a_name")
    Dataset.from_generator(one, np.int64, name="test_a_name")
    with pytest.raises(
        InvalidValueError, match="Expected an unused name for .*, found 'test_a_name', which is already registered"
    ):
        Dataset.from_generator(other, np.int64, name="test_a_name")


def test_a_computation_gives_a_sequence_or_one_for_each_split() -> None:
    import federated_language as fl

    @fedstack.python_computation(None, fl.SequenceType(np.int64))
    def three() -> Any:
        return [1, 2, 3]

    @fedstack.python_computation([np.int32], fl.SequenceType(np.int64))
    def of_split(split: Any) -> Any:
        return [int(split)] * 2

    assert list(Dataset.from_computation(three)) == [1, 2, 3]
    assert list(Dataset.from_computation(of_split, 3).map(double)) == [0, 0, 2, 2, 4, 4]
    assert read(Dataset.from_computation(of_split, 3), 2, 3, 1) == [2]
    with pytest.raises(
        TypeMismatchError, match="to receive num_splits for a computation that takes the number of a split, found None"
    ):
        Dataset.from_computation(of_split)
    with pytest.raises(TypeMismatchError, match="to receive no num_splits"):
        Dataset.from_computation(three, 2)
    with pytest.raises(InvalidComputationError, match="to receive a computation of type"):
        Dataset.from_computation(double)

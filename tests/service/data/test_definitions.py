"""Datasets as messages: what comes back is the same dataset."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.errors import CarrierError, FedstackError, InvalidComputationError, InvalidValueError
from fedstack.proto.datasets_pb2 import DatasetDefinition, DatasetStep
from fedstack.service.data import Dataset
from fedstack.service.data.consumer.descriptions import described
from fedstack.service.data.datasets.definitions import definition_of, read_definition

HERE = Destination(takes_code=True)


@pytest.fixture
def anything() -> Iterator[None]:
    """Lets functions from elsewhere in."""
    with WorkScope(policy=CarrierPolicy(python_code=True)).entered():
        yield


@fedstack.python_computation([np.int64], np.int64)
def double(x: Any) -> Any:
    return x * 2


@fedstack.python_computation([np.int64], np.bool_)
def is_even(x: Any) -> Any:
    return x % 2 == 0


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def up_to(x: Any) -> Any:
    return list(range(x % 5))


@fedstack.python_computation([np.int64], fl.TensorType(np.int64, [None]))
def row_of(x: Any) -> Any:
    return np.full(x % 5, x)


def shown(dataset: Dataset) -> list[str]:
    """Returns the elements, up to the error if there is one: batches of different sizes make no batch."""
    found: list[str] = []
    try:
        found.extend(map(repr, dataset))
    except InvalidValueError as error:
        found.append(str(error))
    return found


def again(dataset: Dataset) -> Dataset:
    """Returns what comes of a dataset that is written and read, and checks that it is the same."""
    proto = definition_of(dataset, HERE)
    found = read_definition(DatasetDefinition.FromString(proto.SerializeToString()))
    assert found.element_type.is_equivalent_to(dataset.element_type)
    assert found.cardinality == dataset.cardinality
    assert found.num_splits == dataset.num_splits
    assert described(found).description.digest == described(dataset).description.digest
    return found


NUMBER = double.type_signature.result
SMALL, SIZE = st.integers(0, 9), st.integers(1, 4)
ARRAYS = st.one_of(
    st.lists(st.integers(-5, 5), max_size=9).map(lambda rows: np.array(rows, np.int64)),
    st.lists(st.text(max_size=3), max_size=5).map(lambda rows: np.array(rows, object)),
    st.lists(st.floats(width=32), min_size=1, max_size=5).map(
        lambda rows: {"x": np.array(rows, np.float32), "two": (np.ones((len(rows), 2), bool), np.arange(len(rows)))}
    ),
)
SOURCES = st.one_of(
    st.builds(Dataset.range, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, -1, 3])),
    ARRAYS.map(Dataset.from_arrays),
)
STEPS: st.SearchStrategy[Callable[[Dataset], Dataset]] = st.one_of(
    st.builds(lambda n, drop: lambda d: d.batch(n + 1, drop), SMALL, st.booleans()),
    st.builds(lambda n, seed: lambda d: d.shuffle(n + 1, seed), SMALL, st.integers(0, 2**70)),
    st.builds(lambda n: lambda d: d.take(n), SMALL),
    st.builds(lambda n: lambda d: d.skip(n), SMALL),
    st.builds(lambda n: lambda d: d.repeat(n), st.integers(0, 2)),
    st.builds(lambda n: lambda d: d.enumerate(n), SMALL),
    st.builds(lambda n: lambda d: d.prefetch(n + 1), SMALL),
    st.builds(
        lambda n, size, shift, drop: lambda d: d.window(size, shift, n + 1, drop), SMALL, SIZE, SIZE, st.booleans()
    ),
    st.builds(lambda n, i: lambda d: d.shard(n + i, i), SIZE, SMALL),
    st.builds(lambda n, drop: lambda d: d.padded_batch(n, drop_remainder=drop), SIZE, st.booleans()),
    st.just(lambda d: d.cache().repeat(2)),
    st.just(lambda d: d.batch(2).unbatch()),
    st.builds(
        lambda cycle, block: (
            lambda d: (
                d.interleave(up_to, cycle, block).map(row_of).padded_batch(3, [9], 7) if d.element_type == NUMBER else d
            )
        ),
        SIZE,
        SIZE,
    ),
    st.just(lambda d: d.zip(Dataset.range(4), d)),
    st.just(lambda d: d.concatenate(d.take(2))),
    st.just(lambda d: d.repeat().take(5)),
    st.just(
        lambda d: d.map(double).filter(is_even) if d.element_type.is_equivalent_to(double.type_signature.result) else d
    ),
)


@pytest.mark.usefixtures("anything")
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SOURCES, st.lists(STEPS, max_size=4))
def test_a_dataset_comes_back_as_it_was(dataset: Dataset, steps: list[Callable[[Dataset], Dataset]]) -> None:
    for step in steps:
        dataset = step(dataset)
    assert shown(again(dataset)) == shown(dataset)


@pytest.mark.usefixtures("anything")
def test_files_and_generators_come_back_by_their_names(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    (tmp_path / "a.csv").write_text("x;y\n1;2\n")
    (tmp_path / "a.jsonl").write_text('{"x": [1]}\n{"x": [2]}\n')
    datasets = [
        Dataset.from_npy(tmp_path / "a.npy"),
        Dataset.from_npz(tmp_path / "a.npz"),
        Dataset.from_csv(tmp_path / "a.csv", {"x": np.int64}, delimiter=";"),
        Dataset.from_json_lines(tmp_path / "a.jsonl", {"x": (np.int32, [1])}),
        Dataset.from_generator(of_split, np.int64, 3, name="test_definitions.of_split"),
        Dataset.from_computation(of_split_too, 3),
    ]
    for dataset in datasets:
        assert shown(again(dataset)) == shown(dataset) != []


def of_split(split: int) -> Any:
    return [split, split]


@fedstack.python_computation([np.int32], fl.SequenceType(np.int64))
def of_split_too(split: Any) -> Any:
    return [int(split)] * 2


def test_a_definition_is_read_without_its_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    proto = definition_of(Dataset.from_npy(tmp_path / "a.npy"), HERE)
    (tmp_path / "a.npy").unlink()
    assert repr(read_definition(proto)) == "<Dataset a.npy: int64*>"


def test_what_differs_has_another_digest() -> None:
    def of(dataset: Dataset) -> bytes:
        return described(dataset).description.digest

    rows = np.arange(5)
    datasets = [
        Dataset.range(5),
        Dataset.from_arrays(rows),
        Dataset.from_arrays(rows + 1),
        Dataset.range(5).shuffle(3, 0),
        Dataset.range(5).shuffle(3, 1),
        Dataset.range(5).repeat(),
        Dataset.range(5).repeat(0),
        Dataset.range(5).map(double),
        Dataset.range(5).zip(),
        Dataset.range(5).window(2),
        Dataset.range(5).window(2, 1),
        Dataset.range(5).window(2, 1, 2),
        Dataset.range(5).padded_batch(2),
        Dataset.range(5).map(row_of).padded_batch(2),
        Dataset.range(5).map(row_of).padded_batch(2, [9]),
        Dataset.range(5).map(row_of).padded_batch(2, [9], 1),
        Dataset.range(5).interleave(up_to, 2),
        Dataset.range(5).interleave(up_to, 2, 2),
        Dataset.range(5).flat_map(up_to),
        Dataset.range(5).shard(2, 0),
        Dataset.range(5).shard(2, 1),
        Dataset.range(5).cache(),
    ]
    assert len(set(map(of, datasets))) == len(datasets)
    assert of(Dataset.from_arrays(rows.copy())) == of(Dataset.from_arrays(rows))


def test_functions_travel_as_computations_do() -> None:
    secret = 3

    @fedstack.python_computation([np.int64], np.int64)
    def captures(x: Any) -> Any:
        return x + secret

    dataset = Dataset.range(3).map(captures)
    with pytest.raises(CarrierError, match="allow"):
        definition_of(dataset, Destination(takes_code=False))
    proto = definition_of(dataset, HERE)
    with pytest.raises(CarrierError):
        read_definition(proto)
    with WorkScope(policy=CarrierPolicy(python_code=True)).entered():
        assert list(read_definition(proto)) == [3, 4, 5]


def test_a_generator_without_a_name_stays_here_and_one_that_is_not_registered_is_not_found() -> None:
    dataset = Dataset.from_generator(of_split, np.int64)
    with pytest.raises(CarrierError, match="registered under a name, found generator 'of_split'"):
        definition_of(dataset, HERE)
    proto = definition_of(Dataset.from_generator(of_split, np.int64, name="test_definitions.one"), HERE)
    proto.generator.splits = 2
    with pytest.raises(InvalidComputationError, match="Expected 2 splits, found 1 in the generator"):
        read_definition(proto)
    proto.generator.name = "elsewhere"
    with pytest.raises(
        CarrierError, match="Expected the name of a generator that is registered in this process .*'elsewhere'"
    ):
        read_definition(proto)


LONG_SEED = DatasetStep(shuffle=DatasetStep.Shuffle(buffer_size=1, seed=b"\1" * 200))
RANGE = definition_of(Dataset.range(3), HERE)
ROWS = definition_of(Dataset.from_arrays(np.arange(3)), HERE)


def spoilt(proto: DatasetDefinition, spoil: Callable[[DatasetDefinition], object]) -> DatasetDefinition:
    found = DatasetDefinition.FromString(proto.SerializeToString())
    spoil(found)
    return found


@pytest.mark.parametrize(
    "proto",
    [
        DatasetDefinition(),
        DatasetDefinition(element=RANGE.element),
        spoilt(RANGE, lambda p: p.range.ClearField("step")),
        spoilt(RANGE, lambda p: p.element.CopyFrom(DatasetDefinition().element)),
        spoilt(RANGE, lambda p: p.step.add()),
        spoilt(RANGE, lambda p: p.step.add().batch.SetInParent()),
        spoilt(RANGE, lambda p: p.step.add().window.SetInParent()),
        spoilt(RANGE, lambda p: p.step.add().shard.SetInParent()),
        spoilt(RANGE, lambda p: p.step.add().unbatch.SetInParent()),
        spoilt(RANGE, lambda p: p.step.add().interleave.SetInParent()),
        spoilt(RANGE, lambda p: p.step.append(DatasetStep(padded_batch=DatasetStep.PaddedBatch(size=2)))),
        spoilt(RANGE, lambda p: p.step.append(DatasetStep(take=2**64 - 1))),
        spoilt(RANGE, lambda p: p.step.add().map.SetInParent()),
        spoilt(
            RANGE, lambda p: p.step.append(DatasetStep(shuffle=DatasetStep.Shuffle(buffer_size=1, seed=b"\1" * 200)))
        ),
        spoilt(RANGE, lambda p: p.zipped.SetInParent()),
        spoilt(RANGE, lambda p: p.files.SetInParent()),
        spoilt(RANGE, lambda p: p.computation.SetInParent()),
        spoilt(ROWS, lambda p: p.arrays.ClearField("array")),
        spoilt(ROWS, lambda p: setattr(p.arrays, "rows", 2)),
        spoilt(ROWS, lambda p: p.element.CopyFrom(double.type_signature.to_proto())),
    ],
)
def test_a_definition_that_is_none_is_refused(proto: DatasetDefinition) -> None:
    with pytest.raises(FedstackError):
        read_definition(proto)

"""Datasets where computations take sequences, here and over workers."""

from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidValueError, LeafError, TypeMismatchError
from fedstack.service.data import Dataset
from fedstack.service.pool.worker_pool import local_worker_pool

NUMBERS = fl.SequenceType(np.int64)
POINTS = fl.SequenceType({"x": np.float64, "y": np.float64})


@fedstack.python_computation([np.int64], np.int64)
def double(x: Any) -> Any:
    return x * 2


@fedstack.python_computation([NUMBERS], np.int64)
def total(numbers: Any) -> Any:
    return sum(numbers, np.int64(0))


@fedstack.python_computation([POINTS], np.float64)
def dot(points: Any) -> Any:
    return sum((point.x * point.y for point in points), 0.0) + 0 * len(points)


@fl.federated_computation(fl.FederatedType(NUMBERS, fl.CLIENTS))
def total_of_all(data: Any) -> Any:
    return fl.federated_sum(fl.federated_map(total, data))


@fl.federated_computation(fl.FederatedType(POINTS, fl.CLIENTS))
def dot_of_all(data: Any) -> Any:
    return fl.federated_sum(fl.federated_map(dot, data))


@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.slow)])
def context(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "local":
        with fedstack.create_sync_local_execution_context() as context:
            yield context
        return
    with local_worker_pool(2) as pool:
        with fedstack.create_sync_remote_execution_context(pool) as context:
            yield context


@pytest.mark.long
@pytest.mark.usefixtures("context")
def test_datasets_are_client_data() -> None:
    datasets = [Dataset.range(5), Dataset.range(5).map(double), Dataset.from_arrays(np.arange(4)), Dataset.range(0)]
    assert total_of_all(datasets) == 10 + 20 + 6
    assert total_of_all([*datasets, [1, 2]]) == 39


@pytest.mark.long
@pytest.mark.usefixtures("context")
def test_datasets_of_structs_are_client_data() -> None:
    points = {"x": np.arange(3.0), "y": np.ones(3)}
    assert dot_of_all([Dataset.from_arrays(points), Dataset.from_arrays(points).shuffle(2, 0)]) == 6.0


@pytest.mark.long
@pytest.mark.usefixtures("context")
def test_a_dataset_of_another_type_is_refused_before_anything_runs() -> None:
    with pytest.raises(TypeMismatchError, match=r"Expected int64\*, found <Dataset.*batch\(2\).* of int64\[\?\]"):
        total_of_all([Dataset.range(3).batch(2)])


def test_an_error_in_a_dataset_names_the_element_and_the_client() -> None:
    @fedstack.python_computation([np.int64], np.int64)
    def no_three(x: Any) -> Any:
        if x == 3:
            raise ValueError("three")
        return x

    with fedstack.create_sync_local_execution_context():
        with pytest.raises(LeafError, match="'no_three' raised ValueError: three; at element 3 of map.*at client 1"):
            total_of_all([Dataset.range(3), Dataset.range(5).map(no_three)])


def test_a_dataset_without_end_can_be_read_from_and_not_be_held() -> None:
    @fedstack.python_computation([NUMBERS], np.int64)
    def first(numbers: Any) -> Any:
        return next(iter(numbers))

    @fedstack.python_computation([NUMBERS], np.int64)
    def length(numbers: Any) -> Any:
        return len(numbers)

    endless = Dataset.range(3).repeat()
    with fedstack.create_sync_local_execution_context():
        assert first(endless) == 0
        with pytest.raises((InvalidValueError, LeafError), match="Expected a finite sequence"):
            length(endless)

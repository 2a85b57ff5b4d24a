"""Datasets of clients, out of one dataset of them all."""

from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.service.data import Dataset

TABLE = {"who": ["b", "a", "b", "ä"], "x": np.arange(4), "y": np.eye(4)}


def test_each_client_has_its_elements_in_their_order_without_its_id() -> None:
    clients = Dataset.from_arrays(TABLE).by_client("who")
    assert clients.client_ids == list(clients) == ["a", "b", "ä"]
    assert len(clients) == 3
    assert str(clients["b"].element_type) == "<x=int64,y=float64[4]>"
    assert [(element["x"], element["y"].tolist()) for element in clients["b"]] == [(0, [1, 0, 0, 0]), (2, [0, 0, 1, 0])]
    assert {client: len(dataset) for client, dataset in clients.items()} == {"a": 1, "b": 2, "ä": 1}


def test_ids_may_be_numbers_and_elements_come_from_steps() -> None:
    @fedstack.python_computation([np.int64], {"who": np.int32, "x": np.int64})
    def of_one(x: Any) -> Any:
        return {"who": np.int32(x % 3), "x": x}

    clients = Dataset.range(10).map(of_one).by_client("who")
    assert clients.client_ids == [0, 1, 2]
    assert [int(element["x"]) for element in clients[2]] == [2, 5, 8]


def test_nothing_is_read_before_somebody_asks_for_clients() -> None:
    def none(split: int) -> Any:
        raise OSError("gone")

    clients = Dataset.from_generator(none, {"who": np.int32}).by_client("who")
    with pytest.raises(InvalidValueError, match="raised OSError: gone"):
        len(clients)


def test_a_sample_has_each_client_at_most_once_and_follows_from_its_seed() -> None:
    clients = Dataset.from_arrays({"who": np.arange(50) % 20, "x": np.arange(50) % 20}).by_client("who")

    def sampled(n: int, seed: int) -> list[int]:
        return [int(next(iter(dataset))["x"]) for dataset in clients.sample(n, seed)]

    assert sampled(7, 1) == sampled(7, 1) != sampled(7, 2)
    assert sorted(sampled(20, 3)) == list(range(20))
    with pytest.raises(InvalidValueError, match="Expected a sample of at most 20 clients, found a sample of 21"):
        clients.sample(21, 0)


def test_a_client_that_there_is_not_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="Expected the id of a client, found str 'c'; client_ids lists the ids"):
        Dataset.from_arrays(TABLE).by_client("who")["c"]


def test_a_column_that_is_missing_or_no_scalar_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match="elements that have a member 'z', found elements of type <who=str,"):
        Dataset.from_arrays(TABLE).by_client("z")
    with pytest.raises(TypeMismatchError, match=r"Expected scalar client ids in column 'y', found float64\[4\]"):
        Dataset.from_arrays(TABLE).by_client("y")
    with pytest.raises(TypeMismatchError, match="elements that have a member 'x', found elements of type int64"):
        Dataset.range(3).by_client("x")


def test_a_dataset_without_end_has_no_clients() -> None:
    with pytest.raises(InvalidValueError, match="Expected a finite sequence"):
        len(Dataset.from_arrays(TABLE).repeat().by_client("who"))


def test_a_dataset_without_elements_has_no_clients() -> None:
    assert Dataset.from_arrays(TABLE).take(0).by_client("who").client_ids == []


def test_the_datasets_of_clients_are_federated_data() -> None:
    numbers = fl.SequenceType({"x": np.int64})

    @fedstack.python_computation([numbers], np.int64)
    def total(elements: Any) -> Any:
        return sum((element.x for element in elements), np.int64(0))

    @fl.federated_computation(fl.FederatedType(numbers, fl.CLIENTS))
    def total_of_all(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(total, data))

    clients = Dataset.from_arrays({"who": TABLE["who"], "x": TABLE["x"]}).by_client("who")
    with fedstack.create_sync_local_execution_context():
        assert total_of_all(list(clients.values())) == 6

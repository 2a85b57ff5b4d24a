"""A dataset by client is a data source of programs, as Federated Language has them."""

import asyncio
import subprocess
import sys

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.program import DatasetDataSource, DatasetDataSourceIterator
from fedstack.service.data import Dataset

LOCAL = Dataset.from_arrays({"who": np.arange(60) % 20, "x": np.arange(60.0)}).by_client("who")


def values(selection):
    return [[float(element["x"]) for element in data] for data in selection]


def test_it_is_one_of_the_language() -> None:
    source = DatasetDataSource(LOCAL)
    assert isinstance(source, fl.program.FederatedDataSource)
    iterator = source.iterator()
    assert isinstance(iterator, fl.program.FederatedDataSourceIterator)
    assert source.federated_type == iterator.federated_type
    assert str(source.federated_type) == "{<x=float64>*}@CLIENTS"
    assert repr(iterator).startswith("<DatasetDataSourceIterator of <DatasetDataSource of <ClientDatasets of ")


def test_each_iterator_draws_the_same_clients_in_turn_and_each_selection_others() -> None:
    first, again, other = (DatasetDataSource(LOCAL, seed=seed).iterator() for seed in (3, 3, 4))
    drawn = [[values(iterator.select(5)) for _ in range(3)] for iterator in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1] != drawn[0][2]
    assert all(len(set(map(tuple, selection))) == 5 for selection in drawn[0])


def test_a_selection_without_a_number_has_all_clients_in_order() -> None:
    assert values(DatasetDataSource(LOCAL).iterator().select()) == values(LOCAL.values())


@pytest.mark.parametrize("k", [0, -1, 21])
def test_a_number_that_no_selection_can_have_is_refused(k: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"found .*{k}"):
        DatasetDataSource(LOCAL).iterator().select(k)


def test_an_iterator_goes_on_from_its_bytes() -> None:
    iterator = DatasetDataSource(LOCAL, seed=2**70).iterator()
    iterator.select(4)
    content = iterator.to_bytes()
    back = DatasetDataSourceIterator.from_bytes(content)
    assert back.to_bytes() == content
    assert [values(back.select(4)) for _ in range(2)] == [values(iterator.select(4)) for _ in range(2)]


@pytest.mark.parametrize("content", [b"", b"\xff\xff", "abc", None])
def test_bytes_of_no_iterator_are_refused(content) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected bytes returned by an iterator's to_bytes\(\), found "):
        DatasetDataSourceIterator.from_bytes(content)


@pytest.mark.parametrize("ids", ["a", b"ab", 5, {"a": 1}])
def test_one_client_is_no_list_of_clients(ids) -> None:
    with pytest.raises(
        TypeMismatchError, match="Expected a list of client ids for select, found .*; put a single id into a list"
    ):
        DatasetDataSource(LOCAL).select(ids)


def test_what_is_missing_or_too_much_is_refused() -> None:
    with pytest.raises(TypeMismatchError, match="Expected dataset_id to be a string, found None"):
        DatasetDataSource("localhost:1")
    with pytest.raises(TypeMismatchError, match="needs neither a dataset_id nor credentials"):
        DatasetDataSource(LOCAL, "points")
    with pytest.raises(TypeMismatchError, match="Expected a dataset that is split by client"):
        DatasetDataSource(LOCAL.dataset)  # type: ignore[arg-type]


def test_it_supplies_programs_of_the_language() -> None:
    source = DatasetDataSource(LOCAL)

    @fedstack.python_computation([source.federated_type.member], np.float64)
    def total(data):
        return np.float64(sum(element["x"] for element in data))

    @fl.federated_computation(source.federated_type)
    def of_all(data):
        return fl.federated_sum(fl.federated_map(total, data))

    async def program(iterator) -> float:
        with fedstack.create_async_local_execution_context() as context:
            reference = fl.program.NativeFederatedContext(context).invoke(of_all, iterator.select())
            return await reference.get_value()

    assert asyncio.run(program(source.iterator())) == np.arange(60.0).sum()


def test_importing_fedstack_imports_no_programs() -> None:
    program = "import sys, fedstack; print('fedstack.program' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "False"

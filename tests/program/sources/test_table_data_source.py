"""A table is a data source of programs: what is selected, its type, and iterators that go on from a state."""

import asyncio
import collections
from pathlib import Path

import federated_language as fl
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.program import FederatedContext, FileProgramStateManager, TableDataSource, TableDataSourceIterator

COLUMNS = {
    "user": np.arange(40) * 7 % 10,
    "x": np.arange(80, dtype=np.float32).reshape(40, 2),
    "label": [f"é{number}" for number in range(40)],
}


def table(kind: str):
    if kind == "mapping":
        return COLUMNS
    flat = {**COLUMNS, "x": COLUMNS["x"][:, 0]}
    return {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table}[kind](flat)


def plain(selection) -> list:
    return [{name: rows.tolist() for name, rows in client.items()} for client in selection]


def test_it_is_one_of_the_language() -> None:
    source = TableDataSource(COLUMNS, "user")
    assert isinstance(source, fl.program.FederatedDataSource)
    iterator = source.iterator()
    assert isinstance(iterator, fl.program.FederatedDataSourceIterator)
    assert iterator.federated_type == source.federated_type
    assert str(source.federated_type) == "{<x=float32[?,2],label=str[?]>}@CLIENTS"
    assert str(TableDataSource(COLUMNS, "user", ["x"], batch_size=3).federated_type) == "{<x=float32[?,2]>*}@CLIENTS"
    assert repr(iterator).startswith("<TableDataSourceIterator of <TableDataSource of 10 clients with the columns x, l")


@pytest.mark.parametrize("kind", ["mapping", "pandas", "polars", "arrow"])
def test_all_clients_are_those_of_by_client(kind: str) -> None:
    found = TableDataSource(table(kind), "user").iterator().select()
    expected = fedstack.by_client(table(kind), "user")
    assert TableDataSource(table(kind), "user").client_ids == list(expected)
    assert plain(found) == plain(expected.values())
    assert not any(rows.flags.writeable for client in found for rows in client.values())


ids = st.one_of(st.lists(st.integers(-5, 5), max_size=30), st.lists(st.sampled_from("abcde"), max_size=30))


@settings(max_examples=100, deadline=None)
@given(ids, st.integers(0, 2**70), st.data())
def test_any_iterator_draws_clients_without_repetition_and_goes_on_from_its_bytes(users, seed, data) -> None:
    rows = {"user": users, "x": np.arange(len(users))}
    source = TableDataSource(rows, "user", seed=seed)
    clients = {tuple(part["x"]) for part in fedstack.by_client(rows, "user").values()}
    iterator, undisturbed = source.iterator(), source.iterator()
    sizes = data.draw(st.lists(st.one_of(st.none(), st.integers(1, max(len(clients), 1))), max_size=4))
    for k in sizes if clients else []:
        drawn = [tuple(client["x"]) for client in iterator.select(k)]
        assert len(drawn) == len(set(drawn)) == (len(clients) if k is None else k)
        assert set(drawn) <= clients
        assert drawn == [tuple(client["x"]) for client in undisturbed.select(k)]
        if data.draw(st.booleans()):
            iterator = TableDataSourceIterator.from_bytes(iterator.to_bytes())


def test_each_iterator_draws_the_same_clients_in_turn_and_each_selection_others() -> None:
    first, again, other = (TableDataSource(COLUMNS, "user", seed=seed).iterator() for seed in (3, 3, 4))
    drawn = [[plain(iterator.select(4)) for _ in range(3)] for iterator in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1] != drawn[0][2]


def test_a_state_has_no_rows_and_needs_the_same_table() -> None:
    rows = {"user": np.arange(50_000) % 100, "x": np.random.default_rng(1).normal(size=50_000)}
    source = TableDataSource(rows, "user", seed=5)
    content = source.iterator().to_bytes()
    assert len(content) < 200
    del source
    with pytest.raises(InvalidValueError, match=r"Expected a TableDataSource of the table .* in this process, found"):
        TableDataSourceIterator.from_bytes(content)
    other = TableDataSource({**rows, "x": rows["x"] + 1}, "user", seed=5)
    with pytest.raises(InvalidValueError, match="create it from the table with which the state was saved"):
        TableDataSourceIterator.from_bytes(content)
    same = TableDataSource(rows, "user", seed=6)
    found = TableDataSourceIterator.from_bytes(content)
    assert plain(found.select(3)) == plain(TableDataSource(rows, "user", seed=5).iterator().select(3))
    assert plain(other.iterator().select(3)) != plain(same.iterator().select(3))


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"[1]", b'{"table": 1, "seed": "x", "selections": 0}', None])
def test_bytes_of_no_iterator_are_refused(content) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected bytes returned by an iterator's to_bytes\(\), found "):
        TableDataSourceIterator.from_bytes(content)


def test_what_no_selection_can_have_is_refused() -> None:
    source = TableDataSource(COLUMNS, "user")
    for k in (0, -1, 11):
        with pytest.raises(InvalidValueError, match=rf"found .*{k}"):
            source.iterator().select(k)
    for unknown in ([99], [0, "0"], [[1]], [None]):
        with pytest.raises(InvalidValueError, match="Expected the id of a client of .* client_ids lists the ids"):
            source.select(unknown)
    with pytest.raises(InvalidValueError, match="Expected a column named 'who' for TableDataSource"):
        TableDataSource(COLUMNS, "who")
    with pytest.raises(TypeMismatchError, match="a data frame for TableDataSource, found `int`"):
        TableDataSource(5, "user")  # type: ignore[arg-type]
    with pytest.raises(TypeMismatchError, match="Expected an array of numbers or text at table"):
        TableDataSource({"user": [1], "x": np.array(["2020-01-01"], "datetime64[D]")}, "user")


@pytest.mark.parametrize("batch_size", [None, 3])
def test_it_supplies_programs_that_resume(tmp_path: Path, batch_size: int | None) -> None:
    source = TableDataSource(COLUMNS, "user", ["x"], batch_size=batch_size, seed=2)

    @fedstack.python_computation([source.federated_type.member], np.float32)
    def total(data):
        return np.float32(sum(np.sum(part["x"]) for part in (data if batch_size else [data])))

    @fl.federated_computation(source.federated_type)
    def of_all(data):
        return fl.federated_sum(fl.federated_map(total, data))

    async def program(folder: Path, rounds: int) -> list[float]:
        states = FileProgramStateManager(folder)
        state = collections.OrderedDict(found=[0.0] * 4, iterator=source.iterator())
        found, last = await states.load_latest(state)
        state = found or state
        for number in range(last, rounds):
            sums = list(state["found"])
            sums[number] = float(await fl.program.materialize_value(of_all(state["iterator"].select(4))))
            state = collections.OrderedDict(found=sums, iterator=state["iterator"])
            await states.save(state, number + 1)
        states.close()
        return state["found"]

    with fedstack.use_context(FederatedContext(fedstack.create_async_local_execution_context())):
        undisturbed = asyncio.run(program(tmp_path / "undisturbed", 4))
        asyncio.run(program(tmp_path / "resumed", 2))
        assert asyncio.run(program(tmp_path / "resumed", 4)) == undisturbed
    assert len(set(undisturbed)) == 4

"""Rows divided among clients: each row once, in the proportions that each partitioner promises."""

import hashlib

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.data.partition import (
    ContinuousPartitioner,
    DirichletPartitioner,
    ExponentialPartitioner,
    GroupedNaturalIdPartitioner,
    IidPartitioner,
    InnerDirichletPartitioner,
    LinearPartitioner,
    NaturalIdPartitioner,
    PathologicalPartitioner,
    ShardPartitioner,
    SizePartitioner,
    SquarePartitioner,
)
from fedstack.errors import InvalidValueError, TypeMismatchError

DIGITS = np.random.default_rng(0).integers(0, 10, 2000)
SEEDS = st.integers(0, 2**70)
some_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def check_each_row_once(partition, rows):
    assert sorted(np.concatenate(list(partition)).tolist()) == list(range(rows))
    assert partition.sizes.tolist() == list(map(len, partition))
    assert all((np.diff(mine) > 0).all() for mine in partition)
    assert all((partition.owners[mine] == k).all() for k, mine in enumerate(partition))


def sizes_of(total, parts, random):
    return np.diff([0, *sorted(random.integers(0, total + 1, parts - 1)), total]).tolist()


@settings(deadline=None)
@given(some_labels, st.data(), SEEDS)
def test_each_row_has_one_client_and_the_same_seed_gives_the_same_partition(labels, data, seed):
    clients = data.draw(st.integers(1, len(labels)))
    kinds = len(set(labels))
    sizes = sizes_of(len(labels), clients, np.random.default_rng(seed % 1000))
    alpha = data.draw(st.sampled_from([1e-9, 0.01, 0.3, 1.0, 50.0, 1e9]))
    for partitioner in (
        IidPartitioner(clients),
        SizePartitioner(sizes),
        DirichletPartitioner(clients, alpha=alpha, min_partition_size=0),
        DirichletPartitioner(clients, alpha=alpha, min_partition_size=0, self_balancing=True),
        InnerDirichletPartitioner(sizes, alpha=alpha),
        InnerDirichletPartitioner(sizes, alpha=[alpha] * kinds),
        ShardPartitioner(clients, num_shards_per_partition=1),
        ShardPartitioner(clients, shard_size=1),
        ContinuousPartitioner(clients, strictness=0.0),
        NaturalIdPartitioner(),
        GroupedNaturalIdPartitioner(group_size=2),
    ):
        partition = partitioner.partition(labels, seed)
        check_each_row_once(partition, len(labels))
        assert partition.owners.tolist() == partitioner.partition(np.array(labels), seed).owners.tolist()
        if isinstance(partitioner, InnerDirichletPartitioner | SizePartitioner):
            assert partition.sizes.tolist() == sizes
        elif isinstance(partitioner, IidPartitioner | ContinuousPartitioner):
            assert len(partition) == clients
            assert np.ptp(partition.sizes) <= 1


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from(["random", "first-deterministic", "deterministic"]), SEEDS)
def test_each_client_has_exactly_the_number_of_labels_that_was_asked_for(clients, each, mode, seed):
    labels = np.repeat(np.arange(8), 10)
    partitioner = PathologicalPartitioner(clients, num_classes_per_partition=each, class_assignment_mode=mode)
    if mode == "random" and clients * each < 8:
        with pytest.raises(
            InvalidValueError, match="Expected a client of PathologicalPartitioner for each of 8 labels"
        ):
            partitioner.partition(labels, seed)
        return
    try:
        partition = partitioner.partition(labels, seed)
    except InvalidValueError:
        # The labels that do not depend on chance leave some label without a client.
        assert mode == "deterministic" or clients * (each - 1) + min(clients, 8) < 8
        return
    check_each_row_once(partition, 80)
    values, counts = partition.label_counts(labels)
    assert values == list(range(8))
    assert ((counts > 0).sum(axis=1) == each).all()
    if mode != "random":
        assert all(counts[k, k] > 0 for k in range(clients))
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


def test_the_bits_of_a_seed_stay():
    found = hashlib.sha256()
    for partitioner in (IidPartitioner(7), DirichletPartitioner(7, alpha=0.5), ShardPartitioner(7, shard_size=9)):
        found.update(partitioner.partition(DIGITS, seed=3).owners.astype("<i8").tobytes())
    assert found.hexdigest() == "e19202dd538e7c019a60331a6187431893bba76cc532115dee88470639ddaaa9"


@pytest.mark.parametrize("seed", range(5))
def test_a_large_alpha_is_nearly_iid_and_a_small_one_gives_each_label_to_one_client(seed):
    _, even = DirichletPartitioner(5, alpha=1e6).partition(DIGITS, seed).label_counts(DIGITS)
    share = np.bincount(DIGITS) / 5
    assert (np.abs(even - share) <= 0.05 * share + 1).all()
    _, odd = DirichletPartitioner(5, alpha=1e-4, min_partition_size=0).partition(DIGITS, seed).label_counts(DIGITS)
    assert (odd.max(axis=0) >= 0.99 * np.bincount(DIGITS)).mean() >= 0.9
    _, inner = InnerDirichletPartitioner([400] * 5, alpha=1e6).partition(DIGITS, seed).label_counts(DIGITS)
    assert (np.abs(inner - share) <= 30).all()


def test_each_client_has_at_least_the_smallest_size_or_an_error_says_what_to_change():
    for seed in range(20):
        partition = DirichletPartitioner(10, alpha=0.5, min_partition_size=20).partition(DIGITS, seed)
        assert partition.sizes.min() >= 20
    with pytest.raises(InvalidValueError, match="at least 190 rows for each of 10 clients, found .* in the best of 10"):
        DirichletPartitioner(10, alpha=0.1, min_partition_size=190).partition(DIGITS)
    with pytest.raises(InvalidValueError, match="found 2000 rows in all; use a smaller min_partition_size"):
        DirichletPartitioner(10, alpha=0.1, min_partition_size=201).partition(DIGITS)


@pytest.mark.parametrize("balanced", [False, True])
def test_there_may_be_more_clients_than_rows_if_clients_without_rows_are_allowed(balanced):
    partitioner = DirichletPartitioner(400, alpha=0.3, min_partition_size=0, self_balancing=balanced)
    partition = partitioner.partition(DIGITS[:300])
    assert len(partition) == 400
    check_each_row_once(partition, 300)


def test_balancing_makes_sizes_differ_less():
    spread = [
        np.mean([DirichletPartitioner(10, alpha=0.5, min_partition_size=0, self_balancing=balanced)
                 .partition(DIGITS, seed).sizes.std() for seed in range(20)])
        for balanced in (False, True)
    ]  # fmt: skip
    assert spread[1] < 0.8 * spread[0]


def test_one_alpha_for_each_client_makes_some_larger():
    sizes = DirichletPartitioner(3, alpha=[100, 100, 1000], min_partition_size=0).partition(DIGITS).sizes
    assert sizes[2] > 3 * max(sizes[:2])


@pytest.mark.parametrize(
    ("partitioner", "sizes"),
    [
        (LinearPartitioner(4), [200, 400, 600, 800]),
        (SquarePartitioner(3), [142, 571, 1287]),
        (ExponentialPartitioner(3), [180, 489, 1331]),
    ],
)
def test_sizes_grow_as_the_name_says(partitioner, sizes):
    partition = partitioner.partition(DIGITS, seed=1)
    assert partition.sizes.tolist() == sizes
    check_each_row_once(partition, 2000)
    _, counts = partition.label_counts(DIGITS)
    assert (counts > 0).all()


def test_shards_hold_neighbours_in_the_order_of_the_labels():
    partition = ShardPartitioner(10, num_shards_per_partition=1).partition(np.sort(DIGITS), seed=2)
    assert all(len(np.unique(np.sort(DIGITS)[mine])) <= 3 for mine in partition)
    sizes = ShardPartitioner(3, shard_size=300).partition(DIGITS).sizes
    assert sorted(sizes.tolist()) in ([500, 600, 900], [600, 600, 800])


def test_strictness_decides_how_much_of_the_order_stays():
    numbers = np.random.default_rng(1).permutation(1000)
    sorted_parts = ContinuousPartitioner(4, strictness=1.0).partition(numbers)
    assert [numbers[mine].min() for mine in sorted_parts] == [0, 250, 500, 750]
    spreads = [
        np.mean([numbers[mine].std() for mine in ContinuousPartitioner(4, strictness=s).partition(numbers)])
        for s in (0.0, 0.5, 1.0)
    ]
    assert spreads[0] > spreads[1] > spreads[2]


def test_clients_by_a_column_are_those_of_by_client():
    table = {"user": ["b", "a", "b", "c"], "x": [1, 2, 3, 4]}
    partition = NaturalIdPartitioner("user").partition(table)
    assert list(partition.client_ids) == ["a", "b", "c"]
    found = {who: part["x"].tolist() for who, part in zip(partition.client_ids, partition.split(table))}
    assert found == {who: part["x"].tolist() for who, part in fedstack.by_client(table, "user").items()}
    groups = GroupedNaturalIdPartitioner("user", group_size=2, mode="allow-bigger").partition(table)
    assert (list(groups.client_ids), groups.sizes.tolist()) == ([("a", "b", "c")], [4])
    groups = GroupedNaturalIdPartitioner("user", group_size=2).partition(table)
    assert (list(groups.client_ids), groups.sizes.tolist()) == ([("a", "b"), ("c",)], [3, 1])


@pytest.mark.parametrize("make", [dict, pd.DataFrame, pl.DataFrame, pa.table])
def test_tables_of_each_library_are_partitioned_alike(make):
    columns = {"label": DIGITS, "x": np.arange(2000.0), "word": [f"w{k % 7}" for k in range(2000)]}
    for by in ("label", "word"):
        found = DirichletPartitioner(5, by, alpha=1.0).partition(make(columns), seed=4)
        wanted = DirichletPartitioner(5, alpha=1.0).partition(columns[by], seed=4)
        assert found.owners.tolist() == wanted.owners.tolist()
    assert sum(part["x"].sum() for part in found.split(make(columns))) == columns["x"].sum()
    assert IidPartitioner(3).partition(make(columns)).sizes.tolist() == [667, 667, 666]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: IidPartitioner(5).partition([1, 2]), "at least one row for each of 5 clients of Iid.*2 rows; use"),
        (lambda: DirichletPartitioner(5, alpha=1).partition([1, 2]), "at least one row for each of 5 clients"),
        (lambda: LinearPartitioner(5).partition([1] * 9), "found none for client 0 of 9 rows; use fewer clients"),
        (lambda: IidPartitioner(0), "num_partitions of at least 1, found 0"),
        (lambda: SizePartitioner([1, 2]).partition([1, 2]), "with the sum 2, which is the number of rows, found"),
        (lambda: SizePartitioner([-1, 3]), "each of partition_sizes of at least 0, found -1"),
        (lambda: SizePartitioner([]), "Expected a size for each client"),
        (lambda: DirichletPartitioner(2, alpha=-1.0), "alpha of more than 0, found -1.0"),
        (lambda: DirichletPartitioner(2, alpha=float("nan")), "alpha of more than 0, found nan"),
        (lambda: DirichletPartitioner(2, alpha=[1.0, 0.0]), "each alpha of more than 0, found 0.0"),
        (lambda: DirichletPartitioner(2, alpha=[1.0] * 3).partition(DIGITS), "one for each of 2 clients, found 3"),
        (lambda: DirichletPartitioner(2, alpha=1e308).partition(DIGITS), "an alpha with which proportions can be"),
        (lambda: DirichletPartitioner(2, "y", alpha=1).partition({"x": [1, 2]}), r"column named 'y' .*columns \['x'\]"),
        (lambda: DirichletPartitioner(2, alpha=1).partition([1.0, np.nan]), "Expected a label .* found nan in row 1"),
        (lambda: DirichletPartitioner(2, alpha=1).partition(["a", None]), "found None in row 1"),
        (lambda: DirichletPartitioner(2, alpha=1).partition(np.eye(3)), "Expected one label per row in the labels"),
        (lambda: NaturalIdPartitioner().partition([]), "at least one row for NaturalIdPartitioner, found none"),
        (lambda: PathologicalPartitioner(2, num_classes_per_partition=3).partition([1, 2]), "of at most 2, .* found 3"),
        (lambda: PathologicalPartitioner(4, num_classes_per_partition=2).partition([1, 2, 2, 2]), "with label 1 for"),
        (lambda: ShardPartitioner(2), "either num_shards_per_partition or shard_size, found neither"),
        (lambda: ShardPartitioner(2, shard_size=4).partition([1] * 4), "from 2 to 4 shards, .* found 1"),
        (lambda: ShardPartitioner(2, num_shards_per_partition=3).partition([1] * 4), "from 2 to 4 shards, .* found 6"),
        (lambda: ContinuousPartitioner(2, strictness=1.5), "strictness from 0 to 1, found 1.5"),
        (lambda: ContinuousPartitioner(2, strictness=1.0).partition([3.0, 3.0]), "at least two different numbers"),
        (lambda: ContinuousPartitioner(2, strictness=1.0).partition([3.0, np.inf]), "found inf in row 1"),
        (lambda: GroupedNaturalIdPartitioner(group_size=2, mode="strict").partition([1, 2, 3]), "multiple of 2 ids"),
        (lambda: GroupedNaturalIdPartitioner(group_size=2, mode="drop"), "mode to be one of allow-smaller"),
        (lambda: IidPartitioner(2).partition([1, 2], seed=-1), "seed to be zero or more"),
        (lambda: IidPartitioner(2).partition([1, 2]).split([1]), "Expected 2 rows for Partition.split"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_that_says_why(act, message):
    with pytest.raises(InvalidValueError, match=message):
        act()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: DirichletPartitioner(2, alpha=1).partition({"x": [1, 2]}), "say by which column .*: partition_by"),
        (lambda: DirichletPartitioner(2, "x", alpha=1).partition([1, 2]), "a mapping of columns or a data frame"),
        (lambda: NaturalIdPartitioner("x").partition(pl.DataFrame({"x": [1]}).lazy()), "call collect"),
        (lambda: ContinuousPartitioner(2, strictness=1.0).partition(["a", "b"]), "a column of numbers"),
    ],
)
def test_what_is_no_column_is_an_error_that_says_what_to_pass(act, message):
    with pytest.raises(TypeMismatchError, match=message):
        act()


def test_a_partition_is_read_like_a_list_and_is_frozen():
    partition = IidPartitioner(3).partition(DIGITS)
    assert partition[-1].tolist() == partition[2].tolist()
    with pytest.raises(IndexError):
        partition[3]
    with pytest.raises(ValueError, match="read-only"):
        partition.owners[0] = 1
    assert repr(partition) == "<Partition of 2000 rows among 3 clients, 666 to 667 each>"

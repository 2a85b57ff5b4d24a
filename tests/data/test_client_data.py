"""Client data can be iterated again and again, and lies out as its user said."""

import doctest
import itertools
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstack.computations.values.sequences import check_re_iterable
from fedstack.data import client_data, client_tables
from fedstack.data.client_data import batches, from_generator
from fedstack.data.client_seeds import client_seeds
from fedstack.data.client_tables import by_client
from fedstack.errors import InvalidValueError, TypeMismatchError

Example = namedtuple("Example", ["x", "y"])


def test_examples_in_docstrings_hold():
    assert doctest.testmod(client_data).failed == doctest.testmod(client_tables).failed == 0


@pytest.mark.parametrize("elements", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), {1: 0, 2: 0}.keys()])
def test_what_can_be_iterated_again_is_a_sequence(elements):
    check_re_iterable(elements)


@pytest.mark.parametrize(
    ("iterator", "name"),
    [(iter([1]), "list_iterator"), ((x for x in [1]), "generator"), (map(str, [1]), "map"), (zip([1]), "zip")],
)
def test_one_shot_iterator_is_refused_by_name(iterator, name):
    with pytest.raises(TypeMismatchError, match=f"found a one-shot iterator `{name}`; at arg.data; pass a list"):
        check_re_iterable(iterator, "arg.data")


@pytest.mark.parametrize("value", [3, None, "text", b"bytes", {"a": 1}, object()])
def test_check_re_iterable_refuses_what_is_no_sequence(value):
    with pytest.raises(TypeMismatchError, match=f"found `{type(value).__name__}`"):
        check_re_iterable(value)


def test_from_generator_calls_the_function_for_each_iteration_and_not_before():
    calls = []

    def read():
        calls.append(len(calls))
        yield from range(3)

    sequence = from_generator(read)
    check_re_iterable(sequence)
    iter(sequence)
    assert calls == []
    assert list(sequence) == list(sequence) == [0, 1, 2]
    assert calls == [0, 1]
    assert "read" in repr(sequence)


def test_from_generator_takes_a_function_that_returns_a_list():
    assert list(from_generator(lambda: [1, 2])) == [1, 2]


def test_from_generator_iterations_do_not_disturb_each_other():
    sequence = from_generator(lambda: (x for x in range(3)))
    assert list(zip(sequence, sequence, strict=True)) == [(0, 0), (1, 1), (2, 2)]


def test_from_generator_refuses_a_generator():
    with pytest.raises(TypeMismatchError, match="found `generator`; at from_generator; pass the function itself"):
        from_generator(x for x in range(3))


def test_from_generator_refuses_a_function_that_returns_one_iterator_twice():
    iterator = iter([1, 2])
    sequence = from_generator(lambda: iterator)
    assert list(sequence) == [1, 2]
    with pytest.raises(InvalidValueError, match="found the same `list_iterator` twice"):
        list(sequence)


def test_batches_are_read_only_views_and_the_last_one_may_be_short():
    array = np.arange(10).reshape(5, 2)
    sequence = batches(array, 2)
    found = list(sequence)
    assert len(sequence) == 3
    assert [batch.shape for batch in found] == [(2, 2), (2, 2), (1, 2)]
    assert all(np.shares_memory(batch, array) for batch in found)
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        found[0][0] = 1
    assert np.array_equal(np.concatenate(list(sequence)), array)


def test_batches_leave_out_a_short_batch_when_asked_to():
    sequence = batches(np.arange(5), 2, drop_remainder=True)
    assert [batch.tolist() for batch in sequence] == [[0, 1], [2, 3]]
    assert len(sequence) == 2
    assert list(batches(np.arange(1), 2, drop_remainder=True)) == []


@pytest.mark.parametrize("container", [dict, OrderedDict])
def test_batches_keep_containers(container):
    arrays = container(z=Example(np.arange(3), [1.0, 2.0, 3.0]), a=(np.arange(3), {"s": np.array(["u", "v", "w"])}))
    first, last = batches(arrays, 2)
    assert type(first) is container
    assert list(first) == ["z", "a"]
    assert type(first["z"]) is Example
    assert type(first["a"]) is tuple
    assert last["z"].y.tolist() == [3.0]
    assert last["a"][1]["s"].tolist() == ["w"]


def test_batches_of_no_rows_are_none():
    assert list(batches(np.zeros((0, 3)), 4)) == []
    assert len(batches(np.zeros((0, 3)), 4)) == 0


@given(rows=st.integers(0, 30), size=st.integers(1, 10), seed=st.integers(0, 2**70), drop=st.booleans())
def test_shuffled_batches_hold_each_row_once_and_without_reshuffling_in_one_order(rows, size, seed, drop):
    arrays = {"x": np.arange(rows), "y": np.arange(rows) * 10}
    sequence = batches(arrays, size, shuffle_seed=seed, drop_remainder=drop)
    found = list(sequence)
    assert len(found) == len(sequence)
    assert all((batch["y"] == batch["x"] * 10).all() for batch in found)
    again = batches(arrays, size, shuffle_seed=seed, drop_remainder=drop, reshuffle=False)
    for _ in range(2):
        assert [batch["x"].tolist() for batch in found] == [batch["x"].tolist() for batch in again]
    seen = sorted(x for batch in found for x in batch["x"].tolist())
    if drop:
        assert len(set(seen)) == len(seen) == rows - rows % size
    else:
        assert seen == list(range(rows))


def orders(**options):
    """Yields the order of 100 rows in each pass over one sequence."""
    sequence = batches(np.arange(100), 100, **options)
    while True:
        yield tuple(next(iter(sequence)).tolist())


def test_shuffled_batches_differ_by_seed_by_round_and_from_pass_to_pass():
    seen = [next(orders(shuffle_seed=seed)) for seed in range(5)]
    seen += [next(orders(shuffle_seed=0, round=number)) for number in (1, 2, 2**64 - 1)]
    seen += list(itertools.islice(orders(shuffle_seed=0), 1, 4))
    assert len(set(seen)) == len(seen)


def test_the_passes_of_shuffled_batches_can_be_repeated():
    first, second = (list(itertools.islice(orders(shuffle_seed=3, round=7), 4)) for _ in range(2))
    assert first == second


def test_the_order_of_shuffled_batches_is_what_it_was():
    # A model that was trained with the release before is trained to the same bits with this one.
    found = [batch.tolist() for batch in batches(np.arange(8), 8, shuffle_seed=1, round=2)]
    assert found == [[4, 5, 1, 6, 7, 0, 2, 3]]


def test_passes_change_nothing_where_rows_are_not_shuffled():
    sequence = batches(np.arange(3), 2)
    assert [[batch.tolist() for batch in sequence] for _ in range(2)] == [[[0, 1], [2]]] * 2
    assert not sequence.reshuffles


@pytest.mark.parametrize(
    ("arrays", "arguments", "error", "message"),
    [
        ({"x": np.zeros(3), "y": np.zeros((4, 3))}, {}, InvalidValueError, r"found arrays\['x'\]: 3, arrays\['y'\]: 4"),
        ({}, {}, InvalidValueError, "found no arrays"),
        (np.float32(1), {}, TypeMismatchError, "at arrays, found a scalar `float32`; repeat the scalar"),
        (iter([1]), {}, TypeMismatchError, "at arrays, found a one-shot iterator `list_iterator`; pass a list"),
        ((np.zeros(1), None), {}, TypeMismatchError, r"at arrays\[1\], found a scalar `NoneType`"),
        ([[1], [1, 2]], {}, InvalidValueError, "at arrays, found ragged rows: .*; pad the rows"),
        (np.zeros(3), {"batch_size": 0}, InvalidValueError, "batch_size to be one or more, found 0"),
        (np.zeros(3), {"batch_size": 1.5}, TypeMismatchError, "batch_size to be an integer, found `float`"),
        (np.zeros(3), {"batch_size": True}, TypeMismatchError, "found `bool`"),
        (np.zeros(3), {"shuffle_seed": -1}, InvalidValueError, "shuffle_seed to be zero or more, found -1"),
        (np.zeros(3), {"shuffle_seed": np.array(1.0)}, TypeMismatchError, "found `ndarray`"),
        (
            np.zeros(3),
            {"shuffle_seed": 2**1024},
            InvalidValueError,
            r"shuffle_seed to be below 2\*\*1024, found an integer",
        ),
        (np.zeros(3), {"shuffle_seed": 1, "round": -1}, InvalidValueError, "round to be zero or more, found -1"),
        (np.zeros(3), {"shuffle_seed": 1, "round": 2**64}, InvalidValueError, r"round to be below 2\*\*64"),
        (
            np.zeros(3),
            {"shuffle_seed": 1, "reshuffle": 0},
            TypeMismatchError,
            "reshuffle to be True or False, found int ",
        ),
        (np.zeros(3), {"drop_remainder": 1}, TypeMismatchError, "drop_remainder to be True or False, found int "),
        (np.zeros(3), {"round": 0}, InvalidValueError, "round=0 has no effect without it, .*; pass shuffle_seed"),
        (np.zeros(3), {"reshuffle": False}, InvalidValueError, "pass shuffle_seed, or omit reshuffle"),
    ],
)
def test_batches_refuse_what_makes_no_batches(arrays, arguments, error, message):
    with pytest.raises(error, match=message):
        batches(arrays, **{"batch_size": 2, **arguments})


TABLE = {"user": ["b", "a", "b", "c", "a"], "x": [1, 2, 3, 4, 5], "y": np.arange(10.0).reshape(5, 2)}


def test_by_client_groups_rows_by_sorted_id_in_their_order():
    found = by_client(TABLE, "user")
    assert list(found) == ["a", "b", "c"]
    assert {client: list(part) for client, part in found.items()} == {client: ["x", "y"] for client in "abc"}
    assert [part["x"].tolist() for part in found.values()] == [[2, 5], [1, 3], [4]]
    assert found["b"]["y"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match="read-only"):
        found["a"]["x"][0] = 0


def test_by_client_keeps_only_the_columns_asked_for_in_their_order():
    assert list(by_client(TABLE, "user", ["y", "user"])["a"]) == ["y", "user"]
    assert by_client(TABLE, "user", [])["a"] == {}


def test_by_client_keeps_the_order_of_first_appearance_where_ids_cannot_be_sorted():
    ids = np.array(["b", 2, "a", 2], np.object_)
    assert list(by_client({"id": ids, "x": [1, 2, 3, 4]}, "id")) == ["b", 2, "a"]


def test_by_client_ids_are_python_values():
    found = by_client({"id": np.array([3, 1, 3], np.int32), "x": [1, 2, 3]}, "id")
    assert [type(client) for client in found] == [int, int]
    assert list(found) == [1, 3]


def test_by_client_takes_a_data_frame_by_its_shape_alone():
    class Frame:
        columns = ("user", "x")

        def __getitem__(self, name):
            return {"user": np.array(["b", "a"]), "x": np.array([1, 2])}[name]

    assert {client: part["x"].tolist() for client, part in by_client(Frame(), "user").items()} == {"a": [2], "b": [1]}


def test_by_client_refuses_several_columns_that_say_whose_rows_they_are():
    with pytest.raises(TypeMismatchError, match=r"one column as client_id of by_client, found list \['a', 'b'"):
        by_client({"a": [1], "b": [2]}, ["a", "b"])


def test_by_client_of_an_empty_table_has_no_clients():
    assert by_client({"id": np.array([], np.int64), "x": []}, "id") == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())))
def test_by_client_gives_each_row_to_its_client(rows):
    found = by_client({"id": [c for c, _ in rows], "x": np.array([x for _, x in rows], np.object_)}, "id")
    assert {client: part["x"].tolist() for client, part in found.items()} == {
        client: [x for c, x in rows if c == client] for client in sorted({c for c, _ in rows})
    }


@pytest.mark.parametrize(
    ("table", "columns", "error", "message"),
    [
        ({"x": [1]}, None, InvalidValueError, r"column named 'user' for by_client, found the columns \['x'\]"),
        ({"user": [1]}, ["z"], InvalidValueError, "Expected a column named 'z'"),
        ({"user": [[1, 2]]}, None, InvalidValueError, r"in column 'user', found an array of shape \[1, 2\]"),
        ({"user": [1, 2], "x": [1]}, None, InvalidValueError, r"Expected 2 rows in column 'x', .* of shape \[1\]"),
        ({"user": [1, 2], "x": 3}, None, InvalidValueError, r"in column 'x', .* of shape \[\]"),
        ({"user": [1, 2], "x": [[1], [2, 3]]}, None, InvalidValueError, "'x', found ragged rows: .*; pad the rows"),
        ({"user": [[1], [2, 3]]}, None, InvalidValueError, "at column 'user', found ragged rows"),
        ({"user": [1.0, float("nan")]}, None, InvalidValueError, "of column 'user', found nan in row 1"),
        ({"user": ["a", None]}, None, InvalidValueError, "found None in row 1"),
        ({"user": np.array([[], {}, None], np.object_)}, None, InvalidValueError, "'user', .*unhashable type: 'list'"),
        ([("user", [1])], None, TypeMismatchError, "for by_client, found `list`"),
    ],
)
def test_by_client_refuses_a_table_that_does_not_tell_whose_rows_they_are(table, columns, error, message):
    with pytest.raises(error, match=message):
        by_client(table, "user", columns)


MASKED = np.ma.array([1, 2], mask=[False, True])


@pytest.mark.parametrize(
    "arrays", [MASKED, {"x": MASKED}, ([1, 2], MASKED), {"x": [[1, 2], MASKED]}, [1, np.ma.masked]]
)
def test_batches_refuse_masked_arrays(arrays):
    with pytest.raises(TypeMismatchError, match=r"at arrays.*, found a masked array; .*value\.filled"):
        batches(arrays, 1)


@pytest.mark.parametrize(
    "column", [["a", None, None], [1.5, None, None], np.array([[1, 2], [3, None], [None, 4]], np.object_)]
)
def test_none_in_a_row_is_no_value(column):
    with pytest.raises(InvalidValueError, match=r"at column 'x', found None in row 1 \(2 missing\); drop these rows"):
        by_client({"id": [1, 2, 1], "x": column}, "id")
    with pytest.raises(InvalidValueError, match=r"at arrays\['x'\], found None in row 1 \(2 missing\)"):
        batches({"x": column}, 1)


@pytest.mark.parametrize("column", [MASKED, [1, np.ma.masked], [[1, np.ma.masked], [2, 3]]])
@pytest.mark.parametrize("name", ["id", "x"])
def test_by_client_refuses_masked_columns(name, column):
    with pytest.raises(TypeMismatchError, match=rf"at column '{name}', found a masked array; .*value\.filled"):
        by_client({"id": [1, 2], "x": [1, 2], name: column}, "id")


# NumPy would change an element of each of these.
DELICATE = [
    ["a", "a\0"],
    [b"a", b"a\0"],
    ["x", 5],
    ["x", b"x"],
    [b"x", 5],
    ["x", True],
    [2**63, 2**63 + 1, -1],
    [2**53 + 1, 0.5],
]


@pytest.mark.parametrize("column", DELICATE, ids=repr)
def test_lists_that_numpy_would_change_become_arrays_of_objects(column):
    def is_kept(array):
        return array.dtype == object and [(type(x), x) for x in array] == [(type(x), x) for x in column]

    assert is_kept(next(iter(batches({"x": column}, len(column))))["x"])
    assert is_kept(by_client({"id": [1] * len(column), "x": column}, "id")[1]["x"])
    found = by_client({"id": column, "x": range(len(column))}, "id")
    assert {(type(who), who): part["x"].tolist() for who, part in found.items()} == {
        (type(who), who): [k] for k, who in enumerate(column)
    }


def test_nested_lists_that_numpy_would_change_become_arrays_of_objects():
    (batch,) = batches([["a\0", "b"], ["c", "d"]], 2)
    assert batch.tolist() == [["a\0", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    "column", [["a", "b\0c"], [b"a", b"b"], [1, 2.5], [True, 0.5], [float("nan"), 2**53]], ids=repr
)
def test_lists_that_numpy_keeps_become_its_own_arrays(column):
    (batch,) = batches(column, 2)
    assert batch.dtype == np.asarray(column).dtype != object


def test_client_seeds_are_pinned():
    assert client_seeds(7, 2) == [3386250816931739734, 4042502035264064771]
    assert client_seeds(7, 0) == []


def test_client_seeds_are_those_of_numpys_spawned_sequences():
    spawned = np.random.SeedSequence(2**100).spawn(3)
    assert client_seeds(2**100, 3) == [int(child.generate_state(1, np.uint64)[0]) for child in spawned]


@given(seed=st.integers(0, 2**130), n=st.integers(0, 20), more=st.integers(0, 20))
def test_client_seeds_do_not_depend_on_the_number_of_clients(seed, n, more):
    seeds = client_seeds(seed, n + more)
    assert client_seeds(seed, n) == seeds[:n]
    assert len(set(seeds)) == len(seeds)
    assert all(type(s) is int and 0 <= s < 2**64 for s in seeds)


def test_client_seeds_differ_between_neighbouring_seeds():
    assert len({s for seed in range(50) for s in client_seeds(seed, 50)}) == 2500


@pytest.mark.parametrize(
    ("seed", "n", "error"), [(-1, 1, InvalidValueError), (1, -1, InvalidValueError), (1.0, 1, TypeMismatchError)]
)
def test_client_seeds_refuse_what_is_no_count(seed, n, error):
    with pytest.raises(error):
        client_seeds(seed, n)


@pytest.mark.parametrize("unit", ["D", "us", "ns"])
def test_client_ids_may_be_dates_and_times_of_any_unit(unit):
    days = np.array(["2020-01-02", "2020-01-01", "2020-01-02"], f"datetime64[{unit}]")
    found = by_client({"day": days, "x": [1, 2, 3]}, "day")
    assert [np.datetime64(day) for day in found] == [np.datetime64("2020-01-01"), np.datetime64("2020-01-02")]
    assert [part["x"].tolist() for part in found.values()] == [[2], [1, 3]]


@given(
    st.integers(0, 2**70), st.lists(st.one_of(st.integers(), st.text(), st.binary()), unique_by=lambda x: (type(x), x))
)
def test_a_clients_seed_depends_on_its_id_and_the_round_alone(seed, ids):
    seeds = client_seeds(seed, ids, round=3)
    assert len(set(seeds)) == len(ids)
    assert client_seeds(seed, ids[::-1], round=3) == seeds[::-1]
    assert [client_seeds(seed, [one], round=3)[0] for one in ids] == seeds
    assert set(seeds).isdisjoint(client_seeds(seed, ids, round=4))
    assert set(seeds).isdisjoint(client_seeds(seed, ids))


def test_seeds_of_ids_are_pinned():
    assert client_seeds(7, ["a", b"a", 1, "1"], round=2) == client_seeds(
        7, [np.str_("a"), b"a", np.int8(1), "1"], round=2
    )
    assert client_seeds(7, ["a", 1]) == [1132224767193606224, 8758976934563867212]
    with pytest.raises(TypeMismatchError, match="as client ids, found"):
        client_seeds(7, [1.5])
    with pytest.raises(InvalidValueError):
        client_seeds(7, ["a"], round=-1)

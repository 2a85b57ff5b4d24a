"""Steps that put elements together, take them apart and leave some out, against lists that do the same."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import federated_language as fl
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstack
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError, ResourceLimitError, TypeMismatchError
from fedstack.service.data import Dataset
from fedstack.service.data.datasets.rearranging_steps import Kept


@fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
def some_of(x: Any) -> Any:
    return [10 * x + place for place in range(x % 4)]


@fedstack.python_computation([np.int64], fl.TensorType(np.int64, [None]))
def row_of(x: Any) -> Any:
    return np.full(x % 5, x)


@fedstack.python_computation([np.int64, np.int64], np.int64)
def digits(state: Any, x: Any) -> Any:
    return 10 * state + x


def at_most_2(x: Any) -> Any:
    if x > 2:
        raise ValueError("too large")
    return x


@fedstack.python_computation([np.int64], np.int64)
def up_to_2(x: Any) -> Any:
    return at_most_2(x)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def elements(dataset: Dataset) -> list[Any]:
    found = [plain(element) for element in dataset]
    assert dataset.cardinality in (None, len(found))
    assert [plain(element) for element in dataset] == found
    return found


def in_blocks(count: int) -> Dataset:
    """Returns the first numbers, in blocks of 1, 2, 4 … of them."""
    return Dataset.from_generator(lambda split: range(count), np.int64)


def windows(found: Sequence[Any], size: int, shift: int, stride: int, drop_remainder: bool) -> list[list[Any]]:
    made = [list(found[first : first + (size - 1) * stride + 1 : stride]) for first in range(0, len(found), shift)]
    return [window for window in made if len(window) == size or not drop_remainder]


def interleaved(sequences: Iterator[list[Any]], cycle: int, block: int) -> list[Any]:
    """As tf.data: an empty place is filled in its turn, and one that has run out is empty."""
    places: list[list[Any] | None] = [None] * cycle
    found: list[Any] = []
    ended = False
    while not ended or any(place is not None for place in places):
        for turn in range(cycle):
            if places[turn] is None and not ended:
                places[turn] = next(sequences, None)
                ended = places[turn] is None
            place = places[turn]
            if place is not None:
                found += place[:block]
                places[turn] = place[block:] if len(place) >= block else None
    return found


SMALL = st.integers(1, 7)
SOURCES = st.tuples(st.sampled_from([Dataset.range, in_blocks]), st.integers(0, 40))


@settings(deadline=None, max_examples=examples(100))
@given(SOURCES, SMALL, SMALL, SMALL, st.booleans())
def test_windows_begin_after_each_shift_and_take_every_stride(
    source: tuple[Callable[[int], Dataset], int], size: int, shift: int, stride: int, drop_remainder: bool
) -> None:
    make, count = source
    dataset = make(count).window(size, shift, stride, drop_remainder)
    assert elements(dataset) == windows(range(count), size, shift, stride, drop_remainder)


@settings(deadline=None, max_examples=examples(100))
@given(SOURCES, SMALL, SMALL)
def test_interleave_takes_blocks_of_several_sequences_by_turns(
    source: tuple[Callable[[int], Dataset], int], cycle: int, block: int
) -> None:
    make, count = source
    sequences = [[10 * x + place for place in range(x % 4)] for x in range(count)]
    assert elements(make(count).interleave(some_of, cycle, block)) == interleaved(iter(sequences), cycle, block)
    assert elements(make(count).flat_map(some_of)) == list(itertools.chain.from_iterable(sequences))


def test_interleave_has_the_order_that_the_documentation_of_tf_data_shows() -> None:
    @fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
    def six(x: Any) -> Any:
        return [x] * 6

    found = elements(Dataset.range(1, 6).interleave(six, cycle_length=2, block_length=4))
    assert found == [*[1] * 4, *[2] * 4, 1, 1, 2, 2, *[3] * 4, *[4] * 4, 3, 3, 4, 4, *[5] * 6]
    assert elements(Dataset.range(1, 3).interleave(six, cycle_length=2**70)) == [1, 2] * 6


@settings(deadline=None, max_examples=examples(60))
@given(SOURCES, SMALL, st.booleans())
def test_padded_batches_are_filled_up_to_the_longest_of_each(
    source: tuple[Callable[[int], Dataset], int], size: int, drop_remainder: bool
) -> None:
    make, count = source
    rows = [[x] * (x % 5) for x in range(count)]
    batches = [rows[first : first + size] for first in range(0, count, size)]
    expected = [
        [row + [-1] * (max(map(len, batch)) - len(row)) for row in batch]
        for batch in batches
        if len(batch) == size or not drop_remainder
    ]
    dataset = make(count).map(row_of).padded_batch(size, padding_values=-1, drop_remainder=drop_remainder)
    assert elements(dataset) == expected
    fixed = [[row + [0] * (6 - len(row)) for row in batch] for batch in batches]
    assert elements(make(count).map(row_of).padded_batch(size, [6])) == fixed


def test_padded_batch_pads_members_of_structs_each_in_its_way() -> None:
    arrays = {"x": np.arange(6.0).reshape(3, 2), "pair": (np.arange(3), np.array([["a"], ["b"], ["c"]]))}
    dataset = Dataset.from_arrays(arrays).padded_batch(
        2, {"x": [3], "pair": ([], [2])}, {"x": np.float64(9), "pair": (np.int64(0), "-")}
    )
    assert str(dataset.element_type) == "<x=float64[?,3],pair=<int64[?],str[?,2]>>"
    assert elements(dataset) == [
        {"x": [[0.0, 1.0, 9.0], [2.0, 3.0, 9.0]], "pair": ([0, 1], [[b"a", b"-"], [b"b", b"-"]])},
        {"x": [[4.0, 5.0, 9.0]], "pair": ([2], [[b"c", b"-"]])},
    ]
    same = Dataset.from_arrays(np.arange(6.0).reshape(3, 2))
    assert elements(same.padded_batch(2)) == elements(same.batch(2))
    assert str(same.padded_batch(2, drop_remainder=True).element_type) == "float64[2,2]"


def test_padding_that_does_not_fit_is_refused_with_its_place() -> None:
    rows = Dataset.range(9).map(row_of)
    with pytest.raises(TypeMismatchError, match="Expected padded_shapes.* to have 1 dimensions, found"):
        rows.padded_batch(2, [2, 2])
    with pytest.raises(TypeMismatchError, match=r"Expected padded_shapes.* to have the 2 members of an element, found"):
        rows.zip(rows).padded_batch(2, [[1]])
    with pytest.raises(TypeMismatchError, match=r"Expected int64, found .*; at padding_values\[1\]"):
        rows.zip(rows).padded_batch(2, None, (np.int64(1), "a"))
    with pytest.raises(TypeMismatchError, match="Expected a size of at least 2 at .*, found 1"):
        Dataset.from_arrays(np.zeros((3, 2))).padded_batch(2, [1])
    with pytest.raises(
        InvalidValueError, match=r"padded_batch\(2\) to receive arrays of size 3 or less .*, found size 4;"
    ):
        list(rows.padded_batch(2, [3]))
    with pytest.raises(
        ResourceLimitError, match=r"Expected padded arrays of at most .*; at padded_batch; reduce padded_shapes$"
    ):
        rows.padded_batch(2, [2**40])
    with pytest.raises(ResourceLimitError, match="to produce batches of at most"):
        list(rows.padded_batch(9, [2**26]))


@settings(deadline=None, max_examples=examples(60))
@given(SOURCES, SMALL, st.integers(0, 6))
def test_shards_keep_every_so_many_th_element(
    source: tuple[Callable[[int], Dataset], int], number: int, index: int
) -> None:
    make, count = source
    if index < number:
        assert elements(make(count).shard(number, index)) == list(range(count))[index::number]
    else:
        with pytest.raises(InvalidValueError, match=f"Expected a shard index less than {number}, found {index}"):
            make(count).shard(number, index)


@pytest.mark.parametrize("make", [Dataset.range, in_blocks])
def test_unbatch_undoes_batch(make: Callable[[int], Dataset]) -> None:
    assert elements(make(23).batch(5).unbatch()) == list(range(23))
    assert elements(make(23).map(row_of).unbatch()) == [x for x in range(23) for _ in range(x % 5)]
    pairs = make(9).zip(Dataset.from_arrays(np.array([["a", "b"]] * 9)))
    assert elements(pairs.batch(4).unbatch()) == elements(pairs)
    assert str(Dataset.from_arrays(np.zeros((2, 3, 4))).unbatch().element_type) == "float64[4]"


def test_what_has_no_first_dimension_in_common_is_not_taken_apart() -> None:
    for dataset in (Dataset.range(3), Dataset.from_arrays((np.zeros((2, 3)), np.zeros((2, 4))))):
        with pytest.raises(TypeMismatchError, match="whose first dimensions have the same size, found"):
            dataset.unbatch()
    rows = Dataset.range(5).map(row_of)
    with pytest.raises(InvalidValueError, match="have the same size in each element, found"):
        list(rows.zip(rows.skip(1)).unbatch())


def test_a_cache_in_a_file_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match="Expected an empty file name for cache, which keeps .*, found str 'file'"
    ):
        Dataset.range(3).cache("file")


def test_a_cache_reads_once_what_comes_to_its_end() -> None:
    begun: list[int] = []

    def numbers(split: int) -> Iterator[int]:
        begun.append(split)
        yield from range(5)

    dataset = Dataset.from_generator(numbers, np.int64).shuffle(5, seed=1).cache()
    assert len(list(dataset.take(2))) == 2
    first = [int(number) for number in dataset]
    assert begun == [0, 0]
    assert [int(number) for number in dataset.repeat(3)] == first * 3
    assert begun == [0, 0]
    alone = Dataset.from_generator(numbers, np.int64).cache(only_for_repetitions=True).repeat(3)
    assert len(list(alone)) == len(list(alone)) == 15
    assert begun == [0] * 4
    with pytest.raises(InvalidValueError, match="Expected cache to receive a finite dataset"):
        Dataset.range(5).repeat().cache()
    assert Kept.__reduce__(Kept()) == (Kept, ())


def test_a_shuffle_before_a_cache_has_one_order_and_after_it_one_for_each_repetition() -> None:
    before = [int(number) for number in Dataset.range(20).shuffle(20, seed=1).cache().repeat(2)]
    assert before[:20] == before[20:]
    after = [int(number) for number in Dataset.range(20).cache().shuffle(20, seed=1).repeat(2)]
    assert after[:20] != after[20:]
    assert sorted(after[:20]) == sorted(after[20:])


def test_reduce_applies_a_function_to_a_state_and_each_element() -> None:
    assert Dataset.range(5).reduce(7, digits) == 701234
    assert Dataset.range(0).reduce(np.int64(7), digits) == 7
    with pytest.raises(TypeMismatchError, match=r"Expected reduce to receive a function that takes"):
        Dataset.range(5).reduce(0, up_to_2)
    with pytest.raises(TypeMismatchError, match="at initial_state"):
        Dataset.range(5).reduce("a", digits)

    @fedstack.python_computation([np.int64, np.int64], np.int64)
    def small(state: Any, x: Any) -> Any:
        return at_most_2(x)

    with pytest.raises(LeafError, match=r"too large; at element 3 of reduce\(small\)"):
        Dataset.range(5).reduce(0, small)


def test_a_function_that_makes_no_sequence_is_refused() -> None:
    with pytest.raises(InvalidComputationError, match="flat_map to receive a function that returns a sequence"):
        Dataset.range(3).flat_map(up_to_2)
    with pytest.raises(InvalidComputationError, match="interleave to receive"):
        Dataset.range(3).interleave(up_to_2, 2)
    with pytest.raises(InvalidComputationError, match="Expected a computation for interleave, found"):
        Dataset.range(3).interleave(lambda x: Dataset.range(x), 2)


def test_elements_of_sequences_before_one_that_fails_come_out() -> None:
    @fedstack.python_computation([np.int64], fl.SequenceType(np.int64))
    def twice(x: Any) -> Any:
        return [at_most_2(x)] * 2

    for dataset in (Dataset.range(9).flat_map(twice), Dataset.range(9).interleave(twice, 1, 3)):
        found = []
        with pytest.raises(LeafError, match="too large; at element 3 of flat_map"):
            for element in dataset:
                found.append(int(element))
        assert found == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "step",
    [
        lambda d: d.window(3),
        lambda d: d.window(4, 2, 3),
        lambda d: d.window(2, 5, drop_remainder=True),
        lambda d: d.shard(3, 1),
        lambda d: d.map(row_of).padded_batch(4),
    ],
)
def test_a_step_goes_on_after_the_elements_that_it_says_it_has_taken(step: Callable[[Dataset], Dataset]) -> None:
    dataset = step(Dataset.range(40))
    found = elements(dataset)
    for made in range(len(found)):
        taken = dataset.steps[-1].taken(made)
        assert taken is not None
        assert elements(step(Dataset.range(taken, 40))) == found[made:]

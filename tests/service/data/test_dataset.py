"""What datasets yield, step by step."""

import asyncio
import contextlib
import itertools
import math
import threading
from typing import Any

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.errors import InvalidComputationError, InvalidValueError, LeafError, TypeMismatchError
from fedstack.service.data import Dataset


@fedstack.python_computation([np.int64], np.int64)
def double(x: Any) -> Any:
    return x * 2


@fedstack.python_computation([np.int64], np.bool_)
def is_even(x: Any) -> Any:
    return x % 2 == 0


def plain(value: Any) -> Any:
    """Returns an element with Python's numbers and lists."""
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def elements(dataset: Dataset) -> list[Any]:
    found = [plain(element) for element in dataset]
    if dataset.cardinality is not None:
        assert len(found) == len(dataset) == dataset.cardinality
    assert [plain(element) for element in dataset] == found
    return found


def test_a_range_has_the_int64_numbers_of_pythons_range() -> None:
    assert elements(Dataset.range(3)) == [0, 1, 2]
    assert elements(Dataset.range(7, 1, -3)) == [7, 4]
    assert elements(Dataset.range(0)) == []
    assert len(list(Dataset.range(200_001))) == 200_001
    assert Dataset.range(3).element_type == Dataset.range(3).element_spec == fl.TensorType(np.int64)
    assert [type(element) for element in Dataset.range(1)] == [np.int64]


@pytest.mark.parametrize("arguments", [(0, 5, 0), (2**63,), (-(2**63) - 1, 0)])
def test_a_range_outside_of_int64_and_one_without_a_step_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValueError, match="Expected the start, stop and step of Dataset.range to be int64"):
        Dataset.range(*arguments)


def test_rows_of_arrays_come_in_their_containers_and_share_their_memory() -> None:
    arrays = {"x": np.arange(6.0).reshape(3, 2), "pair": (np.arange(3, dtype=np.int32), ["a", "b", "c\0"])}
    dataset = Dataset.from_arrays(arrays)
    assert str(dataset.element_type) == "<x=float64[2],pair=<int32,str>>"
    found = elements(dataset)
    assert found == [{"x": [2.0 * i, 2.0 * i + 1], "pair": (i, t)} for i, t in enumerate([b"a", b"b", b"c\0"])]
    first = next(iter(dataset))
    assert np.shares_memory(first["x"], arrays["x"])  # type: ignore[arg-type]
    assert not first["x"].flags.writeable
    batch = next(iter(dataset.batch(2)))
    assert np.shares_memory(batch["x"], arrays["x"])  # type: ignore[arg-type]


def test_arrays_that_the_language_has_no_type_for_are_refused_with_their_place() -> None:
    with pytest.raises(
        TypeMismatchError, match=r"Expected an array of numbers or text at arrays\['t'\], found an array datetime64"
    ):
        Dataset.from_arrays({"t": np.zeros(2, "datetime64[s]")})
    with pytest.raises(TypeMismatchError, match="Expected text at .*, found"):
        Dataset.from_arrays(np.array([1, "a"], object))
    with pytest.raises(InvalidValueError, match="equal numbers of rows.*at Dataset.from_arrays"):
        Dataset.from_arrays((np.zeros(2), np.zeros(3)))


def test_map_and_filter_apply_computations() -> None:
    assert elements(Dataset.range(5).map(double).filter(is_even)) == [0, 2, 4, 6, 8]
    assert elements(Dataset.range(5).filter(is_even).map(double)) == [0, 4, 8]
    assert Dataset.range(5).filter(is_even).cardinality is None


def test_map_takes_federated_languages_own_computations_too() -> None:
    @fl.federated_computation(np.int64)
    def pair(x: Any) -> Any:
        return {"x": double(x), "is_even": is_even(x)}

    assert elements(Dataset.range(2).map(pair)) == [{"x": 0, "is_even": True}, {"x": 2, "is_even": False}]


def test_map_may_run_under_a_running_event_loop() -> None:
    import asyncio

    async def listed() -> list[Any]:
        return elements(Dataset.range(3).map(double))

    assert asyncio.run(listed()) == [0, 2, 4]


def test_no_element_is_mapped_long_before_it_is_asked_for() -> None:
    asked: list[int] = []

    @fedstack.python_computation([np.int64], np.int64)
    def noted(x: Any) -> Any:
        asked.append(int(x))
        return x

    dataset = Dataset.range(1_000_000).map(noted)
    assert asked == []
    assert next(iter(dataset)) == 0
    assert asked == [0]
    assert elements(dataset.take(3)) == [0, 1, 2]
    assert max(asked) == 2


def test_elements_before_the_one_that_fails_come_out_and_the_error_says_which_it_is() -> None:
    @fedstack.python_computation([np.int64], np.int64)
    def no_500(x: Any) -> Any:
        if x == 500:
            raise ValueError("not this one")
        return x

    found = []
    with pytest.raises(LeafError, match=r"'no_500' raised ValueError: not this one; at element 500 of map\(no_500\)"):
        for element in Dataset.range(1000).map(no_500):
            found.append(element)
    assert found == list(range(500))


@pytest.mark.parametrize("step", ["map", "filter"])
def test_what_is_no_computation_of_the_elements_is_refused_when_the_dataset_is_built(step: str) -> None:
    dataset = Dataset.range(3)
    with pytest.raises(InvalidComputationError, match=f"Expected a computation for {step}, found .*; decorate"):
        getattr(dataset, step)(lambda x: x)
    with pytest.raises(
        TypeMismatchError, match=rf"Expected {step} to receive a function that takes int64\[\?\], found "
    ):
        getattr(dataset.batch(2), step)(double)


def test_filter_wants_a_bool() -> None:
    with pytest.raises(InvalidComputationError, match="a function that returns bool, found double"):
        Dataset.range(3).filter(double)


def test_batches_have_a_new_first_dimension_and_are_views_where_they_can_be() -> None:
    assert elements(Dataset.range(5).batch(2)) == [[0, 1], [2, 3], [4]]
    assert elements(Dataset.range(5).batch(2, drop_remainder=True)) == [[0, 1], [2, 3]]
    assert elements(Dataset.range(12).batch(2).batch(3, True)) == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    assert str(Dataset.range(5).batch(2).element_type) == "int64[?]"
    assert str(Dataset.range(5).batch(2, True).element_type) == "int64[2]"
    assert [len(b) for b in Dataset.range(100_000).map(double).batch(30_000)] == [30_000] * 3 + [10_000]


def test_a_batch_of_text_has_an_array_of_bytes() -> None:
    (batch,) = Dataset.from_arrays(["a", "bc"]).batch(2)
    assert batch.dtype == object
    assert batch.tolist() == [b"a", b"bc"]


def test_arrays_of_different_shapes_make_no_batch() -> None:
    ragged = Dataset.from_generator(lambda split: ([0.0] * n for n in (2, 2, 3)), (np.float64, [None]))
    assert elements(ragged.take(2).batch(2)) == [[[0.0, 0.0], [0.0, 0.0]]]
    with pytest.raises(InvalidValueError, match=r"the same shape at batch\(3\), found shapes \[2\] and \[3\]"):
        list(ragged.batch(3))


def test_a_shuffle_has_each_element_once_in_an_order_of_its_seed() -> None:
    dataset = Dataset.range(1000).shuffle(100, 7)
    found = elements(dataset)
    assert sorted(found) == list(range(1000)) != found
    assert all(element < place + 100 for place, element in enumerate(found))
    assert elements(Dataset.range(1000).shuffle(100, 8)) != found
    assert elements(Dataset.range(4).shuffle(1, 0)) == [0, 1, 2, 3]
    assert sorted(elements(Dataset.range(40_000).shuffle(50_000, 1))) == list(range(40_000))


def test_a_shuffle_does_not_depend_on_how_elements_come_to_it() -> None:
    whole = elements(Dataset.range(3000).shuffle(64, 1))
    assert elements(Dataset.range(3000).map(double).shuffle(64, 1)) == [2 * element for element in whole]


def test_each_repetition_shuffles_anew() -> None:
    found = elements(Dataset.range(20).shuffle(20, 3).repeat(3))
    epochs = [found[:20], found[20:40], found[40:]]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    found = elements(Dataset.range(9).shuffle(9, 3).repeat(2).repeat(2))
    assert len({tuple(found[start : start + 9]) for start in range(0, 36, 9)}) == 4


def test_repeat_without_a_count_does_not_end_unless_there_is_nothing() -> None:
    endless = Dataset.range(3).repeat()
    assert endless.cardinality == math.inf
    assert list(itertools.islice(endless, 7)) == [0, 1, 2, 0, 1, 2, 0]
    assert elements(endless.take(4)) == [0, 1, 2, 0]
    assert elements(Dataset.range(0).repeat()) == []
    assert elements(Dataset.range(3).repeat(0)) == []
    with pytest.raises(TypeError, match="The length of .* is infinite"):
        len(endless)


def test_take_skip_enumerate_and_prefetch() -> None:
    assert elements(Dataset.range(10).skip(7)) == [7, 8, 9]
    assert elements(Dataset.range(10).take(0)) == []
    assert elements(Dataset.range(100_000).skip(99_999).take(5)) == [99_999]
    assert elements(Dataset.range(3, 5).enumerate(start=7)) == [(7, 3), (8, 4)]
    assert elements(Dataset.range(100_000).prefetch(10).batch(100_000)) == [list(range(100_000))]
    assert elements(Dataset.range(3).prefetch(10**18)) == [0, 1, 2]


def test_a_prefetch_that_nobody_reads_to_its_end_leaves_no_thread_at_work() -> None:
    before = set(threading.enumerate())
    assert next(iter(Dataset.range(1_000_000).prefetch(100_000))) == 0
    assert list(Dataset.range(5).prefetch(2)) == [0, 1, 2, 3, 4]
    for thread in set(threading.enumerate()) - before:  # those of other tests may have come meanwhile: they end too
        if thread.name.startswith("fedstack-leaf"):
            thread.join(30)
            assert not thread.is_alive()


def test_an_error_comes_through_a_prefetch_at_its_place() -> None:
    def two(split: int) -> Any:
        yield 1
        raise OSError("gone")

    found = []
    with pytest.raises(InvalidValueError, match="raised OSError: gone; at split 0 of generator"):
        for element in Dataset.from_generator(two, np.int64).prefetch(5):
            found.append(element)
    assert found == [1]


def test_zip_ends_with_the_shortest_and_concatenate_goes_through_all() -> None:
    short, long = Dataset.range(2), Dataset.range(10, 100_000).map(double)
    assert elements(short.zip(long, short)) == [(0, 20, 0), (1, 22, 1)]
    assert elements(Dataset.zip(short, short)) == [(0, 0), (1, 1)]
    assert elements(short.concatenate(Dataset.range(5, 6), short)) == [0, 1, 5, 0, 1]


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(
        TypeMismatchError,
        match=r"Expected concatenate to receive elements of type int64, found elements of type int64\[\?\]",
    ):
        Dataset.range(2).concatenate(Dataset.range(2).batch(2))
    with pytest.raises(TypeMismatchError, match="Expected zip to receive datasets, found"):
        Dataset.range(2).zip([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "argument", "message"),
    [
        ("batch", 0, "Expected batch_size to be one or more, found 0"),
        ("batch", 2.0, "Expected batch_size to be an integer"),
        ("take", -1, "Expected count to be zero or more, found -1"),
        ("skip", True, "Expected count to be an integer"),
        ("repeat", -2, "Expected count to be zero or more, found -2"),
        ("prefetch", 0, "Expected buffer_size to be one or more"),
        ("enumerate", 2**63, "Expected the start of enumerate to be an int64 number"),
    ],
)
def test_arguments_out_of_range_are_refused_when_the_dataset_is_built(step: str, argument: Any, message: str) -> None:
    with pytest.raises((InvalidValueError, TypeMismatchError), match=message):
        getattr(Dataset.range(3), step)(argument)


def test_apply_gives_the_dataset_to_a_function() -> None:
    assert elements(Dataset.range(3).apply(lambda dataset: dataset.map(double))) == [0, 2, 4]
    assert list(Dataset.range(2).as_numpy_iterator()) == [0, 1]


def test_a_dataset_says_what_it_does() -> None:
    assert repr(Dataset.range(3).map(double).batch(2)) == "<Dataset range(0, 3) → map(double) → batch(2): int64[?]*>"


def test_what_comes_from_other_libraries_is_refused_with_what_to_write_here() -> None:
    numbers = Dataset.range(3)
    for wrong in (lambda: Dataset.zip((numbers, numbers)), lambda: numbers.zip([numbers])):  # type: ignore[arg-type]
        with pytest.raises(
            TypeMismatchError,
            match=r"zip to receive datasets, found .*; pass each dataset as a separate argument, as in a\.zip\(b\)",
        ):
            wrong()
    with pytest.raises(
        TypeMismatchError,
        match=r"concatenate to receive .*; pass each dataset as a separate argument, as in a\.concatenate\(b\)",
    ):
        numbers.concatenate((numbers,))  # type: ignore[arg-type]
    for arguments, found in (((), "nothing"), (([1, 2],), r"list \[1, 2\]")):
        with pytest.raises(
            TypeMismatchError, match=f"Expected a source of elements, found {found}; create datasets with"
        ):
            Dataset(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"Expected a seed for shuffle, .*found None; try shuffle\(5, seed=1\)"):
        numbers.shuffle(5)


def test_enumerate_does_not_number_beyond_int64() -> None:
    last = 2**63 - 1
    numbered = iter(Dataset.range(5).enumerate(last - 1))
    assert [int(number) for number, _ in itertools.islice(numbered, 2)] == [last - 1, last]
    with pytest.raises(
        InvalidValueError,
        match=f"Expected enumerate\\({last - 1}\\) to receive at most 2 elements, so that their numbers fit",
    ):
        next(numbered)
    assert [int(number) for number, _ in Dataset.range(2).enumerate(last - 1)] == [last - 1, last]
    assert list(Dataset.range(0).enumerate(last)) == []


@pytest.mark.parametrize("iterate", [iter, aiter])
def test_an_iterator_that_another_thread_waits_with_says_so_and_goes_on(iterate: Any) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def numbers(_: int) -> Any:
        yield np.int64(0)
        waits.set()
        assert go_on.wait(20)
        yield np.int64(1)

    elements = iterate(Dataset.from_generator(numbers, np.int64))
    assert next(elements) == 0
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.extend(itertools.islice(elements, 1)))
    other.start()
    assert waits.wait(20)
    with pytest.raises(InvalidValueError, match="Another thread or task is waiting for elements of this iterator"):
        next(elements)
    if iterate is iter:
        elements.close()  # which leaves the other one alone
    go_on.set()
    other.join()
    assert found == [1]
    assert list(elements) == []


@pytest.mark.parametrize("iterate", [iter, aiter])
def test_a_closed_iterator_yields_no_more(iterate: Any) -> None:
    endless = Dataset.range(10_000).repeat()
    for dataset in (endless, endless.enumerate(), Dataset.range(10_000).cache()):
        elements = iterate(dataset)
        assert len([next(elements) for _ in range(100)]) == 100
        elements.close()
        elements.close()
        assert list(elements) == []


async def test_of_tasks_that_share_an_iterator_one_waits_at_a_time_and_aclose_ends_it() -> None:
    waits, go_on = threading.Event(), threading.Event()

    def numbers(_: int) -> Any:
        waits.set()
        assert go_on.wait(20)
        yield from map(np.int64, range(1000))

    async with contextlib.aclosing(aiter(Dataset.from_generator(numbers, np.int64))) as elements:
        first = asyncio.ensure_future(anext(elements))
        assert await asyncio.to_thread(waits.wait, 20)
        with pytest.raises(InvalidValueError, match="Another thread or task is waiting"):
            await anext(elements)
        go_on.set()
        assert await first == 0
        assert [int(await anext(elements)) for _ in range(500)] == list(range(1, 501))
    with pytest.raises(StopAsyncIteration):
        await anext(elements)


def test_a_function_of_elements_that_takes_no_split_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeMismatchError, match=r"found a function with the parameters \(\); declare one parameter"):
        Dataset.from_generator(lambda: [1], np.int64)  # pyright: ignore[reportArgumentType]

"""Conformance rows about sequences: the accepted kinds of iterables, and how leaf functions read and return them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, StructType, TensorType
from fedstack.data.client_data import batches, from_generator
from fedstack.errors import InvalidValueError
from fedstack.testing.computation_builder import (
    Expression,
    at_clients,
    computation,
    function,
    intrinsic,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import (
    add_all,
    add_all_at_once,
    batch_scratch,
    identity,
    list_scratch,
    pick_elements,
)
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner

INTS = SequenceType(np.int32)


def ints(*values: int) -> list[np.int32]:
    """Returns integers as elements of a sequence of type `INTS`."""
    return [np.int32(value) for value in values]


class _Countdown:
    """A re-iterable that is not a list, and counts its iterations."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.starts = 0

    def __iter__(self) -> Iterator[int]:
        self.starts += 1
        return iter(range(self.size, 0, -1))


def _refill() -> Iterator[Any]:
    buffer = np.zeros(4, np.float32)
    for number in range(3):
        buffer[:] = number
        yield buffer


@promise_of_both()
async def a_generator_may_fill_one_array_again_and_again(runner: Runner) -> None:
    """A generator may yield the same array each time and overwrite it in between. Earlier elements do not change."""
    arrays = SequenceType((np.float32, [4]))
    expected = [np.full(4, number, np.float32) for number in range(3)]
    passed = computation(lambda s, unused: s, arrays, np.int32)
    expect_same(await runner.run(passed, from_generator(_refill), 0), expected)
    expect_same(await runner.run(add_all, from_generator(_refill)), np.float32(12))
    for leaf in (add_all, add_all_at_once):
        mapped = computation(lambda x, leaf=leaf: intrinsic("federated_map", leaf, x), at_clients(arrays))
        expect_same(await runner.run(mapped, [from_generator(_refill)] * 2), [np.float32(12)] * 2)


@promise_of_both()
async def a_leaf_may_return_sequences_over_one_array(runner: Runner) -> None:
    """A leaf may return sequences over an array that later calls overwrite. Earlier results do not change."""
    values = [np.float32(number) for number in (1, 2, 4)]
    for leaf, size in ((list_scratch, 4), (batch_scratch, 2)):
        mapped = computation(lambda x, leaf=leaf: intrinsic("federated_map", leaf, x), at_clients(np.float32))
        expected = [[np.full(size, value, np.float32)] * (4 // size) for value in values]
        expect_same(await runner.run(mapped, values), expected)


@promise_of_both()
async def leaves_pick_elements_of_sequences(runner: Runner) -> None:
    """A leaf may read the length of a list or of batches, elements by index, and slices."""
    elements = [{"b": np.int32(b), "a": np.int32(a)} for b, a in [(1, 2), (3, 4), (5, 6), (7, 8)]]
    expect_same(await runner.run(pick_elements, elements), np.int32(4282))
    mapped = computation(
        lambda x: intrinsic("federated_map", pick_elements, x), at_clients(pick_elements.type_signature.parameter)
    )
    expect_same(await runner.run(mapped, [elements, tuple(elements)]), [np.int32(4282)] * 2)
    rows = SequenceType((np.int32, [None]))

    @python_computation([rows], np.int32)
    def last_row(batched: Any) -> Any:
        return np.int32(100 * len(batched) + 10 * batched[1][0] + batched[-1:][0][0])

    mapped = computation(lambda x: intrinsic("federated_map", last_row, x), at_clients(rows))
    expect_same(await runner.run(mapped, [batches(np.arange(5, dtype=np.int32), 2)]), [np.int32(324)])


def _three_passes(sequence: Any) -> Any:
    return np.concatenate([np.zeros(0, np.int32), *(batch for _ in range(3) for batch in sequence)])


def _second(sequence: Any) -> Any:
    return sequence[1] if len(sequence) > 1 else np.zeros(0, np.int32)


@promise_of_both(intrinsics=["sequence_map"])
async def passes_over_shuffled_batches_are_counted_in_each_call(runner: Runner) -> None:
    """Shuffled batches have a new order in each pass, counted from 0 per call. Stacks that send elements raise."""
    rows = TensorType(np.int32, [None])
    taken = python_computation([SequenceType(rows)], rows)(_three_passes)
    seconds = python_computation([SequenceType(rows)], rows)(_second)
    passed_on = identity(SequenceType(rows))

    def mapped(c: Expression, *functions: Any) -> Expression:
        for f in functions:
            c = intrinsic("federated_map", f, c)
        return c

    twice = function(lambda b: intrinsic("generic_plus", b, b), rows)
    doubled = function(lambda s: intrinsic("sequence_map", twice, s), SequenceType(rows))
    everything = computation(
        lambda c: struct(mapped(c, taken), mapped(c, passed_on, taken), mapped(c, doubled, taken), mapped(c, seconds)),
        at_clients(SequenceType(rows)),
    )

    def data(**options: Any) -> list[Any]:
        numbers = [np.arange(size, dtype=np.int32) for size in (7, 0, 3)]
        shuffled = [batches(some, 3, shuffle_seed=len(some), round=4, **options) for some in numbers]
        return [*shuffled, batches(numbers[0], 3)]

    for options in ({}, {"reshuffle": False}):
        found = [_three_passes(sequence) for sequence in data(**options)]
        second = [_second(list(sequence)) for sequence in data(**options)]
        given = data(**options)
        for sequence in given:
            next(iter(sequence), None)  # a pass outside of the computation does not change the orders
        try:
            results = await runner.run(everything, given)
        except InvalidValueError as error:
            expect(not options and "reshuffle=False" in str(error), "an error that suggests reshuffle=False", error)
            continue
        expect_same(results, (found, found, [2 * order for order in found], second))
    expect(len(set(map(bytes, np.split(_three_passes(data()[0]), 3)))) == 3, "three different orders", data()[0])


@promise_of_both()
async def any_re_iterable_is_a_sequence(runner: Runner) -> None:
    """Any re-iterable object is accepted as a sequence, such as a list, tuple or range. The result is a list."""
    for value, expected in [
        ([3, 2, 1], ints(3, 2, 1)),
        ((3, 2, 1), ints(3, 2, 1)),
        ([], []),
        (range(3, 0, -1), ints(3, 2, 1)),
        (_Countdown(3), ints(3, 2, 1)),
        (from_generator(lambda: iter([3, 2, 1])), ints(3, 2, 1)),
        (np.array([3, 2, 1], np.int32), ints(3, 2, 1)),
    ]:
        passed = computation(lambda s, unused: s, INTS, np.int32)
        expect_same(await runner.run(passed, value, 0), expected)
        clients = computation(lambda c: c, at_clients(INTS))
        expect_same(await runner.run(clients, [value, value]), [expected, expected])
    elements = StructType([("b", np.int32), ("a", TensorType(np.float32, [None]))])
    given = [{"a": np.zeros(2, np.float32), "b": np.int32(1)}, {"b": np.int32(2), "a": np.zeros(1, np.float32)}]
    expected = [{"b": batch["b"], "a": batch["a"]} for batch in given]
    passed = computation(lambda c: c, at_clients(SequenceType(elements)))
    expect_same(await runner.run(passed, [given, []]), [expected, []])


@promise_of_both(tag="errors")
async def one_shot_iterators_are_refused_by_name(runner: Runner) -> None:
    """One-shot iterators, text, bytes and mappings raise an error with their class, wrong elements with their index."""
    passed = computation(lambda s, unused: s, INTS, np.int32)
    clients = computation(lambda c: c, at_clients(INTS))
    for value, fragments in [
        ((k for k in range(3)), ("generator", "from_generator")),
        (iter([1, 2]), ("list_iterator", "list")),
        ("123", ("str",)),
        (b"123", ("bytes",)),
        ({1: 2}, ("dict",)),
        (3, ("int",)),
        ([1, "2"], ("[1]", "int32", "str")),
    ]:
        await expect_error(runner.run(passed, value, 0), TypeError, *fragments)
        await expect_error(runner.run(clients, [[1], value]), TypeError, *fragments, "client 1")
    later = computation(lambda s, unused: intrinsic("sequence_sum", s), INTS, np.int32)
    await expect_error(runner.run(later, from_generator(lambda: iter([1, 2.5])), 0), TypeError, "[1]", "int32", "2.5")


@promise_of_both(needs=["same process", "one attempt", "lazy arguments"], tag="timing")
async def leaves_stream_sequences(runner: Runner) -> None:
    """A leaf may iterate over a sequence several times. Elements are created during the iteration, not in advance."""
    alive: list[int] = []

    def elements() -> Iterator[int]:
        for k in range(1000):
            alive.append(k)
            yield k

    @python_computation([INTS], np.int32)
    def first_three_twice(s: Any) -> Any:
        total = 0
        for _ in range(2):
            for value in s:
                total += int(value)
                if value == 2:
                    break
        return np.int32(total)

    expect_same(await runner.run(first_three_twice, from_generator(elements)), np.int32(6))
    expect(alive == [0, 1, 2, 0, 1, 2], "three elements in each of two passes", len(alive))
    alive.clear()
    mapped = computation(lambda c: intrinsic("federated_map", first_three_twice, c), at_clients(INTS))
    expect_same(await runner.run(mapped, [from_generator(elements)] * 2), ints(6, 6))
    expect(len(alive) == 12, "12 elements from 4 passes", len(alive))


@promise_of_both(needs=["same process"])
async def a_returned_sequence_is_a_list(runner: Runner) -> None:
    """A leaf may return any re-iterable object as a sequence. The computed value is a list of its elements."""

    @python_computation([np.int32], INTS)
    def count_down(x: Any) -> Any:
        return _Countdown(int(x))

    expect_same(await runner.run(count_down, 3), ints(3, 2, 1))
    mapped = computation(
        lambda c: intrinsic("federated_map", identity(INTS), intrinsic("federated_map", count_down, c)),
        at_clients(np.int32),
    )
    expect_same(await runner.run(mapped, [2, 0]), [ints(2, 1), []])

    @python_computation([np.int32], INTS)
    def once(x: Any) -> Any:
        return (k for k in range(3))

    await expect_error(runner.run(once, 3), TypeError, "'once'", "generator")

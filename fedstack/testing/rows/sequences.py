"""Checks sequences: what counts as one, map, reduce and sum over them, at the server and at clients."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedstack.computations.leaves.python.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, StructType, TensorType
from fedstack.data.client_data import batches, from_generator
from fedstack.errors import InvalidValueError
from fedstack.testing.computation_builder import (
    Expression,
    as_expression,
    at_clients,
    at_server,
    computation,
    function,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import (
    add,
    add_all,
    add_all_at_once,
    batch_scratch,
    concatenate,
    double,
    fail,
    identity,
    list_scratch,
    pick_elements,
)
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.values import COMPLEX, FLOATS, INTEGERS
from fedstack.testing.subjects import Runner

INTS = SequenceType(np.int32)


def _ints(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


class _Countdown:
    """A re-iterable that is no list, and counts how often it was started."""

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
    """What makes a sequence may yield one array each time, filled anew: each element is what it was when it came."""
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
    """A leaf may return a sequence over one array that it fills anew: each result is what it was when it came."""
    values = [np.float32(number) for number in (1, 2, 4)]
    for leaf, size in ((list_scratch, 4), (batch_scratch, 2)):
        mapped = computation(lambda x, leaf=leaf: intrinsic("federated_map", leaf, x), at_clients(np.float32))
        expected = [[np.full(size, value, np.float32)] * (4 // size) for value in values]
        expect_same(await runner.run(mapped, values), expected)


@promise_of_both()
async def leaves_pick_elements_of_sequences(runner: Runner) -> None:
    """A leaf may ask for the length of a list or of batches, for elements by index and for slices."""
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
    """Shuffled batches have a new order in each pass, counted from 0 in each call; who gets only elements refuses."""
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
            next(iter(sequence), None)  # what happens elsewhere changes nothing
        try:
            results = await runner.run(everything, given)
        except InvalidValueError as error:
            expect(not options and "give reshuffle=False" in str(error), "advice for what is refused", error)
            continue
        expect_same(results, (found, found, [2 * order for order in found], second))
    expect(len(set(map(bytes, np.split(_three_passes(data()[0]), 3)))) == 3, "three orders", data()[0])


@promise_of_both()
async def any_re_iterable_is_a_sequence(runner: Runner) -> None:
    """A sequence may be a list, a tuple, a range or any object that can be iterated again; it comes back as a list."""
    for value, expected in [
        ([3, 2, 1], _ints(3, 2, 1)),
        ((3, 2, 1), _ints(3, 2, 1)),
        ([], []),
        (range(3, 0, -1), _ints(3, 2, 1)),
        (_Countdown(3), _ints(3, 2, 1)),
        (from_generator(lambda: iter([3, 2, 1])), _ints(3, 2, 1)),
        (np.array([3, 2, 1], np.int32), _ints(3, 2, 1)),
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
    """One-shot iterators, text, bytes and mappings are refused by name with a hint; misfit elements by their place."""
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
    """A leaf iterates over a sequence as often as it likes; elements are made while it does, never all at once."""
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
    expect(alive == [0, 1, 2, 0, 1, 2], "three elements, twice", len(alive))
    alive.clear()
    mapped = computation(lambda c: intrinsic("federated_map", first_three_twice, c), at_clients(INTS))
    expect_same(await runner.run(mapped, [from_generator(elements)] * 2), _ints(6, 6))
    expect(len(alive) == 12, "twelve elements", len(alive))


@promise_of_both(intrinsics=["sequence_map"])
async def sequence_map_results_go_anywhere(runner: Runner) -> None:
    """What `sequence_map` gives can be returned, reduced, summed, mapped again, passed to leaves, and broadcast."""

    @python_computation([INTS], np.int32)
    def count(s: Any) -> Any:
        return np.int32(sum(1 for _ in s))

    def mapped(s: Expression) -> Expression:
        return intrinsic("sequence_map", double, s)

    everywhere = computation(
        lambda s, c: struct(
            mapped(s),
            mapped(mapped(s)),
            intrinsic("sequence_reduce", mapped(s), literal(np.int32(1), np.int32), add),
            intrinsic("sequence_sum", mapped(s)),
            intrinsic("federated_map", function(lambda v: mapped(v), INTS), c),
            intrinsic("federated_map", count, intrinsic("federated_map", function(lambda v: mapped(v), INTS), c)),
            intrinsic("federated_value_at_server", mapped(s)),
            intrinsic("federated_value_at_clients", mapped(s)),
        ),
        INTS,
        at_clients(INTS),
    )
    doubled = _ints(2, 4, 6)
    expected = (
        doubled, _ints(4, 8, 12), np.int32(13), np.int32(12), [_ints(2), []], _ints(1, 0), doubled, doubled,
    )  # fmt: skip
    expect_same(await runner.run(everywhere, [1, 2, 3], [[1], []]), expected)


@promise_of_both(intrinsics=["sequence_map"], needs=["same process", "one attempt"], tag="timing")
async def sequence_map_is_lazy(runner: Runner) -> None:
    """`sequence_map` runs its function for the elements that somebody asks for, when they do."""
    calls: list[int] = []

    @python_computation([np.int32], np.int32)
    def note(x: Any) -> Any:
        calls.append(int(x))
        return x

    @python_computation([INTS], np.int32)
    def first(s: Any) -> Any:
        return next(iter(s))

    started = computation(lambda s, unused: as_expression(first)(intrinsic("sequence_map", note, s)), INTS, np.int32)
    expect_same(await runner.run(started, [5, 6, 7], 0), np.int32(5))
    expect(calls == [5], "a call for the first element", calls)
    unused = computation(
        lambda s, x: struct(x, function(lambda ignored: x, INTS)(intrinsic("sequence_map", fail, s))), INTS, np.int32
    )
    expect_same(await runner.run(unused, [1, 2], 4), tuple(_ints(4, 4)))


@promise_of_both(intrinsics=["sequence_reduce"])
async def sequence_reduce_is_a_left_fold(runner: Runner) -> None:
    """`sequence_reduce` folds from the left, starting from zero, which it never changes and gives for no elements."""
    joined = computation(
        lambda s, z: struct(
            intrinsic("sequence_reduce", s, z, concatenate), intrinsic("sequence_reduce", s, z, concatenate), z
        ),
        SequenceType(np.str_),
        np.str_,
    )
    expect_same(await runner.run(joined, ["a", "b", "c"], ">"), (b">abc", b">abc", b">"))
    expect_same(await runner.run(joined, [], ">"), (b">", b">", b">"))
    vector = TensorType(np.int32, [2])

    @python_computation([vector, np.int32], vector)
    def push(a: Any, x: Any) -> Any:
        return np.array([a[1], x], np.int32)

    pushed = computation(
        lambda s, z: struct(intrinsic("sequence_reduce", s, z, push), intrinsic("sequence_reduce", s, z, push)),
        INTS,
        vector,
    )
    last = np.array([2, 3], np.int32)
    expect_same(await runner.run(pushed, [1, 2, 3], [0, 0]), (last, last))


@promise_of_both(intrinsics=["sequence_reduce", "sequence_map"])
async def elements_keep_the_order_of_their_type(runner: Runner) -> None:
    """Struct elements keep the order of the type in functions over sequences, whatever their names or nesting."""
    element = StructType([("b", StructType([np.int32, np.int32])), ("a", np.int32)])

    @python_computation([np.int32, element], np.int32)
    def digits(total: Any, e: Any) -> Any:
        return np.int32(1000 * total + 100 * e.b[0] + 10 * e.b[1] + e.a)

    folded = computation(
        lambda s, z: struct(
            intrinsic("sequence_reduce", s, z, digits),
            intrinsic("sequence_map", function(lambda e: struct(e["a"], e["b"][1]), element), s),
        ),
        SequenceType(element),
        np.int32,
    )
    values = [{"a": 3, "b": (1, 2)}, ((4, 5), 6)]
    expect_same(await runner.run(folded, values, 0), (np.int32(123456), [tuple(_ints(3, 2)), tuple(_ints(6, 5))]))


@promise_of_both(intrinsics=["sequence_sum"])
async def sequence_sums_keep_dtype_and_structure(runner: Runner) -> None:
    """`sequence_sum` adds structs of numbers in their own dtype; integers wrap; no elements give zeros."""
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX):
        element = StructType([("b", dtype), ("a", StructType([(dtype, [2])]))])
        added = computation(lambda s, unused: intrinsic("sequence_sum", s), SequenceType(element), np.int32)
        values = [{"b": dtype(k), "a": (np.array([k, 2 * k], dtype),)} for k in (1, 2, 4)]
        expect_same(await runner.run(added, values, 0), {"b": dtype(7), "a": (np.array([7, 14], dtype),)})
        expect_same(await runner.run(added, [], 0), {"b": dtype(0), "a": (np.zeros(2, dtype),)})
    wrapping = computation(lambda c: intrinsic("federated_map", _sum_of(np.int8), c), at_clients(SequenceType(np.int8)))
    expect_same(await runner.run(wrapping, [[100, 100, 100], []]), [np.int8(44), np.int8(0)])


def _sum_of(element: object) -> Expression:
    return function(lambda s: intrinsic("sequence_sum", s), SequenceType(element))


@promise_of_both(intrinsics=["sequence_reduce", "sequence_map", "sequence_sum"])
async def sequences_work_in_all_places(runner: Runner) -> None:
    """Functions over sequences run at clients and at the server, may capture values, and feed aggregations."""
    shifted = computation(
        lambda c, s, k: struct(
            intrinsic(
                "federated_sum",
                intrinsic(
                    "federated_map",
                    function(
                        lambda v: intrinsic(
                            "sequence_sum",
                            intrinsic("sequence_map", function(lambda e: intrinsic("generic_plus", e, k), np.int32), v),
                        ),
                        INTS,
                    ),
                    c,
                ),
            ),
            intrinsic(
                "federated_apply",
                function(lambda v: intrinsic("sequence_reduce", v, k, add), INTS),
                s,
            ),
        ),
        at_clients(INTS),
        at_server(INTS),
        np.int32,
    )
    expect_same(await runner.run(shifted, [[1, 2], [3], []], [4, 5], 10), (np.int32(36), np.int32(19)))


@promise_of_both(needs=["same process"])
async def a_returned_sequence_is_a_list(runner: Runner) -> None:
    """A leaf may return any re-iterable as a sequence, and what is computed is a list of its elements."""

    @python_computation([np.int32], INTS)
    def count_down(x: Any) -> Any:
        return _Countdown(int(x))

    expect_same(await runner.run(count_down, 3), _ints(3, 2, 1))
    mapped = computation(
        lambda c: intrinsic("federated_map", identity(INTS), intrinsic("federated_map", count_down, c)),
        at_clients(np.int32),
    )
    expect_same(await runner.run(mapped, [2, 0]), [_ints(2, 1), []])

    @python_computation([np.int32], INTS)
    def once(x: Any) -> Any:
        return (k for k in range(3))

    await expect_error(runner.run(once, 3), TypeError, "'once'", "generator")

"""Conformance rows about `sequence_map`, `sequence_reduce` and `sequence_sum`, on the server and on clients."""

from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, StructType, TensorType
from fedstack.data.client_data import batches
from fedstack.errors import InvalidValueError
from fedstack.testing.computation_builder import (
    Expression,
    as_expression,
    at_clients,
    at_server,
    block,
    computation,
    function,
    intrinsic,
    literal,
    reference,
    struct,
)
from fedstack.testing.expectations import expect, expect_same
from fedstack.testing.leaves import (
    add,
    concatenate,
    double,
    fail,
)
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.sequences import INTS, ints
from fedstack.testing.rows.values import COMPLEX, FLOATS, INTEGERS
from fedstack.testing.subjects import Runner


@promise_of_both(intrinsics=["sequence_map"])
async def sequence_map_results_go_anywhere(runner: Runner) -> None:
    """Results of `sequence_map` can be returned, reduced, summed, mapped again, passed to leaves, and broadcast."""

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
    doubled = ints(2, 4, 6)
    expected = (
        doubled, ints(4, 8, 12), np.int32(13), np.int32(12), [ints(2), []], ints(1, 0), doubled, doubled,
    )  # fmt: skip
    expect_same(await runner.run(everywhere, [1, 2, 3], [[1], []]), expected)


@promise_of_both(intrinsics=["sequence_map"], needs=["same process", "one attempt"], tag="timing")
async def sequence_map_is_lazy(runner: Runner) -> None:
    """`sequence_map` is lazy: it calls its function for an element when the element is read."""
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
    expect(calls == [5], "one call, for the first element 5", calls)
    unused = computation(
        lambda s, x: struct(x, function(lambda ignored: x, INTS)(intrinsic("sequence_map", fail, s))), INTS, np.int32
    )
    expect_same(await runner.run(unused, [1, 2], 4), tuple(ints(4, 4)))


@promise_of_both(intrinsics=["sequence_map"])
async def mapped_batches_keep_their_orders_in_later_phases(runner: Runner) -> None:
    """Mapped shuffled batches have a new order in each pass, in every phase that reads them."""
    rows = TensorType(np.int32, [None])

    @python_computation([SequenceType(rows)], np.int32)
    def first(s: Any) -> Any:
        return next(iter(s))[0]

    @python_computation([SequenceType(rows), np.int32], rows)
    def two_passes(s: Any, total: Any) -> Any:
        return np.concatenate([batch for _ in range(2) for batch in s]) + total

    twice = function(lambda b: intrinsic("generic_plus", b, b), rows)
    doubled = function(lambda s: intrinsic("sequence_map", twice, s), SequenceType(rows))

    def body(c: Expression) -> Expression:
        sequences = reference("sequences", c.type)
        total = intrinsic("federated_sum", intrinsic("federated_map", first, sequences))
        both = intrinsic("federated_zip_at_clients", struct(sequences, intrinsic("federated_broadcast", total)))
        return block(
            [("sequences", intrinsic("federated_map", doubled, c))], intrinsic("federated_map", two_passes, both)
        )

    def data() -> list[Any]:
        return [batches(np.arange(size, dtype=np.int32), 2, shuffle_seed=size) for size in (5, 4)]

    total = sum(2 * next(iter(sequence))[0] for sequence in data())
    try:
        found = await runner.run(computation(body, at_clients(SequenceType(rows))), data())
    except InvalidValueError as error:
        expect("reshuffle=False" in str(error), "an error that suggests reshuffle=False", error)
        return
    expect_same(found, [2 * np.concatenate([*sequence, *sequence]) + total for sequence in data()])


@promise_of_both(intrinsics=["sequence_reduce"])
async def sequence_reduce_is_a_left_fold(runner: Runner) -> None:
    """`sequence_reduce` is a left fold from zero, which it never modifies. An empty sequence reduces to zero."""
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
    """Functions over sequences receive struct elements in the order of their type, regardless of names or nesting."""
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
    expect_same(await runner.run(folded, values, 0), (np.int32(123456), [tuple(ints(3, 2)), tuple(ints(6, 5))]))


@promise_of_both(intrinsics=["sequence_sum"])
async def sequence_sums_keep_dtype_and_structure(runner: Runner) -> None:
    """`sequence_sum` adds structs of numbers in their own dtype. Integers wrap; an empty sequence sums to zero."""
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
    """Functions over sequences run on clients and the server, and may capture values. Results can be aggregated."""
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

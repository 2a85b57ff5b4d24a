"""Conformance rows about values whose types are narrower than declared: two elements where any number is accepted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, StructType, TensorType
from fedstack.testing.computation_builder import (
    Expression,
    Operand,
    as_expression,
    at_clients,
    at_server,
    computation,
    function,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect_same
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner

OPEN = TensorType(np.float32, [None])
NONE = TensorType(np.float32, [0])
TWO = TensorType(np.float32, [2])


@python_computation([OPEN, OPEN], OPEN)
def join(a: Any, b: Any) -> Any:
    """Concatenates two arrays."""
    return np.concatenate([a, b])


@python_computation([OPEN, np.float32], OPEN)
def append(a: Any, x: Any) -> Any:
    """Appends a number to an array."""
    return np.append(a, x)


@python_computation(result_type=NONE)
def nothing() -> Any:
    """Returns an empty array; the result type has the size 0."""
    return np.zeros(0, np.float32)


@python_computation([np.float32], TWO)
def pair_of(x: Any) -> Any:
    """Returns an array of two elements; the result type has the size 2."""
    return np.array([x, 10 * x], np.float32)


def _call(leaf: Operand, *arguments: Operand) -> Expression:
    return as_expression(leaf)(*arguments)


def _narrow(value: Expression, wide: object, body: Callable[[Expression], Expression]) -> Expression:
    """Calls a function whose parameter has a wide type with a narrower value. `body` receives the wide parameter."""
    return function(body, wide)(value)


def _collected(zero: Expression, values: Expression, *more: Expression) -> Expression:
    """Returns an aggregation that appends each value to `zero`, and whose report appends the arrays of `more`."""

    def report(a: Expression) -> Expression:
        whole = a
        for further in more:
            whole = _call(join, whole, further)
        return whole

    return _narrow(
        zero,
        OPEN,
        lambda z: intrinsic("federated_aggregate", values, z, append, join, function(report, OPEN)),
    )


@promise_of_both(intrinsics=["federated_aggregate"])
async def an_accumulator_may_be_wider_than_zero(runner: Runner) -> None:
    """The zero of `federated_aggregate` may have fewer elements than the accumulator, as in reservoirs and medians."""
    for zero in (_call(nothing), literal(np.zeros(0, np.float32), np.float32, [0])):
        collected = computation(lambda x, zero=zero: _collected(zero, x), at_clients(np.float32))
        for clients in (0, 1, 2, 5):
            values = [np.float32(k) for k in range(clients)]
            expect_same(await runner.run(collected, values), np.arange(clients, dtype=np.float32))


@promise_of_both(intrinsics=["federated_aggregate"])
async def accumulators_in_structs_may_be_wider_than_zero(runner: Runner) -> None:
    """The zero of a struct accumulator may have narrower members, and functions may capture narrower values."""
    state = StructType([("kept", OPEN), ("count", np.int32)])

    @python_computation([state, np.float32], state)
    def accumulate(a: Any, x: Any) -> Any:
        return {"kept": np.append(a["kept"], x), "count": a["count"] + np.int32(1)}

    @python_computation([state, state], state)
    def merge(a: Any, b: Any) -> Any:
        return {"kept": np.append(a["kept"], b["kept"]), "count": a["count"] + b["count"]}

    def collected(x: Expression, s: Expression) -> Expression:
        zero = struct(kept=_call(nothing), count=literal(np.int32(0), np.int32))
        whole = _narrow(
            zero,
            state,
            lambda z: intrinsic(
                "federated_aggregate", x, z, accumulate, merge, function(lambda a: struct(a["kept"], a["count"]), state)
            ),
        )
        return struct(whole, _collected(_call(nothing), x, _call(pair_of, literal(np.float32(7), np.float32))), s)

    both = computation(collected, at_clients(np.float32), at_server(np.int32))
    values = [np.float32(k) for k in (1, 2, 3)]
    kept = np.array([1, 2, 3], np.float32)
    expected = ((kept, np.int32(3)), np.array([1, 2, 3, 7, 70], np.float32), np.int32(5))
    expect_same(await runner.run(both, values, 5), expected)


@promise_of_both(intrinsics=["sequence_reduce"])
async def a_reduction_may_be_wider_than_its_zero(runner: Runner) -> None:
    """The zero of `sequence_reduce` may have fewer elements than the result, on clients and on the server."""

    def reduced(values: Expression) -> Expression:
        return _narrow(_call(nothing), OPEN, lambda z: intrinsic("sequence_reduce", values, z, append))

    floats = SequenceType(np.float32)
    everywhere = computation(
        lambda x, y: struct(
            intrinsic("federated_map", function(reduced, floats), x),
            intrinsic("federated_apply", function(reduced, floats), y),
            intrinsic("federated_sum", intrinsic("federated_map", function(reduced, floats), x)),
        ),
        at_clients(floats),
        at_server(floats),
    )
    found = await runner.run(everywhere, [[1.0, 2.0], [3.0, 4.0]], [5.0])
    one, two = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    expect_same(found, ([one, two], np.array([5], np.float32), one + two))


@promise_of_both(intrinsics=["generic_plus", "federated_sum", "federated_map"])
async def functions_take_narrower_values_than_they_declare(runner: Runner) -> None:
    """Maps, operators and folds accept values of a known size where the declared type leaves the size open."""

    def doubled(x: Expression) -> Expression:
        pair = _call(pair_of, x)
        added = function(lambda p: intrinsic("generic_plus", p[0], p[1]), StructType([OPEN, OPEN]))
        return struct(added(struct(pair, _call(join, pair, _call(nothing)))), pair)

    def body(x: Expression) -> Expression:
        mapped = intrinsic("federated_map", function(doubled, np.float32), x)
        pairs = intrinsic("federated_map", pair_of, x)
        total = _narrow(pairs, at_clients(OPEN), lambda p: intrinsic("federated_sum", p))
        joined = _narrow(
            pairs,
            at_clients(OPEN),
            lambda p: intrinsic("federated_map", function(lambda v: _call(join, v, v), OPEN), p),
        )
        return struct(mapped, total, joined)

    found = await runner.run(computation(body, at_clients(np.float32)), [1.0, 2.0])
    one, two = np.array([1, 10], np.float32), np.array([2, 20], np.float32)
    expected = ([(2 * one, one), (2 * two, two)], one + two, [np.tile(one, 2), np.tile(two, 2)])
    expect_same(found, expected)


@promise_of_both(intrinsics=["federated_aggregate", "federated_map"])
async def functions_use_narrower_values_from_around_them(runner: Runner) -> None:
    """A captured value may have a narrower type than the parameter it is passed to inside the function."""

    def body(x: Expression) -> Expression:
        around = _call(pair_of, literal(np.float32(3), np.float32))
        mapped = _narrow(
            around,
            OPEN,
            lambda c: intrinsic("federated_map", function(lambda v: _call(append, c, v), np.float32), x),
        )
        folded = _narrow(
            around,
            OPEN,
            lambda c: intrinsic(
                "federated_aggregate",
                x,
                literal(np.float32(0), np.float32),
                function(lambda a, v: _call(total, struct(_call(append, c, v), a)), np.float32, np.float32),
                total_of,
                function(lambda a: _call(append, c, a), np.float32),
            ),
        )
        return struct(mapped, folded)

    @python_computation([StructType([OPEN, np.float32])], np.float32)
    def total(p: Any) -> Any:
        return np.float32(p[0][-1] + p[1])

    @python_computation([np.float32, np.float32], np.float32)
    def total_of(a: Any, b: Any) -> Any:
        return a + b

    found = await runner.run(computation(body, at_clients(np.float32)), [1.0, 2.0])
    lists = [np.array([3, 30, k], np.float32) for k in (1, 2)]
    expect_same(found, (lists, np.array([3, 30, 3], np.float32)))

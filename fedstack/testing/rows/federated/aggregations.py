"""Conformance rows about aggregations: sums, means, extremes and `federated_aggregate`, for every supported dtype."""

from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import StructType, TensorType
from fedstack.testing.computation_builder import (
    Expression,
    at_clients,
    computation,
    function,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import add, concatenate, identity
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.values import BFLOAT16, COMPLEX, FLOATS, INTEGERS
from fedstack.testing.subjects import Runner

NAN = float("nan")


def aggregated(uri: str, member: object) -> Any:
    """Returns a computation that aggregates one value per client."""
    return computation(lambda x: intrinsic(uri, x), at_clients(member))


@promise_of_both(intrinsics=["federated_sum"])
async def sums_keep_dtype_and_structure(runner: Runner) -> None:
    """`federated_sum` adds structs of scalars and arrays elementwise, in their own dtype."""
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX):
        member = StructType([("b", dtype), ("a", StructType([(dtype, [2]), StructType([])]))])
        values = [{"b": dtype(k), "a": (np.array([k, 2 * k], dtype), ())} for k in (1, 2, 4)]
        expected = {"b": dtype(7), "a": (np.array([7, 14], dtype), ())}
        expect_same(await runner.run(aggregated("federated_sum", member), values), expected)


@promise_of_both(intrinsics=["federated_sum"])
async def integers_wrap_around(runner: Runner) -> None:
    """Integer sums keep their dtype and wrap on overflow, as NumPy's arithmetic does."""
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        expect_same(await runner.run(aggregated("federated_sum", dtype), [info.max, 1]), dtype(info.min))
        largest = np.full(2, info.max, dtype)
        found = await runner.run(aggregated("federated_sum", (dtype, [2])), [largest, np.ones(2, dtype)])
        expect_same(found, np.full(2, info.min, dtype))


@promise_of_both(intrinsics=["federated_mean"])
async def means_keep_dtype_and_structure(runner: Runner) -> None:
    """`federated_mean` averages structs of floating-point and complex numbers in their own dtype."""
    for dtype in (*FLOATS, *COMPLEX):
        member = StructType([("b", dtype), ("a", StructType([(dtype, [2])]))])
        values = [{"b": dtype(k), "a": (np.array([k, 2 * k], dtype),)} for k in (1, 2, 6)]
        expected = {"b": dtype(3), "a": (np.array([3, 6], dtype),)}
        expect_same(await runner.run(aggregated("federated_mean", member), values), expected)


@promise_of_both(intrinsics=["federated_mean"])
async def half_precision_means_count_every_client(runner: Runner) -> None:
    """Half-precision means are summed in a wider dtype and rounded once, so that they are right for many clients."""
    for dtype in (np.float16, BFLOAT16):
        clients = [dtype(1)] * 2100  # a running sum of ones stops growing at 2048 in float16, at 256 in bfloat16
        expect_same(await runner.run(aggregated("federated_mean", dtype), clients), dtype(1))


def _weighted(member: object, weight: object) -> Any:
    return computation(lambda x, w: intrinsic("federated_weighted_mean", x, w), at_clients(member), at_clients(weight))


@promise_of_both(intrinsics=["federated_weighted_mean"])
async def weighted_means_take_any_number_as_weight(runner: Runner) -> None:
    """`federated_weighted_mean` divides the sum of products by the sum of weights, for every dtype of weights."""
    member = StructType([("x", np.float32), ("y", (np.float64, [2]))])
    values = [(np.float32(k), np.array([k, -k], np.float64)) for k in (1.0, 2.0, 6.0)]
    expected = {"x": np.float32(4), "y": np.array([4.0, -4.0])}
    for weight in (*INTEGERS, *FLOATS):
        # The weights 0, 2, 2 give a mean that is exact in every dtype: (1*0 + 2*2 + 6*2) / 4 = 4.
        weights = [weight(0), weight(2), weight(2)]
        expect_same(await runner.run(_weighted(member, weight), values, weights), expected)
    expect_same(await runner.run(_weighted(np.complex64, np.int8), [1j, 3 + 0j], [1, 1]), np.complex64(1.5 + 0.5j))
    large = [np.int8(100)] * 4  # the sum of the weights does not fit their dtype
    expect_same(await runner.run(_weighted(np.float32, np.int8), [1.0, 2.0, 3.0, 6.0], large), np.float32(3))


@promise_of_both(intrinsics=["federated_weighted_mean"])
async def a_total_weight_of_zero_gives_nan(runner: Runner) -> None:
    """A weighted mean whose weights sum to zero is NaN in every element, regardless of the values."""
    member = StructType([("x", np.float32), ("y", (np.float64, [2]))])
    values = [(np.float32(1), np.ones(2))] * 2
    expected = {"x": np.float32(NAN), "y": np.full(2, NAN)}
    for weight, weights in [
        (np.int32, [0, 0]),
        (np.float32, [0.0, 0.0]),
        (np.float32, [1.0, -1.0]),
        (np.int8, [3, -3]),
    ]:
        expect_same(await runner.run(_weighted(member, weight), values, weights), expected)


@promise_of_both(intrinsics=["federated_min", "federated_max"])
async def extremes_keep_dtype_and_structure(runner: Runner) -> None:
    """`federated_min` and `federated_max` work elementwise on integers and floating-point numbers."""
    for dtype in (*INTEGERS, *FLOATS):
        member = StructType([("b", dtype), ("a", StructType([(dtype, [2])]))])
        values = [{"b": dtype(k), "a": (np.array([k, 10 - k], dtype),)} for k in (3, 1, 7, 5)]
        low = {"b": dtype(1), "a": (np.array([1, 3], dtype),)}
        high = {"b": dtype(7), "a": (np.array([7, 9], dtype),)}
        expect_same(await runner.run(aggregated("federated_min", member), values), low)
        expect_same(await runner.run(aggregated("federated_max", member), values), high)


@promise_of_both(
    intrinsics=["federated_sum", "federated_mean", "federated_weighted_mean", "federated_min", "federated_max"]
)
async def nan_propagates(runner: Runner) -> None:
    """A NaN of one client makes sum, mean, weighted mean, minimum and maximum NaN, in the same element only."""
    for uri in ("federated_sum", "federated_mean", "federated_min", "federated_max"):
        for place in range(3):
            scalars = [np.float32(NAN if k == place else 1) for k in range(3)]
            expect_same(await runner.run(aggregated(uri, np.float32), scalars), np.float32(NAN), uri)
            arrays = [np.array([1, NAN if k == place else 1], np.float64) for k in range(3)]
            found: Any = await runner.run(aggregated(uri, (np.float64, [2])), arrays)
            expect(not np.isnan(found[0]) and np.isnan(found[1]), f"NaN in only the second element of {uri}", found)
    expect_same(
        await runner.run(_weighted(np.float32, np.float32), [NAN, 1.0], [0.0, 1.0]),
        np.float32(NAN),
        "the weighted mean of NaN with weight zero",
    )
    half = [BFLOAT16(1), BFLOAT16(NAN)]
    expect_same(await runner.run(aggregated("federated_max", BFLOAT16), half), BFLOAT16(NAN))


@promise_of_both(intrinsics=["federated_sum", "federated_mean"])
async def aggregations_take_mapped_and_equal_values(runner: Runner) -> None:
    """Aggregations accept mapped, zipped and selected values. They count an all-equal value once per client."""
    pair = StructType([("a", np.float32), ("b", np.int32)])
    folded = computation(
        lambda x, e: struct(
            intrinsic("federated_sum", intrinsic("federated_map", function(lambda v: v["b"], pair), x)),
            intrinsic("federated_mean", intrinsic("federated_map", function(lambda v: v["a"], pair), x)),
            intrinsic("federated_sum", e),
            intrinsic("federated_sum", intrinsic("federated_zip_at_clients", struct(e, x))),
        ),
        at_clients(pair),
        at_clients(np.int32, all_equal=True),
    )
    values = [(1.0, 10), (2.0, 20), (6.0, 30)]
    expected = (np.int32(60), np.float32(3), np.int32(15), (np.int32(15), {"a": np.float32(9), "b": np.int32(60)}))
    expect_same(await runner.run(folded, values, 5), expected)


@promise_of_both(intrinsics=["federated_sum", "federated_min"], tag="errors")
async def clients_must_agree_on_open_dimensions(runner: Runner) -> None:
    """A fold over arrays of open size raises an error that names a client if the sizes of the clients differ."""
    for uri in ("federated_sum", "federated_min"):
        folded = aggregated(uri, TensorType(np.int32, [None]))
        expect_same(await runner.run(folded, [np.ones(2, np.int32)] * 1), np.ones(2, np.int32))
        shapes = [np.ones(2, np.int32), np.ones(2, np.int32), np.ones(3, np.int32)]
        await expect_error(runner.run(folded, shapes), TypeError, "shape", "client")


def _concatenation(report: Expression | None = None) -> Any:
    """Returns an aggregation whose result shows the order of clients. Its zero is neutral, its merge associative."""
    return computation(
        lambda x: intrinsic(
            "federated_aggregate",
            x,
            literal(b"", np.str_),
            concatenate,
            concatenate,
            function(lambda a: struct(a, a), np.str_) if report is None else report,
        ),
        at_clients(np.str_),
    )


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_folds_in_client_order(runner: Runner) -> None:
    """`federated_aggregate` folds values in client order, also across merges, and then reports."""
    for clients in (1, 2, 3, 10, 123):
        names = [f"{k}," for k in range(clients)]
        whole = "".join(names).encode()
        expect_same(await runner.run(_concatenation(), names), (whole, whole))


def _blocks_of_eight(names: list[str]) -> bytes:
    """Returns the expected fold: blocks are accumulated from zero, and merged along the tree."""
    blocks = ["(0+" + "+".join(names[start : start + 8]) + ")" for start in range(0, len(names), 8)]
    partials: list[tuple[int, str]] = []
    for block in blocks:
        level = 0
        while partials and partials[-1][0] == level:
            block, level = f"[{partials.pop()[1]}|{block}]", level + 1
        partials.append((level, block))
    total = partials.pop()[1]
    while partials:
        total = f"[{partials.pop()[1]}|{total}]"
    return total.encode()


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_merges_blocks_of_eight_clients(runner: Runner) -> None:
    """`federated_aggregate` accumulates each block of 8 clients from zero, and merges the blocks along the tree."""

    @python_computation([np.str_, np.str_], np.str_)
    def accumulate(total: Any, value: Any) -> Any:
        return (total[:-1] if total.endswith(b")") else b"(" + total) + b"+" + value + b")"

    @python_computation([np.str_, np.str_], np.str_)
    def merge(left: Any, right: Any) -> Any:
        return b"[" + left + b"|" + right + b"]"

    folded = computation(
        lambda x: intrinsic("federated_aggregate", x, literal(b"0", np.str_), accumulate, merge, identity(np.str_)),
        at_clients(np.str_),
    )
    for clients in (1, 2, 7, 8, 9, 16, 17, 24, 31, 40):
        names = [str(client) for client in range(clients)]
        expect_same(await runner.run(folded, names), _blocks_of_eight(names), f"with {clients} clients")


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_counts_zero_once_per_block(runner: Runner) -> None:
    """The zero of `federated_aggregate` counts once per block of 8 clients, on every stack."""
    total = computation(
        lambda x: intrinsic("federated_aggregate", x, literal(np.int32(10), np.int32), add, add, identity(np.int32)),
        at_clients(np.int32),
    )
    for clients in range(1, 41):
        found = await runner.run(total, [1] * clients)
        expect_same(found, np.int32(clients + 10 * -(-clients // 8)), f"with {clients} clients")


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_works_on_mixed_structures(runner: Runner) -> None:
    """The values, accumulator and report of `federated_aggregate` may have different types."""
    accumulator = StructType([("total", np.float64), ("count", np.int32)])

    @python_computation([accumulator, np.float32], accumulator)
    def accumulate(a: Any, x: Any) -> Any:
        return {"total": a["total"] + np.float64(x), "count": a["count"] + np.int32(1)}

    @python_computation([accumulator, accumulator], accumulator)
    def merge(a: Any, b: Any) -> Any:
        return a["total"] + b["total"], a["count"] + b["count"]

    @python_computation([accumulator], np.float32)
    def report(a: Any) -> Any:
        return np.float32(a["total"] / a["count"])

    zero = struct(total=literal(np.float64(0), np.float64), count=literal(np.int32(0), np.int32))
    averaged = computation(
        lambda x: intrinsic("federated_aggregate", x, zero, accumulate, merge, report), at_clients(np.float32)
    )
    expect_same(await runner.run(averaged, [1.0, 2.0, 6.0]), np.float32(3))


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_is_deterministic(runner: Runner) -> None:
    """`federated_aggregate` returns the same result for the same clients in any order of completion."""
    zero = literal(np.float32(0.1), np.float32)  # not neutral, so that the result shows where the fold is split

    @python_computation([np.float32, np.float32], np.float32)
    def accumulate(a: Any, x: Any) -> Any:
        return a * np.float32(0.9) + x

    folded = computation(
        lambda x: intrinsic(
            "federated_aggregate",
            intrinsic("federated_map", identity(np.float32), x),
            zero,
            accumulate,
            accumulate,
            identity(np.float32),
        ),
        at_clients(np.float32),
    )
    values = [float(value) for value in np.random.default_rng(3).normal(size=100).astype(np.float32)]
    first = await runner.run(folded, values)
    for _ in range(4):
        expect_same(await runner.run(folded, values), first)


@promise_of_both(intrinsics=["federated_aggregate", "federated_sum", "federated_mean", "federated_max"])
async def several_aggregations_share_one_pass(runner: Runner) -> None:
    """A computation may contain any number of aggregations of the same values."""
    folded = computation(
        lambda x: struct(
            intrinsic("federated_sum", x),
            intrinsic("federated_mean", x),
            intrinsic("federated_max", intrinsic("federated_map", identity(np.float32), x)),
            intrinsic(
                "federated_aggregate",
                intrinsic("federated_map", function(lambda v: struct(v), np.float32), x),
                literal(np.int32(0), np.int32),
                function(
                    lambda a, v: intrinsic("generic_plus", a, literal(np.int32(1), np.int32)),
                    np.int32,
                    StructType([np.float32]),
                ),
                add,
                identity(np.int32),
            ),
            x,
        ),
        at_clients(np.float32),
    )
    values = [np.float32(k) for k in (1, 2, 6)]
    expect_same(await runner.run(folded, values), (np.float32(9), np.float32(3), np.float32(6), np.int32(3), values))

"""Conformance rows about federated intrinsics over zero clients."""

from typing import Any

import numpy as np

from fedstack.computations.types.language import SequenceType, StructType, TensorType
from fedstack.testing.computation_builder import (
    Expression,
    at_clients,
    at_server,
    computation,
    function,
    generic_zero,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect_same
from fedstack.testing.leaves import add, double, identity, seven
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.federated.aggregations import aggregated
from fedstack.testing.rows.values import BFLOAT16, COMPLEX, FLOATS, INTEGERS
from fedstack.testing.subjects import Runner

_NOBODY: list[Any] = []


@promise_of_both(intrinsics=["federated_sum", "federated_secure_sum", "federated_secure_sum_bitwidth"])
async def sums_over_nobody_are_zero(runner: Runner) -> None:
    """Over zero clients, a sum or secure sum is zeros of its dtype and shape."""
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX):
        member = StructType([("x", dtype), ("y", (dtype, [2]))])
        zeros = {"x": dtype(0), "y": np.zeros(2, dtype)}
        expect_same(await runner.run(aggregated("federated_sum", member), _NOBODY), zeros)
    bound = literal(np.int32(5), np.int32)
    vector = at_clients((np.int32, [2]))
    for secure in (
        computation(lambda x: intrinsic("federated_secure_sum", x, bound), vector),
        computation(lambda x: intrinsic("federated_secure_sum_bitwidth", x, bound), vector),
    ):
        expect_same(await runner.run(secure, _NOBODY), np.zeros(2, np.int32))


@promise_of_both(intrinsics=["federated_mean", "federated_weighted_mean"])
async def means_over_nobody_are_nan(runner: Runner) -> None:
    """Over zero clients, a mean or weighted mean is NaN in every element."""
    for dtype in (*FLOATS, *COMPLEX):
        member = StructType([("x", dtype), ("y", (dtype, [2]))])
        nan = dtype(np.nan)
        expected = {"x": nan, "y": np.full(2, nan, dtype)}
        found: Any = await runner.run(aggregated("federated_mean", member), _NOBODY)
        expect_same(_real(found), _real(expected), f"the mean of {np.dtype(dtype)}")
        weighted = computation(
            lambda x, w: intrinsic("federated_weighted_mean", x, w), at_clients(member), at_clients(np.int32)
        )
        found = await runner.run(weighted, _NOBODY, _NOBODY)
        expect_same(_real(found), _real(expected), f"the weighted mean of {np.dtype(dtype)}")


def _real(pair: Any) -> Any:
    """Drops the imaginary parts of complex numbers, because the imaginary part of a complex NaN is undefined."""
    return {name: np.real(value) if np.dtype(value.dtype).kind == "c" else value for name, value in pair.items()}


@promise_of_both(intrinsics=["federated_min", "federated_max"])
async def extremes_over_nobody_are_the_dtypes_bounds(runner: Runner) -> None:
    """Over zero clients, a minimum is the largest and a maximum the lowest finite value of its dtype."""
    for dtype in (*INTEGERS, *FLOATS):
        if dtype is BFLOAT16:
            largest, lowest = BFLOAT16(3.3895314e38), BFLOAT16(-3.3895314e38)
        else:
            info = np.iinfo(dtype) if dtype in INTEGERS else np.finfo(dtype)
            largest, lowest = dtype(info.max), dtype(info.min)
        member = StructType([("x", dtype), ("y", (dtype, [2]))])
        high = {"x": largest, "y": np.full(2, largest, dtype)}
        low = {"x": lowest, "y": np.full(2, lowest, dtype)}
        expect_same(await runner.run(aggregated("federated_min", member), _NOBODY), high)
        expect_same(await runner.run(aggregated("federated_max", member), _NOBODY), low)


@promise_of_both(intrinsics=["federated_aggregate"])
async def aggregate_over_nobody_reports_zero(runner: Runner) -> None:
    """Over zero clients, `federated_aggregate` returns the report of its zero."""
    folded = computation(
        lambda x: intrinsic("federated_aggregate", x, literal(np.int32(5), np.int32), add, add, double),
        at_clients(np.int32),
    )
    expect_same(await runner.run(folded, _NOBODY), np.int32(10))


@promise_of_both(
    intrinsics=[
        "federated_map",
        "federated_eval_at_clients",
        "federated_zip_at_clients",
        "federated_select",
        "federated_secure_select",
    ]
)
async def client_results_over_nobody_are_empty_lists(runner: Runner) -> None:
    """Over zero clients, a value per client is an empty list, regardless of the intrinsic that returned it."""
    clients, keys = at_clients(np.int32), at_clients((np.int32, [2]))

    def selected(uri: str, k: Expression, s: Expression) -> Expression:
        pick = function(lambda value, key: struct(value, key), np.int32, np.int32)
        return intrinsic(uri, k, intrinsic("federated_value_at_server", literal(np.int32(3), np.int32)), s, pick)

    made = computation(
        lambda x, k, s: struct(
            x,
            intrinsic("federated_map", double, x),
            intrinsic("federated_map", double, intrinsic("federated_broadcast", s)),
            intrinsic("federated_eval_at_clients", seven),
            intrinsic("federated_zip_at_clients", struct(x, intrinsic("federated_broadcast", s))),
            selected("federated_select", k, s),
            selected("federated_secure_select", k, s),
        ),
        clients,
        keys,
        at_server(np.int32),
    )
    expect_same(await runner.run(made, _NOBODY, _NOBODY, 5), tuple([] for _ in range(7)))
    strings = computation(
        lambda x: intrinsic("federated_map", identity(SequenceType(np.str_)), x), at_clients(SequenceType(np.str_))
    )
    expect_same(await runner.run(strings, _NOBODY), [])


@promise_of_both(
    intrinsics=[
        "federated_broadcast",
        "federated_value_at_clients",
        "federated_map_all_equal",
        "federated_value_at_server",
        "federated_apply",
        "federated_eval_at_server",
        "federated_zip_at_server",
        "generic_plus",
        "generic_zero",
    ]
)
async def equal_and_server_results_need_no_clients(runner: Runner) -> None:
    """Over zero clients, all-equal values and server values are the same as with clients."""
    made = computation(
        lambda x, s: struct(
            intrinsic("federated_broadcast", s),
            intrinsic("federated_value_at_clients", literal(np.int32(6), np.int32)),
            intrinsic("federated_map_all_equal", double, intrinsic("federated_broadcast", s)),
            intrinsic("federated_value_at_server", literal(np.int32(6), np.int32)),
            intrinsic("federated_apply", double, s),
            intrinsic("federated_eval_at_server", seven),
            intrinsic("federated_zip_at_server", struct(s, s)),
            intrinsic("generic_plus", s, s),
            generic_zero(at_clients(np.int32, all_equal=True)),
            x,
        ),
        at_clients(TensorType(np.float32, [3])),
        at_server(np.int32),
    )
    numbers = [np.int32(value) for value in (5, 6, 10, 6, 10, 7)]
    expected = (*numbers, (np.int32(5), np.int32(5)), np.int32(10), np.int32(0), _NOBODY)
    expect_same(await runner.run(made, _NOBODY, 5), expected)


@promise_of_both(intrinsics=["generic_multiply", "generic_divide", "federated_map"])
async def operators_over_nobody_are_empty(runner: Runner) -> None:
    """Over zero clients, generic operators on client values return empty lists, which can be aggregated."""
    made = computation(
        lambda x: struct(
            intrinsic("generic_multiply", x, x),
            intrinsic("generic_divide", x, x),
            intrinsic("federated_sum", intrinsic("generic_plus", x, x)),
            intrinsic("federated_max", intrinsic("federated_map", double, x)),
        ),
        at_clients(np.int32),
    )
    expect_same(await runner.run(made, _NOBODY), (_NOBODY, _NOBODY, np.int32(0), np.int32(np.iinfo(np.int32).min)))

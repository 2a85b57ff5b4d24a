"""Conformance rows about intrinsics that place, broadcast, zip and map values, and about generic operators."""

from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import StructType
from fedstack.testing.computation_builder import (
    at_clients,
    at_server,
    computation,
    function,
    generic_zero,
    intrinsic,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_same
from fedstack.testing.leaves import add, double, seven
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.values import COMPLEX, FLOATS, INTEGERS
from fedstack.testing.subjects import Runner

CLIENTS_INT, SERVER_INT = at_clients(np.int32), at_server(np.int32)


def _ints(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


@promise_of_both(intrinsics=["federated_map"])
async def map_runs_once_per_client(runner: Runner) -> None:
    """`federated_map` calls its function with the value of each client, and keeps the order of the clients."""
    mapped = computation(lambda x: intrinsic("federated_map", double, x), CLIENTS_INT)
    for clients in (1, 2, 7, 250):
        found = await runner.run(mapped, list(range(clients)))
        expect_same(found, [np.int32(2 * k) for k in range(clients)])


@promise_of_both(intrinsics=["federated_map", "federated_map_all_equal", "federated_broadcast"])
async def all_equal_values_are_mapped(runner: Runner) -> None:
    """`federated_map_all_equal` returns an all-equal value, `federated_map` of an all-equal value one per client."""
    mapped = computation(
        lambda x, s: struct(
            intrinsic("federated_map_all_equal", double, intrinsic("federated_broadcast", s)),
            intrinsic("federated_map", double, intrinsic("federated_broadcast", s)),
        ),
        CLIENTS_INT,
        SERVER_INT,
    )
    expect_same(await runner.run(mapped, [0, 0, 0], 4), (np.int32(8), _ints(8, 8, 8)))


@promise_of_both(intrinsics=["federated_apply", "federated_eval_at_server", "federated_value_at_server"])
async def work_at_the_server_runs_there(runner: Runner) -> None:
    """`federated_apply`, `federated_eval_at_server` and `federated_value_at_server` return server values."""
    served = computation(
        lambda s, k: struct(
            intrinsic("federated_apply", double, s),
            intrinsic("federated_eval_at_server", seven),
            intrinsic("federated_value_at_server", k),
        ),
        SERVER_INT,
        np.int32,
    )
    expect_same(await runner.run(served, 4, 5), (np.int32(8), np.int32(7), np.int32(5)))


@promise_of_both(intrinsics=["federated_broadcast", "federated_value_at_clients"])
async def broadcasts_reach_every_client(runner: Runner) -> None:
    """A broadcast or `federated_value_at_clients` is all-equal, and can be zipped with the values of every client."""
    shifted = computation(
        lambda x, s, k: struct(
            intrinsic("federated_broadcast", s),
            intrinsic("federated_value_at_clients", k),
            intrinsic(
                "federated_map",
                add,
                intrinsic("federated_zip_at_clients", struct(x, intrinsic("federated_broadcast", s))),
            ),
            intrinsic(
                "federated_map",
                add,
                intrinsic("federated_zip_at_clients", struct(intrinsic("federated_value_at_clients", k), x)),
            ),
        ),
        CLIENTS_INT,
        SERVER_INT,
        np.int32,
    )
    expect_same(await runner.run(shifted, [1, 2], 10, 20), (np.int32(10), np.int32(20), _ints(11, 12), _ints(21, 22)))


@promise_of_both(intrinsics=["federated_eval_at_clients"], needs=["same process", "one attempt"], tag="timing")
async def eval_at_clients_calls_once_per_client(runner: Runner) -> None:
    """`federated_eval_at_clients` calls its function once for each client, and returns one value per client."""
    calls: list[int] = []

    @python_computation([], np.int32)
    def note() -> Any:
        calls.append(1)
        return np.int32(7)

    evaluated = computation(lambda x: struct(intrinsic("federated_eval_at_clients", note), x), CLIENTS_INT)
    for clients in (1, 5):
        calls.clear()
        found = await runner.run(evaluated, [0] * clients)
        expect_same(found, (_ints(*[7] * clients), _ints(*[0] * clients)))
        expect(len(calls) == clients, f"{clients} calls", len(calls))


@promise_of_both(intrinsics=["federated_zip_at_clients", "federated_zip_at_server"])
async def zips_nest_and_keep_names(runner: Runner) -> None:
    """Zips turn a nested struct of placed values into a placed nested struct with the same order and names."""
    zipped = computation(
        lambda x, y, e, s: struct(
            intrinsic("federated_zip_at_clients", struct(x, struct(second=y, third=struct(e)))),
            intrinsic("federated_zip_at_server", struct(a=s, b=struct(s, s))),
        ),
        CLIENTS_INT,
        at_clients(np.str_),
        at_clients(np.int32, all_equal=True),
        SERVER_INT,
    )
    at_each = [(np.int32(k), {"second": name, "third": (np.int32(9),)}) for k, name in enumerate([b"a", b"b"])]
    expected = (at_each, {"a": np.int32(5), "b": tuple(_ints(5, 5))})
    expect_same(await runner.run(zipped, [0, 1], ["a", "b"], 9, 5), expected)


@promise_of_both(intrinsics=["federated_zip_at_clients"])
async def a_zip_is_all_equal_only_if_all_members_are(runner: Runner) -> None:
    """A zip of all-equal values is all-equal. A member with a value per client gives the zip a value per client."""
    equal = at_clients(np.int32, all_equal=True)
    zipped = computation(
        lambda x, e: struct(
            intrinsic("federated_zip_at_clients", struct(e, e)), intrinsic("federated_zip_at_clients", struct(e, x))
        ),
        CLIENTS_INT,
        equal,
    )
    expect_same(await runner.run(zipped, [1, 2], 3), (tuple(_ints(3, 3)), [tuple(_ints(3, 1)), tuple(_ints(3, 2))]))


@promise_of_both(intrinsics=["federated_map", "federated_broadcast", "federated_sum"])
async def rounds_follow_each_other(runner: Runner) -> None:
    """The result of an aggregation can be broadcast to the next round of client work, any number of times."""

    def sum_and_shift(x: Any) -> Any:
        total = intrinsic("federated_sum", x)
        pair = intrinsic("federated_zip_at_clients", struct(x, intrinsic("federated_broadcast", total)))
        return intrinsic("federated_map", add, pair)

    rounds = computation(lambda x: struct(sum_and_shift(sum_and_shift(x)), intrinsic("federated_sum", x)), CLIENTS_INT)
    # 1, 2, 3: the sum is 6; then 7, 8, 9: the sum is 24.
    expect_same(await runner.run(rounds, [1, 2, 3]), (_ints(31, 32, 33), np.int32(6)))


@promise_of_both(intrinsics=["generic_plus", "generic_multiply", "generic_divide"])
async def generic_operators_work_on_structs_of_numbers(runner: Runner) -> None:
    """Generic operators work elementwise on every numeric dtype. Integers wrap; their quotients are `float64`."""
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX):
        type_spec = StructType([("x", dtype), ("y", StructType([(dtype, [2])]))])
        operated = computation(
            lambda a, b: struct(
                intrinsic("generic_plus", a, b), intrinsic("generic_multiply", a, b), intrinsic("generic_divide", a, b)
            ),
            type_spec,
            type_spec,
        )
        left = {"x": dtype(6), "y": (np.array([3, 4], dtype),)}
        right = {"x": dtype(2), "y": (np.array([2, 2], dtype),)}
        quotient: type[Any] = np.float64 if dtype in INTEGERS else dtype
        expected = (
            {"x": dtype(8), "y": (np.array([5, 6], dtype),)},
            {"x": dtype(12), "y": (np.array([6, 8], dtype),)},
            {"x": quotient(3), "y": (np.array([1.5, 2.0], quotient),)},
        )
        expect_same(await runner.run(operated, left, right), expected, f"{np.dtype(dtype)} operators")
    wrapped = computation(lambda a, b: intrinsic("generic_multiply", a, b), np.int8, np.int8)
    expect_same(await runner.run(wrapped, 100, 3), np.int8(44))


@promise_of_both(intrinsics=["generic_plus", "generic_multiply", "generic_divide"])
async def generic_operators_zip_federated_values(runner: Runner) -> None:
    """Generic operators combine two values of the same placement, client by client, and work in mapped functions."""
    operated = computation(
        lambda x, y, s: struct(
            intrinsic("generic_plus", x, y),
            intrinsic("generic_multiply", s, s),
            intrinsic("generic_divide", intrinsic("federated_broadcast", s), intrinsic("federated_broadcast", s)),
            intrinsic("federated_map", function(lambda v: intrinsic("generic_plus", v, v), np.int32), x),
        ),
        CLIENTS_INT,
        CLIENTS_INT,
        SERVER_INT,
    )
    expected = (_ints(11, 22), np.int32(16), np.float64(1), _ints(2, 4))
    expect_same(await runner.run(operated, [1, 2], [10, 20], 4), expected)


@promise_of_both(intrinsics=["generic_zero"])
async def generic_zero_is_a_value_of_zeros(runner: Runner) -> None:
    """`generic_zero` is the zero of its type: for structs, server values and all-equal client values."""
    pair = StructType([("a", np.float32), ("b", (np.int8, [2]))])
    zeros = {"a": np.float32(0), "b": np.zeros(2, np.int8)}
    made = computation(
        lambda x: struct(
            generic_zero(pair),
            generic_zero(at_server(np.int32)),
            generic_zero(at_clients(np.int32, all_equal=True)),
            intrinsic("generic_plus", generic_zero(np.int32), literal(np.int32(3), np.int32)),
            x,
        ),
        CLIENTS_INT,
    )
    expect_same(await runner.run(made, [1, 2]), (zeros, np.int32(0), np.int32(0), np.int32(3), _ints(1, 2)))

"""Conformance rows about secure sums, which compute the result of the secure protocol without encryption."""

import re
from typing import Any

import numpy as np

from fedstack.computations.types.language import ConcreteComputation, StructType
from fedstack.testing.computation_builder import at_clients, computation, intrinsic, literal, struct
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.values import INTEGERS
from fedstack.testing.subjects import Runner


def _secure(uri: str, member: object, bound: Any) -> ConcreteComputation:
    return computation(lambda x: intrinsic(uri, x, bound), at_clients(member))


def _number(value: int, dtype: type[Any] = np.int64) -> Any:
    return literal(dtype(value), dtype)


@promise_of_both(intrinsics=["federated_secure_sum", "federated_secure_sum_bitwidth"])
async def secure_sums_are_sums_of_values_in_bounds(runner: Runner) -> None:
    """A secure sum adds integers and structs of integer arrays in their own dtype, and wraps as other sums do."""
    for dtype in INTEGERS:
        member = StructType([("x", dtype), ("y", (dtype, [2]))])
        values = [{"x": dtype(k), "y": np.array([0, 20 - k], dtype)} for k in (1, 2, 20)]
        expected = {"x": dtype(23), "y": np.array([0, 37], dtype)}
        expect_same(await runner.run(_secure("federated_secure_sum", member, _number(20)), values), expected)
        expect_same(await runner.run(_secure("federated_secure_sum_bitwidth", member, _number(5)), values), expected)
    wide = _secure("federated_secure_sum", np.uint8, _number(300))  # a bound beyond the range of the values
    expect_same(await runner.run(wide, [255, 2]), np.uint8(1))
    # The bound applies to each value. It does not prevent the sum from wrapping.
    expect_same(await runner.run(_secure("federated_secure_sum", np.int8, _number(100)), [100] * 10), np.int8(-24))
    expect_same(
        await runner.run(_secure("federated_secure_sum_bitwidth", np.int8, _number(7)), [100] * 10), np.int8(-24)
    )


@promise_of_both(intrinsics=["federated_secure_sum", "federated_secure_sum_bitwidth"], tag="errors")
async def a_value_out_of_bounds_names_the_client(runner: Runner) -> None:
    """A value below zero or above the bound raises an error that names the value, the bound and the client."""
    for bad in (-1, 6, 200):
        sums = _secure("federated_secure_sum", np.int16, _number(5))
        await expect_error(
            runner.run(sums, [0, 5, bad]), ValueError, "federated_secure_sum", str(bad), "0 to 5", "client 2"
        )
    for bad in (-1, 8):
        sums = _secure("federated_secure_sum_bitwidth", (np.int32, [2]), _number(3))
        values = [np.array([0, 7], np.int32), np.array([bad, 1], np.int32)]
        await expect_error(runner.run(sums, values), ValueError, "bitwidth", str(bad), "0 to 7", "client 1")


@promise_of_both(intrinsics=["federated_secure_sum", "federated_secure_sum_bitwidth"])
async def bounds_are_compared_as_integers(runner: Runner) -> None:
    """Bounds are compared as integers of unlimited size, so that no dtype conversion hides a value out of bounds."""
    huge = _secure("federated_secure_sum", np.uint64, _number(2**63 - 1))
    expect_same(await runner.run(huge, [2**63 - 1, 0]), np.uint64(2**63 - 1))
    await expect_error(runner.run(huge, [2**63]), ValueError, str(2**63), "client 0")
    top = _secure("federated_secure_sum", np.uint64, _number(2**64 - 1, np.uint64))
    expect_same(await runner.run(top, [2**64 - 1, 1]), np.uint64(0))
    bits = _secure("federated_secure_sum_bitwidth", np.uint64, _number(62))
    expect_same(await runner.run(bits, [2**62 - 1]), np.uint64(2**62 - 1))
    await expect_error(runner.run(bits, [2**62]), ValueError, str(2**62), "client 0")
    none = _secure("federated_secure_sum_bitwidth", np.int32, _number(0))
    expect_same(await runner.run(none, [0, 0]), np.int32(0))
    await expect_error(runner.run(none, [1]), ValueError, "client 0")


@promise_of_both(intrinsics=["federated_secure_sum", "federated_secure_sum_bitwidth"])
async def a_bound_may_be_one_or_one_per_tensor(runner: Runner) -> None:
    """A bound is an integer for all tensors, or a struct with an integer per tensor. Too many bits raise an error."""
    member = StructType([("x", np.int32), ("y", (np.int32, [2]))])
    value = {"x": np.int32(3), "y": np.array([100, 90], np.int32)}
    separate = struct(x=_number(3, np.int32), y=_number(100, np.int64))
    total = {"x": np.int32(6), "y": np.array([200, 180], np.int32)}
    expect_same(await runner.run(_secure("federated_secure_sum", member, separate), [value, value]), total)
    widths = struct(x=_number(2, np.int8), y=_number(7, np.int8))
    expect_same(await runner.run(_secure("federated_secure_sum_bitwidth", member, widths), [value, value]), total)
    narrow = struct(x=_number(2, np.int32), y=_number(100, np.int64))
    await expect_error(
        runner.run(_secure("federated_secure_sum", member, narrow), [value]), ValueError, "x", "3", "client 0"
    )
    for bits in (-1, 63):
        sums = _secure("federated_secure_sum_bitwidth", np.int64, _number(bits))
        await expect_error(runner.run(sums, [0]), ValueError, "bitwidth", str(bits))


@promise_of_both(intrinsics=["federated_secure_sum", "federated_secure_sum_bitwidth"], tag="errors")
async def a_negative_bound_of_a_secure_sum_is_nobodys_fault(runner: Runner) -> None:
    """A negative bound of a secure sum raises an error with intrinsic and bound but no client, even without clients."""
    member = StructType([("x", np.int32), ("y", (np.int32, [2]))])
    value = {"x": np.int32(0), "y": np.array([0, 1], np.int32)}
    one_of_two = struct(x=_number(3, np.int32), y=_number(-7, np.int64))
    for clients in (0, 1, 3):
        for uri, dtype, bound, inputs, shown in [
            ("federated_secure_sum", np.int32, _number(-1), [0] * clients, "found -1"),
            ("federated_secure_sum", member, one_of_two, [value] * clients, "found -7"),
            ("federated_secure_sum_bitwidth", np.int32, _number(-1), [0] * clients, "-1"),
        ]:
            error = await expect_error(runner.run(_secure(uri, dtype, bound), inputs), ValueError, uri, shown)
            expect(not re.search(r"client \d", str(error)), "an error message without a client", str(error))

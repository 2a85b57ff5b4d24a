"""Conformance rows about the fixed tree of sums and means, which makes results bitwise reproducible on every stack."""

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import StructType, TensorType
from fedstack.testing.computation_builder import at_clients, computation, intrinsic, struct
from fedstack.testing.expectations import expect_same_bits
from fedstack.testing.leaves import identity
from fedstack.testing.promises import promise_of_both
from fedstack.testing.rows.federated.aggregations import aggregated
from fedstack.testing.subjects import Runner

_COUNTS = (1, 2, 3, 5, 8, 13, 64, 100)


def tree_sum(values: Sequence[Any]) -> Any:
    """Adds values along the promised tree: a binary counter over client indices, then blocks from the smallest up."""
    blocks: list[tuple[int, Any]] = []
    for value in values:
        level = 0
        while blocks and blocks[-1][0] == level:
            value = blocks.pop()[1] + value
            level += 1
        blocks.append((level, value))
    _, total = blocks.pop()
    while blocks:
        total = blocks.pop()[1] + total
    return total


def _numbers(clients: int, dtype: Any, shape: tuple[int, ...] = ()) -> list[Any]:
    """Returns numbers of very different magnitudes, so that their sum depends on the order of the additions."""
    generator = np.random.default_rng(clients)
    values = generator.normal(size=(clients, *shape)) * 10.0 ** generator.integers(-6, 6, size=(clients, *shape))
    return [*values.astype(dtype)]


@promise_of_both(intrinsics=["federated_sum", "federated_mean"])
async def scalars_are_folded_along_the_tree(runner: Runner) -> None:
    """Sums and means of scalars are bitwise equal to those of the promised tree, for any number of clients."""
    for clients in (*_COUNTS, 1023):
        for dtype in (np.float32, np.float64, np.complex64):
            values = _numbers(clients, dtype)
            total = tree_sum(values)
            expect_same_bits(
                await runner.run(aggregated("federated_sum", dtype), values), total, f"the result for {clients} clients"
            )
            mean = dtype(total / dtype(clients))
            expect_same_bits(
                await runner.run(aggregated("federated_mean", dtype), values), mean, f"the result for {clients} clients"
            )


@promise_of_both(intrinsics=["federated_sum", "federated_mean"])
async def arrays_are_folded_along_the_tree(runner: Runner) -> None:
    """Sums and means of short and long arrays, passed or computed, are bitwise equal to those of the promised tree."""
    for clients in _COUNTS:
        for shape in ((3,), (2, 0), (70, 80)):
            vector = TensorType(np.float32, shape)
            values = _numbers(clients, np.float32, shape)
            total = tree_sum(values)
            mean = total / np.float32(clients)
            copies = identity(vector)
            both = computation(
                lambda x, copies=copies: struct(
                    intrinsic("federated_sum", x),
                    intrinsic("federated_mean", x),
                    intrinsic("federated_sum", intrinsic("federated_map", copies, x)),
                    intrinsic("federated_mean", intrinsic("federated_map", copies, x)),
                ),
                at_clients(vector),
            )
            found = await runner.run(both, values)
            expect_same_bits(
                found, (total, mean, total, mean), f"the result for {clients} clients with shape {list(shape)}"
            )


@promise_of_both(intrinsics=["federated_weighted_mean"])
async def weighted_means_are_folded_along_the_tree(runner: Runner) -> None:
    """A weighted mean is bitwise equal to the sum of products divided by the sum of weights, both along the tree."""
    pair = StructType([("x", np.float32), ("y", (np.float32, [5]))])
    for clients in _COUNTS:
        scalars, vectors = _numbers(clients, np.float32), _numbers(clients, np.float32, (5,))
        for weight in (np.float32, np.int32):
            weights = [weight(value) for value in np.random.default_rng(clients).integers(1, 100, clients)]
            factors = [np.float32(value) for value in weights]
            total = np.float32(tree_sum(factors) if weight is np.float32 else sum(map(int, weights)))
            expected = {
                "x": tree_sum([v * f for v, f in zip(scalars, factors)]) / total,
                "y": tree_sum([v * f for v, f in zip(vectors, factors)]) / total,
            }
            averaged = computation(
                lambda x, w: intrinsic("federated_weighted_mean", x, w), at_clients(pair), at_clients(weight)
            )
            found = await runner.run(averaged, list(zip(scalars, vectors)), weights)
            expect_same_bits(found, expected, f"the result for {clients} clients")


@promise_of_both(intrinsics=["federated_sum", "federated_mean"], needs=["same process"], tag="timing")
async def the_order_of_completion_does_not_matter(runner: Runner) -> None:
    """Results are bitwise identical for any order in which clients finish."""
    for seed in range(3):
        pauses = random.Random(seed)

        @python_computation([(np.float32, [4])], (np.float32, [4]))
        def dawdle(x: Any) -> Any:
            time.sleep(pauses.uniform(0, 0.002))  # noqa: B023 - lets clients overtake each other; no test waits for it
            return x

        values = _numbers(37, np.float32, (4,))
        folded = computation(
            lambda x, dawdle=dawdle: struct(
                intrinsic("federated_sum", intrinsic("federated_map", dawdle, x)),
                intrinsic("federated_mean", intrinsic("federated_map", dawdle, x)),
            ),
            at_clients(TensorType(np.float32, [4])),
        )
        total = tree_sum(values)
        expect_same_bits(await runner.run(folded, values), (total, total / np.float32(37)))

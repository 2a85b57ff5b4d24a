"""Conformance rows about clients that fail, and about what the others make up without them."""

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import SequenceType, TensorType
from fedstack.errors import LeafError
from fedstack.executors.survivors.client_failures import ClientFailure, ClientFailures
from fedstack.testing.computation_builder import at_clients, at_server, computation, intrinsic, literal, struct
from fedstack.testing.computation_builder import function as built_function
from fedstack.testing.expectations import expect, expect_same, expect_same_bits
from fedstack.testing.promises import promise_of_stacks
from fedstack.testing.rows.federated.folds import tree_sum
from fedstack.testing.subjects import StackSubject

_ANY = ClientFailures(min_clients=0)
# Clients that fail each time are left out in the same way if they may run again.
_POLICIES = (_ANY, ClientFailures(min_clients=0, retries=1))
_NEEDS = ("client failures",)
_COUNTS = (1, 2, 7, 8, 9, 16, 23, 40)


def tree_of_survivors(values: Sequence[Any], combine: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Folds values along the promised tree. `None` stands for an absent client; a node with one child is that child."""
    blocks: list[tuple[int, Any]] = []

    def joined(left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else combine(left, right)

    for value in values:
        level = 0
        while blocks and blocks[-1][0] == level:
            value, level = joined(blocks.pop()[1], value), level + 1
        blocks.append((level, value))
    total = blocks.pop()[1]
    while blocks:
        total = joined(blocks.pop()[1], total)
    return total


def _failing(clients: int, number: int) -> set[int]:
    """Returns clients that fail: runs of them, whole blocks of 8 and single ones."""
    generator = np.random.default_rng([clients, number])
    failing = {client for client in range(clients) if generator.random() < (0.1, 0.5, 0.9)[number % 3]}
    if number % 2:
        first = int(generator.integers(0, clients)) // 8 * 8
        failing |= set(range(first, min(first + 8, clients)))
    return failing


def _values(clients: int, shape: tuple[int, ...] = ()) -> list[Any]:
    generator = np.random.default_rng(clients)
    values = generator.normal(size=(clients, *shape)) * 10.0 ** generator.integers(-6, 6, size=(clients, *shape))
    return [*values.astype(np.float32)]


def _without(values: Sequence[Any], absent: Collection[int]) -> list[Any]:
    return [None if client in absent else value for client, value in enumerate(values)]


def _picky(member: object) -> Any:
    """Returns a leaf that returns its first member, and fails if its second is true."""

    @python_computation([member, np.bool_], member)
    def picky(value: Any, fails: Any) -> Any:
        if fails:
            raise ValueError("this client fails")
        return value

    return picky


def _mapped(member: object, *uris: str) -> Any:
    """Returns a computation that aggregates the values of the clients that do not fail."""
    picky = _picky(member)

    def body(x: Any, fails: Any) -> Any:
        kept = intrinsic("federated_map", picky, intrinsic("federated_zip_at_clients", struct(x, fails)))
        return struct(*(intrinsic(uri, kept) for uri in uris))

    return computation(body, at_clients(member), at_clients(np.bool_))


def _flags(clients: int, failing: Collection[int]) -> list[bool]:
    return [client in failing for client in range(clients)]


@promise_of_stacks(
    needs=_NEEDS, intrinsics=["federated_sum", "federated_mean", "federated_min", "federated_max"], tag="values"
)
async def clients_that_fail_are_holes_in_the_tree(stack: StackSubject) -> None:
    """Under a policy, an aggregation is the fold of the remaining clients along the promised tree, bit for bit."""
    uris = ("federated_sum", "federated_mean", "federated_min", "federated_max")
    for shape in ((), (3,), (70, 80)):
        member = TensorType(np.float32, shape)
        function = _mapped(member, *uris)
        for clients in _COUNTS if shape != (70, 80) else (9, 23):
            values = _values(clients, shape)
            for number in range(3):
                failing = _failing(clients, number)
                if len(failing) == clients:
                    continue
                policy = _POLICIES[number % 2]
                found: Any = await stack.run_tolerating(policy, function, values, _flags(clients, failing))
                left = _without(values, failing)
                total = tree_of_survivors(left)
                expected = (
                    total,
                    total / np.float32(clients - len(failing)),
                    tree_of_survivors(left, np.minimum),
                    tree_of_survivors(left, np.maximum),
                )
                expect_same_bits(tuple(found), expected, f"the results without {sorted(failing)} of {clients}")


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_weighted_mean"], tag="values")
async def weights_of_clients_that_fail_do_not_count(stack: StackSubject) -> None:
    """A weighted mean divides the products of the remaining clients by the sum of their weights."""
    picky = _picky(np.float32)

    def body(x: Any, fails: Any, weights: Any) -> Any:
        kept = intrinsic("federated_map", picky, intrinsic("federated_zip_at_clients", struct(x, fails)))
        return intrinsic("federated_weighted_mean", kept, weights)

    for weight in (np.float32, np.int32):
        function = computation(body, at_clients(np.float32), at_clients(np.bool_), at_clients(weight))
        for clients in (5, 16, 23):
            values, weights = _values(clients), [weight(1 + client % 3) for client in range(clients)]
            failing = _failing(clients, 1)
            if len(failing) == clients:
                continue
            policy = _POLICIES[clients % 2]
            found = await stack.run_tolerating(policy, function, values, _flags(clients, failing), weights)
            products = [value * np.float32(factor) for value, factor in zip(values, weights)]
            wide = np.float64 if weight is np.int32 else np.float32
            total = tree_of_survivors(_without([wide(factor) for factor in weights], failing))
            expected = tree_of_survivors(_without(products, failing)) / np.float32(total)
            expect_same_bits(found, expected, f"the mean without {sorted(failing)} of {clients}")


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_aggregate"], tag="values")
async def a_general_aggregation_skips_clients_that_fail(stack: StackSubject) -> None:
    """`federated_aggregate` accumulates the remaining clients of each block, and merges no block without clients."""
    picky = _picky(np.int32)

    @python_computation([[np.int64, np.int64], np.int32], [np.int64, np.int64])
    def accumulate(state: Any, value: Any) -> Any:
        return (state[0] * 31 + value) % 1_000_003, state[1] + 1

    @python_computation([[np.int64, np.int64], [np.int64, np.int64]], [np.int64, np.int64])
    def merge(left: Any, right: Any) -> Any:
        return (left[0] * 1009 + right[0]) % 1_000_003, left[1] + right[1]

    report = computation(lambda state: state, [np.int64, np.int64])
    zero = struct(literal(np.int64(7), np.int64), literal(np.int64(0), np.int64))

    def body(x: Any, fails: Any) -> Any:
        kept = intrinsic("federated_map", picky, intrinsic("federated_zip_at_clients", struct(x, fails)))
        return intrinsic("federated_aggregate", kept, zero, accumulate, merge, report)

    function = computation(body, at_clients(np.int32), at_clients(np.bool_))
    for clients in _COUNTS:
        for number in range(4):
            failing = _failing(clients, number)
            blocks: list[Any] = []
            for first in range(0, clients, 8):
                state: Any = None
                for client in range(first, min(first + 8, clients)):
                    if client not in failing:
                        state = _accumulated(state or (7, 0), client)
                blocks.append(state)
            total = tree_of_survivors(blocks, _merged) or (7, 0)
            found: Any = await stack.run_tolerating(
                _POLICIES[number // 2],
                function,
                [np.int32(client) for client in range(clients)],
                _flags(clients, failing),
            )
            expect_same(
                tuple(found), (np.int64(total[0]), np.int64(total[1])), f"without {sorted(failing)} of {clients}"
            )


def _accumulated(state: tuple[int, int], value: int) -> tuple[int, int]:
    return (state[0] * 31 + value) % 1_000_003, state[1] + 1


def _merged(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return (left[0] * 1009 + right[0]) % 1_000_003, left[1] + right[1]


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_map", "federated_broadcast"], tag="values")
async def a_client_that_fails_takes_part_in_no_later_phase(stack: StackSubject) -> None:
    """What earlier phases have aggregated from a client stands; later phases run without the client."""
    picky = _picky(np.float32)

    @python_computation([[np.float32, np.bool_], np.float32], np.float32)
    def below(value: Any, mean: Any) -> Any:
        if value[1]:
            raise KeyError("this client fails later")
        return value[0] - mean

    def body(x: Any, early: Any, late: Any) -> Any:
        kept = intrinsic("federated_map", picky, intrinsic("federated_zip_at_clients", struct(x, early)))
        mean = intrinsic("federated_mean", kept)
        both = intrinsic("federated_zip_at_clients", struct(x, late))
        pairs = intrinsic("federated_zip_at_clients", struct(both, intrinsic("federated_broadcast", mean)))
        rest = intrinsic("federated_map", below, pairs)
        return struct(mean, intrinsic("federated_sum", rest), kept, rest, intrinsic("federated_broadcast", mean))

    function = computation(body, at_clients(np.float32), at_clients(np.bool_), at_clients(np.bool_))
    for clients in (4, 16, 23):
        values, early, late = _values(clients), _failing(clients, 0), _failing(clients, 3) | {1}
        early -= {0}
        late -= {0}
        policy = _POLICIES[clients % 2]
        found: Any = await stack.run_tolerating(policy, function, values, _flags(clients, early), _flags(clients, late))
        mean, total, kept, rest, everywhere = found
        expected = tree_of_survivors(_without(values, early)) / np.float32(clients - len(early))
        expect_same_bits(mean, expected, "the mean of the first phase")
        expect_same_bits(everywhere, expected, "the value that is the same for all clients")
        below_mean = [np.float32(value - expected) for value in values]
        gone = early | late
        expect_same_bits(total, tree_of_survivors(_without(below_mean, gone)), "the sum of the second phase")
        for place, results, wanted in (("first", kept, values), ("second", rest, below_mean)):
            for client in range(clients):
                if client not in gone:
                    expect_same(results[client], wanted[client], f"the value of client {client}")
                    continue
                failure = results[client]
                expect(isinstance(failure, ClientFailure), f"a failure of client {client} in the {place} list", failure)
                expected_phase = 0 if client in early else 1
                expect(
                    (failure.client, failure.phase) == (client, expected_phase),
                    f"a failure of client {client} in phase {expected_phase}",
                    failure,
                )
                name = "ValueError" if client in early else "KeyError"
                expect(isinstance(failure.error, LeafError) and name in str(failure.error), f"a {name}", failure.error)


@promise_of_stacks(needs=_NEEDS, tag="values")
async def clients_may_be_absent_from_the_start(stack: StackSubject) -> None:
    """A `ClientFailure` in the list of an argument is a client that does not take part; it is not a failure."""
    policy = ClientFailures(tolerate=0)
    function = _mapped(np.float32, "federated_sum", "federated_mean")
    for clients in (1, 9, 23):
        values = _values(clients)
        absent = _failing(clients, 1) - {clients - 1}
        given = [ClientFailure() if client in absent else value for client, value in enumerate(values)]
        total = tree_of_survivors(_without(values, absent))
        found: Any = await stack.run_tolerating(policy, function, given, [False] * clients)
        expect_same_bits(tuple(found), (total, total / np.float32(clients - len(absent))))


@promise_of_stacks(needs=_NEEDS, tag="values")
async def all_clients_may_fail_if_the_policy_says_so(stack: StackSubject) -> None:
    """With `min_clients=0`, aggregations over nobody are those over no clients: sums are 0 and means NaN."""
    uris = ("federated_sum", "federated_mean", "federated_min", "federated_max")
    limits = np.finfo(np.float32)
    for clients in (1, 8, 23):
        found: Any = await stack.run_tolerating(_ANY, _mapped(np.float32, *uris), _values(clients), [True] * clients)
        expect_same(tuple(found), (np.float32(0), np.float32(np.nan), limits.max, limits.min))


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_secure_sum"], tag="values")
async def a_value_out_of_bounds_is_a_failure_of_its_client(stack: StackSubject) -> None:
    """A client whose value is out of the bounds of a secure sum contributes to no aggregation of the phase."""
    function = computation(
        lambda x: struct(
            intrinsic("federated_secure_sum", x, literal(np.int32(10), np.int32)), intrinsic("federated_sum", x)
        ),
        at_clients(np.int32),
    )
    found: Any = await stack.run_tolerating(_ANY, function, [1, 2, 30, 4, -5, 6, 7, 8, 9])
    expect_same(tuple(found), (np.int32(37), np.int32(37)))


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_select"], tag="values")
async def a_key_out_of_range_is_a_failure_of_its_client(stack: StackSubject) -> None:
    """A client whose key is out of range fails in the first phase that reads its slices."""
    table = TensorType(np.float32, [4])

    @python_computation([table, np.int32], np.float32)
    def entry(values: Any, key: Any) -> Any:
        return values[key]

    @python_computation([table, np.float32], table)
    def plus(values: Any, number: Any) -> Any:
        return values + number

    @python_computation([SequenceType(np.float32)], np.float32)
    def total_of(slices: Any) -> Any:
        return np.float32(sum(slices))

    def body(keys: Any, numbers: Any, values: Any) -> Any:
        most = intrinsic("federated_value_at_server", literal(np.int32(3), np.int32))
        sum_of_all = intrinsic("federated_sum", numbers)
        moved = intrinsic("federated_zip_at_server", struct(values, sum_of_all))
        slices = intrinsic("federated_select", keys, most, intrinsic("federated_apply", plus, moved), entry)
        sums = intrinsic("federated_map", total_of, slices)
        return struct(sum_of_all, intrinsic("federated_sum", sums), sums)

    function = computation(body, at_clients(TensorType(np.int32, [2])), at_clients(np.float32), at_server(table))
    keys = [np.array(pair, np.int32) for pair in ([0, 1], [2, 4], [3, 3], [-1, 0])]
    values = np.array([0, 1, 2, 3], np.float32)
    found: Any = await stack.run_tolerating(_ANY, function, keys, [np.float32(0.25)] * 4, values)
    expect_same(tuple(found[:2]), (np.float32(1), np.float32(11)), "the sums of both phases")
    failed = {client: value.phase for client, value in enumerate(found[2]) if isinstance(value, ClientFailure)}
    expect(failed == {1: 1, 3: 1}, "failures of clients 1 and 3 in phase 1", found[2])
    expect("found 4 at client 1" in str(found[2][1].error), "an error that names the key", found[2][1].error)


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_map", "federated_broadcast"], tag="values")
async def phases_of_nested_computations_are_phases_of_the_call(stack: StackSubject) -> None:
    """A client that fails in a phase of a nested computation takes part in no later phase of the call."""
    picky = _picky(np.float32)

    @python_computation([np.float32, np.float32], np.float32)
    def below(value: Any, mean: Any) -> Any:
        return value - mean

    def mean_of(x: Any, fails: Any) -> Any:
        return intrinsic(
            "federated_mean", intrinsic("federated_map", picky, intrinsic("federated_zip_at_clients", struct(x, fails)))
        )

    nested = built_function(mean_of, at_clients(np.float32), at_clients(np.bool_))

    def body(x: Any, early: Any, late: Any) -> Any:
        first = nested(x, early)
        pairs = intrinsic("federated_zip_at_clients", struct(x, intrinsic("federated_broadcast", first)))
        return struct(first, nested(intrinsic("federated_map", below, pairs), late))

    outer = computation(body, at_clients(np.float32), at_clients(np.bool_), at_clients(np.bool_))
    for clients in (9, 23):
        values, early, late = _values(clients), {1, 4}, {2, 4, 8}
        found: Any = await stack.run_tolerating(_ANY, outer, values, _flags(clients, early), _flags(clients, late))
        first = tree_of_survivors(_without(values, early)) / np.float32(clients - len(early))
        rest = [np.float32(value - first) for value in values]
        gone = early | late
        second = tree_of_survivors(_without(rest, gone)) / np.float32(clients - len(gone))
        expect_same_bits(tuple(found), (first, second), f"the means without {early} and {gone} of {clients}")


@promise_of_stacks(needs=_NEEDS, tag="values")
async def a_sequence_may_fail_in_its_midst(stack: StackSubject) -> None:
    """A client whose function fails at its 500th element is left out."""

    @python_computation([SequenceType(np.int32)], np.int32)
    def total_of(elements: Any) -> Any:
        total = 0
        for element in elements:
            if element < 0:
                raise ValueError("a negative element")
            total += element
        return np.int32(total)

    function = computation(
        lambda x: intrinsic("federated_sum", intrinsic("federated_map", total_of, x)),
        at_clients(SequenceType(np.int32)),
    )
    good = [np.int32(1)] * 600
    bad = [*good[:499], np.int32(-1), *good]
    found = await stack.run_tolerating(_ANY, function, [good, bad, good, bad, good])
    expect_same(found, np.int32(1800))


@promise_of_stacks(needs=_NEEDS, tag="values")
async def a_policy_without_failures_changes_no_bit(stack: StackSubject) -> None:
    """Without failures, results are those of a call without a policy."""
    function = _mapped(np.float32, "federated_sum")
    for clients in (0, 1, 23):
        (found,) = await stack.run_tolerating(_ANY, function, _values(clients), [False] * clients)
        values = _values(clients)
        expect_same_bits(found, tree_sum(values) if values else np.float32(0))

"""Conformance rows about names and functions: captured, curried, shadowed, passed as values, and used repeatedly."""

import itertools

import numpy as np

from fedstack.computations.leaves.vectorized_leaf import lanes_of
from fedstack.computations.types.language import FunctionType, SequenceType, StructType, TensorType
from fedstack.foundations.blas_threads import OneBlasThread
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
from fedstack.testing.expectations import expect_same
from fedstack.testing.leaves import FACTORS, add, double, multiply_rows, seven
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner


def _add(x: Expression, y: Expression) -> Expression:
    return as_expression(add)(x, y)


def _ints(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


@promise_of_both(intrinsics=["federated_map", "federated_apply", "federated_aggregate"])
async def functions_use_values_from_around_them(runner: Runner) -> None:
    """A function that is mapped, applied or folded may use unplaced values of the enclosing computation."""
    shifted = computation(
        lambda x, s, k: struct(
            intrinsic("federated_map", function(lambda v: _add(v, k), np.int32), x),
            intrinsic("federated_apply", function(lambda v: _add(v, _add(k, k)), np.int32), s),
            intrinsic(
                "federated_aggregate",
                x,
                k,
                function(lambda a, v: _add(a, v), np.int32, np.int32),
                function(lambda a, b: _add(a, b), np.int32, np.int32),
                function(lambda a: struct(a, k), np.int32),
            ),
        ),
        at_clients(np.int32),
        at_server(np.int32),
        np.int32,
    )
    expect_same(await runner.run(shifted, [1, 2], 10, 0), (_ints(1, 2), np.int32(10), tuple(_ints(3, 0))))
    mapped = computation(
        lambda x, k: intrinsic("federated_map", function(lambda v: _add(v, k), np.int32), x),
        at_clients(np.int32),
        np.int32,
    )
    expect_same(await runner.run(mapped, [1, 2, 3], 5), _ints(6, 7, 8))


@promise_of_both(intrinsics=["federated_map", "sequence_map"])
async def functions_may_return_functions(runner: Runner) -> None:
    """A mapped function may be the result of a call, as in the code that the front end emits for `sequence_map`."""
    signature = FunctionType(np.int32, np.int32)
    sequence = SequenceType(np.int32)
    curried = function(
        lambda f: function(lambda s: intrinsic("sequence_map", f, s), sequence), signature, name="curried"
    )
    mapped = computation(
        lambda x: block(
            [("g", curried(double)), ("y", intrinsic("federated_map", reference("g", curried(double).type), x))],
            reference("y", at_clients(sequence)),
        ),
        at_clients(sequence),
    )
    expect_same(await runner.run(mapped, [[1, 2], []]), [_ints(2, 4), []])
    adder = function(lambda k: function(lambda v: _add(v, k), np.int32), np.int32)
    added = computation(lambda x, k: intrinsic("federated_map", adder(k), x), at_clients(np.int32), np.int32)
    expect_same(await runner.run(added, [1, 2], 3), _ints(4, 5))


@promise_of_both()
async def functions_are_passed_around(runner: Runner) -> None:
    """A function may be an argument, a local, or a member of a struct that is selected and then called."""
    signature = FunctionType(np.int32, np.int32)
    twice = function(lambda f, x: f(f(x)), signature, np.int32)
    called = computation(lambda x: twice(double, x), np.int32)
    expect_same(await runner.run(called, 3), np.int32(12))
    chosen = computation(
        lambda x: block(
            [("table", struct(first=double, other=function(lambda v: _add(v, v), np.int32)))],
            reference("table", StructType([("first", signature), ("other", signature)]))["other"](x),
        ),
        np.int32,
    )
    expect_same(await runner.run(chosen, 4), np.int32(8))


@promise_of_both()
async def an_inner_name_hides_an_outer_one(runner: Runner) -> None:
    """The innermost binding applies. A local may be rebound from its old value; closures keep the old value."""
    x = reference("x", np.int32)
    inner = function(lambda v: as_expression(double)(v), np.int32, name="x")
    hidden = computation(
        lambda p: block([("x", p), ("x", _add(x, x)), ("y", inner(x))], struct(x, reference("y", np.int32))), np.int32
    )
    expect_same(await runner.run(hidden, 3), (np.int32(6), np.int32(12)))
    shift = FunctionType(np.int32, np.int32)
    closure = computation(
        lambda p: block(
            [("x", p), ("f", function(lambda v: _add(v, x), np.int32, name="v")), ("x", _add(x, x))],
            reference("f", shift)(x),
        ),
        np.int32,
    )
    expect_same(await runner.run(closure, 5), np.int32(15))
    mapped = computation(
        lambda c, k: block(
            [("x", k)], intrinsic("federated_map", function(lambda v: _add(v, v), np.int32, name="x"), c)
        ),
        at_clients(np.int32),
        np.int32,
    )
    expect_same(await runner.run(mapped, [1, 2], 100), _ints(2, 4))


@promise_of_both(intrinsics=["federated_map"])
async def one_leaf_is_used_many_times(runner: Runner) -> None:
    """A leaf may be called many times in a computation, at every placement, and by several computations."""
    body = function(lambda v: _add(as_expression(double)(v), as_expression(double)(as_expression(double)(v))), np.int32)
    everywhere = computation(
        lambda x, k: struct(
            as_expression(double)(k),
            as_expression(double)(as_expression(double)(k)),
            intrinsic("federated_map", double, x),
            intrinsic("federated_map", double, intrinsic("federated_map", double, x)),
            intrinsic("federated_map", body, x),
            body(k),
        ),
        at_clients(np.int32),
        np.int32,
    )
    expected = (np.int32(2), np.int32(4), _ints(2, 4), _ints(4, 8), _ints(6, 12), np.int32(6))
    expect_same(await runner.run(everywhere, [1, 2], 1), expected)
    expect_same(await runner.run(double, 5), np.int32(10))


@promise_of_both(intrinsics=["federated_map"])
async def vectorized_functions_have_the_same_bits_for_any_clients(runner: Runner) -> None:
    """A vectorized function gives a client the same bits, whatever other clients there are and whoever runs them."""
    random = np.random.default_rng(0)
    rows = [random.normal(size=20).astype(np.float32) for _ in range(77)]
    lanes = lanes_of(TensorType(np.float32, [20]), TensorType(np.float32, [300]))
    with OneBlasThread():  # on two threads, BLAS may round in another way
        expected = [(np.stack([row] * lanes) @ FACTORS)[client % lanes] for client, row in enumerate(rows)]
    mapped = computation(lambda x: intrinsic("federated_map", multiply_rows, x), at_clients((np.float32, [20])))
    for clients in (77, 40, 3, 1):
        expect_same(await runner.run(mapped, rows[:clients]), expected[:clients])


@promise_of_both()
async def computations_without_parameter_run(runner: Runner) -> None:
    """Functions without parameters can be called, also inside other functions. Literals are values."""
    called = computation(lambda: struct(as_expression(seven)(), literal(np.float32(1.5), np.float32)))
    expect_same(await runner.run(called), (np.int32(7), np.float32(1.5)))
    nested = computation(lambda: function(lambda: as_expression(seven)())())
    expect_same(await runner.run(nested), np.int32(7))
    text = literal(np.array([b"a\x00", b"\xff"], object), np.str_, [2])
    expect_same(await runner.run(computation(lambda: text)), np.array([b"a\x00", b"\xff"], object))


@promise_of_both()
async def long_chains_of_locals_run(runner: Runner) -> None:
    """A block of hundreds of locals, each of which uses the previous local, runs."""
    length = 300
    names = ["start"] + [f"step{k}" for k in range(length)]
    adding, one = as_expression(add), literal(np.int32(1), np.int32)
    chain = [(name, adding(reference(before, np.int32), one)) for before, name in itertools.pairwise(names)]
    counted = computation(lambda x: block([("start", x), *chain], reference(names[-1], np.int32)), np.int32)
    expect_same(await runner.run(counted, 5), np.int32(5 + length))


@promise_of_both()
async def selections_go_by_position_in_the_type(runner: Runner) -> None:
    """A selection returns the member at its position: from arguments, structs, and members of mapped client values."""
    pair = StructType([("b", np.int32), ("a", np.int32)])
    swapped = computation(lambda s, unused: struct(s["a"], s["b"], s[0]), pair, np.int32)
    expect_same(await runner.run(swapped, {"a": 1, "b": 2}, 0), (np.int32(1), np.int32(2), np.int32(2)))
    mapped = computation(
        lambda c: intrinsic("federated_map", function(lambda s: struct(s["a"], s[0]), pair), c), at_clients(pair)
    )
    expect_same(await runner.run(mapped, [{"a": 1, "b": 2}, (3, 4)]), [tuple(_ints(1, 2)), tuple(_ints(4, 3))])

"""Conformance rows about rejected computations and failing leaves, and about the content of error messages."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import FunctionType, StructType, computation_pb2
from fedstack.errors import InvalidComputationError, LeafError, TypeMismatchError, UnsupportedIntrinsicError
from fedstack.testing.computation_builder import (
    Expression,
    as_computation,
    as_expression,
    at_clients,
    at_server,
    block,
    computation,
    function,
    intrinsic,
    intrinsic_function,
    reference,
    struct,
)
from fedstack.testing.expectations import expect, expect_error
from fedstack.testing.leaves import add, double
from fedstack.testing.promises import promise_of_both
from fedstack.testing.subjects import Runner


@promise_of_both(tag="errors")
async def an_error_in_a_leaf_says_which_and_where(runner: Runner) -> None:
    """An error in a leaf raises a `LeafError` with function, client, error class, text, and only the user's lines."""
    refuse = python_computation([np.int32], np.int32)(_users_function())
    error = await expect_error(
        runner.run(refuse, -3), LeafError, "'refuse'", "ValueError", "negative: -3", "user_code.py"
    )
    expect(
        error.computation_name == "refuse" and error.client_index is None,
        "an error of 'refuse' without a client",
        vars(error),
    )
    mapped = computation(lambda x: intrinsic("federated_map", refuse, x), at_clients(np.int32))
    error = await expect_error(runner.run(mapped, [1, 2, -3, 4, 5]), LeafError, "negative: -3", "client 2", "line 3")
    expect(
        error.computation_name == "refuse" and error.client_index == 2,
        "an error of 'refuse' with client 2",
        vars(error),
    )
    expect("conformance" not in str(error) and "asyncio" not in str(error), "only lines of the user's code", error)


def _users_function() -> Callable[..., object]:
    """Returns a function from outside this package, because errors omit the lines of this package."""
    source = "def refuse(x):\n    if x < 0:\n        raise ValueError(f'negative: {x}')\n    return x\n"
    names: dict[str, Any] = {}
    exec(compile(source, "user_code.py", "exec"), names)
    return names["refuse"]


@promise_of_both(tag="errors")
async def a_leaf_must_return_what_it_declares(runner: Runner) -> None:
    """A leaf that returns a value of a wrong type raises an error with its name, both types and the path."""
    pair = StructType([("a", np.int32), ("b", (np.float32, [2]))])

    @python_computation([np.int32], pair)
    def misshapen(x: Any) -> Any:
        return {"a": x, "b": np.zeros(3, np.float32)}

    @python_computation([np.int32], pair)
    def misnamed(x: Any) -> Any:
        return {"a": x, "c": np.zeros(2, np.float32)}

    @python_computation([np.int32], np.int32)
    def forgetful(x: Any) -> Any:
        return None

    @python_computation([np.int32], (np.float32, [1]))
    def too_wide(x: Any) -> Any:
        return np.array([x], np.float64)

    for leaf, fragments in [
        (misshapen, ("'misshapen'", ".b", "[2]", "[3]")),
        (misnamed, ("'misnamed'", "'b'", "'c'")),
        (forgetful, ("'forgetful'", "int32", "None", "return")),
        (too_wide, ("'too_wide'", "float32", "float64")),
    ]:
        await expect_error(runner.run(leaf, 1), TypeMismatchError, *fragments)
        mapped = computation(lambda x, leaf=leaf: intrinsic("federated_map", leaf, x), at_clients(np.int32))
        await expect_error(runner.run(mapped, [1, 2]), TypeMismatchError, *fragments, "client ")


@promise_of_both(tag="errors")
async def unbound_references_are_refused(runner: Runner) -> None:
    """A reference to a name that is unbound, or only bound in an inner scope, raises an error with the name."""
    inner = function(lambda x: as_expression(double)(x), np.int32, name="inner")
    for body in (
        function(lambda x: reference("missing", np.int32), np.int32),
        function(lambda x: struct(inner(x), reference("inner", np.int32)), np.int32),
        function(
            lambda x: block([("early", reference("late", np.int32)), ("late", x)], reference("early", np.int32)),
            np.int32,
        ),
    ):
        name = next(name for name in ("missing", "inner", "late") if f'"{name}"' in str(body.proto))
        await expect_error(runner.run(as_computation(body), 1), InvalidComputationError, repr(name))


@promise_of_both(tag="errors")
async def an_unknown_intrinsic_is_refused_by_name(runner: Runner) -> None:
    """An unknown intrinsic raises an `UnsupportedIntrinsicError` with its name."""
    unknown = intrinsic_function("federated_guess", at_clients(np.int32), at_server(np.int32))
    called = computation(lambda x: unknown(x), at_clients(np.int32))
    await expect_error(runner.run(called, [1, 2]), UnsupportedIntrinsicError, "federated_guess")


@promise_of_both(intrinsics=["federated_sum", "federated_map", "federated_mean", "sequence_reduce"], tag="errors")
async def an_intrinsic_with_a_type_that_lies_is_refused(runner: Runner) -> None:
    """An intrinsic whose declared type contradicts its rule raises an error instead of returning a wrong result."""
    clients = at_clients(np.int32)
    for uri, parameter, result in [
        ("federated_sum", clients, at_server(np.float32)),
        ("federated_sum", clients, clients),
        ("federated_mean", clients, at_server(np.int32)),
        ("federated_map", StructType([FunctionType(np.float32, np.float32), clients]), at_clients(np.float32)),
    ]:
        lie = intrinsic_function(uri, parameter, result)
        if uri == "federated_map":
            halve = function(lambda v: v, np.float32)
            body = function(lambda x, lie=lie, halve=halve: lie(halve, x), clients)
        else:
            body = function(lambda x, lie=lie: lie(x), clients)
        await expect_error(runner.run(as_computation(body), [1, 2]), TypeError, uri)


@promise_of_both(tag="errors")
async def a_call_that_does_not_fit_is_refused(runner: Runner) -> None:
    """A call with an argument of a wrong type inside a computation raises an error with both types and the path."""
    wrong = as_expression(add)
    body = function(lambda x: wrong(x, _converted(x)), np.int32)
    await expect_error(runner.run(as_computation(body), 1), TypeError, "int32", "float32", "arg[1]")


def _converted(x: Expression) -> Expression:
    @python_computation([np.int32], np.float32)
    def converted(value: Any) -> Any:
        return np.float32(value)

    return as_expression(converted)(x)


@promise_of_both(tag="errors")
async def a_computation_of_no_kind_is_refused(runner: Runner) -> None:
    """A computation message without content raises `InvalidComputationError`."""
    nothing = Expression(
        add.type_signature.result, computation_pb2.Computation(type=add.type_signature.result.to_proto())
    )
    body = function(lambda x: struct(x, nothing), np.int32)
    await expect_error(runner.run(as_computation(body), 1), InvalidComputationError)

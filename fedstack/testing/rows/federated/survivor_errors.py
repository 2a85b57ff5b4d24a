"""Conformance rows about the errors of calls whose clients may fail."""

from typing import Any

import numpy as np

from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import TensorType
from fedstack.errors import FedstackError, LeafError, TooManyClientFailuresError
from fedstack.executors.survivors.client_failures import ClientFailures
from fedstack.testing.computation_builder import at_clients, at_server, computation, intrinsic, literal
from fedstack.testing.expectations import expect, expect_error
from fedstack.testing.promises import promise_of_stacks
from fedstack.testing.subjects import StackSubject

_ANY = ClientFailures(min_clients=0)
_NEEDS = ("client failures",)


@promise_of_stacks(needs=_NEEDS, tag="errors")
async def too_many_failures_are_one_error(stack: StackSubject) -> None:
    """More failures than the policy tolerates raise one error with all of them, by kind, and the number of the others.

    All clients of the phase run first, so that the error does not depend on their order.
    """

    @python_computation([np.int32], np.int32)
    def picky(value: Any) -> Any:
        if value in (1, 4, 6):
            raise ValueError("this client fails")
        return value

    function = computation(
        lambda x: intrinsic("federated_sum", intrinsic("federated_map", picky, x)), at_clients(np.int32)
    )
    failing = {1, 4, 6}
    policies = [(ClientFailures(tolerate=2), False), (ClientFailures(tolerate=3), True)]
    policies += [(ClientFailures(tolerate=0.29), False), (ClientFailures(tolerate=0.3), True)]
    policies += [(ClientFailures(min_clients=8), False), (ClientFailures(min_clients=7), True)]
    for policy, is_tolerated in policies:
        running = stack.run_tolerating(policy, function, [np.int32(client) for client in range(10)])
        if is_tolerated:
            await running
            continue
        error = await expect_error(
            running, TooManyClientFailuresError, "3 failures among 10 clients", "ValueError in 'picky'", "1, 4, 6"
        )
        expect(set(error.failures) == failing and error.survivors == 7, f"the failures of {failing}", error.failures)


@promise_of_stacks(needs=_NEEDS, intrinsics=["federated_aggregate", "federated_select"], tag="errors")
async def errors_that_are_not_of_clients_end_the_call(stack: StackSubject) -> None:
    """Errors of functions that accumulate, merge, report or select, of the server's functions, and of arguments."""

    @python_computation([np.int32, np.int32], np.int32)
    def refuse(total: Any, value: Any) -> Any:
        raise ValueError("not a failure of a client")

    @python_computation([np.int32, np.int32], np.int32)
    def plus(left: Any, right: Any) -> Any:
        return left + right

    @python_computation([np.int32], np.int32)
    def report(total: Any) -> Any:
        raise ValueError("no report")

    values = [np.int32(client) for client in range(20)]
    for functions, message in (
        ((refuse, plus, report), "not a failure"),
        ((plus, refuse, report), "not a failure"),
        ((plus, plus, report), "no report"),
    ):
        function = computation(
            lambda x, f=functions: intrinsic("federated_aggregate", x, literal(np.int32(0), np.int32), *f),
            at_clients(np.int32),
        )
        await expect_error(stack.run_tolerating(_ANY, function, values), LeafError, message)
    function = computation(
        lambda x: intrinsic("federated_apply", report, intrinsic("federated_sum", x)), at_clients(np.int32)
    )
    await expect_error(stack.run_tolerating(_ANY, function, values), LeafError, "no report")
    most = lambda: intrinsic("federated_value_at_server", literal(np.int32(3), np.int32))  # noqa: E731
    function = computation(
        lambda keys, value: intrinsic("federated_select", keys, most(), value, refuse),
        at_clients(TensorType(np.int32, [1])),
        at_server(np.int32),
    )
    keys = [np.array([0], np.int32)] * 3
    await expect_error(stack.run_tolerating(_ANY, function, keys, np.int32(1)), LeafError, "not a failure")
    function = computation(lambda x: intrinsic("federated_sum", x), at_clients(np.int32))
    await expect_error(stack.run_tolerating(_ANY, function, [1, "two", 3]), FedstackError, "client 1")

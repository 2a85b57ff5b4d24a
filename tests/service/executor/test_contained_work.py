"""What leaf functions raise to end the process that they are in does not end a worker."""

import sys

import federated_language as fl
import numpy as np
import pytest
import remote_stacks

import fedstack
from fedstack.errors import LeafError

pytestmark = pytest.mark.fedstack_leak_check(False)  # the server goes on from test to test


class Odd(BaseException):
    """An exception that is no `Exception`."""


ENDINGS = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(), "odd": Odd("odd")}


@fedstack.python_computation([np.int32], np.int32)
def end(x):
    if x == 99:
        sys.exit(3)
    raise list(ENDINGS.values())[x]


@fedstack.python_computation([np.int32], np.int32)
def double(x):
    return x * np.int32(2)


NUMBERS = fl.FederatedType(np.int32, fl.CLIENTS)


@fl.federated_computation(NUMBERS)
def ended(numbers):
    return fl.federated_sum(fl.federated_map(end, numbers))


@fl.federated_computation(NUMBERS)
def doubled(numbers):
    return fl.federated_sum(fl.federated_map(double, numbers))


@fl.federated_computation(fl.FederatedType(np.int32, fl.SERVER))
def ended_at_server(number):
    return fl.federated_map(end, number)


@pytest.fixture(scope="module")
def target():
    remote_stacks.start_servers()
    yield remote_stacks.loopback_target()
    remote_stacks.stop_servers()


@pytest.mark.parametrize("number", [*range(len(ENDINGS)), 99])
def test_a_worker_outlives_what_a_function_raises(target, number):
    with fedstack.create_sync_remote_execution_context(target) as context, fedstack.use_context(context):
        with pytest.raises(LeafError, match="'end'") as caught:
            ended([number])
        assert caught.value.client_index == 0
        assert doubled([1, 2]) == 6


def test_in_the_callers_process_too_and_only_ctrl_c_passes(target):
    with fedstack.create_sync_remote_execution_context(target) as context, fedstack.use_context(context):
        with pytest.raises(LeafError, match="'end' raised SystemExit: 3"):
            ended_at_server(0)
        with pytest.raises(KeyboardInterrupt):
            ended_at_server(1)

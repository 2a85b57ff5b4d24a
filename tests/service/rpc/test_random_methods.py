"""Random computations give as methods what they give when they are called."""

import numpy as np
from example_counts import examples
from hypothesis import given, settings
from random_computations import DEFAULT_CLIENTS, SLOW_IS_FINE, assert_same, bare, programs
from served_methods import WALL

import fedstack
from fedstack.errors import FedstackError
from fedstack.service import rpc
from fedstack.service.rpc.client import Client
from fedstack.service.rpc.method_calls import MethodCalls
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.method_stub import MethodStub


def outcome(call):
    try:
        return call()
    except FedstackError as error:
        return type(error)


@settings(max_examples=examples(60), suppress_health_check=SLOW_IS_FINE)
@given(programs())
def test_a_method_gives_what_a_local_call_gives(program):
    computation, value, _, _ = program
    with fedstack.create_sync_local_execution_context(default_num_clients=DEFAULT_CLIENTS) as context:
        expected = outcome(lambda: context.invoke(computation, value))
    service = rpc.MethodService(fedstack.local_executor_factory(DEFAULT_CLIENTS))
    service.register("f", computation)
    with Client(MethodCalls(MethodStub(InMemoryConnection(service))), "", WALL) as client:
        found = outcome(lambda: client.call("f", (value,)).get_value())
    io_loop.run_sync(service.close())
    if isinstance(expected, type):
        assert found is expected
    elif found is None:  # of a method that returns nothing
        assert bare(expected) == ()
    else:
        with np.errstate(all="ignore"):
            assert_same(bare(found), bare(expected))

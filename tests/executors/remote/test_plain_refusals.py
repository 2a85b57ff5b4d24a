"""What a plain executor service does not take is refused in words that are about such a service."""

import federated_language as fl
import numpy as np
import pytest
import remote_stacks
from federated_language.proto import computation_pb2
from google.protobuf import wrappers_pb2

import fedstack
from fedstack.contexts.contexts import SyncExecutionContext
from fedstack.errors import CarrierError, InvalidValueError
from fedstack.executors import RemoteExecutor
from fedstack.testing.computation_builder import as_computation, at_clients, function, intrinsic, literal
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.testing.leaves import add, identity
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.wire.status import Code, error_from_status

INTS = at_clients(np.int32)
FOREIGN = wrappers_pb2.StringValue.DESCRIPTOR.full_name


class RefusingConnection(InMemoryConnection):
    """Refuses to compute, as services of other makes do: with a code and a text, and no details."""

    async def unary(self, path, request, timeout):
        if path.endswith("/Compute"):
            raise error_from_status(Code.INVALID_ARGUMENT, "Cannot embed a federated value.", None, self.address)
        return await super().unary(path, request, timeout)


@pytest.fixture
def service():
    yield remote_stacks.new_service()
    remote_stacks.stop_servers()


def at_plain_service(service, **options):
    executor = RemoteExecutor(ExecutorStub(RefusingConnection(service), extensions=False, **options))
    executor.set_cardinalities({fl.CLIENTS: 2})
    return executor


def mapped(values):
    return intrinsic("federated_map", identity(np.int32), values)


async def refusal_of(executor, body):
    total = await executor.create_value(as_computation(function(body, INTS)))
    values = await executor.create_value([1, 2], INTS)
    result = await executor.create_call(total, values)
    with pytest.raises(InvalidValueError) as caught:
        await result.compute()
    executor.close()
    return str(caught.value)


async def test_an_intrinsic_that_a_plain_service_may_not_know_is_named(service):
    executor = at_plain_service(service, keeps_handles=True)
    text = await refusal_of(executor, lambda x: intrinsic("federated_sum", mapped(x)))
    assert "Cannot embed a federated value." in text
    assert "not every executor service supports federated_sum; use a context" in text


async def test_an_intrinsic_that_every_service_knows_is_not_blamed(service):
    text = await refusal_of(at_plain_service(service, keeps_handles=True), mapped)
    assert "not every executor service" not in text


async def test_a_function_that_cannot_travel_is_not_told_of_an_option_of_ours(service):
    executor = at_plain_service(service)

    @fedstack.python_computation([np.int32], np.int32)
    def local(x):
        return x

    with pytest.raises(CarrierError, match="plain executor service") as caught:
        await executor.create_value(local)
    assert "--allow-python-code" not in str(caught.value)
    executor.close()


def foreign(leaf):
    """Returns the computation of a leaf with a content that no runtime here knows."""
    proto = computation_pb2.Computation()
    proto.CopyFrom(leaf.to_proto())
    proto.data.content.Pack(wrappers_pb2.StringValue(value="executable"))
    return fl.framework.ConcreteComputation.from_proto(proto)


def test_a_fold_that_needs_a_runtime_here_says_so(service):
    def body(x):
        return intrinsic(
            "federated_aggregate", x, literal(np.int32(0), np.int32), foreign(add), foreign(add), identity(np.int32)
        )

    stub = ExecutorStub(InMemoryConnection(service), **remote_stacks.PLAIN)
    context = SyncExecutionContext(fedstack.remote_executor_factory([stub]))
    with fedstack.use_context(context), pytest.raises(CarrierError, match=FOREIGN) as caught:
        as_computation(function(body, INTS))([1, 2])
    assert "in this process, which folds the results of clients on the plain executor service memory" in str(
        caught.value
    )
    context.close()

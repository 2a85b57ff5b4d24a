"""The stacks with services in them that the conformance suites run over, by name."""

import functools
from typing import Any

import fedstack
from fedstack.computations.language import CLIENTS, Executor, ExecutorFactory
from fedstack.executors import RemoteExecutor
from fedstack.service.executor_service import ExecutorService
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.executor_stub import ExecutorStub


@functools.cache
def shared_service() -> ExecutorService:
    """A service that all tests of a run share: what one leaves behind shows in another."""
    return ExecutorService(fedstack.local_executor_factory())


def in_memory_stub(**options: Any) -> ExecutorStub:
    return ExecutorStub(InMemoryConnection(shared_service()), **options)


def remote(num_clients: int, stub: ExecutorStub, **options: Any) -> Executor:
    executor = RemoteExecutor(stub, **options)
    executor.set_cardinalities({CLIENTS: num_clients})
    return executor


def in_memory_factory(workers: int, stub_options: Any = None, **options: Any) -> ExecutorFactory:
    stubs = [in_memory_stub(**(stub_options or {})) for _ in range(workers)]
    return fedstack.remote_executor_factory(stubs, **options)

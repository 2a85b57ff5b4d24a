"""Stacks over executors that are driven one by one: what runs there runs on whichever thread it falls to."""

from collections.abc import Callable, Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pytest
import remote_stacks

import fedstack
from fedstack.contexts import ResourceManagingExecutorFactory, SyncExecutionContext
from fedstack.errors import InvalidValueError, UnsupportedIntrinsicError
from fedstack.executors import (
    ComposingExecutor,
    FederatingExecutor,
    LeafExecutor,
    ReferenceResolvingExecutor,
    SequenceExecutor,
)
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub

AT_CLIENTS = fl.FederatedType(np.float32, fl.CLIENTS)
AT_SERVER = fl.FederatedType(np.float32, fl.SERVER)


def remote(**options: Any) -> Any:
    return remote_stacks.remote(0, remote_stacks.in_memory_stub(**options))


def plain() -> Any:
    """Returns an executor at a peer that knows the verbs only."""
    return remote(**remote_stacks.PLAIN)


def halves(server: Any, make_client: Callable[[], Any]) -> ComposingExecutor:
    """Returns a stack of two children, with ten clients each."""
    return ComposingExecutor(server, [FederatingExecutor(make_client(), 10) for _ in range(2)], [10, 10])


def over(make: Callable[[int], Any]) -> SyncExecutionContext:
    """Returns a context over a stack that a function of the number of clients makes."""
    return SyncExecutionContext(
        ResourceManagingExecutorFactory(lambda sizes: ReferenceResolvingExecutor(make(sizes.get(fl.CLIENTS, 0))))
    )


@fedstack.python_computation([np.float32], np.float32)
def double(x):
    return x * 2


@fedstack.python_computation([np.float32, np.float32], np.float32)
def add(x, y):
    return x + y


@fl.federated_computation(fl.SequenceType(np.float32))
def doubled(sequence):
    return fl.sequence_map(double, sequence)


@fl.federated_computation(AT_CLIENTS)
def aggregated(values):
    return fl.federated_aggregate(values, np.float32(0), add, add, double)


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    remote_stacks.service()
    with over(lambda clients: FederatingExecutor(plain(), clients)):
        aggregated([1.0] * 20)  # its thread is there before the first test, which would wait for its end
    yield
    remote_stacks.stop_servers()


@pytest.mark.long
@pytest.mark.parametrize("make", [remote, plain])
def test_the_elements_of_a_mapped_sequence_are_made_by_an_executor_of_verbs(make) -> None:
    with over(lambda clients: SequenceExecutor(make())):
        assert list(doubled([1.0, 2.0])) == [2.0, 4.0]
    with over(lambda clients: FederatingExecutor(SequenceExecutor(make()), clients)):
        each = fl.federated_computation(
            lambda values: fl.federated_map(doubled, values),
            fl.FederatedType(fl.SequenceType(np.float32), fl.CLIENTS),
        )
        assert [list(one) for one in each([[1.0, 2.0], [3.0]])] == [[2.0, 4.0], [6.0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda clients: halves(SequenceExecutor(plain()), plain),
        lambda clients: halves(SequenceExecutor(remote()), LeafExecutor),
        lambda clients: FederatingExecutor(plain(), clients, client_target=LeafExecutor()),
        lambda clients: FederatingExecutor(LeafExecutor(), clients, client_target=plain()),
    ],
)
def test_functions_of_an_aggregation_run_where_they_are_folded(make) -> None:
    with over(make):
        assert aggregated([1.0] * 20) == 40


@fl.federated_computation(AT_CLIENTS, AT_SERVER)
def zipped(values, model):
    return fl.federated_zip((values, fl.federated_broadcast(model)))


@fl.federated_computation(AT_CLIENTS, AT_SERVER)
def paired(values, model):
    return fl.federated_zip((values, fl.federated_value(np.float32(1), fl.CLIENTS))), model


@pytest.mark.parametrize(
    "make", [LeafExecutor, lambda: SequenceExecutor(LeafExecutor()), lambda: SequenceExecutor(plain())]
)
@pytest.mark.parametrize("computation", [zipped, paired])
def test_work_at_clients_is_refused_where_there_are_none(make, computation) -> None:
    with over(lambda clients: make()), pytest.raises(UnsupportedIntrinsicError, match="a FederatingExecutor"):
        computation([1.0, 2.0], 9.0)


def test_what_an_executor_of_verbs_does_not_run_is_refused_with_the_executor_that_does() -> None:
    total = fl.federated_computation(lambda sequence: fl.sequence_sum(sequence), fl.SequenceType(np.float32))
    with over(lambda clients: FederatingExecutor(plain(), clients)):
        with pytest.raises(
            UnsupportedIntrinsicError, match="found the intrinsic sequence_sum; wrap .* in a SequenceExecutor"
        ):
            total([1.0, 2.0])


def test_a_plain_service_is_no_child_of_a_composing_executor_by_itself() -> None:
    def make(clients: int) -> Any:
        return ComposingExecutor(LeafExecutor(), [plain()], [clients])

    with over(make), pytest.raises(InvalidValueError, match=r"extensions; .*FederatingExecutor\(Remote"):
        aggregated([1.0, 2.0])


@fl.federated_computation(fl.SequenceType(np.float32))
def added(sequence):
    return fl.sequence_reduce(sequence, np.float32(0), add)


@fl.federated_computation(fl.SequenceType(np.float32))
def summed(sequence):
    return fl.sequence_sum(fl.sequence_map(double, sequence))


@pytest.mark.long
@pytest.mark.parametrize(("computation", "expected"), [(added, 6.0), (summed, 12.0)])
def test_a_context_over_plain_services_that_know_no_sequence_intrinsics_runs_them_itself(computation, expected) -> None:
    def make(sizes: Any) -> Any:
        return ReferenceResolvingExecutor(FederatingExecutor(LeafExecutor(), sizes.get(fl.CLIENTS, 0)))

    service = remote_stacks.new_service(ResourceManagingExecutorFactory(make))
    stubs = [ExecutorStub(InMemoryConnection(service), **remote_stacks.PLAIN) for _ in range(2)]
    each = fl.federated_computation(
        lambda values: fl.federated_sum(fl.federated_map(computation, values)),
        fl.FederatedType(fl.SequenceType(np.float32), fl.CLIENTS),
    )
    with SyncExecutionContext(fedstack.remote_executor_factory(stubs)):
        assert each([[1.0, 2.0], [], [3.0]]) == expected

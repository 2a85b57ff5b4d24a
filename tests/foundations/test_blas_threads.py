"""Functions of clients run with one BLAS thread, so that their results do not depend on who else runs."""

import functools
import threading

import federated_language as fl
import numpy as np
import pytest
import threadpoolctl

import fedstack
from fedstack.foundations.blas_threads import OneBlasThread


@functools.cache
def controller() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in controller().info()]


@pytest.fixture
def two_threads():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield blas_threads()


@fedstack.python_computation(np.int32, np.int32)
def threads_of_client(index):
    return max(blas_threads())


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def of_clients(indices):
    return fl.federated_map(threads_of_client, indices)


@pytest.mark.parametrize("clients", [1, 3])
def test_functions_of_clients_run_with_one_blas_thread(two_threads, clients: int) -> None:
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert of_clients(list(range(clients))) == [1] * clients
        assert blas_threads() == two_threads


def test_functions_of_the_server_run_with_the_threads_that_the_process_has(two_threads) -> None:
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert threads_of_client(0) == max(two_threads)


def test_the_limit_lasts_until_its_last_user_ends(two_threads) -> None:
    entered, leave = threading.Event(), threading.Event()

    def limited() -> None:
        with OneBlasThread():
            entered.set()
            leave.wait(20)

    other = threading.Thread(target=limited)
    with OneBlasThread():
        other.start()
        assert entered.wait(20)
    assert set(blas_threads()) == {1}
    leave.set()
    other.join(20)
    assert blas_threads() == two_threads


@fedstack.python_computation([np.int32, np.int32], np.int32)
def most_threads(total, other):
    return np.int32(max(total, *blas_threads()))  # of two totals, the first one is enough: all are of such functions


@fedstack.python_computation(np.int32, np.int32)
def unchanged(total):
    return total


@fl.federated_computation(fl.FederatedType(np.int32, fl.CLIENTS))
def of_an_aggregation(indices):
    return fl.federated_aggregate(indices, np.int32(0), most_threads, most_threads, unchanged)


def test_functions_of_an_aggregation_run_with_one_blas_thread(two_threads) -> None:
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert of_an_aggregation(list(range(40))) == 1


@fl.federated_computation(fl.SequenceType(np.int32))
def of_each(elements):
    return fl.sequence_map(threads_of_client, elements)


@fl.federated_computation(fl.FederatedType(fl.SequenceType(np.int32), fl.CLIENTS))
def of_sequences(sequences):
    return fl.federated_map(of_each, sequences)


def test_functions_of_mapped_sequences_run_with_one_blas_thread_wherever_they_are_read(two_threads) -> None:
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert of_sequences([[1, 2], [3]]) == [[1, 1], [1]]

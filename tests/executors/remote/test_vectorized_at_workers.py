"""Vectorized functions at workers: they travel, and each client has the same bits wherever it runs."""

import federated_language as fl
import numpy as np
import pytest

import fedstack
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.testing.leaves import multiply_rows

FLOAT = np.float32
SHORT = fl.TensorType(FLOAT, [20])
MATRIX = np.random.default_rng(0).normal(size=(20, 300)).astype(FLOAT)


@fedstack.python_computation([SHORT], vectorized=True)
def product(rows):
    return rows @ MATRIX


@fl.federated_computation(fl.FederatedType(SHORT, fl.CLIENTS))
def products(rows):
    by_value, by_reference = fl.federated_map(product, rows), fl.federated_map(multiply_rows, rows)
    return by_value, fl.federated_sum(by_value), fl.federated_mean(by_reference)


def locally(*arguments):
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        return products(*arguments)


def bits(value: object) -> object:
    return list(map(bits, value)) if isinstance(value, (list, tuple)) else np.asarray(value).tobytes()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_have_the_same_bits_on_any_number_of_workers(workers: int) -> None:
    rows = np.random.default_rng(1).normal(size=(333, 20)).astype(FLOAT)
    with local_worker_pool(workers) as pool, fedstack.create_sync_remote_execution_context(pool):
        for clients in (333, 5):
            assert bits(products(rows[:clients])) == bits(locally(rows[:clients]))


def test_a_vectorized_function_goes_with_a_function_that_calls_it() -> None:
    @fedstack.python_computation([FLOAT], vectorized=True)
    def doubled(x):
        return x * (2 if x.shape else 1000)

    @fedstack.python_computation([FLOAT], FLOAT)
    def calls(x):
        with fedstack.use_context(fedstack.create_sync_local_execution_context()):
            return doubled(x)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def computation(values):
        return fl.federated_sum(fl.federated_map(calls, values))

    with local_worker_pool(1) as pool, fedstack.create_sync_remote_execution_context(pool):
        assert computation([1.0, 2.0]) == 6.0

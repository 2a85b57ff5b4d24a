"""Where the arguments of JAX functions are, and on which thread the functions therefore run."""

import time

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.xla.argument_memory import ArgumentMemory

ROWS = fl.TensorType(np.float32, [256, 256])


def unaligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that JAX cannot read where it is."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 16
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def test_only_large_arguments_that_jax_cannot_read_are_copied() -> None:
    large, small = np.arange(65536, dtype=np.float32).reshape(256, 256), np.arange(3.0)
    memory = ArgumentMemory()
    there = memory.arrays([(large.shape, large.dtype)])[0]
    there[...] = large
    given = [unaligned(small), there, 3.0, jnp.ones(100_000)]
    assert ArgumentMemory().aligned(given) is given
    found = ArgumentMemory().aligned([*given, unaligned(large), there[:, ::2], np.float64(2)])
    assert [one is other for one, other in zip(found, given)] == [True] * 4
    for one, expected in zip(found[4:6], (large, large[:, ::2])):
        assert one.ctypes.data % 64 == 0
        assert one.flags.c_contiguous
        assert np.array_equal(one, expected)
    assert found[6] == 2.0


@pytest.mark.parametrize("shape", [[256, 256], [None, 256], [1500, 1500]])
def test_a_result_that_is_the_argument_stays_when_the_next_one_comes(shape: list[int | None]) -> None:
    rows = fl.TensorType(np.float32, shape)
    same = fedstack.jax_computation(rows)(lambda x: (x, x + 1))

    @fl.federated_computation(fl.FederatedType(rows, fl.CLIENTS))
    def all_of(values):
        return fl.federated_map(same, values)

    values = [unaligned(np.full([size or 256 for size in shape], number, np.float32)) for number in range(3)]
    with fedstack.create_sync_local_execution_context(max_concurrent_clients=1):
        found = all_of(values)
        each = [same(value) for value in values]
    for results in (found, each):
        assert [(np.unique(one).tolist(), np.unique(two).tolist()) for one, two in results] == [
            ([0], [1]),
            ([1], [2]),
            ([2], [3]),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 4])
def test_a_function_runs_on_the_thread_of_its_clients_wherever_its_arguments_are(clients: int) -> None:
    """On the one thread that XLA has for copies, the clients of all threads would wait for each other."""

    def costly(model, rows):
        return jax.lax.fori_loop(0, 60, lambda _, found: jnp.tanh(found @ model), rows)

    leaf = fedstack.jax_computation(ROWS, ROWS)(costly)

    @fl.federated_computation(fl.FederatedType(ROWS, fl.SERVER), fl.FederatedType(ROWS, fl.CLIENTS))
    def total(model, rows):
        return fl.federated_sum(fl.federated_map(leaf, (fl.federated_broadcast(model), rows)))

    model, rows = unaligned(np.eye(256, dtype=np.float32)), [unaligned(np.ones((256, 256), np.float32))] * clients
    with fedstack.create_sync_local_execution_context(max_concurrent_clients=1):
        total(model, rows)  # compiles
        here, everywhere = time.thread_time(), time.process_time()
        for _ in range(5):
            total(model, rows)
        here, everywhere = time.thread_time() - here, time.process_time() - everywhere
    assert here > 0.5 * everywhere

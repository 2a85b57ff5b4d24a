"""JAX functions in a process that is short of memory, or that ends."""

import os
import subprocess
import sys

import pytest

IMPORTS = """
import asyncio, resource, sys, threading
import federated_language as fl, jax, jax.numpy as jnp, numpy as np
import fedstack
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.leaf_runtimes import load_leaf
"""
SHORT = """
SIZE, vectors = 20_000_000, float(sys.argv[1])

@fedstack.jax_computation(np.float32)
def wide(x):
    values = jnp.arange(SIZE, dtype=jnp.float32) * x
    return jax.lax.fori_loop(0, 20, lambda i, v: jnp.flip(v) * 0.9, values)[7]

leaf = load_leaf(wide.to_proto())
expected = leaf.call(np.float32(2))  # which needs two vectors
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(vectors * 4 * SIZE),) * 2)
begin, found = threading.Barrier(2), []

def run():
    begin.wait()
    try:
        found.append(str(leaf.call(np.float32(2)) == expected))
    except fedstack.errors.LeafError as error:
        found.append(str(error))

threads = [threading.Thread(target=run) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*found, sep="\\n")
"""
ENDS = """
@fedstack.jax_computation(np.float32)
def slow(x):
    matrix = jnp.ones((500, 500)) * x
    return jax.lax.fori_loop(0, 100, lambda i, v: jnp.tanh(v @ matrix), matrix).sum()

@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(slow, values))

async def main():
    call = asyncio.ensure_future(total([1.0] * 100))
    while not compilations.count or not compilations.running:
        await asyncio.sleep(0.01)
    raise KeyError("a bug of the program")

fedstack.set_async_local_execution_context()
asyncio.run(main())
"""


def ended(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", IMPORTS + program, *arguments]
    env = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # each thread would have addresses of its own
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory")
@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        (3.0, "True"),  # too few for both at once
        (
            1.5,
            "'wide' raised MemoryError: Out of memory allocating 160000064 bytes. Let clients use smaller batches, or",
        ),
    ],
)
def test_functions_that_lack_memory_run_one_after_another(vectors: float, expected: str) -> None:
    done = ended(SHORT, str(vectors))
    assert [line[: len(expected)] for line in done.stdout.splitlines()] == [expected] * 2, done.stderr


def test_a_process_ends_when_its_compiled_functions_have_returned() -> None:
    done = ended(ENDS)
    assert (done.returncode, "KeyError: 'a bug of the program'" in done.stderr) == (1, True), done.stderr

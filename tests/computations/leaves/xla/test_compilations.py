"""What JAX functions compile, and how often: once for each size of their arguments, on disk for other processes."""

import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedstack
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.xla import compiled_code
from fedstack.observe import Event, LeafCompiled, Observer, add_observer

FLOAT = np.float32
SCALAR, ROWS = fl.FederatedType(FLOAT, fl.CLIENTS), fl.FederatedType(fl.TensorType(FLOAT, [40, 30]), fl.CLIENTS)


def averaging(leaf, type_spec):
    @fl.federated_computation(type_spec)
    def average(values):
        return fl.federated_mean(fl.federated_map(leaf, values))

    return average


def costly(rows):
    return jax.lax.fori_loop(0, 100, lambda _, total: jnp.tanh(total @ total.T @ total), rows)


@pytest.fixture(autouse=True)
def locally():
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        yield


@pytest.mark.parametrize("looped", [False, True])
def test_a_function_is_compiled_once_for_all_numbers_of_clients(looped: bool) -> None:
    if looped:
        average = averaging(fedstack.jax_computation(fl.TensorType(FLOAT, [40, 30]))(costly), ROWS)
        values = np.ones((300, 40, 30), FLOAT)
    else:
        average = averaging(fedstack.jax_computation(FLOAT)(lambda x: x / 2), SCALAR)
        values = np.ones(20_000, FLOAT)
    before = compilations.count
    average(values[:10])
    assert compilations.count == before + 1
    for clients in (1, 7, len(values) // 3, len(values)):
        average(values[:clients])
    assert compilations.count == before + 1


def test_of_too_many_sizes_only_those_beyond_the_limit_are_compiled_in_each_round(monkeypatch, caplog) -> None:
    monkeypatch.setattr(compiled_code, "_MOST_SIZES", 4)
    monkeypatch.setattr(compiled_code, "_MOST_CODE", 8)  # of this function's, what is freed does not count
    compiled_code._all_code._kept.clear()
    rows = fl.TensorType(FLOAT, [None])

    def largest(x):
        return jnp.max(x)

    total = averaging(fedstack.jax_computation(rows)(largest), fl.FederatedType(rows, fl.CLIENTS))
    values = [np.full(size, size, FLOAT) for size in range(1, 7)]
    counts = [compilations.count]
    with fedstack.create_sync_local_execution_context(max_concurrent_clients=1):  # threads would change the order
        for _ in range(6):
            assert total(values) == np.float32(3.5)
            counts.append(compilations.count)
    assert np.diff(counts).tolist() == [6, 3, 3, 3, 3, 3], "three of four stay"
    (warning,) = caplog.messages
    assert warning.startswith("Expected 'largest' to run with at most 4 sizes of its arguments, found more; ")


def test_an_observer_is_told_what_was_compiled() -> None:
    class Diary(Observer):
        def __init__(self) -> None:
            self.told: list[Event] = []

        def observe(self, event: Event) -> None:
            self.told.append(event)

    def third(x):
        return x / 3

    average = averaging(fedstack.jax_computation(FLOAT)(third), SCALAR)
    diary = Diary()
    with add_observer(diary, direct=True):
        average([1.0, 2.0])
    (compiled,) = [event for event in diary.told if isinstance(event, LeafCompiled)]
    assert (compiled.name, compiled.from_cache) == ("third", False)
    assert compiled.seconds > 0
    assert compiled.call


def test_what_others_compile_is_not_counted() -> None:
    before = compilations.count
    jax.jit(lambda x: x * 5 + 1)(np.ones(3, FLOAT))
    assert compilations.count == before


PROGRAM = """
import importlib
import json
import federated_language as fl
import numpy as np
import fedstack
from fedstack.computations.leaves.compilations import compilations

fedstack.set_sync_local_execution_context()
half = fedstack.jax_computation(np.float32)(lambda x: x / 2)
assert half(np.float32(3)) == 1.5
print(json.dumps([compilations.count, compilations.from_cache]))
"""


FIRST_CALLS = """
import threading
import numpy as np
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.xla import jax_api

barrier = threading.Barrier(4)

def first_call():
    barrier.wait()
    jax_api.jax()

threads = [threading.Thread(target=first_call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
compilations.enter("half")
jax_api.jax().jit(lambda x: x / 2)(np.float32(3))
print(compilations.count)
"""


def test_compilations_are_counted_once_although_several_threads_import_jax() -> None:
    command = [sys.executable, "-c", FIRST_CALLS]
    assert subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.split() == [b"1"]


def test_a_second_process_finds_compiled_functions_in_the_cache_of_jax(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def run() -> object:
        command = [sys.executable, "-c", PROGRAM]
        return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)

    assert run() == [1, 0]
    assert run() == [1, 1]


def test_a_display_shows_what_is_being_compiled() -> None:
    shown: list[str] = []
    here = threading.get_ident()

    def look(event: str, seconds: float, **_: object) -> None:  # stays registered: some versions cannot remove it
        shown.append(compilations.shown("other", here))

    def quarter(x):
        return x / 4

    average = averaging(fedstack.jax_computation(FLOAT)(quarter), SCALAR)
    jax.monitoring.register_event_duration_secs_listener(look)
    average([1.0])
    assert "quarter (compiling)" in shown
    assert compilations.shown("other", here) == "other"


def test_a_function_that_cannot_be_compiled_is_not_shown_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    average = averaging(fedstack.jax_computation(FLOAT)(lambda x: x / 5), SCALAR)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    with pytest.raises(fedstack.errors.LeafError, match="no memory"), monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("jax._src.compiler"), "compile_or_get_cached", fail)
        average([1.0])
    assert compilations.shown("other", threading.get_ident()) == "other"


GRADIENTS = """
import hashlib
import federated_language as fl
import jax
import numpy as np
import fedstack

# XLA sums the terms of this product in another order on two threads than on one.
@fedstack.jax_computation((np.float32, [4096, 20]), (np.float32, [4096, 30]))
def gradient(data, errors):
    return data.T @ errors

@fl.federated_computation(fl.FederatedType(gradient.type_signature.parameter, fl.CLIENTS))
def total(values):
    return fl.federated_sum(fl.federated_map(gradient, values))

random = np.random.default_rng(0)
data, errors = (random.standard_normal((4096, size), np.float32) for size in (20, 30))
jax.jit(lambda x: x + 1)(data)  # what else uses JAX has its threads already
with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
    print(hashlib.sha256(total([(data, errors)] * 4).tobytes()).hexdigest())
"""


def test_a_machine_with_more_cores_has_the_same_bits() -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", GRADIENTS], env={**os.environ, "NPROC": cores}, stdout=subprocess.PIPE)
        for cores in ("1", "4")
    ]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert printed[0] == printed[1]


def test_code_of_many_functions_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_code, "_MOST_CODE", 10)

    def adding(number: int):
        return fedstack.jax_computation(np.float32)(lambda x: x + number)

    functions = [adding(number) for number in range(30)]
    assert [int(function(1.0)) for function in functions] == list(range(1, 31))
    assert len(compiled_code._all_code._kept) == 10
    before = compilations.count
    assert int(functions[-1](2.0)) == 31
    assert compilations.count == before, "recent code is kept"
    assert int(functions[0](2.0)) == 2
    assert compilations.count == before + 1, "old code is compiled again"

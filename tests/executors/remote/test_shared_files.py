"""Large values that all clients share are in the machine's memory once, however many workers a pool has."""

import gc
import os
import signal
import weakref
from pathlib import Path

import federated_language as fl
import numpy as np
import pytest
from await_until import await_until

import fedstack
from fedstack.executors.concurrency import phase_records
from fedstack.foundations import memory_files
from fedstack.foundations.memory_files import HAS_SEALS
from fedstack.service.pool.worker_pool import local_worker_pool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_SEALS, reason="only Linux has files that can be sealed"),
]

FLOAT = np.float32
SIZE = 1 << 19  # two megabytes
MODEL = fl.TensorType(FLOAT, [SIZE])
SMALL = fl.TensorType(FLOAT, [1000])
LAYERS = fl.StructType([("large", MODEL), ("small", SMALL), ("flags", fl.TensorType(np.bool_, [SIZE]))])


@fedstack.python_computation([LAYERS, FLOAT], FLOAT)
def digest(layers, x):
    return layers["large"].sum() + layers["small"].sum() + layers["flags"].sum(dtype=FLOAT) + x


@fedstack.python_computation([LAYERS, FLOAT], np.int32)
def files_mapped(layers, x):
    return np.int32(Path("/proc/self/maps").read_text().count("memfd:fedstack"))


@fl.federated_computation(fl.FederatedType(LAYERS, fl.SERVER), fl.FederatedType(FLOAT, fl.CLIENTS))
def total(layers, values):
    return fl.federated_sum(fl.federated_map(digest, (fl.federated_broadcast(layers), values)))


@fl.federated_computation(fl.FederatedType(LAYERS, fl.SERVER), fl.FederatedType(FLOAT, fl.CLIENTS))
def mapped(layers, values):
    return fl.federated_max(fl.federated_map(files_mapped, (fl.federated_broadcast(layers), values)))


@fl.federated_computation(fl.FederatedType(LAYERS, fl.SERVER), fl.FederatedType(FLOAT, fl.CLIENTS))
def least_mapped(layers, values):
    return fl.federated_min(fl.federated_map(files_mapped, (fl.federated_broadcast(layers), values)))


def layers_of(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "large": generator.normal(size=SIZE).astype(FLOAT),
        "small": generator.normal(size=1000).astype(FLOAT),
        "flags": generator.integers(0, 2, SIZE).astype(np.bool_),
    }


def own_files(*, collects: bool = True) -> list[str]:
    if collects:
        gc.collect()
    found: list[str] = []
    for one in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:
            continue
    return [one for one in found if "memfd:fedstack" in one]


def locally(layers, values):
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        return total(layers, values)


def over_streams(pool):
    """Returns a context over streams, even if the tests run over gRPC."""
    return fedstack.create_sync_remote_execution_context(pool, transport="stream")


VALUES = [1.0, 2.0, 3.0, 4.0, 5.0]


def test_all_workers_of_a_pool_map_the_same_file_and_the_results_are_those_of_a_local_run() -> None:
    with local_worker_pool(3) as pool, over_streams(pool):
        for seed in range(3):
            assert total(layers_of(seed), VALUES) == locally(layers_of(seed), VALUES)
        assert least_mapped(layers_of(9), VALUES) >= 1
        await_until(lambda: not own_files())


def test_the_context_keeps_neither_files_nor_values_of_earlier_calls() -> None:
    class Watched(np.ndarray):
        """An array that can be watched."""

    with local_worker_pool(2) as pool, over_streams(pool):
        gc.collect()
        gc.disable()  # so that only what nobody refers to is gone
        try:
            for seed in range(6):
                layers = layers_of(seed)
                layers["large"] = layers["large"].view(Watched)
                watched = weakref.ref(layers["large"])
                total(layers, VALUES)
                del layers
                await_until(lambda watched=watched: watched() is None)
            await_until(lambda: len(own_files(collects=False)) <= 1)
        finally:
            gc.enable()


def test_the_file_goes_with_its_values() -> None:
    with local_worker_pool(2) as pool, over_streams(pool):
        # Each round maps a file anew, and the mappings of earlier rounds are gone, or go soon.
        for seed in range(5):
            assert total(layers_of(seed), VALUES) == locally(layers_of(seed), VALUES)
        await_until(lambda: mapped(layers_of(9), VALUES) <= 2)


def test_values_that_workers_keep_stay_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_records, "_LONG_SECONDS", 0.0)
    with local_worker_pool(2) as pool, over_streams(pool):
        for seed in (0, 0, 1):
            assert total(layers_of(seed), VALUES) == locally(layers_of(seed), VALUES)
        assert least_mapped(layers_of(9), VALUES) >= 1


@pytest.mark.parametrize("why", ["one worker", "grpc", "no room"])
def test_without_files_values_are_sent(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room() -> int:
        raise OSError("no room")

    if why == "no room":
        monkeypatch.setattr(memory_files, "_new_file", no_room)
    workers, transport = 1 if why == "one worker" else 3, "grpc" if why == "grpc" else "auto"
    with (
        local_worker_pool(workers) as pool,
        fedstack.create_sync_remote_execution_context(pool, transport=transport),
    ):
        assert total(layers_of(0), VALUES) == locally(layers_of(0), VALUES)
        assert mapped(layers_of(0), VALUES) == 0


def test_mapped_values_count_against_the_limits_of_a_worker() -> None:
    options = ["--max-value-bytes", "1000000"]
    with local_worker_pool(2, options=options) as pool, fedstack.create_sync_remote_execution_context(pool):
        with pytest.raises(fedstack.errors.ResourceLimitError, match="max-value-bytes"):
            total(layers_of(0), VALUES)


def test_who_takes_over_clients_of_a_killed_worker_maps_the_same_file(tmp_path: Path) -> None:
    @fedstack.python_computation([LAYERS, FLOAT], FLOAT)
    def killed_once(layers, x):
        if x == 1:
            try:
                (tmp_path / "killed").touch(exist_ok=False)
            except FileExistsError:
                return digest(layers, x)
            os.kill(os.getpid(), signal.SIGKILL)
        return digest(layers, x)

    @fl.federated_computation(fl.FederatedType(LAYERS, fl.SERVER), fl.FederatedType(FLOAT, fl.CLIENTS))
    def surviving(layers, values):
        return fl.federated_sum(fl.federated_map(killed_once, (fl.federated_broadcast(layers), values)))

    expected = locally(layers_of(0), VALUES)
    with local_worker_pool(3) as pool, over_streams(pool):
        assert surviving(layers_of(0), VALUES) == expected
        assert (tmp_path / "killed").exists()
        await_until(lambda: not own_files())

"""Saves states of a program and of clients, beside bare files, or beside states that travel to workers."""

import asyncio
import contextlib
import os
import pathlib
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.data_servers import DataServer
from benchmarks.harness import Effort, Measurement, compare
from benchmarks.stack import running
from fedstack.foundations.synced_folders import sync_folder
from fedstack.program import FederatedContext, FileProgramStateManager
from fedstack.service.pool.worker_pool import WorkerPool, local_worker_pool


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures the save of a large model, and rounds that read and write the states of a tenth of the clients."""
    with tempfile.TemporaryDirectory() as folder, running(1):
        yield _model(effort, pathlib.Path(folder))
    for clients, size in effort.pick([(20, 1000)], [(1000, 1_000_000)], [(1000, 1_000_000), (100_000, 1000)]):
        with tempfile.TemporaryDirectory() as folder, running(1):
            yield _clients(effort, pathlib.Path(folder), clients, size)
    for clients, size in effort.pick([(20, 1000)], [(100, 1_000_000)], [(100, 1_000_000), (20_000, 1000)]):
        with tempfile.TemporaryDirectory() as folder:
            yield from _shared(effort, pathlib.Path(folder), clients, size)


def _write(path: pathlib.Path, array: Any) -> None:
    beside = path.with_suffix(".new")
    with open(beside, "wb") as file:
        np.save(file, array)
        zlib.crc32(array)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _model(effort: Effort, folder: pathlib.Path) -> Measurement:
    model = np.random.default_rng(0).standard_normal(effort.pick(1000, 25_000_000, 25_000_000), np.float32)
    manager = FileProgramStateManager(folder / "states", keep_total=1, keep_first=False)
    versions = iter(range(1, 1 << 30))

    def ours() -> None:
        asyncio.run(manager.save(model, next(versions)))

    def bare() -> None:
        _write(folder / "bare", model)
        sync_folder(folder)

    with contextlib.closing(manager):
        name = f"{model.nbytes / 1e6:,.0f} MB of a model saved"
        return compare(name, bare, ours, effort, times=effort.pick(None, 1.3, 1.3))


def _step(size: int) -> Any:
    """Returns a computation that changes states of so many bytes."""
    state = fl.TensorType(np.float32, [size // 4])
    add = fedstack.python_computation([state], state)(lambda x: x + np.float32(1))

    @fl.federated_computation(fl.FederatedType(state, fl.CLIENTS))
    def step(states: Any) -> Any:
        return fl.federated_map(add, states)

    return step


def _clients(effort: Effort, folder: pathlib.Path, clients: int, size: int) -> Measurement:
    step, first = _step(size), np.zeros(size // 4, np.float32)
    manager = FileProgramStateManager(folder / "states", keep_total=1, keep_first=False)
    states = fedstack.ClientStates(folder / "clients", like=first, state_manager=manager)
    versions = iter(range(1, 1 << 30))
    ours_draw, bare_draw = random.Random(0), random.Random(0)

    def change(ids: Sequence[int]) -> None:
        states.update(ids, step(states.select(ids)))
        asyncio.run(manager.save(0, next(versions)))

    def ours() -> None:
        change(ours_draw.sample(range(clients), clients // 10))

    def bare() -> None:
        for client in bare_draw.sample(range(clients), clients // 10):
            _write(folder / f"{client}.npy", np.load(folder / f"{client}.npy") + np.float32(1))
        sync_folder(folder)

    with contextlib.closing(manager):
        for start in range(0, clients, clients // 10):  # so that each round replaces states
            change(range(start, start + clients // 10))
        for client in range(clients):
            _write(folder / f"{client}.npy", first)
        name = f"states of {clients // 10:,} of {clients:,} clients, {size:,} bytes each, read, changed and saved"
        return compare(name, bare, ours, effort, times=effort.pick(None, 1.2, 1.2))


def _shared(effort: Effort, folder: pathlib.Path, clients: int, size: int) -> Iterator[Measurement]:
    """Measures a round of a program on two workers that share the folder, or use two data workers that share it.

    Beside both, it measures a round on two workers to which the states travel.
    """
    step, first = _step(size), np.zeros(size // 4, np.float32)

    def round_of(name: str, pool: WorkerPool) -> Callable[[], object]:
        manager = FileProgramStateManager(folder / name / "states", keep_total=1, keep_first=False)
        states = fedstack.ClientStates(folder / name / "clients", like=first, state_manager=manager)
        context = FederatedContext(stack.enter_context(fedstack.create_async_remote_execution_context(pool)))
        stack.callback(manager.close)
        versions = iter(range(1, 1 << 30))

        async def saved() -> None:
            await fl.program.materialize_value(step(states.select(range(clients))))
            await manager.save(0, next(versions))

        def run_round() -> None:
            with fedstack.use_context(context):
                asyncio.run(saved())

        return run_round

    with contextlib.ExitStack() as stack:
        sharing = stack.enter_context(local_worker_pool(2, client_states=[folder]))
        others = stack.enter_context(local_worker_pool(2))
        sent, shared = round_of("sent", others), round_of("shared", sharing)
        name = f"states of {clients:,} clients, {size:,} bytes each, on two workers that share the folder"
        yield compare(name, sent, shared, effort, times=effort.pick(None, 1.0, 1.0))
        dispatcher = stack.enter_context(DataServer("dispatcher", "0", str(folder / "journal")))
        for _ in range(2):
            stack.enter_context(DataServer("worker", dispatcher.target, str(folder)))
        served = round_of("served", stack.enter_context(local_worker_pool(2, data_services=[dispatcher.target])))
        name = f"states of {clients:,} clients, {size:,} bytes each, on two workers that use a data service"
        yield compare(name, sent, served, effort)

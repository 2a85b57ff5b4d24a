"""Data services with datasets by client, and a training over these, for tests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import attrs
import federated_language as fl
import numpy as np

import fedstack
from fedstack.service.data import Dataset, DispatcherConfig, DispatchServer, WorkerConfig, WorkerServer
from fedstack.service.data.datasets.client_datasets import ClientDatasets
from fedstack.service.data.reading.readers import readers_here

CLIENTS = 40
POINT = fl.to_type([("x", (np.float32, [3])), ("y", np.float32)])
POINTS = fl.FederatedType(fl.SequenceType(POINT), fl.CLIENTS)
MODEL = fl.to_type((np.float32, [3]))


def points(clients: int = CLIENTS, seed: int = 0, per_client: int = 25) -> ClientDatasets[Dataset]:
    """Returns points of clients, about so many of each, in no order."""
    draw = np.random.default_rng(seed)
    rows = clients * per_client
    owners = np.concatenate([np.arange(clients), draw.integers(clients, size=rows - clients)])
    x = draw.normal(size=(rows, 3)).astype(np.float32)
    y = (x @ np.array([1, -2, 3], np.float32) + draw.normal(size=rows)).astype(np.float32)
    users = np.array([f"user {owner}" for owner in owners])
    return Dataset.from_arrays({"x": x, "user": users, "y": y}).by_client("user")


@fedstack.python_computation([MODEL, POINTS.member], MODEL)
def descend(model, data):
    for _ in range(2):
        for point in data:
            model = model - np.float32(0.01) * (point["x"] @ model - point["y"]) * point["x"]
    return model


@fl.federated_computation(fl.FederatedType(MODEL, fl.SERVER), POINTS)
def average(model, data):
    return fl.federated_mean(fl.federated_map(descend, (fl.federated_broadcast(model), data)))


@attrs.define
class DataService:
    """A dispatcher and its workers, in this process."""

    dispatcher: DispatchServer
    workers: list[WorkerServer]

    @property
    def target(self) -> str:
        return self.dispatcher.target


@contextlib.contextmanager
def data_service(workers: int = 2, config: DispatcherConfig | None = None, **options: Any) -> Iterator[DataService]:
    """Runs a data service for the block."""
    options.setdefault("dispatcher_timeout_ms", 20_000)
    with contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(DispatchServer(config or DispatcherConfig()))
        started = [
            stack.enter_context(WorkerServer(WorkerConfig(dispatcher.target, **options))) for _ in range(workers)
        ]
        yield DataService(dispatcher, started)


@contextlib.contextmanager
def as_if_elsewhere() -> Iterator[None]:
    """Lets the data workers of this process be read over connections, as those of others are, for the block."""
    saved = dict(readers_here)
    readers_here.clear()
    try:
        yield
    finally:
        readers_here.update(saved)

"""Gives a function a client's rows out of a Parquet file as one array, beside pyarrow alone."""

import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import federated_language as fl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fedstack
from benchmarks.harness import Effort, Measurement, compare
from benchmarks.stack import running
from fedstack.program import DatasetDataSource
from fedstack.service.data import (
    Dataset,
    DispatchServer,
    WorkerConfig,
    WorkerServer,
    register_dataset,
)

_WIDTH = 32
_COLUMNS = fl.to_type([("x", (np.float32, [None, _WIDTH])), ("y", (np.int64, [None]))])


def _plain(path: pathlib.Path) -> np.int64:
    table = pq.read_table(path)
    x = table["x"].combine_chunks().flatten().to_numpy().reshape(-1, _WIDTH)
    return _count({"x": x, "y": table["y"].to_numpy()})


def _count(data: Any) -> np.int64:
    return np.int64(len(data["x"]) + data["y"][-1])


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures one client's file: read here, and from a data worker of this process."""
    rows = effort.pick(100, 40_000, 40_000)
    count = fedstack.python_computation([_COLUMNS], np.int64)(_count)

    @fl.federated_computation(fl.FederatedType(_COLUMNS, fl.CLIENTS))
    def counted(data: Any) -> Any:
        return fl.federated_sum(fl.federated_map(count, data))

    with tempfile.TemporaryDirectory() as folder, running(1):
        path = pathlib.Path(folder) / "alice.parquet"
        x = np.random.default_rng(0).standard_normal((rows, _WIDTH)).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), _WIDTH)
        pq.write_table(pa.table({"x": column, "y": np.arange(rows)}), path)
        clients = Dataset.from_parquet(path, client_from_path="user").by_client("user")
        assert counted([clients["alice"]]) == _plain(path)
        name = f"{rows:,} × {_WIDTH} floats of Parquet as one array"
        times = effort.pick(None, 1.3, 1.3)
        yield compare(name, lambda: _plain(path), lambda: counted([clients["alice"]]), effort, times=times)
        with DispatchServer() as dispatcher, WorkerServer(WorkerConfig(dispatcher.target, data_roots=[folder])):
            register_dataset(dispatcher.target, clients, dataset_id="rows")
            with DatasetDataSource(dispatcher.target, "rows") as source:
                (alice,) = source.select(["alice"])
                assert counted([alice]) == _plain(path)
                what = f"{name}, from a data worker here that has read it"
                yield compare(what, lambda: _plain(path), lambda: counted([alice]), effort, times=times)

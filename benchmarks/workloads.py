"""Lists the workloads."""

from collections.abc import Callable, Iterator

import attrs

from benchmarks import (
    broadcast,
    bystanders,
    client_failures,
    client_files,
    coordinator,
    data_losses,
    data_service,
    datasets,
    fedavg,
    growth,
    large_inputs,
    lost_workers,
    methods,
    pools,
    programs,
    ray_rounds,
    recipe,
    remote_rounds,
    remote_training,
    remote_values,
    rounds,
    saved_runs,
    scalars,
    sequences,
    slow_workers,
    start_up,
    streams,
    sums,
    waiting,
)
from benchmarks.harness import Effort, Measurement


@attrs.frozen
class Workload:
    """Something to measure.

    Attributes:
      name: What `--only` calls it.
      title: What it is.
      run: Measures it, line by line.
    """

    name: str
    title: str
    run: Callable[[Effort], Iterator[Measurement]]


def _run_jax(effort: Effort) -> Iterator[Measurement]:
    from benchmarks import jax_training  # which imports JAX

    return jax_training.run(effort)


WORKLOADS = (
    Workload("sums", "federated_sum of float32 vectors; floor: NumPy's in-place additions", sums.run),
    Workload("scalars", "mean of a Python function of a scalar; floor: a Python loop", scalars.run_scalars),
    Workload("vectorized", "mean of a function of many scalars at once; floor: one NumPy call", scalars.run_vectorized),
    Workload("structs", "mean of a Python function of 4 fields; floor: a Python loop", scalars.run_structs),
    Workload("broadcast", "mean of updates to a broadcast model; floor: a NumPy loop", broadcast.run),
    Workload("waiting", "clients that only wait, at first and again; floor: as many as possible at once", waiting.run),
    Workload("lost-workers", "rounds while workers are killed; floor: undisturbed rounds", lost_workers.run),
    Workload("slow-workers", "rounds with a slow or stopped worker; floor: a list schedule", slow_workers.run),
    Workload("large-inputs", "rounds whose inputs travel to workers; floor: the clients' time", large_inputs.run),
    Workload("client-failures", "rounds whose clients may fail; floor: no policy, the others", client_failures.run),
    Workload("sequences", "functions of sequences; floor: the same in loops, over a worker with pickle", sequences.run),
    Workload("datasets", "int64 scalars through a dataset; floor: bare loops over blocks", datasets.run),
    Workload("client-files", "clients' rows out of Parquet files as one array; floor: pyarrow", client_files.run),
    Workload("fedavg", "round of federated averaging; floor: a NumPy loop", fedavg.run),
    Workload("recipe", "round of a recipe; floor: a loop over its function of a client", recipe.run),
    Workload("jax", "functions that XLA compiles; floor: hand-written JAX on two threads", _run_jax),
    Workload("programs", "computation of many operations; floor: tracing it, then a Python loop", programs.run),
    Workload(
        "saved-runs",
        "states of programs and of clients; floor: bare files, or states that travel to workers",
        saved_runs.run,
    ),
    Workload("start-up", "hello world; floor: importing the language", start_up.run),
    Workload("streams", "values to a worker and back over streams; floors: bare sockets, gRPC", streams.run),
    Workload("remote-values", "values to a worker and back; floor: gRPC with plain bytes", remote_values.run),
    Workload("remote-rounds", "rounds over workers; floor: gRPC with plain bytes", remote_rounds.run),
    Workload("remote-training", "clients in pure Python on workers; floor: bare processes", remote_training.run),
    Workload("methods", "calls of registered methods; floor: gRPC with plain bytes", methods.run),
    Workload("coordinator", "calls scheduled over two workers; floor: gRPC with plain bytes", coordinator.run),
    Workload("pools", "rounds over a pool of processes; floor: its bare tasks, a pool of workers", pools.run),
    Workload("ray", "rounds over two actors of Ray; floor: bare actors, a pool of workers", ray_rounds.run),
    Workload("data-service", "elements from data workers; floor: gRPC that streams bytes", data_service.run),
    Workload("data-losses", "elements that are lost with data workers", data_losses.run),
    Workload("growth", "phases over workers that only sleep: the driver's time", growth.run),
    Workload("bystanders", "waits of one client beside another that keeps the worker busy", bystanders.run),
    Workload("rounds", "rounds with varying numbers of clients", rounds.run),
)

"""Runs rounds over actors of Ray: a mean, a large model to many, and training with data sent, and in Ray's store."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import federated_language as fl
import numpy as np

import fedstack
from benchmarks.fedavg import make_clients, make_round
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from benchmarks.pools import Vector, make_mean, sum_of
from fedstack.contexts import SyncExecutionContext
from fedstack.service.pool.worker_pool import local_worker_pool

_WORKERS = 2
_STORE_BYTES = 300_000_000


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a mean beside bare actors with the same arrays, a model to many, and training beside a pool."""
    with _ray() as ray:
        yield from _measure_mean(ray, effort)
        yield from _measure_model(ray, effort)
        yield from _measure_training(ray, effort)


class BareActor:
    """What a bare actor does."""

    def sum_of(self, vectors: Sequence[Vector]) -> Vector:
        """Returns the sum of vectors."""
        return sum_of(vectors)

    def read(self, model: Vector, client: np.int32) -> np.float32:
        """Reads all of a model."""
        return read(model, client)


def read(model: Vector, client: np.int32) -> np.float32:
    """Returns something of a client that needs all of a model."""
    return np.float32(model.sum() + client)


def _measure_mean(ray: Any, effort: Effort) -> Iterator[Measurement]:
    mean, vectors, share = make_mean(effort, _WORKERS)
    bare = [ray.remote(BareActor).options(num_cpus=0).remote() for _ in range(_WORKERS)]

    def by_bare_actors() -> Vector:
        parts = [bare[i].sum_of.remote(vectors[i * share : (i + 1) * share]) for i in range(_WORKERS)]
        return sum_of(ray.get(parts)) / np.float32(len(vectors))

    with fedstack.create_sync_ray_execution_context(num_workers=_WORKERS):
        assert np.allclose(mean(vectors), by_bare_actors(), atol=1e-6)
        name = f"mean of {len(vectors):,} × {vectors[0].nbytes // 1000} kB over {_WORKERS} actors of Ray"
        yield from compare_with_all(name, [Floor(by_bare_actors, "to bare actors", 1.3)], lambda: mean(vectors), effort)
    for actor in bare:
        ray.kill(actor)


def _measure_model(ray: Any, effort: Effort) -> Iterator[Measurement]:
    workers = effort.pick(2, 8, 8)
    size = effort.pick(50_000, 25_000_000, 25_000_000)
    model, clients = np.ones(size, np.float32), list(np.arange(workers, dtype=np.int32))
    model_type = fl.TensorType(np.float32, [size])
    leaf = fedstack.python_computation([model_type, np.int32], np.float32)(read)

    @fl.federated_computation(fl.FederatedType(model_type, fl.SERVER), fl.FederatedType(np.int32, fl.CLIENTS))
    def read_by_all(model: Any, clients: Any) -> Any:
        return fl.federated_sum(fl.federated_map(leaf, (fl.federated_broadcast(model), clients)))

    bare = [ray.remote(BareActor).options(num_cpus=0).remote() for _ in range(workers)]

    def by_bare_actors() -> float:
        stored = ray.put(model)
        return sum(ray.get([actor.read.remote(stored, client) for actor, client in zip(bare, clients)]))

    def by_fedstack() -> Any:
        return read_by_all(model, clients)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]

    needs = {"CPU": _WORKERS / workers}
    with fedstack.create_sync_ray_execution_context(num_workers=workers, resources_per_worker=needs):
        name = f"a model of {model.nbytes / 1e6:g} MB to {workers} actors of Ray"
        before = _bytes_put(ray)
        found = by_fedstack()
        stored = _bytes_put(ray) - before
        yield Measurement(f"{name}, in the store", stored, model.nbytes, 1.1 * model.nbytes, "≤ 1.1 ×", "bytes")
        assert np.isclose(found, by_bare_actors())
        yield from compare_with_all(name, [Floor(by_bare_actors, "to bare actors", 1.3)], by_fedstack, effort)
    for actor in bare:
        ray.kill(actor)


def _bytes_put(ray: Any) -> int:
    """Returns how many bytes have been put into Ray's object store, by its own figures."""
    own: Any = importlib.import_module("ray._private.internal_api")
    state = own.get_state_from_address(ray.get_runtime_context().gcs_address)
    return own.get_memory_info_reply(state).store_stats.cumulative_created_bytes


def _measure_training(ray: Any, effort: Effort) -> Iterator[Measurement]:
    with contextlib.ExitStack() as stack:
        model, data = make_clients(effort)
        streams = [fedstack.batches(client, 20) for client in data]
        average = make_round(*model["weights"].shape)
        workers = stack.enter_context(local_worker_pool(_WORKERS))
        own = stack.enter_context(fedstack.create_sync_remote_execution_context(workers))
        actors = stack.enter_context(fedstack.create_sync_ray_execution_context(num_workers=_WORKERS))

        def in_context(context: SyncExecutionContext, clients: Sequence[Any]) -> Any:
            with fedstack.use_context(context):
                return average(model, clients)

        floor = "to a pool of workers"
        expected = in_context(own, streams)["weights"]
        stored = [ray.put(stream) for stream in streams]
        for kind, clients, times in (("data sent", streams, 1.5), ("data as ObjectRefs", stored, 1.1)):
            assert np.array_equal(in_context(actors, clients)["weights"], expected)
            yield from compare_with_all(
                f"FedAvg, {len(data)} clients, over {_WORKERS} actors of Ray, {kind}",
                [Floor(lambda: in_context(own, streams), floor, times)],
                lambda clients=clients: in_context(actors, clients),
                effort,
            )


@contextlib.contextmanager
def _ray() -> Iterator[Any]:
    """Starts Ray on this machine, unless it runs."""
    import ray

    api: Any = ray
    if api.is_initialized():
        yield api
        return
    api.init(
        address="local", num_cpus=_WORKERS, object_store_memory=_STORE_BYTES, include_dashboard=False,
        log_to_driver=False, logging_level="ERROR",
    )  # fmt: skip
    try:
        yield api
    finally:
        api.shutdown()

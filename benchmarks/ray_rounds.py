"""Runs a round of training over actors of Ray: with the clients' data sent, and with data in its object store."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import fedstack
from benchmarks.fedavg import make_clients, make_round
from benchmarks.harness import Effort, Floor, Measurement, compare_with_all
from fedstack.contexts import SyncExecutionContext
from fedstack.service.pool.worker_pool import local_worker_pool

_WORKERS = 2
_STORE_BYTES = 300_000_000


def run(effort: Effort) -> Iterator[Measurement]:
    """Measures a round beside the same round over a pool of workers."""
    with _ray() as ray, contextlib.ExitStack() as stack:
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

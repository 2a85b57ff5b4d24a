"""One cluster of Ray for all tests here: four CPUs, and a GPU that it believes in."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_calls import PATIENCE_SECONDS

STORE_BYTES = 150_000_000
# Ray runs its workers at a low priority, and beside other tests they would hardly ever have a core.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray writes it
_SECONDS = 300


def pytest_itemcollected(item: pytest.Item) -> None:
    # Ray keeps threads and connections of its own until it is shut down.
    item.add_marker(pytest.mark.fedstack_leak_check(False))
    item.add_marker(pytest.mark.timeout(_SECONDS))  # on a busy machine a sort of Ray's takes a minute


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets calls wait for actors that come after the first, and for workers of Dask, however busy the machine is."""
    monkeypatch.setattr("fedstack.backends.ray_cluster.ray_workers._OTHERS_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("fedstack.backends.pool_backend._JOIN_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    # Workers import what is in the folder of the driver's script, and that is pytest's.
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    head = {"num_cpus": 4, "num_gpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()

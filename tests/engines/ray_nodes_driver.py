"""A driver of a cluster with several nodes: `python ray_nodes_driver.py FOLDER`."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray_calls import held_average, inputs, numbers, processes, wait_until

import fedstack

STORE = {"include_dashboard": False, "object_store_memory": 80_000_000}
# Workers need what the head has not, so that nodes may end without the driver.
PLACE = {"CPU": 0, "place": 1}
NODE = {"num_cpus": 1, "resources": {"place": 1}, **STORE}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yields a cluster of which one node has room for a worker."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **STORE})
    try:
        made.add_node(**NODE)
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def run(folder: Path) -> None:
    """Lets a node join, and kills it while clients run there."""

    def places() -> int:
        return len(set(processes(numbers(4))))

    def kill() -> None:
        wait_until(lambda: len(list(folder.glob("here-*"))) == 2, "clients run on both nodes")
        made.remove_node(joined, allow_graceful=False)
        (folder / "go").touch()

    _, rows = inputs(20)
    with cluster() as made:
        with fedstack.create_sync_ray_execution_context(num_workers="auto", resources_per_worker=PLACE):
            print("driver:", places(), "at first", flush=True)
            joined = made.add_node(**NODE)
            wait_until(lambda: places() == 2, "the node that joined has a worker")
            print("driver: 2 with the node that joined", flush=True)
            thread = threading.Thread(target=kill)
            thread.start()
            found = held_average(str(folder), rows)
            thread.join()
    with fedstack.create_sync_local_execution_context():
        expected = held_average(str(folder), rows)
    print("driver: the same bits,", found.tobytes() == expected.tobytes(), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]))

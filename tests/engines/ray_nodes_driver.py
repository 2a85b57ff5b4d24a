"""A driver of a cluster with several nodes: `python ray_nodes_driver.py FOLDER`."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray_calls import held_average, held_sum, inputs, numbers, processes, wait_until

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


class Background(threading.Thread):
    """A function that runs in a context, in a thread of its own."""

    def __init__(self, work, context) -> None:
        super().__init__()
        self._work, self._context = work, context
        self.start()

    def run(self) -> None:
        with fedstack.use_context(self._context):
            self._result = self._work()

    def result(self):
        self.join()
        return self._result


def run(folder: Path) -> None:
    """Lets a node join, kills it while clients run there, and lets another node join while clients run."""

    def places() -> int:
        return len(set(processes(numbers(4))))

    def kill() -> None:
        wait_until(lambda: len(list(folder.glob("here-*"))) == 2, "clients run on both nodes")
        made.remove_node(joined, allow_graceful=False)
        (folder / "go").touch()

    def join() -> None:
        wait_until(lambda: len(list(second.glob("here-*"))) == 1, "clients run on the node that is left")
        made.add_node(**NODE)
        wait_until(lambda: len(list(second.glob("here-*"))) == 2, "the node that joined runs clients of the phase")
        (second / "go").touch()

    _, rows = inputs(20)
    second = folder / "second"
    second.mkdir()
    with cluster() as made:
        with fedstack.create_sync_ray_execution_context(num_workers="auto", resources_per_worker=PLACE) as context:
            print("driver:", places(), "at first", flush=True)
            joined = made.add_node(**NODE)
            wait_until(lambda: places() == 2, "the node that joined has a worker")
            print("driver: 2 with the node that joined", flush=True)
            thread = threading.Thread(target=kill)
            thread.start()
            found = held_average(str(folder), rows)
            thread.join()
            # The first tasks of a new computation have few clients, so that others are left for the node that joins.
            running = Background(lambda: held_sum(str(second), rows * 2), context)
            join()  # only the main thread can add nodes
            again = running.result()
    with fedstack.create_sync_local_execution_context():
        are_equal = found.tobytes() == held_average(str(folder), rows).tobytes()
        are_equal &= again.tobytes() == held_sum(str(folder), rows * 2).tobytes()
    print("driver: the same bits,", are_equal, flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]))

"""Data workers find a dispatcher again that was killed."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from data_reading import read, whole
from dispatching import Peer
from free_ports import free_port

from fedstack.service.data import Dataset, WorkerConfig, WorkerServer

WALL = 30.0
_DISPATCHER = """
import sys
from fedstack.service.data.dispatcher.dispatch_server import DispatcherConfig, DispatchServer
server = DispatchServer(DispatcherConfig(int(sys.argv[1]), work_dir=sys.argv[2], fault_tolerant_mode=True))
print(server.target, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def dispatcher(port: int, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Runs a dispatcher in a process of its own."""
    command = [sys.executable, "-c", _DISPATCHER, str(port), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_worker_finds_a_dispatcher_that_was_killed_and_started_again(tmp_path: Path) -> None:
    dataset = Dataset.range(5)
    with dispatcher(free_port(), tmp_path) as (process, target):
        worker = WorkerServer(WorkerConfig(target, dispatcher_timeout_ms=1000 * WALL))
        with Peer(target) as peer:
            digest = peer.register_dataset(dataset)
        process.kill()
        process.wait(WALL)
    with dispatcher(int(target.rpartition(":")[2]), tmp_path), worker, Peer(target) as peer:
        assert [f"grpc://{address}" for address in peer.workers()] == [worker.target]
        assert read(worker.target, whole(digest), dataset.element_type) == [0, 1, 2, 3, 4]

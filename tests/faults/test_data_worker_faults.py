"""Data workers find a dispatcher again that was killed."""

import asyncio
import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data import Dataset, WorkerConfig, WorkerServer
from fedstack.service.data.datasets.definitions import definition_of
from fedstack.service.data.serving.local_servers import connect
from fedstack.service.data.worker.readers import reader_at
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.io_loop import io_loop

WALL = 30.0
PAUSE = 0.02
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


async def attended(stub: DispatcherStub) -> list[str]:
    """Returns the addresses of the workers that a dispatcher knows, once there is one."""
    end = time.monotonic() + WALL
    while time.monotonic() < end:
        answer = await stub.persistently(stub.list_workers, WALL, lambda loss: None)
        if answer.worker:
            return [worker.address for worker in answer.worker]
        await asyncio.sleep(PAUSE)
    raise AssertionError("no worker attends")


async def registered(stub: DispatcherStub, dataset: Dataset) -> bytes:
    """Returns the digest of a dataset that is registered."""
    content = definition_of(dataset, Destination(takes_code=False)).SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).digest()
    described = messages.DatasetDescription(
        digest=digest, element=dataset.element_type.to_proto(), num_splits=dataset.num_splits,
        split_element=dataset.element_type.to_proto(), definition_bytes=len(content),
    )  # fmt: skip
    await stub.register(messages.RegisterDatasetRequest(dataset=described), memoryview(content))
    return digest


def test_a_worker_finds_a_dispatcher_that_was_killed_and_started_again(tmp_path: Path) -> None:
    dataset = Dataset.range(5)
    with dispatcher(0, tmp_path) as (process, target):
        worker = WorkerServer(WorkerConfig(target, dispatcher_timeout_ms=1000 * WALL))
        stub = DispatcherStub(connect(target))
        digest = io_loop.run_sync(registered(stub, dataset), WALL)
        process.kill()
        process.wait(WALL)
    with dispatcher(int(target.rpartition(":")[2]), tmp_path), worker:
        assert [f"grpc://{address}" for address in io_loop.run_sync(attended(stub), 2 * WALL)] == [worker.target]
        what = messages.ReadRequest(digest=digest, num_splits=5, splits=messages.SplitRange(last=5))

        async def read() -> list[int]:
            reader = reader_at(worker.target)
            reading = reader.open(what, dataset.element_type)
            found = [int(item) for block in await reading.next() for item in block.items()]
            await reader.close()
            return found

        assert io_loop.run_sync(read(), WALL) == [0, 1, 2, 3, 4]
    io_loop.run_sync(stub.close(), WALL)

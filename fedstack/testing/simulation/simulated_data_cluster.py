"""A simulated data service: a dispatcher with its journal, data workers and consumers."""

import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.errors import JournalError, ResourceLimitError
from fedstack.service.data.consumer.connections import Connections
from fedstack.service.data.dispatcher.dispatch_service import DispatchService
from fedstack.service.data.reading.readers import Reader, RemoteReader
from fedstack.service.data.worker.data_worker_service import DataWorkerService
from fedstack.service.host.limits import DataWorkerLimits
from fedstack.testing.simulation.simulated_cluster import SimulatedCluster
from fedstack.testing.simulation.simulated_connection import SimulatedConnection
from fedstack.testing.simulation.simulated_disk import SimulatedDisk
from fedstack.testing.simulation.simulated_network import SimulatedFaults, SimulatedNetwork
from fedstack.testing.simulation.simulated_threads import SimulatedThreads
from fedstack.testing.simulation.simulated_worker import SimulatedWorker
from fedstack.transport.peers.data_worker_stub import DataWorkerStub
from fedstack.transport.peers.dispatcher_stub import DispatcherStub
from fedstack.transport.peers.methods import Service

_T = TypeVar("_T")
# Blocks are small, so that even small ranges consist of several blocks.
_LIMITS = DataWorkerLimits(max_block_bytes=64)
# The minimum and maximum duration of a worker's thread job, such as reading elements.
_READ_SECONDS = (0.0, 0.02)


class SimulatedDataCluster(SimulatedCluster):
    """A simulated dispatcher, data workers and consumers in this process; see `SimulatedCluster`.

    Args:
      workers: The number of data workers.
      consumers: The number of processes that consume datasets.
      seed: The seed of all random decisions.
      faults: The faults to simulate. By default messages are delayed, and nothing fails.
      seconds: The time limit of the program, in simulated seconds.
      real_seconds: The time limit of the program, in real seconds.

    Attributes:
      dispatcher: The dispatcher. Its journal is stored in real files.
      data_workers: The data workers.
      consumers: The processes that consume datasets. The simulation does not crash them.
    """

    def __init__(
        self,
        workers: int = 2,
        consumers: int = 1,
        seed: int = 0,
        faults: SimulatedFaults | None = None,
        *,
        seconds: float = 3600.0,
        real_seconds: float = 60.0,
    ) -> None:
        super().__init__(workers, seed, faults, seconds=seconds, real_seconds=real_seconds)
        self.dispatcher = _Dispatcher(self._network, self._crash)
        self.data_workers = tuple(self._data_worker(f"data-{index}:1") for index in range(workers))
        self.consumers = tuple(
            SimulatedWorker(self._network, f"consumer-{index}", lambda: ()) for index in range(consumers)
        )
        self.workers = (self.dispatcher, *self.data_workers, *self.consumers)

    def run(self, program: "Callable[[Any], Coroutine[Any, Any, _T]]") -> _T:
        with tempfile.TemporaryDirectory() as folder:
            self.dispatcher.disk = SimulatedDisk(Path(folder), self._network, lambda: self._crash(self.dispatcher))
            try:
                return super().run(program)
            finally:
                self.dispatcher.disk.cut()

    def _data_worker(self, address: str) -> SimulatedWorker:
        def make() -> Sequence[Service]:
            network = self._network
            service = DataWorkerService(
                DispatcherStub(SimulatedConnection(self.dispatcher, network, worker)),
                worker_address=address,
                limits=_LIMITS,
                policy=CarrierPolicy(python_code=True),
            )
            service.threads = SimulatedThreads(network, lambda: network.chance("read", address).uniform(*_READ_SECONDS))
            return [service]

        worker = SimulatedWorker(self._network, address, make)
        return worker

    def connections(self, consumer: SimulatedWorker) -> Connections:
        """Returns the connections from a consumer to the dispatcher and to the data workers."""
        return _Connections(self, consumer, self._network)

    def _chaos(self, worker: SimulatedWorker) -> list[Coroutine[Any, Any, None]]:
        happening = super()._chaos(worker)
        if worker not in self.consumers:
            return happening
        happening.pop(0).close()
        return [*happening, *(self._cuts(worker, other) for other in (self.dispatcher, *self.data_workers))]

    def _cuts(self, one: SimulatedWorker, other: SimulatedWorker) -> Coroutine[Any, Any, None]:
        network, ends = self._network, (one.address, other.address)
        who = " ".join(ends)

        def cut() -> None:
            network.cut(*ends)
            seconds = network.chance("heal", who).uniform(*self._faults.heal_seconds)
            self._loop.call_later(seconds, network.join, *ends)

        return network.now_and_then(self._faults.cut_seconds, cut, "cut", who)

    def calm(self) -> None:
        super().calm()
        self._network.faults = SimulatedFaults()
        for one in self.workers:
            one.start()
            for other in self.workers:
                self._network.join(one.address, other.address)


class _Dispatcher(SimulatedWorker):
    """A simulated dispatcher. A crash is a power loss, which also affects the dispatcher's disk."""

    disk: SimulatedDisk

    def __init__(self, network: SimulatedNetwork, crash: "Callable[[SimulatedWorker], None]") -> None:
        self._restart = crash

        def make() -> Sequence[Service]:
            service = DispatchService(
                self.disk.open(), clock=network.io.time, wall_clock=lambda: 1.7e9 + network.io.time()
            )
            service.threads = SimulatedThreads(
                network, lambda: network.chance("commit").uniform(*network.faults.commit_seconds)
            )
            return [service]

        super().__init__(network, "dispatcher", make)

    def start(self) -> None:
        failures = self.disk.failures
        try:
            super().start()
        except JournalError:
            if self.disk.failures == failures:
                raise
        except ResourceLimitError:  # the disk has no space for the new journal, so the start is tried again later
            self._restart(self)

    def crash(self) -> None:
        self.disk.cut()
        super().crash()


class _Connections(Connections):
    """The connections of one consumer of the simulation."""

    def __init__(self, cluster: SimulatedDataCluster, consumer: SimulatedWorker, network: SimulatedNetwork) -> None:
        self.dispatcher = DispatcherStub(SimulatedConnection(cluster.dispatcher, network, consumer))
        self._only_local = False
        workers = cluster.data_workers
        self._at = {
            worker.address: RemoteReader(DataWorkerStub(SimulatedConnection(worker, network, consumer)))
            for worker in workers
        }

    def reader(self, worker: bytes, address: str) -> Reader:
        return self._at[address]

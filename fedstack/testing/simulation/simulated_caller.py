"""The calling side of a simulated connection: faults of the calling process affect its calls."""

import asyncio

from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.testing.simulation.simulated_worker import KEEPALIVE_SECONDS, SimulatedWorker


class SimulatedCaller:
    """A calling process, from its current start to its next crash, and the network path from it to a worker.

    Args:
      process: The calling process.
      worker: The called worker.
      network: The network, which records the paths that are cut.
    """

    def __init__(self, process: SimulatedWorker, worker: SimulatedWorker, network: SimulatedNetwork) -> None:
        self._process = process
        self._worker = worker
        self._network = network
        self._start = process.starts

    async def leave(self) -> None:
        """Waits until the process can send or receive a message.

        Raises:
          WorkerUnavailableError: If the process has crashed, or its path stays cut for `KEEPALIVE_SECONDS`.
        """
        process, now = self._process, self._network.io.time
        until = now() + KEEPALIVE_SECONDS
        while not self._has_ended and (process.is_stalled or self._is_parted):
            # A stalled process does not notice that time passes, so its calls do not time out.
            seconds = None if process.is_stalled else max(0.0, until - now())
            await asyncio.wait([self._network.changed], timeout=seconds)
            if not process.is_stalled and self._is_parted and now() >= until:
                raise self._worker.broken_off()
        if self._has_ended:
            raise self._worker.broken_off()

    @property
    def _is_parted(self) -> bool:
        return self._process.is_parted or self._network.is_cut(self._process.address, self._worker.address)

    @property
    def _has_ended(self) -> bool:
        return self._process.incarnation is None or self._process.starts != self._start

    def __repr__(self) -> str:
        return f"<SimulatedCaller {self._process.address}, which calls {self._worker.address}>"

"""A process of a simulation that calls another one: what happens to it happens to its calls."""

import asyncio

from fedstack.testing.simulation.simulated_network import SimulatedNetwork
from fedstack.testing.simulation.simulated_worker import KEEPALIVE_SECONDS, SimulatedWorker


class SimulatedCaller:
    """One process as it is now, until it crashes, and the way from it to another one.

    Args:
      process: The process.
      worker: The other one.
      network: Knows which ways are cut.
    """

    def __init__(self, process: SimulatedWorker, worker: SimulatedWorker, network: SimulatedNetwork) -> None:
        self._process = process
        self._worker = worker
        self._network = network
        self._start = process.starts

    async def leave(self) -> None:
        """Returns when a message goes on its way, or has come to it.

        Raises:
          WorkerUnavailableError: If it does not.
        """
        process, now = self._process, self._network.io.time
        until = now() + KEEPALIVE_SECONDS
        while not self._has_ended and (process.is_stalled or self._is_parted):
            # A process that stands still does not notice how long that takes.
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

"""Simulated threads, which run jobs one after the other on the event loop."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.executors.concurrency.jobs import Job
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.service.data.reading.dataset_scope import reading
from fedstack.testing.simulation.simulated_network import SimulatedNetwork

_T = TypeVar("_T")


class SimulatedThreads(LeafThreads):
    """A simulated thread that runs jobs in the order of submission. A job runs when its simulated duration has passed.

    Args:
      network: The network of the simulation, whose event loop runs the jobs.
      seconds: Returns a random duration for a job, in simulated seconds.
    """

    def __init__(self, network: SimulatedNetwork, seconds: Callable[[], float]) -> None:
        super().__init__(1)
        self._network = network
        self._draw = seconds
        self._free = 0.0

    def submit(self, work: Callable[[], _T]) -> Job[_T]:
        # The job reads the simulated clock, so that its duration does not depend on the speed of this machine.
        with reading(current_scope(), clock=self._network.io.time).entered():
            job = Job(work)
        self._free = max(self._free, self._network.io.time()) + self._draw()
        self._network.io.loop.call_at(self._free, job.run)
        return job

    def abandon(self, job: Job[Any]) -> None:
        job.cancel()

    def __repr__(self) -> str:
        return f"<SimulatedThreads, at work until {self._free:.3f}>"

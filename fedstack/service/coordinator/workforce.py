"""Gives a driver its sites: a fleet of workers in other processes, or executors of this one."""

from collections.abc import Sequence
from typing import TypeAlias, cast

from fedstack.computations.types.language import ExecutorFactory
from fedstack.errors import InvalidValueError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.fleet.fleet_driver import FleetDriver
from fedstack.executors.fleet.fleet_observer import FleetObserver
from fedstack.executors.fleet.worker import Worker
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.driver import Driver, Workforce
from fedstack.service.coordinator.local_site import LocalSite
from fedstack.service.coordinator.scheduling.closures import Place
from fedstack.service.coordinator.sites import RemoteSite, Site
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import IoLoop, io_loop

Workers: TypeAlias = "WorkerTargets | ExecutorFactory | Sequence[ExecutorFactory]"


class FleetWorkforce(FleetObserver, Workforce):
    """The workers of a fleet.

    Args:
      fleet: The workers. It is closed with this.
      source: What the workers live as long as.
    """

    def __init__(self, fleet: FleetDriver, source: object = None) -> None:
        self._fleet = fleet
        self._source = source  # a pool ends its processes when nobody refers to it
        self._sites: dict[Worker, Site] = {}
        self._indices: dict[Worker, int] = {}
        self._driver: Driver | None = None

    def begin(self, driver: Driver) -> None:
        self._driver = driver
        self._indices = {worker: index for index, worker in enumerate(self._fleet.workers)}
        self._fleet.subscribe(self)

    @property
    def io(self) -> IoLoop:
        return self._fleet.io

    async def wait(self) -> None:
        await self._fleet.ready()

    def replace(self, site: Site, error: Exception) -> None:
        worker = next((worker for worker, found in self._sites.items() if found is site), None)
        if worker is None:
            return
        del self._sites[worker]
        if isinstance(error, StaleSessionError) and worker.is_ready:
            self.ready(worker)  # it is there, and has lost what it held
        else:
            self._fleet.lost(worker, error)

    async def end(self) -> None:
        self._driver = None
        self._fleet.close()

    # Told by the fleet.

    def ready(self, worker: Worker) -> None:
        if worker not in self._sites and self._driver is not None:
            index = self._indices.setdefault(worker, len(self._indices))
            place = Place(index, worker.address, worker.features.threads)
            site = self._sites[worker] = RemoteSite(worker.stub, place, self._driver)
            self._driver.add(site)

    def lost(self, worker: Worker, error: Exception) -> None:
        site = self._sites.get(worker)
        if site is not None and self._driver is not None:
            self._driver.lose(site, error)

    def removed(self, worker: Worker) -> None:
        self.lost(
            worker, WorkerUnavailableError(f"The worker at {worker.address} does not belong to the fleet any more")
        )


class LocalWorkforce(Workforce):
    """Executors of this process.

    Args:
      factories: What makes them, one for each worker.
    """

    def __init__(self, factories: Sequence[ExecutorFactory]) -> None:
        self._factories = factories
        self._driver: Driver | None = None

    @property
    def io(self) -> IoLoop:
        return io_loop

    def begin(self, driver: Driver) -> None:
        self._driver = driver
        for index in range(len(self._factories)):
            driver.loop.loop.call_soon_threadsafe(self._add, index)

    def _add(self, index: int) -> None:
        if self._driver is not None:
            self._driver.add(LocalSite(self._factories[index], Place(index, f"worker {index}"), self._driver))

    async def wait(self) -> None:
        """Returns at once: there is always one soon."""

    def replace(self, site: Site, error: Exception) -> None:
        self._add(site.place.index)

    async def end(self) -> None:
        self._driver = None


def workforce_of(workers: Workers, credentials: ClientCredentials | None, connect_seconds: float) -> Workforce:
    """Returns where sites come from, for what users name as workers.

    Raises:
      InvalidValueError: If there are none, or both places and factories.
    """
    listed = cast("Sequence[object]", workers if isinstance(workers, (list, tuple)) else [workers])
    factories = [one for one in listed if isinstance(one, ExecutorFactory)]
    if factories:
        if len(factories) < len(listed):
            raise InvalidValueError(f"Expected factories only, or places only, found both in {describe(workers)}")
        return LocalWorkforce(factories)
    stubs = make_stubs(cast(WorkerTargets, workers), credentials)
    if not stubs:
        raise InvalidValueError("Expected at least one worker, found none; give its address, as in 'localhost:8000'")
    return FleetWorkforce(FleetDriver(stubs, connect_seconds), workers)

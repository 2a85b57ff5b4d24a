"""Gives a driver its sites: a fleet of workers in other processes, or executors of this one."""

from collections.abc import Sequence
from typing import TypeAlias, cast

from fedstack.computations.types.language import ExecutorFactory
from fedstack.errors import InvalidValueError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.remote.worker_stubs import WorkerTargets, make_stubs
from fedstack.executors.remote.workers import Worker
from fedstack.executors.remote.workers import Workers as Fleet
from fedstack.foundations.value_text import describe
from fedstack.membership.membership_observer import MembershipObserver
from fedstack.service.coordinator.driver import Driver, Workforce
from fedstack.service.coordinator.local_site import LocalSite
from fedstack.service.coordinator.scheduling.closures import Place
from fedstack.service.coordinator.sites import RemoteSite, Site
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.io_loop import IoLoop, io_loop

Workers: TypeAlias = "WorkerTargets | ExecutorFactory | Sequence[ExecutorFactory]"


class FleetWorkforce(MembershipObserver[Worker], Workforce):
    """The workers of a fleet.

    Args:
      fleet: The workers. It is closed with this.
      source: What the workers live as long as.
    """

    def __init__(self, fleet: Fleet, source: object = None) -> None:
        self._fleet = fleet
        self._source = source  # a pool ends its processes when nobody refers to it
        self._sites: dict[Worker, Site] = {}
        self._indices: dict[Worker, int] = {}
        self._driver: Driver | None = None

    def begin(self, driver: Driver) -> None:
        self._driver = driver
        self._indices = {worker: index for index, worker in enumerate(self._fleet.members)}
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

    def ready(self, member: Worker) -> None:
        if member not in self._sites and self._driver is not None:
            index = self._indices.setdefault(member, len(self._indices))
            place = Place(index, member.address, member.features.threads)
            site = self._sites[member] = RemoteSite(member.stub, place, self._driver)
            self._driver.add(site)

    def lost(self, member: Worker, error: Exception) -> None:
        site = self._sites.get(member)
        if site is not None and self._driver is not None:
            self._driver.lose(site, error)

    def removed(self, member: Worker) -> None:
        self.lost(member, WorkerUnavailableError(f"The worker at {member.address} has been removed"))


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
    return FleetWorkforce(Fleet([Worker(stub) for stub in stubs], connect_seconds), workers)

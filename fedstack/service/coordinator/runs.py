"""Runs closures at sites: batch by batch, each followed by what can go along in the next call."""

import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from fedstack.computations.types.language import ExecutorValue, RetryableError
from fedstack.errors import FedstackError
from fedstack.foundations.traceback_filter import without_own_frames
from fedstack.service.coordinator.calls.calls import Call
from fedstack.service.coordinator.scheduling.closures import Closure, Place, State
from fedstack.service.coordinator.scheduling.scheduler import Scheduler
from fedstack.service.coordinator.sites import Held, Site, payloads_of


class Turns(Protocol):
    """What runs ask of the driver that has them."""

    def turn(self, site: Site | None = None, /) -> Sequence[Closure]:
        """Does what follows from events; returns what is to run at a site from now on."""
        ...

    def lose(self, site: Site, error: Exception, /) -> None:
        """Notes that a site is gone."""
        ...

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Starts something that ends with the driver, at the latest."""
        ...


class Runs:
    """What runs at the sites of one driver, on its loop.

    Args:
      scheduler: Hears how closures ended.
      lock: Is held where it does.
      driver: Says what follows.
    """

    def __init__(self, scheduler: Scheduler, lock: threading.Lock, driver: Turns) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._driver = driver
        # By place too: a closure may still be under way at one that is lost when it runs at another.
        self._running: dict[tuple[Place, Closure], Held] = {}

    def close(self) -> None:
        """Drops what stands for values. Nothing runs any more."""
        self._running.clear()

    def spawn(self, site: Site, closures: Sequence[Closure]) -> None:
        """Runs closures at a site: those that can begin at once together, each of the others when it can."""
        batches: dict[tuple[int, Closure | None], list[Closure]] = {}
        for closure in closures:
            call = cast("Call | None", closure.call)
            if call is None:  # it was cancelled meanwhile; that is told in its turn
                batches[0, closure] = [closure]
            else:
                batches.setdefault((call.clients, None if site.is_quick(call) else closure), []).append(closure)
        self._scheduler.calls_begin(site.place, len(batches))
        for (clients, _), batch in batches.items():
            self._driver.start(self._run(site, batch, clients))

    async def _run(self, site: Site, closures: Sequence[Closure], clients: int) -> None:
        """Runs closures of one number of clients at a site, and then those that follow there."""
        running: dict[ExecutorValue, Closure] = {}
        try:
            with site.in_use(clients):
                while True:
                    for closure in closures:
                        await self._prepare(site, closure, running)
                        if site.place.lost:
                            return  # what ran there is queued again
                    closures = self._tell(site, await self._outcomes(site, clients, running), clients)
                    if not closures and not running:
                        return
                    self._scheduler.calls_begin(site.place, 1)
        except Exception as error:
            self._broken(site, [*closures, *running.values()], error)
        finally:
            for closure in running.values():
                self._running.pop((site.place, closure), None)

    async def _prepare(self, site: Site, closure: Closure, running: dict[ExecutorValue, Closure]) -> None:
        call = cast("Call | None", closure.call)
        if call is None:  # it was cancelled meanwhile
            self._tell_one(site, closure, None)
            return
        try:
            held = await site.call(call)
        except Exception as error:
            if isinstance(error, RetryableError):
                raise
            self._tell_one(site, closure, error)
        else:
            self._running[site.place, closure] = held
            running[held.value] = closure

    def _tell_one(self, site: Site, closure: Closure, error: Exception | None) -> None:
        with self._lock:
            if error is None:
                self._scheduler.gone(closure, site.place)
            else:
                self._scheduler.failed(closure, site.place, without_own_frames(error))

    async def _outcomes(
        self, site: Site, clients: int, running: dict[ExecutorValue, Closure]
    ) -> list[tuple[Closure, Exception | None]]:
        """Returns how those closures ended that end first; what is left runs."""
        if not running:
            return []
        try:
            outcomes = await site.start(site.executor(clients), list(running))
        except Exception as error:
            if isinstance(error, RetryableError):
                raise
            closures = list(running.values())
            running.clear()
            if site.place.lost:
                return []  # they are queued again
            # One of them is to blame, or the only one.
            if len(closures) == 1:
                return [(closures[0], error)]
            for closure in closures:
                self.spawn(site, [closure])
            return []
        return [(running.pop(value), outcome) for value, outcome in outcomes.items()]

    def _tell(self, site: Site, outcomes: Sequence[tuple[Closure, Exception | None]], clients: int) -> list[Closure]:
        """Tells the scheduler how closures ended; returns what runs next in the same way."""
        loss: Exception | None = None
        homes: list[Closure] = []
        with self._lock:
            for closure, error in sorted(outcomes, key=lambda outcome: outcome[1] is not None):
                if isinstance(error, RetryableError) and closure.state is State.RUNNING:
                    loss = error
                elif isinstance(error, RetryableError):
                    self._scheduler.gone(closure, site.place)
                elif error is not None:
                    self._scheduler.failed(closure, site.place, without_own_frames(error))
                elif closure.prefetch and closure.state is State.RUNNING:
                    homes.append(closure)
                else:
                    self._scheduler.succeeded(closure, site.place, self._running[site.place, closure])
            self._scheduler.call_ended(site.place)
        found = {closure: self._running.pop((site.place, closure), None) for closure, _ in outcomes}
        if loss is not None:
            raise loss
        if homes:
            self._driver.start(self._fetch(site, {closure: cast(Held, found[closure]) for closure in homes}, clients))
        closures = self._driver.turn(site)
        follow = [closure for closure in closures if self._goes_along(site, closure, clients)]
        others = [closure for closure in closures if closure not in follow]
        if others:
            self.spawn(site, others)
        return follow

    def _goes_along(self, site: Site, closure: Closure, clients: int) -> bool:
        call = cast("Call | None", closure.call)
        return call is not None and call.clients == clients and site.is_quick(call)

    async def _fetch(self, site: Site, found: Mapping[Closure, Held], clients: int) -> None:
        """Brings values home before they count as there."""
        try:
            with site.in_use(clients):  # until the values count as there, nothing else keeps their executor
                payloads = await payloads_of(list(found.values()))
        except Exception as error:
            self._broken(site, found, error)
            return
        with self._lock:
            for (closure, held), payload in zip(found.items(), payloads):
                self._scheduler.succeeded(closure, site.place, held, (payload,))
        self._driver.turn()

    def _broken(self, site: Site, closures: Iterable[Closure], error: Exception) -> None:
        """Notes that something went wrong with what ran at a site: it is lost, or they have failed."""
        if isinstance(error, RetryableError):
            self._driver.lose(site, error)
            return
        with self._lock:
            for closure in closures:
                self._scheduler.failed(closure, site.place, error)
        self._driver.turn()

    def stop(self, sites: Iterable[Site], closures: Sequence[Closure]) -> None:
        """Stops closures that were cancelled, wherever they run."""
        for site in sites:
            keys = [(site.place, one) for one in closures if one in site.place.running]
            held = [self._running[key] for key in keys if key in self._running]
            if held:
                self._driver.start(_stop(site, held))

    def __repr__(self) -> str:
        return f"<Runs of {len(self._running)} closures>"


async def _stop(site: Site, held: Sequence[Held]) -> None:
    with contextlib.suppress(FedstackError, RetryableError):
        await site.stop(held)

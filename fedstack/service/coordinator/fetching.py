"""Brings values home: from a worker that has them, and if none has, from one that makes them again."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from fedstack.computations.types.language import RetryableError
from fedstack.executors.concurrency.lazy_task import raised_again
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.service.coordinator.scheduling.closures import Closure, Place
from fedstack.service.coordinator.scheduling.scheduler import Scheduler
from fedstack.service.coordinator.sites import Held, Site, payloads_of


class Rebuilds(Protocol):
    """What fetching asks of the driver that has it."""

    def check_open(self) -> None:
        """Raises `ClosedError` once nothing runs any more."""
        ...

    def turn(self) -> object:
        """Does what follows from events."""
        ...

    def lose(self, site: Site, error: Exception, /) -> None:
        """Notes that a site is gone."""
        ...

    async def ended(self, closure: Closure, /) -> None:
        """Returns when a closure has ended."""
        ...


class Fetching:
    """Brings home the values of one driver's closures, on its loop.

    Args:
      scheduler: Hears what is needed, and what has been brought.
      lock: Is held where it does.
      sites: The sites that there are, by their places.
      driver: Runs again what was lost.
    """

    def __init__(
        self, scheduler: Scheduler, lock: threading.Lock, sites: Mapping[Place, Site], driver: Rebuilds
    ) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._sites = sites
        self._driver = driver

    async def payload_of(self, closure: Closure) -> object:
        """Returns the payload of a closure's value, which is rebuilt if it was lost.

        Raises:
          Exception: What the closure has raised.
          ClosureCancelledError: If it was cancelled.
        """
        while True:
            await self._driver.ended(closure)
            if closure.copy is not None:
                return closure.copy[0]
            if closure.error is not None:
                raise raised_again(closure.error)
            self._driver.check_open()
            for place, held in list(closure.held.items()):
                site = self._sites.get(place)
                if site is None:
                    continue
                try:
                    return await cast(Held, held).payload()
                except RetryableError as error:
                    self._driver.lose(site, error)
                except Exception:
                    if not place.lost:  # else what it says does not count, and there may be another
                        raise
            with self._lock:
                self._scheduler.need(closure)
            self._driver.turn()
            await asyncio.sleep(0)  # whatever comes of it, others get their turn

    async def bring_home(self, closures: Sequence[Closure]) -> list[object]:
        """Returns the payloads of values, and keeps them; those of one worker come in a few calls."""
        there: dict[Closure, Held] = {}
        for closure in closures:
            held = next((held for place, held in list(closure.held.items()) if place in self._sites), None)
            if held is not None and closure.copy is None:
                there[closure] = cast(Held, held)
        if len(there) > 1:
            with contextlib.suppress(Exception):  # each gets an error of its own below, or another chance
                self._copied(there, await payloads_of(list(there.values())))
        payloads = await gather([self.payload_of(closure) for closure in closures])
        self._copied(closures, payloads)
        return payloads

    def _copied(self, closures: Iterable[Closure], payloads: Iterable[object]) -> None:
        with self._lock:
            for closure, payload in zip(closures, payloads):
                self._scheduler.copied(closure, payload)

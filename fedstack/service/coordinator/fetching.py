"""Brings values home: from a worker that has them, and if none has, from one that makes them again."""

import asyncio
import contextlib
import threading
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import attrs

from fedstack.computations.types.language import Executor, RetryableError
from fedstack.executors.concurrency.lazy_task import raised_again
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.foundations.traceback_filter import consume_exception
from fedstack.service.coordinator.scheduling.closures import Closure, Place
from fedstack.service.coordinator.scheduling.scheduler import Scheduler
from fedstack.service.coordinator.sites import FETCH_BATCH, Held, Site, payloads_of
from fedstack.transport.peers.io_loop import start_apart


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
        # Of what is under way, or has failed and nobody has been told.
        self._errands: dict[Closure, _Errand] = {}

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
        """Returns the payloads of values, and keeps them; those of one worker come in a few calls.

        Raises:
          Exception: What the first closure to fail has raised.
          ClosedError: If the driver ends before all are here.
        """
        self.begin(closures)
        errands = [self._errands[closure] for closure in closures if closure in self._errands]
        together = {errand.task for errand in errands if errand.wanted > 1}
        if together:
            await asyncio.wait(together)
        await gather([self._home(closure) for closure in closures if closure.copy is None])
        return [cast("tuple[object]", closure.copy)[0] for closure in closures]

    async def bring_from(self, place: Place, closures: Sequence[Closure]) -> None:
        """Brings home what a place has, as far as that can be; what cannot be is left there, and nothing is rebuilt.

        Raises:
          RetryableError: If the place has gone away.
        """
        for start in range(0, len(closures), FETCH_BATCH):
            batch = closures[start : start + FETCH_BATCH]
            there = {one: cast(Held, one.held[place]) for one in batch if one.copy is None and place in one.held}
            try:
                self._copied(there, await payloads_of(list(there.values())))
            except RetryableError:
                raise
            except Exception:  # one of them is to blame
                if len(there) > 1:
                    for closure in there:
                        await self.bring_from(place, [closure])

    def begin(self, closures: Sequence[Closure]) -> bool:
        """Begins to bring home what is at workers, each value once. That goes on if nobody waits for it any more.

        Returns:
          Whether nothing is to be waited for.
        """
        self._begin([closure for closure in closures if closure.has_ended])
        return all(_is_here(closure) or self._has_failed(closure) for closure in closures)

    def drop(self, closure: Closure) -> None:
        """Nobody wants the value of a closure here any more."""
        errand = self._errands.pop(closure, None)
        if errand is not None:
            errand.wanted -= 1
            if not errand.wanted:
                errand.task.cancel()

    async def end(self) -> None:
        """Brings no more values home."""
        tasks = {errand.task for errand in self._errands.values()}
        self._errands.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, closures: Iterable[Closure]) -> None:
        new = [closure for closure in closures if not _is_here(closure) and closure not in self._errands]
        groups: dict[Executor, dict[Closure, Held]] = {}
        for closure in new:
            found = next((held for place, held in list(closure.held.items()) if place in self._sites), None)
            if found is not None:
                held = cast(Held, found)
                groups.setdefault(held.executor, {})[closure] = held
        for there in groups.values():
            if len(there) > 1:
                self._start(self._bring_together(there), there)
        for closure in new:
            if closure not in self._errands:
                self._start(self._bring(closure), [closure])

    def _start(self, work: Coroutine[Any, Any, None], closures: Collection[Closure]) -> None:
        errand = _Errand(start_apart(work), len(closures))
        errand.task.add_done_callback(consume_exception)
        self._errands.update(dict.fromkeys(closures, errand))

    async def _bring_together(self, there: Mapping[Closure, Held]) -> None:
        with contextlib.suppress(Exception):  # each gets an error of its own, or another chance
            self._copied(there, await payloads_of(list(there.values())))
        wanted = [closure for closure in there if self._errands.pop(closure, None) is not None]
        for closure in wanted:
            if not _is_here(closure):
                self._start(self._bring(closure), [closure])

    async def _bring(self, closure: Closure) -> None:
        # What fails stays among the errands, for the next one who asks.
        self._copied([closure], [await self.payload_of(closure)])
        self._errands.pop(closure, None)

    async def _home(self, closure: Closure) -> None:
        """Returns when the value of a closure is here. Who waits no longer leaves it coming."""
        while closure.copy is None:
            await self._driver.ended(closure)
            if closure.error is not None:
                raise raised_again(closure.error)
            self._begin([closure])
            errand = self._errands.get(closure)
            if errand is None:  # it is here
                continue
            await asyncio.wait([errand.task])
            self._tell(closure, errand)

    def _tell(self, closure: Closure, errand: "_Errand") -> None:
        """Raises what has become of an errand that has ended, if it has failed."""
        if errand.task.cancelled() or errand.task.exception() is not None:
            if self._errands.get(closure) is errand:
                del self._errands[closure]
            if errand.task.cancelled():
                self._driver.check_open()
                raise asyncio.CancelledError
            raise raised_again(cast(Exception, errand.task.exception()))

    def _has_failed(self, closure: Closure) -> bool:
        errand = self._errands.get(closure)
        return errand is not None and errand.task.done()

    def _copied(self, closures: Iterable[Closure], payloads: Iterable[object]) -> None:
        with self._lock:
            for closure, payload in zip(closures, payloads):
                self._scheduler.copied(closure, payload)


@attrs.define(eq=False)
class _Errand:
    """Brings home values that come in the same few calls.

    Attributes:
      task: Does so.
      wanted: How many of them somebody wants.
    """

    task: "asyncio.Task[None]"
    wanted: int


def _is_here(closure: Closure) -> bool:
    return closure.copy is not None or closure.error is not None

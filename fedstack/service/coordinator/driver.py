"""Does what a scheduler decides: runs closures at sites, wakes whoever waits, and brings values home."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from fedstack.computations.types.language import ExecutorValue, RetryableError
from fedstack.computations.types.traceback_filter import consume_exception, without_own_frames
from fedstack.errors import ClosedError, DeadlineExceededError, FedstackError
from fedstack.executors.concurrency.lazy_task import raised_again
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.service.coordinator.calls import Call
from fedstack.service.coordinator.closures import Closure, Place, State
from fedstack.service.coordinator.scheduler import Scheduler
from fedstack.service.coordinator.sites import Held, Site
from fedstack.transport.peers.io_loop import IoLoop, start_apart

_T = TypeVar("_T")


class Workforce(Protocol):
    """Where sites come from."""

    def begin(self, driver: "Driver", /) -> None:
        """Begins to add sites to a driver, and to tell it of losses."""
        ...

    async def wait(self) -> None:
        """Returns when there may be a site soon; raises when it is no use to wait any longer."""
        ...

    def replace(self, site: Site, error: Exception, /) -> None:
        """Adds another site for one that is gone, when its worker is there again."""
        ...

    async def end(self) -> None:
        """Ends what sites need."""
        ...


class Driver:
    """Runs the closures of one coordinator.

    The scheduler is asked under a lock, by callers on any thread. All else happens on the loop.

    Args:
      scheduler: Decides.
      workforce: Where sites come from.
      loop: The loop.
    """

    def __init__(self, scheduler: Scheduler, workforce: Workforce, loop: IoLoop) -> None:
        self._scheduler = scheduler
        self._workforce = workforce
        self._loop = loop
        self._lock = threading.Lock()
        self._woken = False
        self._dropped: deque[Closure] = deque()
        self._sites: dict[Place, Site] = {}
        self._running: dict[Closure, Held] = {}
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        workforce.begin(self)

    @property
    def loop(self) -> IoLoop:
        """The loop."""
        return self._loop

    # For callers on any thread.

    def schedule(self, closure: Closure) -> bool:
        """Schedules a closure, if there is room for it; returns whether there is.

        Raises:
          Exception: What another closure has raised before.
          ClosedError: After `close`.
        """
        with self._lock:
            self._check()
            if not self._scheduler.has_room:
                return False
            self._scheduler.schedule(closure)
        self._wake()
        return True

    def check(self) -> None:
        """Raises what closures have raised since this was last asked, the first of it.

        Raises:
          ClosedError: After `close`.
        """
        with self._lock:
            self._check()

    def is_done(self) -> bool:
        """Returns whether nothing is left to do.

        Raises:
          Exception: What a closure has raised.
        """
        with self._lock:
            self._check()
            return self._scheduler.is_idle

    def cancel(self, closure: Closure) -> bool:
        """Cancels a closure; returns whether it had not ended."""
        with self._lock:
            had_not_ended = self._scheduler.cancel(closure)
        self._wake()
        return had_not_ended

    def when_ended(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Calls something once a closure has ended: on the loop, or at once if it has."""
        with self._lock:
            if not closure.has_ended:
                closure.on_end.append(callback)
                return
        callback()

    def drop(self, closure: Closure) -> None:
        """Notes that no caller has a handle to a closure any more. Safe in finalizers: it takes no lock."""
        self._dropped.append(closure)
        self._wake()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("The coordinator is closed; make a new one")
        if self._scheduler.has_errors:
            first, *others = self._scheduler.take_errors()
            error = raised_again(first)
            with contextlib.suppress(AttributeError):  # a class of the user's own may have no room for it
                cast(Any, error).errors = (first, *others)
            try:
                raise error
            finally:
                del error, first, others

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._turn)

    # For callers, on the loop.

    async def room(self, timeout: float | None = None) -> None:
        """Returns when there is room for another closure, or something went wrong."""
        await self._until(lambda: self._scheduler.has_room or self._scheduler.has_errors or self._closed, timeout)

    async def join(self, timeout: float | None = None) -> None:
        """Returns when nothing is left to do.

        Raises:
          Exception: What a closure has raised, once nothing runs any more.
          DeadlineExceededError: If that takes longer.
        """
        await self._until(lambda: self._scheduler.is_idle or self._closed, timeout)
        self.check()

    async def ended(self, closure: Closure) -> None:
        """Returns when a closure has ended."""
        if not closure.has_ended:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_ended(closure, lambda: None if future.done() else future.set_result(None))
            await future

    async def payload_of(self, closure: Closure) -> object:
        """Returns the payload of a closure's value, which is rebuilt if it was lost.

        Raises:
          Exception: What the closure has raised.
          ClosureCancelledError: If it was cancelled.
        """
        while True:
            await self.ended(closure)
            if closure.copy is not None:
                return closure.copy[0]
            if closure.error is not None:
                raise raised_again(closure.error)
            for place, held in list(closure.held.items()):
                site = self._sites.get(place)
                if site is None:
                    continue
                try:
                    return await cast(Held, held).payload()
                except RetryableError as error:
                    self.lose(site, error)
            with self._lock:
                self._scheduler.need(closure)
            self._turn()

    async def bring_home(self, closure: Closure) -> object:
        """Returns the payload of a closure's value, and keeps it."""
        payload = await self.payload_of(closure)
        with self._lock:
            self._scheduler.copied(closure, payload)
        return payload

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        with self._lock:
            if condition():
                return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = condition
        try:
            await within(future, timeout, self)
        finally:
            self._waiting.pop(future, None)

    # For the workforce, on the loop.

    def add(self, site: Site) -> None:
        """There is another site."""
        if self._closed:
            site.close()
            return
        self._sites[site.place] = site
        with self._lock:
            self._scheduler.add_place(site.place)
        self._turn()

    def lose(self, site: Site, error: Exception) -> None:
        """A site is gone."""
        if self._sites.pop(site.place, None) is None:
            return
        error = without_own_frames(error)
        with self._lock:
            self._scheduler.lose_place(site.place, error)
        site.close()
        if not self._closed:
            self._workforce.replace(site, error)
        self._turn()

    def holds(self, closure: Closure, place: Place, held: Held) -> None:
        """Notes that a place has got the value of a closure from elsewhere."""
        with self._lock:
            if place not in closure.held:
                self._scheduler.holds(closure, place, held)

    # On the loop, from here on.

    def _turn(self) -> None:
        """Does what the scheduler has decided after events."""
        for place, closures in self._decided():
            self._spawn(self._sites[place], closures)

    def _decided(self) -> list[tuple[Place, list[Closure]]]:
        self._woken = False
        with self._lock:
            while self._dropped:
                self._scheduler.drop(self._dropped.popleft())
            assignments = self._scheduler.assignments()
            ended = [closure for closure in self._scheduler.take_ended() if closure.has_ended]
            cancelled = self._scheduler.take_cancelled()
            seconds = self._scheduler.seconds_to_assignments()
            woken = [future for future, condition in self._waiting.items() if condition()]
            stranded = bool(self._scheduler.unfinished) and not self._sites
            callbacks = [callback for closure in ended for callback in closure.on_end]
            for closure in ended:
                closure.on_end = []
        for callback in callbacks:
            callback()
        for future in woken:
            if not future.done():
                future.set_result(None)
        if cancelled:
            self._stop(cancelled)
        if stranded and self._looking is None and not self._closed:
            self._looking = start_apart(self._look())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._turn)
        return assignments

    def _spawn(self, site: Site, closures: Sequence[Closure]) -> None:
        """Runs closures at a site: those that can begin at once together, each of the others when it can."""
        batches: dict[object, list[Closure]] = {}
        for closure in closures:
            call = cast(Call, closure.call)
            batches.setdefault(call.clients if site.is_quick(call) else closure, []).append(closure)
        self._scheduler.calls_begin(site.place, len(batches))
        for batch in batches.values():
            self._start(self._run(site, batch))

    async def _run(self, site: Site, closures: Sequence[Closure]) -> None:
        """Runs closures of one number of clients at a site, and then those that follow there."""
        clients = cast(Call, closures[0].call).clients
        running: dict[ExecutorValue, Closure] = {}
        try:
            while True:
                for closure in closures:
                    await self._prepare(site, closure, running)
                closures = self._tell(site, await self._outcomes(site, clients, running), clients)
                if not closures and not running:
                    return
                self._scheduler.calls_begin(site.place, 1)
        except RetryableError as error:
            self.lose(site, cast(Exception, error))

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
            self._running[closure] = held
            running[held.value] = closure

    def _tell_one(self, site: Site, closure: Closure, error: Exception | None) -> None:
        with self._lock:
            if error is None:
                self._scheduler.gone(closure, site.place)
            else:
                self._scheduler.failed(closure, site.place, error)

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
            # One of them is to blame, or the only one.
            closures = list(running.values())
            running.clear()
            if len(closures) == 1:
                return [(closures[0], error)]
            for closure in closures:
                self._spawn(site, [closure])
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
                    self._scheduler.failed(closure, site.place, error)
                elif closure.prefetch and closure.state is State.RUNNING:
                    homes.append(closure)
                else:
                    self._scheduler.succeeded(closure, site.place, self._running[closure])
            self._scheduler.call_ended(site.place)
        if loss is not None:
            raise loss
        if homes:
            self._start(self._fetch(site, homes))
        for closure, _ in outcomes:
            if closure not in homes:
                self._running.pop(closure, None)
        follows: list[Closure] = []
        for place, closures in self._decided():
            if place is site.place:
                quick = [one for one in closures if self._goes_along(site, one, clients)]
                follows, closures = quick, [one for one in closures if one not in quick]
            if closures:
                self._spawn(self._sites[place], closures)
        return follows

    def _goes_along(self, site: Site, closure: Closure, clients: int) -> bool:
        call = cast(Call, closure.call)
        return call.clients == clients and site.is_quick(call)

    async def _fetch(self, site: Site, closures: Sequence[Closure]) -> None:
        """Brings values home before they count as there."""
        try:
            payloads = await gather([self._running[closure].payload() for closure in closures])
        except RetryableError as error:
            self.lose(site, cast(Exception, error))
            return
        with self._lock:
            for closure, payload in zip(closures, payloads):
                self._scheduler.succeeded(closure, site.place, self._running.pop(closure), (payload,))
        self._turn()

    def _stop(self, closures: Sequence[Closure]) -> None:
        for site in self._sites.values():
            held = [self._running[one] for one in closures if one in site.place.running and one in self._running]
            if held:
                self._start(_stop(site, held))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_apart(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(consume_exception)

    async def _look(self) -> None:
        """Waits for a site, for closures that have none."""
        try:
            while not self._sites and not self._closed:
                await self._workforce.wait()
                await asyncio.sleep(0.01)  # it is added in a moment
        except FedstackError as error:
            with self._lock:
                self._scheduler.gave_up(without_own_frames(error))
        finally:
            self._looking = None
        self._turn()

    async def end(self) -> None:
        """Cancels what is left to do, and ends all sites. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._scheduler.cancel_all()
        self._turn()
        sites, self._sites = list(self._sites.values()), {}
        tasks = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        for site in sites:
            site.close()
        self._running.clear()
        await self._workforce.end()

    def __repr__(self) -> str:
        return f"<Driver of {self._scheduler!r}>"


async def within(work: Awaitable[_T], seconds: float | None, what: object) -> _T:
    """Awaits work that is given so long.

    Raises:
      DeadlineExceededError: If it takes longer; it is cancelled.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        if isinstance(error, FedstackError):
            raise
        raise DeadlineExceededError(f"Expected an outcome within {seconds} s, found none of {what!r}") from None


async def _stop(site: Site, held: Sequence[Held]) -> None:
    with contextlib.suppress(FedstackError, RetryableError):
        await site.stop(held)

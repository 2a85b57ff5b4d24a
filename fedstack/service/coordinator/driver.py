"""Does what a scheduler decides: has closures run at sites, and wakes whoever waits for them.

What is sent to a worker together is in `runs.py`, how values are brought home and rebuilt in `fetching.py`, and what is
lost with a worker in `scheduling/losses.py`.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from fedstack.computations.types.language import RetryableError
from fedstack.errors import ClosedError, FedstackError, StaleSessionError, WorkerUnavailableError
from fedstack.executors.concurrency.lazy_task import raised_again
from fedstack.foundations.traceback_filter import consume_exception, without_own_frames
from fedstack.service.coordinator.fetching import Fetching
from fedstack.service.coordinator.runs import Runs
from fedstack.service.coordinator.scheduling.closures import Closure, Place
from fedstack.service.coordinator.scheduling.scheduler import Scheduler
from fedstack.service.coordinator.sites import Held, Site
from fedstack.service.coordinator.time_bounds import within
from fedstack.transport.peers.io_loop import IoLoop, start_apart
from fedstack.transport.wire.connection_errors import never_arrived

_T = TypeVar("_T")


class Workforce(Protocol):
    """Where sites come from.

    Attributes:
      io: The loop on which they run.
    """

    @property
    def io(self) -> IoLoop: ...

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
      workforce: Where sites come from, and on which loop everything runs.

    Attributes:
      fetching: Brings values home.
    """

    def __init__(self, scheduler: Scheduler, workforce: Workforce) -> None:
        self._scheduler = scheduler
        self._workforce = workforce
        self._loop = workforce.io
        self._lock = threading.Lock()
        self._woken = False
        self._dropped: deque[Closure] = deque()
        self._sites: dict[Place, Site] = {}
        self._runs = Runs(scheduler, self._lock, self)
        self.fetching = Fetching(scheduler, self._lock, self._sites, self)
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order, unlike a set
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        workforce.begin(self)

    @property
    def loop(self) -> IoLoop:
        """The loop."""
        return self._loop

    @property
    def waiting(self) -> int:
        """How many closures wait for a place, or for others."""
        return self._scheduler.waiting

    # For callers on any thread.

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work on the loop, for a caller on another thread, whose errors have the user's own frames alone."""
        try:
            return self._loop.run_sync(work)
        except Exception as error:
            raise without_own_frames(error).with_traceback(None) from error.__cause__

    def schedule(self, closure: Closure) -> bool:
        """Schedules a closure, if there is room for it; returns whether there is.

        Raises:
          Exception: What another closure has raised before; where the others go on after errors, only `join` does.
          ClosedError: After `close`.
        """
        with self._lock:
            self._check(self._scheduler.stops_at_errors)
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
            self._check(self._scheduler.stops_at_errors)
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
                closure.on_end[callback] = None
                return
        callback()

    def forget(self, closure: Closure, callback: Callable[[], None]) -> None:
        """Undoes `when_ended`, if the callback has not been called. Safe in finalizers: it takes no lock."""
        closure.on_end.pop(callback, None)

    def drop(self, closure: Closure) -> None:
        """Notes that no caller has a handle to a closure any more. Safe in finalizers: it takes no lock."""
        self._dropped.append(closure)
        self._wake()

    def check_open(self) -> None:
        """Checks that closures can still run.

        Raises:
          ClosedError: After `close`.
        """
        if self._closed:
            raise ClosedError(
                "The coordinator is closed; make a new one, and fetch values before the end of the old one"
            )

    def _check(self, errors: bool = True) -> None:
        self.check_open()
        if errors and self._scheduler.has_errors:
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
            self._loop.call_soon(self.turn)

    # For callers, on the loop.

    async def room(self) -> None:
        """Returns when there is room for another closure, or something went wrong."""
        await self._until(lambda: self._scheduler.has_room or self._scheduler.has_errors or self._closed)

    async def join(self, timeout: float | None = None, what: object = None) -> None:
        """Returns when nothing is left to do.

        Args:
          timeout: How long that may take, in seconds.
          what: What is waited for, for messages.

        Raises:
          Exception: What a closure has raised, once nothing runs any more.
          DeadlineExceededError: If that takes longer.
        """
        await self._until(lambda: self._scheduler.is_idle or self._closed, timeout, what)
        self.check()

    async def ended(self, closure: Closure) -> None:
        """Returns when a closure has ended."""
        if not closure.has_ended:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_ended(closure, lambda: None if future.done() else future.set_result(None))
            await future

    async def payload_of(self, closure: Closure) -> object:
        """Returns the payload of a closure's value; see `Fetching.payload_of`."""
        return await self.fetching.payload_of(closure)

    async def _until(self, condition: Callable[[], bool], timeout: float | None = None, what: object = None) -> None:
        with self._lock:
            if condition():
                return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = condition
        try:
            await within(future, timeout, what)
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
        self.turn()

    def lose(self, site: Site, error: Exception) -> None:
        """A site is gone."""
        if self._sites.pop(site.place, None) is None:
            return
        error = without_own_frames(error)
        with self._lock:
            self._scheduler.lose_place(site.place, error, at_work=_ended_at_work(error))
        site.close()
        if not self._closed:
            self._workforce.replace(site, error)
        self.turn()

    def silent(self, place: Place, is_silent: bool) -> None:
        """Notes that a place does not answer, or does so again."""
        with self._lock:
            self._scheduler.silent(place, is_silent)
        self.turn()

    async def hand_over(self, site: Site) -> None:
        """Brings home what a site has finished, which is about to stop, and then does without it."""
        place = site.place
        with self._lock:
            self._scheduler.drain(place)
        self.turn()
        left: set[Closure] = set()  # what cannot be brought
        try:
            while True:
                with self._lock:
                    closures = [one for one in self._scheduler.held_only_by(place) if one not in left]
                if not closures and not place.running:
                    break
                left.update(closures)
                await self.fetching.bring_from(place, closures)
                count = len(place.values)
                await self._until(lambda count=count: not place.running or len(place.values) != count)
        except RetryableError as error:
            self.lose(site, error)
            return
        self.lose(site, WorkerUnavailableError(f"The worker at {place.name} is stopping; what it had made is here"))

    def holds(self, closure: Closure, place: Place, held: Held) -> None:
        """Notes that a place has got the value of a closure from elsewhere."""
        with self._lock:
            if place not in closure.held:
                self._scheduler.holds(closure, place, held)

    # On the loop, from here on.

    def turn(self, site: Site | None = None) -> Sequence[Closure]:
        """Does what the scheduler has decided after events.

        Args:
          site: Where the caller itself runs what is to run there.

        Returns:
          That.
        """
        own: Sequence[Closure] = ()
        for place, closures in self._decided():
            if site is not None and place is site.place:
                own = closures
            else:
                self._runs.spawn(self._sites[place], closures)
        return own

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts something that ends with this, at the latest."""
        task = start_apart(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(consume_exception)

    def _decided(self) -> list[tuple[Place, list[Closure]]]:
        self._woken = False
        with self._lock:
            while self._dropped:
                closure = self._dropped.popleft()
                self._scheduler.drop(closure)
                self.fetching.drop(closure)
            assignments = self._scheduler.assignments()
            ended = [closure for closure in self._scheduler.take_ended() if closure.has_ended]
            cancelled = self._scheduler.take_cancelled()
            seconds = self._scheduler.seconds_to_assignments()
            woken = [future for future, condition in self._waiting.items() if condition()]
            stranded = bool(self._scheduler.unfinished) and not self._sites
            callbacks = [callback for closure in ended for callback in tuple(closure.on_end)]
            for closure in ended:
                closure.on_end = {}
        for callback in callbacks:
            callback()
        for future in woken:
            if not future.done():
                future.set_result(None)
        if cancelled:
            self._runs.stop(self._sites.values(), cancelled)
        if stranded and self._looking is None and not self._closed:
            self._looking = start_apart(self._look())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.turn)
        return assignments

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
        self.turn()

    async def end(self) -> None:
        """Cancels what is left to do, and ends all sites. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._scheduler.cancel_all()
        self.turn()
        sites = list(self._sites.values())
        self._sites.clear()
        tasks = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.fetching.end()
        if self._timer is not None:
            self._timer.cancel()
        for site in sites:
            site.close()
        self._runs.close()
        await self._workforce.end()

    @property
    def outlook(self) -> str:
        """How many calls wait and run, in words."""
        scheduler = self._scheduler
        workers = f"{len(scheduler.places)} worker{'s' * (len(scheduler.places) != 1)}"
        return f"{workers}: {scheduler.waiting} waiting, {scheduler.running} running, {scheduler.values} values held"

    def __repr__(self) -> str:
        return f"<Driver of {self._scheduler!r}>"


def _ended_at_work(error: Exception) -> bool:
    """Returns whether a worker may have been ended by what it ran: it was there when that began."""
    if isinstance(error, StaleSessionError):
        return False
    return not (isinstance(error, FedstackError) and never_arrived(error))

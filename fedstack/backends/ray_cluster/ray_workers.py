"""Manages the actors of one factory: requests as many as there is room for, and tracks which of them are ready."""

import contextlib
import functools
import itertools
import logging
import math
import threading
from collections.abc import Generator, Mapping, Sequence

import attrs

from fedstack.backends.ray_cluster.ray_actor import Greeting, RayWorker
from fedstack.backends.ray_cluster.ray_api import (
    Handle,
    Ref,
    exceptions,
    ray,
    session,
    start,
    starting,
    wait_until_gone,
)
from fedstack.backends.ray_cluster.ray_room import Room
from fedstack.errors import NoWorkersError
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.deadline import Deadline, growing_pauses
from fedstack.foundations.error_text import counted

_logger = logging.getLogger(__name__)
# Once an actor is ready, how long to wait for the others of the first batch.
_OTHERS_SECONDS = 10.0
# How long a Ray that is shutting down may take to be gone, once actors can no longer be started.
_SHUT_DOWN_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.1
# Objects that a forked child must never release.
_of_parents: list[object] = []


@attrs.define(eq=False)
class RayPlace:
    """A worker.

    Attributes:
      handle: The actor.
      greeting: A reference to its description of itself, which resolves once it is ready.
      is_awaited: Whether phases wait for it: it belongs to the first batch, and there is room for it.
      said: Its description of itself; `None` while it is being started.
    """

    handle: Handle
    greeting: Ref
    is_awaited: bool = False
    said: Greeting | None = None

    def __str__(self) -> str:
        said = self.said
        return f"{said['node']}, process {said['process']} (actor {said['actor'][:8]})" if said else "an actor to come"


class RayWorkers:
    """The actors of one factory.

    Args:
      num_workers: How many actors; "auto" for as many as there is room for when a phase begins, `None` for as many as
        there is room for when the first phase begins.
      max_workers: The most actors if `num_workers` is not a number; `None` for no limit.
      room: Computes how many actors the cluster has room for.
      options: The options of an actor.
      start_seconds: How long to wait for the first actor.
    """

    def __init__(
        self,
        num_workers: int | str | None,
        max_workers: int | None,
        room: Room,
        options: Mapping[str, object],
        start_seconds: float,
    ) -> None:
        self._follows = num_workers == "auto"
        self._num_workers = None if isinstance(num_workers, str) else num_workers
        self._max_workers = math.inf if max_workers is None else max_workers
        self._room = room
        self._options = options
        self._start_seconds = start_seconds
        self._session: object = None
        self._wanted: int | None = None
        self._told_missing = 0
        self._lock = threading.Lock()
        self._places: list[RayPlace] = []
        renew_after_fork(self)

    def renew(self) -> None:
        """See `after_fork`. The actors belong to the parent; Ray does not work in its forked children."""
        self._lock = threading.Lock()
        # Dropping the last handle tells Ray to end the actor; a child would use the parent's connections for that.
        _of_parents.append(self._places)
        self._places = []

    async def ready(self) -> Sequence[RayPlace]:
        """Returns the ready actors; the actors requested first get some time to become ready together.

        Raises:
          NoWorkersError: If none is ready within the time to start, or none can be.
        """
        begun, others = Deadline(self._start_seconds), Deadline()
        await off_loop(self._ask)
        async for _ in Deadline().attempts(growing_pauses(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)):
            places = await off_loop(self._hear)
            ready = [place for place in places if place.said is not None]
            if not ready:
                others = Deadline()
            elif others.left is None:
                others = Deadline(_OTHERS_SECONDS)
            if ready and (others.is_over or not any(place.is_awaited and place.said is None for place in places)):
                missing = len(places) - len(ready)
                if missing != self._told_missing:
                    await off_loop(functools.partial(self._tell_missing, missing))
                return ready
            if not ready and begun.is_over:
                break
        raise await off_loop(self._none_ready)

    def lost(self, place: RayPlace) -> None:
        """Gives an actor no more work until it shows a sign of life."""
        with self._lock:
            if place in self._places and session() is self._session:
                # Ray may be shut down meanwhile.
                with contextlib.suppress(exceptions.RaySystemError), starting.prevented():
                    self._places[self._places.index(place)] = RayPlace(place.handle, place.handle.greet.remote())

    def close(self) -> None:
        """Ends the actors."""
        with self._lock:
            places, self._places = self._places, []
            with contextlib.suppress(Exception):  # Ray may be shut down at the same time
                if session() is self._session:
                    for place in places:
                        ray.kill(place.handle)

    def check(self) -> None:
        """Checks that the actors may still exist: otherwise asking them would start another Ray, in vain.

        Raises:
          NoWorkersError: If Ray has been shut down since they were requested.
        """
        found = session()
        if found is not self._session:
            raise _shut_down(is_final=found is None)

    def check_again(self) -> None:
        """Checks whether a failure was caused by a shutdown of Ray, and if so waits until that is complete.

        Raises:
          NoWorkersError: If Ray is shut down.
        """
        for _ in Deadline(_SHUT_DOWN_SECONDS).attempts_blocking(itertools.repeat(_LONGEST_PAUSE_SECONDS)):
            if session() is not self._session:  # calls fail before the shutdown is complete
                break
        wait_until_gone()
        self.check()

    def _ask(self) -> None:
        """Requests the missing actors; starts Ray, as its own functions do, if it has never been started."""
        with self._lock:
            if not ray.is_initialized():
                if self._session is not None:
                    raise _shut_down(is_final=True)
                start()
            if session() is not self._session:  # Ray has been shut down since, and the actors with it
                self._session = session()
                self._places, self._wanted, self._told_missing = [], self._num_workers, 0
            with self._in_session():
                self._fill()

    def _fill(self) -> None:
        """Requests the missing actors if Ray is running."""
        if not any(place.said for place in self._places):
            self._room.check()
        if len(self._places) == self._wanted and not self._follows:
            return
        room = self._room.workers()
        if self._wanted is None or self._follows:
            self._wanted = int(max(1, min(room, self._max_workers)))
        extra = max(0, len(self._places) - self._wanted)
        for place in [place for place in self._places if place.said is None][:extra]:
            self._places.remove(place)
            ray.kill(place.handle)
        are_first = not self._places
        actor = ray.remote(RayWorker).options(**self._options)
        for index in range(len(self._places), self._wanted):
            try:
                handle = actor.remote()
            except ValueError as error:  # for example about a missing folder
                raise _cannot_start(error) from error
            self._places.append(RayPlace(handle, handle.greet.remote(), are_first and index < room))

    def _hear(self) -> Sequence[RayPlace]:
        """Returns the requested actors, after reading the answers of those that have started.

        Raises:
          NoWorkersError: If the last of them cannot start.
        """
        self.check()
        with self._lock, self._in_session():
            waiting = {place.greeting: place for place in self._places if place.said is None}
            come: list[Ref] = []
            if waiting:
                come, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for greeting in come:
                place = waiting[greeting]
                try:
                    place.said = ray.get(greeting)
                except exceptions.ActorUnavailableError:  # it is being restarted
                    place.greeting = place.handle.greet.remote()
                except exceptions.RayError as error:
                    self._places.remove(place)
                    found = _cannot_start(error)
                    if not self._places:
                        raise found from None
                    _logger.warning("%s", found)
            return list(self._places)

    @contextlib.contextmanager
    def _in_session(self) -> Generator[None, None, None]:
        """Prevents another Ray from starting during the block, and raises a clear error if Ray was shut down."""
        try:
            with starting.prevented():
                yield
        except Exception as error:
            if session() is None or not (isinstance(error, NoWorkersError) and error.is_final):
                self.check_again()
            raise

    def _tell_missing(self, missing: int) -> None:
        """Logs that phases begin without some of the actors, unless it was logged already."""
        if missing > self._told_missing:
            there = len(self._places) - missing
            _logger.warning(
                "Going on with %d of %s; others join when they are there: %s",
                there,
                counted(len(self._places), "Ray worker"),
                self._room.told(there, missing),
            )
        self._told_missing = missing

    def _none_ready(self) -> NoWorkersError:
        lacking = self._room.lacking(len(self._places))
        error = NoWorkersError(f"No Ray worker was there within {self._start_seconds:g} s: {lacking}")
        error.is_final = True
        return error

    def __repr__(self) -> str:
        ready = sum(place.said is not None for place in self._places)
        return f"{counted(len(self._places), 'Ray worker')}, {ready} ready"


def _shut_down(*, is_final: bool) -> NoWorkersError:
    error = NoWorkersError(
        "Ray has been shut down since this context began to use it, and its workers with it; call ray.init(...), and "
        "then the computation again: the context has new workers there"
    )
    error.is_final = is_final
    return error


def _cannot_start(error: Exception) -> NoWorkersError:
    """Returns the error for an actor that Ray cannot start."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    is_final = True
    if isinstance(error, (exceptions.RuntimeEnvSetupError, ValueError)):
        why = f"its runtime_env cannot be built; fix it: {lines[-1].strip()}"
    elif "ModuleNotFoundError" in str(error):
        missing = next(line for line in lines if "ModuleNotFoundError" in line)
        why = f"install at the nodes what is installed here, or name it in runtime_env: {missing.strip()}"
    else:
        why, is_final = str(error).strip(), False  # a busy Ray may lose an actor before it runs
    found = NoWorkersError(f"Ray cannot start a worker: {why}")
    found.is_final = is_final
    return found

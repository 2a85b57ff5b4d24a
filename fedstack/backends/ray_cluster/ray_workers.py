"""Manages the actors of one factory: requests actors from Ray, and tracks which actors are ready."""

import contextlib
import functools
import itertools
import logging
import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence

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
from fedstack.foundations.traceback_filter import without_frames

_logger = logging.getLogger(__name__)
# How long to wait for the other actors of the first batch once one of them is ready.
_OTHERS_SECONDS = 10.0
# How long a shutdown of Ray may take to be noticeable after a call to an actor has failed.
_SHUT_DOWN_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.002, 0.1
# During a phase, actors that have become ready are noticed after this time, and further actors are requested after so
# many times this time.
_WATCH_SECONDS, _TURNS_PER_REQUEST = 1.0, 5
# Objects of the parent process, which a forked child must never release.
_of_parents: list[object] = []


@attrs.define(eq=False)
class RayPlace:
    """A worker: an actor that is ready or being started.

    Attributes:
      handle: The handle of the actor.
      greeting: A reference to the actor's greeting, which resolves once the actor is ready.
      is_awaited: Whether phases wait for the actor, because it belongs to the first batch and the cluster has room.
      said: The actor's greeting; `None` while the actor is being started.
    """

    handle: Handle
    greeting: Ref
    is_awaited: bool = False
    said: Greeting | None = None

    def __str__(self) -> str:
        said = self.said
        return f"{said['node']}, process {said['process']} (actor {said['actor'][:8]})" if said else "a starting actor"


class RayWorkers:
    """The actors of one factory.

    Args:
      num_workers: The number of actors. `None` means as many as the cluster has room for when the first phase starts;
        "auto" adapts this number whenever a phase starts.
      max_workers: The maximum number of actors if `num_workers` is not a number; `None` for no limit.
      room: Computes how many actors the cluster has room for.
      options: The Ray options of an actor.
      start_seconds: How long to wait for the first actor, in seconds.
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
        self._failure: Exception | None = None  # why the last actor could not be started, until others are requested
        renew_after_fork(self)

    def renew(self) -> None:
        """See `after_fork`. The actors belong to the parent process, and Ray does not work in a forked child."""
        self._lock = threading.Lock()
        # Keep the handles: Ray ends an actor when its last handle is dropped, over the connections of the parent.
        _of_parents.append(self._places)
        self._places = []

    async def ready(self) -> Sequence[RayPlace]:
        """Returns the ready actors. Waits for the first actor, and then for a short time for others of the first batch.

        Raises:
          NoWorkersError: If no actor is ready within `start_seconds`, or if no actor can be started.
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

    async def watch(self, changed: Callable[[], None]) -> None:
        """Calls a function whenever an actor has become ready, until the caller is cancelled.

        If the number of actors follows the cluster, further actors are requested for nodes that have joined.
        """
        known = self._ready
        async for turn in Deadline().attempts(itertools.repeat(_WATCH_SECONDS)):
            try:
                if self._follows and turn % _TURNS_PER_REQUEST == _TURNS_PER_REQUEST - 1:
                    await off_loop(self._ask)
                if any(place.said is None for place in self._places):
                    await off_loop(self._hear)
            except NoWorkersError as error:  # the phase finds out by itself
                _logger.debug("Stopped looking for further Ray workers: %s", error)
                return
            if self._ready - known:
                changed()
            known = self._ready

    @property
    def _ready(self) -> set[Ref]:
        """The greetings of the actors that are ready."""
        return {place.greeting for place in self._places if place.said is not None}

    def lost(self, place: RayPlace) -> None:
        """Marks an actor as lost. The actor receives no tasks until it has answered a new greeting."""
        with self._lock:
            if place in self._places and session() is self._session:
                # Ray may be shut down at the same time.
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
        """Checks that Ray is still running in the session in which the actors were requested.

        Raises:
          NoWorkersError: If Ray has been shut down since.
        """
        found = session()
        if found is not self._session:
            raise _shut_down(is_final=found is None)

    def check_again(self) -> None:
        """Checks whether a shutdown of Ray has caused a failure. If so, waits until the shutdown is complete.

        Raises:
          NoWorkersError: If Ray is shut down.
        """
        for _ in Deadline(_SHUT_DOWN_SECONDS).attempts_blocking(itertools.repeat(_LONGEST_PAUSE_SECONDS)):
            if session() is not self._session:  # calls may fail before a shutdown is noticeable
                break
        wait_until_gone()
        self.check()

    def _ask(self) -> None:
        """Requests the missing actors from Ray. Starts Ray if this object has never used it."""
        with self._lock:
            if not ray.is_initialized():
                if self._session is not None:
                    raise _shut_down(is_final=True)
                start()
            if session() is not self._session:  # Ray was restarted, so the previous actors are gone
                self._session = session()
                self._places, self._wanted, self._told_missing = [], self._num_workers, 0
            with self._in_session():
                self._fill()

    def _fill(self) -> None:
        """Requests the missing actors, and ends starting actors for which the cluster has no room anymore."""
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
            except ValueError as error:  # for example, because a folder of the runtime_env is missing
                raise _cannot_start(error) from error
            self._places.append(RayPlace(handle, handle.greet.remote(), are_first and index < room))
            self._failure = None

    def _hear(self) -> Sequence[RayPlace]:
        """Receives the greetings of actors that have started, and returns all requested actors.

        Raises:
          NoWorkersError: If no requested actor can be started.
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
                except exceptions.ActorUnavailableError:  # the actor is being restarted
                    place.greeting = place.handle.greet.remote()
                except exceptions.RayError as error:
                    self._places.remove(place)
                    self._failure = without_frames(error)
                    if self._places:
                        _logger.warning("%s", _cannot_start(error))
            if not self._places and self._failure is not None:  # for all callers: several may wait at the same time
                raise _cannot_start(self._failure)
            return list(self._places)

    @contextlib.contextmanager
    def _in_session(self) -> Generator[None, None, None]:
        """Prevents automatic starts of Ray during a block, and raises `NoWorkersError` if Ray was shut down."""
        try:
            with starting.prevented():
                yield
        except Exception as error:
            if session() is None or not (isinstance(error, NoWorkersError) and error.is_final):
                self.check_again()
            raise

    def _tell_missing(self, missing: int) -> None:
        """Logs a warning that phases run without some of the actors, if more actors are missing than before."""
        if missing > self._told_missing:
            there = len(self._places) - missing
            _logger.warning(
                "Continuing with %d of %s; the other workers join when they are ready: %s",
                there,
                counted(len(self._places), "Ray worker"),
                self._room.told(there, missing),
            )
        self._told_missing = missing

    def _none_ready(self) -> NoWorkersError:
        lacking = self._room.lacking(len(self._places))
        error = NoWorkersError(f"No Ray worker was ready within {self._start_seconds:g} s: {lacking}")
        error.is_final = True
        return error

    def __repr__(self) -> str:
        ready = sum(place.said is not None for place in self._places)
        return f"{counted(len(self._places), 'Ray worker')}, {ready} ready"


def _shut_down(*, is_final: bool) -> NoWorkersError:
    error = NoWorkersError(
        "Ray has been shut down together with the workers of this context; call ray.init(...), then call the "
        "computation again to start new workers"
    )
    error.is_final = is_final
    return error


def _cannot_start(error: Exception) -> NoWorkersError:
    """Returns the error for an actor that Ray cannot start."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    is_final = True
    if isinstance(error, (exceptions.RuntimeEnvSetupError, ValueError)):
        why = f"setting up its runtime_env failed; fix the runtime_env: {lines[-1].strip()}"
    elif "ModuleNotFoundError" in str(error):
        missing = next(line for line in lines if "ModuleNotFoundError" in line)
        why = f"a module is missing; install it on the nodes, or add it to runtime_env: {missing.strip()}"
    else:
        why, is_final = str(error).strip(), False  # a busy cluster may lose an actor before the actor runs
    found = NoWorkersError(f"Ray cannot start a worker: {why}")
    found.is_final = is_final
    return found

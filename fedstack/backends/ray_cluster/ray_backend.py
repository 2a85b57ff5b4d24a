"""Runs tasks in Ray actors. Data that all tasks of a phase share is put into Ray's object store once."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar, cast

from fedstack.backends.backend import Backend
from fedstack.backends.ray_cluster.ray_api import LOSSES, Ref, exceptions, ray, session, starting
from fedstack.backends.ray_cluster.ray_workers import RayPlace, RayWorkers
from fedstack.backends.task_phases import Task
from fedstack.data.object_refs import RayObject
from fedstack.data.ray_tables import RayRows
from fedstack.errors import FedstackError, RemoteError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.concurrency.leaf_threads import CORES, LOOP_COPY_BYTES, LeafThreads, off_loop, sized
from fedstack.foundations.segments import Memory
from fedstack.transport.peers.io_loop import arrival
from fedstack.transport.wire.frames import Heartbeat

_T = TypeVar("_T")
# The interval between queries of a worker's progress, and the maximum number of workers queried per second.
_ASKED_SECONDS, _ASKED_EACH_SECOND = 0.5, 100


class RayBackend(Backend):
    """A backend whose workers are Ray actors.

    Args:
      workers: The actors. The backend ends them when it is closed.
      cores: The maximum number of cores on which an actor computes.
    """

    reads = (RayObject, RayRows)
    keeps_content = True

    def __init__(self, workers: RayWorkers, cores: int) -> None:
        self.cores = cores
        self._workers = workers
        self._numbers = itertools.count()
        self._running = 0
        # Few threads copy large data into the object store, so that the first workers can start before all is copied.
        self._threads = LeafThreads(max(1, CORES // 2), idle_seconds=1.0, work_ends=True)

    async def places(self) -> Sequence[RayPlace]:
        return await self._workers.ready()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        watching = asyncio.ensure_future(self._workers.watch(changed))

        def unwatch() -> None:
            watching.cancel()

        return unwatch

    async def share(self, memory: list[Memory]) -> Ref:
        async with self._in_session():
            return await self._sized(_bytes_of(memory), lambda: ray.put(memory))

    async def run(self, place: RayPlace, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        number, cancelled = next(self._numbers), threading.Event()
        notes: list[Ref] = []

        def call() -> tuple[Ref, Ref]:
            # Before this call returns, Ray copies large arguments into its object store.
            note, content = place.handle.run.remote(number, task.coroutine, *task.arguments)
            notes.append(note)
            if cancelled.is_set():
                _cancel(notes)
            return note, content

        def cancel() -> None:
            cancelled.set()
            _cancel(notes)  # if the call has already returned

        async with self._in_session():
            self._running += 1
            try:
                note, content = await self._sized(sum(map(_bytes_of, task.arguments)), call, cancel)
                return await self._noted(place, number, note, heard), content
            except exceptions.RayError as error:
                raise self._error(place, error) from error
            finally:
                self._running -= 1

    async def _noted(self, place: RayPlace, number: int, note: Ref, heard: Callable[[Heartbeat], None]) -> object:
        """Waits for a task while polling its progress, and returns the task's note."""
        arriving = note.future()
        try:
            while not await arrival(arriving, max(_ASKED_SECONDS, self._running / _ASKED_EACH_SECOND)):
                self._workers.check()
                beat = place.handle.heard.remote(number).future()
                while not (await arrival(beat, _ASKED_SECONDS) or arriving.done()):
                    self._workers.check()  # if Ray was shut down, no answer will ever arrive
                if beat.done():
                    with contextlib.suppress(exceptions.RayError):  # the task itself reports the error
                        heard(beat.result())
        except asyncio.CancelledError:
            _cancel([note])
            raise
        return arriving.result()

    async def fetch(self, content: Ref) -> object:
        """Returns a copy of the content, so that values that a user keeps do not keep memory of the object store."""
        async with self._in_session():
            try:
                header, memory = await self._got(content)
            except exceptions.RayError as error:
                raise self._error(None, error) from error
            return header, await sized(_bytes_of(memory), lambda: [one.copy() for one in memory], LOOP_COPY_BYTES)

    async def _got(self, content: Ref) -> tuple[bytes, list[Memory]]:
        with contextlib.suppress(exceptions.GetTimeoutError):  # the content is on another node
            return ray.get(content, timeout=0)
        arriving = content.future()
        while not await arrival(arriving, _ASKED_SECONDS):
            self._workers.check()  # if Ray was shut down, no answer will ever arrive
        return arriving.result()

    async def _sized(self, size: int, work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
        """Runs work that copies `size` bytes into the object store. Calls `cancel` if the caller stops waiting."""
        return work() if size <= LOOP_COPY_BYTES else await self._threads.run(work, cancel)

    @contextlib.asynccontextmanager
    async def _in_session(self) -> AsyncGenerator[None, None]:
        """Prevents automatic starts of Ray during a block, and raises `NoWorkersError` if Ray was shut down."""
        with starting.prevented():
            try:
                self._workers.check()
                yield
            except Exception as error:
                if session() is None or not isinstance(error, (ResourceLimitError, WorkerUnavailableError)):
                    await off_loop(self._workers.check_again)
                raise

    def _error(self, place: RayPlace | None, error: Exception) -> FedstackError:
        """Translates an error of Ray into an error of fedstack.

        Args:
          place: The worker that was running a task; `None` if an answer was being fetched.
          error: The error of Ray.
        """
        if isinstance(error, LOSSES):
            if place is not None:
                self._workers.lost(place)
            found = WorkerUnavailableError(f"The Ray worker{_at(place)} was lost: {_reason(error)}")
            found.causes = {} if place is None else {str(place): _reason(error)}
            return found
        if isinstance(error, exceptions.ObjectStoreFullError):
            return ResourceLimitError(
                f"Ray's object store is full; increase its size with ray.init(object_store_memory=...): {error}"
            )
        return RemoteError(f"The Ray worker{_at(place)} failed: {error}")

    def close(self) -> None:
        self._workers.close()
        self._threads.close()

    def __repr__(self) -> str:
        return f"<RayBackend of {self._workers!r}>"


def _bytes_of(argument: object) -> int:
    """Returns the number of bytes in an argument that is a list of arrays; 0 for any other argument."""
    return sum(getattr(one, "nbytes", 0) for one in cast("list[object]", argument)) if isinstance(argument, list) else 0


def _cancel(notes: Sequence[Ref]) -> None:
    with contextlib.suppress(Exception):  # Ray may have been shut down
        for note in notes:
            ray.cancel(note)


def _at(place: RayPlace | None) -> str:
    return "" if place is None else f" at {place}"


def _reason(error: Exception) -> str:
    """Returns a short description of why a worker was lost."""
    said = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "memory pressure" in said or "running low on memory" in said:
        return (
            "its node ran out of memory; run fewer workers on each node by setting resources_per_worker={'memory': ...}"
        )
    if isinstance(error, exceptions.ObjectLostError):
        return "an object that it uses is gone from Ray's object store, because the object's node or owner has ended"
    if isinstance(error, exceptions.RayActorError):
        return "its process or its node has ended (a crash, os._exit, or lack of memory)"
    return f"{type(error).__name__}: {said.splitlines()[0] if said else ''}"

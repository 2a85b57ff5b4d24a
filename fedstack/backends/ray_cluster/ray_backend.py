"""Runs tasks in actors of Ray. What all tasks of a phase have is put into its object store once, and read there."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.backends.backend import Backend, Task
from fedstack.backends.ray_cluster.ray_api import LOSSES, Ref, exceptions, ray, starting
from fedstack.backends.ray_cluster.ray_workers import RayPlace, RayWorkers
from fedstack.data.object_refs import RayObject
from fedstack.data.ray_tables import RayRows
from fedstack.errors import FedstackError, RemoteError, ResourceLimitError, WorkerUnavailableError
from fedstack.executors.concurrency.off_loop import LOOP_COPY_BYTES, sized
from fedstack.transport.peers.loop_calls import arrival
from fedstack.transport.wire.frames import Heartbeat

# How often a worker is asked how far it is, and how many are asked in a second at most.
_ASKED_SECONDS, _ASKED_EACH_SECOND = 0.5, 100
# Ray puts larger arguments into its object store itself.
_IN_STORE_BYTES = 100 << 10


class RayBackend(Backend):
    """Actors of Ray, of which each runs what it is sent.

    Args:
      workers: The actors. They are ended with this.
    """

    reads = (RayObject, RayRows)
    keeps_content = True

    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self._numbers = itertools.count()
        self._running = 0

    async def places(self) -> Sequence[RayPlace]:
        return await self._workers.ready()

    async def share(self, arrays: list[NDArray[Any]]) -> Ref:
        self._workers.check()
        size = sum(array.nbytes for array in arrays)
        return await sized(size, lambda: ray.put(arrays), LOOP_COPY_BYTES)

    async def run(self, place: RayPlace, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        arguments = [await self._argument(argument) for argument in task.arguments]
        self._workers.check()
        number = next(self._numbers)
        call = place.handle.run.options(num_returns=2)
        note, content = call.remote(number, task.coroutine, *arguments)
        self._running += 1
        try:
            return await self._noted(place, number, note, heard), content
        except asyncio.CancelledError:
            with contextlib.suppress(Exception), starting.prevented():  # it may have been shut down
                ray.cancel(note)
            raise
        except exceptions.RayError as error:
            raise self._error(place, error) from error
        finally:
            self._running -= 1

    async def _argument(self, argument: object) -> object:
        """Returns an argument, in the store if it is large: Ray would put it there too, and block the loop."""
        return await self.share(cast(Any, argument)) if _is_large(argument) else argument

    async def _noted(self, place: RayPlace, number: int, note: Ref, heard: Callable[[Heartbeat], None]) -> object:
        """Returns what a task says of its content; asks now and then how far it is."""
        arriving = note.future()
        while not await arrival(arriving, max(_ASKED_SECONDS, self._running / _ASKED_EACH_SECOND)):
            self._workers.check()
            with starting.prevented():
                beat = place.handle.heard.remote(number).future()
            while not (await arrival(beat, _ASKED_SECONDS) or arriving.done()):
                self._workers.check()  # what has been shut down never answers
            if beat.done():
                with contextlib.suppress(exceptions.RayError):  # the task tells what it is
                    heard(beat.result())
        return arriving.result()

    async def fetch(self, content: Ref) -> object:
        """Returns content in memory of its own: what a user keeps of it must not keep it in the object store."""
        self._workers.check()
        arriving = content.future()
        while not await arrival(arriving, _ASKED_SECONDS):
            self._workers.check()  # what has been shut down never answers
        try:
            header, arrays = cast("tuple[bytes, list[NDArray[Any]]]", arriving.result())
        except exceptions.RayError as error:
            raise self._error(None, error) from error
        size = sum(array.nbytes for array in arrays)
        return header, await sized(size, lambda: [array.copy() for array in arrays], LOOP_COPY_BYTES)

    def _error(self, place: RayPlace | None, error: Exception) -> FedstackError:
        """Returns our error for one of Ray's, at a worker or after its answer."""
        if isinstance(error, LOSSES):
            if place is not None:
                self._workers.lost(place)
            found = WorkerUnavailableError(f"The Ray worker{_at(place)} was lost: {_reason(error)}")
            found.causes = {} if place is None else {str(place): _reason(error)}
            return found
        if isinstance(error, exceptions.ObjectStoreFullError):
            return ResourceLimitError(
                f"Ray's object store is full; give it more, by ray.init(object_store_memory=...): {error}"
            )
        return RemoteError(f"The Ray worker{_at(place)} failed: {error}")

    def close(self) -> None:
        self._workers.close()

    def __repr__(self) -> str:
        return f"<RayBackend of {self._workers!r}>"


def _is_large(argument: Any) -> bool:
    """Returns whether an argument is arrays which Ray does not send with the call."""
    if not isinstance(argument, list) or not all(isinstance(each, np.ndarray) for each in cast(Any, argument)):
        return False
    return sum(array.nbytes for array in cast("list[NDArray[Any]]", argument)) > _IN_STORE_BYTES


def _at(place: RayPlace | None) -> str:
    return "" if place is None else f" at {place}"


def _reason(error: Exception) -> str:
    """Says in a few words what has happened to a worker."""
    said = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "memory pressure" in said or "running low on memory" in said:
        return "its node had too little memory; start fewer workers there, with resources_per_worker={'memory': ...}"
    if isinstance(error, exceptions.ObjectLostError):
        return "an object that it works on is gone from Ray's object store, with its node or its owner"
    if isinstance(error, exceptions.RayActorError):
        return "its process or its node has ended (a crash, os._exit, too much memory)"
    return f"{type(error).__name__}: {said.splitlines()[0] if said else ''}"

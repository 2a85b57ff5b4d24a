"""Defines the Ray actor that runs phases and reports their progress.

The actor is asynchronous, so that a phase can be cancelled. Ray cannot interrupt a synchronous method.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypedDict

from fedstack.backends.ray_cluster.ray_api import ray
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.transport.wire.frames import Heartbeat


class Greeting(TypedDict):
    """The location of an actor, as plain data.

    Attributes:
      node: The address of the actor's node.
      actor: Ray's id of the actor.
      process: The id of the actor's process.
    """

    node: str
    actor: str
    process: int


class RayWorker:
    """A worker in its own process, which keeps a stack and the functions that it has loaded (`worker_side.py`)."""

    def __init__(self) -> None:
        self._counts: dict[int, ProgressCounts] = {}

    async def greet(self) -> Greeting:
        """Returns the location of this actor."""
        actor = ray.get_runtime_context().get_actor_id()
        return Greeting(node=ray.util.get_node_ip_address(), actor=actor, process=os.getpid())

    @ray.method(num_returns=2)  # pyright: ignore[reportUntypedFunctionDecorator]
    async def run(self, number: int, task: Callable[..., Awaitable[object]], *arguments: object) -> object:
        """Runs a task.

        Args:
          number: The number under which `heard` finds the task.
          task: The coroutine function of the task.
          *arguments: The arguments of the task. Ray has replaced references to its object store by their objects.
        """
        counts = self._counts[number] = ProgressCounts()
        try:
            return await task(*arguments, progress=counts)
        finally:
            del self._counts[number]

    async def heard(self, number: int) -> Heartbeat:
        """Returns the progress of the task that `number` identifies."""
        counts = self._counts.get(number) or ProgressCounts()
        return Heartbeat(counts.done, counts.running, counts.failures, tuple(counts.work()))

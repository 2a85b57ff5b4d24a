"""Defines the Ray actor that runs phases and answers questions about them while they run.

The actor is asynchronous, so that a phase can be cancelled; Ray cannot interrupt a synchronous method.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypedDict

from fedstack.backends.ray_cluster.ray_api import ray
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.transport.wire.frames import Heartbeat


class Greeting(TypedDict):
    """An actor's description of itself, in plain data.

    Attributes:
      node: The address of its node.
      actor: Ray's name of the actor.
      process: The id of its process.
    """

    node: str
    actor: str
    process: int


class RayWorker:
    """A worker in its own process, with a stack and the functions that it has loaded (`worker_side.py`)."""

    def __init__(self) -> None:
        self._counts: dict[int, ProgressCounts] = {}

    async def greet(self) -> Greeting:
        """Returns where this actor runs."""
        actor = ray.get_runtime_context().get_actor_id()
        return Greeting(node=ray.util.get_node_ip_address(), actor=actor, process=os.getpid())

    @ray.method(num_returns=2)  # pyright: ignore[reportUntypedFunctionDecorator]
    async def run(self, number: int, task: Callable[..., Awaitable[object]], *arguments: object) -> object:
        """Runs a task.

        Args:
          number: The number that identifies the task for `heard`.
          task: Its coroutine function.
          *arguments: Its arguments. Ray has resolved references to its object store.
        """
        counts = self._counts[number] = ProgressCounts()
        try:
            return await task(*arguments, progress=counts)
        finally:
            del self._counts[number]

    async def heard(self, number: int) -> Heartbeat:
        """Returns the progress of a phase."""
        counts = self._counts.get(number) or ProgressCounts()
        return Heartbeat(counts.done, counts.running, counts.failures, tuple(counts.work()))

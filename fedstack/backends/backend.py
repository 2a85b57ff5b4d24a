"""Defines what an engine must give to run clients: workers that call a function.

The engine places, starts, supervises and scales workers, and moves bytes. What runs there, and what comes back, is
fedstack's.
"""

import abc
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

import attrs

from fedstack.computations.values.deferred_column import Elsewhere
from fedstack.foundations.segments import Memory
from fedstack.transport.wire.frames import Heartbeat


@attrs.frozen
class Task:
    """A call for a worker to make. Function and arguments can be pickled, and so can what it returns.

    Attributes:
      function: A function at the top of a module of fedstack.
      arguments: Its arguments. What `Backend.share` returned is among them as it is: an engine that puts things into
        a store of its own has the worker find there what it has put.
      coroutine: The same as a coroutine function, for workers that have an event loop: they can be told to cancel it.
        It takes `progress` besides, which counts its clients.
    """

    function: Callable[..., object]
    arguments: tuple[object, ...]
    coroutine: Callable[..., Coroutine[Any, Any, object]]


class Backend(abc.ABC):
    """An engine that runs tasks at workers. Its methods are called on event loops, perhaps on several at a time.

    Attributes:
      reads: What stands for values of clients that its workers read themselves; others are read here, and sent.
      keeps_content: Whether the second half of what `run` returns stands for what is still elsewhere. Tasks can have it
        among their arguments, as what `share` returned, so that workers merge what others have contributed.
      cores: On how many cores a worker computes at the same time at most; `None` for all of its machine.
    """

    reads: Sequence[type[Elsewhere]] = ()
    keeps_content: bool = False
    cores: int | None = None

    @abc.abstractmethod
    async def places(self) -> Sequence[Hashable]:
        """Returns the workers that there are now, one at least; the text of each names it in messages.

        Raises:
          NoWorkersError: If there are none; it says what is missing, and after how long.
        """

    @abc.abstractmethod
    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        """Runs a task and returns the pair that its function returned. Where this is cancelled, so is the task.

        Args:
          place: One of the workers.
          task: The task.
          heard: May be called with how far the task is.

        Raises:
          WorkerUnavailableError: If the worker is lost. The task is run again, at those left.
        """

    async def share(self, memory: list[Memory]) -> object:
        """Returns what stands for arrays that all workers get, in the arguments of their tasks.

        It is called once for all tasks of a phase; by default the arrays travel with each.

        Args:
          memory: The arrays, and rows of arrays: `nbytes` of each says how large it is, and each can be pickled.
        """
        return memory

    async def fetch(self, content: Any) -> object:
        """Returns the second half of what a function returned, of what `run` gave for it."""
        return content

    def close(self) -> None:  # noqa: B027
        """Ends what this has begun, and nothing that is the user's. Idempotent; never raises."""

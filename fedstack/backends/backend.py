"""Defines backends, which run the clients of phases elsewhere: their workers, and how a worker runs some clients.

Whatever supervises the workers, the engine above (`backend_executor.py`) works in the same way: when a phase begins, it
asks for the current workers, divides the clients among them, and merges their contributions along the fixed tree. So a
backend never affects a result, and its workers may come, go and be lost between phases.
"""

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs

from fedstack.backends import worker_side
from fedstack.backends.ending_clients import find_ending
from fedstack.backends.task_phases import MergedTasks, PhaseAtClients, SharedValues, Task, TaskPhases
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.values.deferred_column import Elsewhere
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.composing_executor import in_levels
from fedstack.foundations.segments import Memory
from fedstack.membership.ledger import Suspects
from fedstack.transport.wire.frames import Heartbeat


@attrs.frozen(eq=False)
class Caller:
    """The caller that has a backend run phases, and its settings.

    Attributes:
      server: Runs the work that folds need in this process.
      max_fanout: The most partial results that are merged in one place.
      max_concurrent_clients: The most functions that a worker runs at the same time; `None` for its default.
    """

    server: ProgramEngine
    max_fanout: int
    max_concurrent_clients: int | None = None


class Backend(abc.ABC):
    """Workers that run clients. Its methods are called on event loops, possibly on several at a time.

    Each backend defines its workers, and in one of two ways how a worker runs some clients. An engine whose workers
    call functions implements `run`, and `share` and `fetch` if it has a store of its own: a phase is then one task
    for each worker (`task_phases.py`). A backend whose workers accept whole phases overrides `runners` and `search`
    instead. In both cases, work that is no longer wanted is cancelled like any coroutine.

    Attributes:
      reads: The types of references to client values that its workers read themselves; others are read here, and sent.
      keeps_content: Whether the second half of the pair from `run` refers to content that is still elsewhere. Tasks can
        take it as an argument, like the result of `share`, so that workers merge the contributions of others.
      cores: The most cores that a worker computes on at the same time; `None` for all cores of its machine.
      searches_apart: Whether a `search` leaves workers alive, so that clients that are not suspected run meanwhile. A
        search by tasks ends workers, and with them everything that runs there.
    """

    reads: Sequence[type[Elsewhere]] = ()
    keeps_content: bool = False
    cores: int | None = None
    searches_apart: bool = False

    @abc.abstractmethod
    async def places(self) -> Sequence[Hashable]:
        """Returns the current workers, at least one; `str` of each names it in messages.

        Raises:
          NoWorkersError: If there are none; the message says what is missing, and after how long.
        """

    async def with_room(self, places: Sequence[Any], most: int) -> Sequence[Hashable]:
        """Returns the workers that take part in a phase: by default the first workers.

        Args:
          places: The result of `places`.
          most: The number of workers that have work to do.

        Raises:
          ResourceLimitError: If none has room for it.
        """
        return places[:most]

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls a function when a worker joins, drains, leaves or is lost; `places` then returns the current workers.

        The default is for a backend that does not notice such changes by itself: it never calls the function.

        Args:
          changed: Called on any thread; it must not block.

        Returns:
          A function that stops the notifications.
        """
        return lambda: None

    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        """Runs a task and returns the pair that its function returned. Cancelling this cancels the task.

        Args:
          place: One of the workers.
          task: The task.
          heard: May be called with the task's progress.

        Raises:
          WorkerUnavailableError: If the worker is lost. The task runs again, at the remaining workers.
        """
        raise NotImplementedError(f"{type(self).__name__} has to override run, or runners and search")

    async def share(self, memory: list[Memory]) -> object:
        """Returns an object that replaces arrays that all workers receive, in the arguments of their tasks.

        It is called once for all tasks of a phase; by default the arrays are sent with each task.

        Args:
          memory: The arrays, and rows of arrays; each has its size in bytes as `nbytes`, and can be pickled.
        """
        return memory

    async def fetch(self, content: Any) -> object:
        """Returns the second half of the pair that a function returned, given what `run` returned for it."""
        return content

    def runners(
        self, phase: Phase, places: Sequence[Any], counts: Sequence[int], caller: Caller
    ) -> tuple[Sequence[PhaseRunner], Sequence[int]]:
        """Returns the runners of one phase for consecutive ranges of the clients, and the number of clients of each.

        Args:
          phase: The phase.
          places: The workers that take part, in the order of their clients.
          counts: How many clients each of them has.
          caller: The caller.
        """
        shared, settings = SharedValues(), worker_side.settings_of_sender(caller.max_concurrent_clients, self.cores)
        runners = [TaskPhases(self, place, shared, settings) for place in places]
        if self.keeps_content and not phase.held:  # merging does not make held content smaller
            return in_levels(runners, counts, caller.max_fanout, MergedTasks)
        return runners, counts

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        """Searches for clients that end their worker, where that costs least; returns whether it could search.

        By default, tasks of fewer and fewer clients end a few more workers, which the engine restarts.

        Args:
          part: The phase, with the clients to run it for.
          suspects: The clients among them that were lost with two workers.
          caller: The caller.

        Raises:
          LeafError: If there is such a client; it is the user's error, and is not retried.
          WorkerUnavailableError: If the searching worker is lost.
        """
        settings = worker_side.settings_of_sender(caller.max_concurrent_clients, self.cores)

        async def run(clients: range) -> None:
            place = (await self.places())[0]
            await TaskPhases(self, place, SharedValues(), settings).kept(part.at(clients))

        with current_scope().replace(progress=None, losses=None).entered():  # the attempt counts them
            for some in suspects:
                await find_ending(run, part.phase, some)
        return True

    def close(self) -> None:  # noqa: B027
        """Ends everything that this backend started, and nothing that belongs to the user. Idempotent; never raises."""

    @property
    def label(self) -> str:
        """A human-readable description of where clients run, to follow a comma."""
        return f"over {self!r}"

"""Defines the interface of backends, which run the clients of phases on workers.

The engine above (`backend_executor.py`) works in the same way for every backend: when a phase begins, it requests the
current workers, divides the clients among them, and merges their contributions along the fixed tree. A backend
therefore never affects a result, and workers may join, leave or be lost between phases.
"""

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs

from fedstack.backends import worker_side
from fedstack.backends.ending_clients import find_ending
from fedstack.backends.task_phases import MergedTasks, PhaseAtClients, Task, TaskPhases
from fedstack.computations.leaves.portability import Fleet
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
    """The settings of the engine that runs phases on a backend.

    Attributes:
      server: The engine that runs the server work of folds in this process.
      max_fanout: The maximum number of partial results that are merged in one step.
      max_concurrent_clients: The maximum number of functions that a worker runs at the same time; `None` for the
        default of the worker.
      fleet: What the caller expects of the workers.
    """

    server: ProgramEngine
    max_fanout: int
    max_concurrent_clients: int | None = None
    fleet: Fleet = attrs.field(factory=lambda: Fleet(mixed=False))


class Backend(abc.ABC):
    """A set of workers that run clients. Several event loops may call the methods at the same time.

    A subclass defines its workers, and one of two ways to run clients on a worker. A backend whose workers call
    functions implements `run`, and also `share` and `fetch` if it has an object store. Each phase is then one task per
    worker (`task_phases.py`). A backend whose workers accept whole phases overrides `runners` and `search` instead. In
    both cases, unwanted work is cancelled like any coroutine.

    Attributes:
      reads: The types of references to client values that the workers can read. References of other types are read
        in this process, and their values are sent to the workers.
      keeps_content: Whether the second item of the pair from `run` is a reference to remote content. Tasks accept the
        reference as an argument, like the result of `share`, so that workers can merge contributions of other workers.
      task_seconds: The approximate time that a task costs in addition to the time of its clients, in seconds.
      cores: The maximum number of cores that a worker uses at the same time; `None` for all cores of its machine.
      stops_clients: Whether a worker whose clients are no longer wanted stops before its next client. Only then may
        clients run on two workers at the same time.
      searches_apart: Whether a `search` keeps the workers alive, so that clients that are not suspected can run at the
        same time. A search by tasks ends workers together with all their running work.
    """

    reads: Sequence[type[Elsewhere]] = ()
    keeps_content: bool = False
    task_seconds: float = 0.002
    cores: int | None = None
    stops_clients: bool = False
    searches_apart: bool = False

    @abc.abstractmethod
    async def places(self) -> Sequence[Hashable]:
        """Returns the current workers, of which there is at least one. Messages refer to a worker by its `str`.

        Raises:
          NoWorkersError: If no worker is available. The message states the cause and the time waited.
        """

    async def with_room(self, places: Sequence[Any], most: int) -> Sequence[Hashable]:
        """Returns the workers that take part in a phase. By default, these are the first `most` workers.

        Args:
          places: The result of `places`.
          most: The maximum number of workers that the phase can use.

        Raises:
          ResourceLimitError: If no worker has room for the phase.
        """
        return places[:most]

    def kept_at(self, place: Any, inputs: Sequence[object]) -> Sequence[range]:
        """Returns the clients of a phase whose inputs a worker already has from an earlier phase.

        Args:
          place: One of the workers.
          inputs: A column of all clients for each input of the phase.
        """
        return ()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Subscribes to changes: the function is called when a worker joins, drains, leaves or is lost.

        At the time of the call, `places` returns the new list of workers. The default implementation, for backends
        that do not detect changes by themselves, never calls the function.

        Args:
          changed: The function to call. It may be called on any thread, and must not block.

        Returns:
          A function that stops the notifications.
        """
        return lambda: None

    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        """Runs a task and returns the pair that its function returned. Cancelling this cancels the task.

        Args:
          place: One of the workers.
          task: The task.
          heard: A function that the backend may call with the progress of the task.

        Raises:
          WorkerUnavailableError: If the worker is lost. The task then runs again on the remaining workers.
        """
        raise NotImplementedError(
            f"Expected {type(self).__name__} to define how workers run clients; override run, or runners and search"
        )

    async def share(self, memory: list[Memory]) -> object:
        """Stores arrays that all workers receive, and returns the object that replaces the arrays in task arguments.

        This method is called once for all tasks of a phase. By default, the arrays are sent with each task.

        Args:
          memory: The arrays, and rows of arrays. Each can be pickled and has its size in bytes as `nbytes`.
        """
        return memory

    async def fetch(self, content: Any) -> object:
        """Returns the second item of the pair that a function returned, given the item that `run` returned instead."""
        return content

    def runners(
        self, phase: Phase, places: Sequence[Any], counts: Sequence[int], caller: Caller
    ) -> tuple[Sequence[PhaseRunner], Sequence[int]]:
        """Returns the runners of one phase for consecutive ranges of the clients, and the number of clients of each.

        Args:
          phase: The phase.
          places: The workers that take part, in the order of their clients.
          counts: The number of clients of each worker.
          caller: The settings of the caller.
        """
        settings = worker_side.settings_of_sender(caller.max_concurrent_clients, self.cores)
        runners = [TaskPhases(self, place, settings) for place in places]
        if self.keeps_content and not phase.held:  # merging does not reduce the size of held content
            return in_levels(runners, counts, caller.max_fanout, MergedTasks)
        return runners, counts

    @property
    def loses_workers(self) -> bool:
        """Whether nobody restarts workers that end, so that clients could end all of them; by default false."""
        return False

    def guarding(self) -> int:
        """Returns the number of workers that are ready and can run clients in child processes; by default 0.

        Workers that are restarted when they end do not count, since they need no protection.
        """
        return 0

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        """Searches for clients that end their worker, and returns whether the backend was able to search.

        By default, the search runs tasks with fewer and fewer clients. It ends a few more workers, which the backend
        restarts.

        Args:
          part: The phase, with the clients to run it for.
          suspects: The clients of the phase that were assigned to at least two lost workers.
          caller: The settings of the caller.

        Raises:
          LeafError: If the search finds such a client. The error is the user's, and is not retried.
          WorkerUnavailableError: If the worker that searches is lost.
        """
        settings = worker_side.settings_of_sender(caller.max_concurrent_clients, self.cores)

        async def run(clients: range) -> None:
            place = (await self.places())[0]
            await TaskPhases(self, place, settings).kept(part.at(clients))

        with current_scope().replace(progress=None, losses=None).entered():  # the attempt counts progress and losses
            for some in suspects:
                await find_ending(run, part.phase, some)
        return True

    def close(self) -> None:  # noqa: B027
        """Releases all resources that this backend created, but none of the user's. Idempotent; never raises."""

    @property
    def label(self) -> str:
        """A human-readable phrase for the workers that run the clients, to be used after a comma."""
        return f"over {self!r}"

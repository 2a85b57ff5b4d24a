"""Defines what runs the clients of phases elsewhere: which workers there are, and how one of them runs some clients.

Whoever supervises them, the engine above (`backend_executor.py`) does the same: it asks which workers there are when a
phase begins, cuts the clients among them, and merges what they contribute along the fixed tree. So a backend never
decides a result, and its workers may come, go and be lost between phases.
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
    """Who has a backend run phases, and what it wants.

    Attributes:
      server: Runs what folds need here.
      max_fanout: The most partial results that are merged in one place.
      max_concurrent_clients: The most functions that run at the same time at a worker; `None` for its default.
    """

    server: ProgramEngine
    max_fanout: int
    max_concurrent_clients: int | None = None


class Backend(abc.ABC):
    """Workers that run clients. Its methods are called on event loops, perhaps on several at a time.

    Which workers there are is for each backend to say. How one runs some clients it says in one of two ways. An engine
    that has its workers call a function gives `run`, and `share` and `fetch` if it has a store of its own: a phase is a
    task for each worker then (`task_phases.py`). A backend of workers that take phases as they are gives `runners` and
    `search` instead. In both, work that is not wanted any more is cancelled as any coroutine is.

    Attributes:
      reads: What stands for values of clients that its workers read themselves; others are read here, and sent.
      keeps_content: Whether the second half of what `run` returns stands for what is still elsewhere. Tasks can have it
        among their arguments, as what `share` returned, so that workers merge what others have contributed.
      cores: On how many cores a worker computes at the same time at most; `None` for all of its machine.
      searches_apart: Whether a `search` leaves workers as they are, so that clients which it does not suspect run
        meanwhile. One by tasks ends workers, and with them all that runs there.
    """

    reads: Sequence[type[Elsewhere]] = ()
    keeps_content: bool = False
    cores: int | None = None
    searches_apart: bool = False

    @abc.abstractmethod
    async def places(self) -> Sequence[Hashable]:
        """Returns the workers that there are now, one at least; the text of each names it in messages.

        Raises:
          NoWorkersError: If there are none; it says what is missing, and after how long.
        """

    async def with_room(self, places: Sequence[Any], most: int) -> Sequence[Hashable]:
        """Returns the workers that take part in a phase: by default the first ones.

        Args:
          places: What `places` has returned.
          most: How many have something to do.

        Raises:
          ResourceLimitError: If none has room for it.
        """
        return places[:most]

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls a function whenever a worker has joined, drains, has left or is lost; `places` says who is there then.

        A backend that does not learn of that by itself, as by default, calls nothing.

        Args:
          changed: Called on any thread; it must not block.

        Returns:
          What ends that.
        """
        return lambda: None

    async def run(self, place: Any, task: Task, heard: Callable[[Heartbeat], None]) -> object:
        """Runs a task and returns the pair that its function returned. Where this is cancelled, so is the task.

        Args:
          place: One of the workers.
          task: The task.
          heard: May be called with how far the task is.

        Raises:
          WorkerUnavailableError: If the worker is lost. The task is run again, at those left.
        """
        raise NotImplementedError(f"{type(self).__name__} has to override run, or runners and search")

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

    def runners(
        self, phase: Phase, places: Sequence[Any], counts: Sequence[int], caller: Caller
    ) -> tuple[Sequence[PhaseRunner], Sequence[int]]:
        """Returns what runs one phase for consecutive ranges of the clients, and how many clients each has.

        Args:
          phase: The phase.
          places: The workers that take part, in the order of their clients.
          counts: How many clients each of them has.
          caller: Who wants it.
        """
        shared, settings = SharedValues(), worker_side.settings_of_sender(caller.max_concurrent_clients, self.cores)
        runners = [TaskPhases(self, place, shared, settings) for place in places]
        if self.keeps_content and not phase.held:  # what is kept is no smaller when it is merged
            return in_levels(runners, counts, caller.max_fanout, MergedTasks)
        return runners, counts

    async def search(self, part: PhaseAtClients, suspects: Sequence[Suspects], caller: Caller) -> bool:
        """Looks for clients that end their worker, where that costs least; returns whether it could look.

        By default tasks of fewer and fewer clients end a few workers more, which the engine starts anew.

        Args:
          part: The phase, with the clients that it is to run for.
          suspects: The clients among them that were lost with two workers.
          caller: Who wants to know.

        Raises:
          LeafError: If there is one; it is the user's, and not tried again.
          WorkerUnavailableError: If the worker that looks is lost.
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
        """Ends what this has begun, and nothing that is the user's. Idempotent; never raises."""

    @property
    def label(self) -> str:
        """Where clients run, for people, after a comma."""
        return f"over {self!r}"

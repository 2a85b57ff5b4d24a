"""Runs client phases at the workers of another engine, and merges what they contribute along the fixed tree."""

import functools
from collections.abc import Sequence

from fedstack.backends import guest
from fedstack.backends.backend import Backend
from fedstack.backends.ending_clients import find_ending
from fedstack.backends.place_phases import MergedPlaces, PhaseAtClients, PlacePhases
from fedstack.backends.task_packer import SharedValues
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import Executor
from fedstack.executors.base.aggregations import FoldArguments
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.composing_executor import composed, even_counts, in_levels
from fedstack.executors.concurrency.coroutines import need_event_loop
from fedstack.foundations.error_text import counted


class BackendPhases(PhaseEngine):
    """Spreads each phase evenly over the workers that there are when it begins; see `BackendExecutor`."""

    def __init__(
        self, server: ProgramEngine, backend: Backend, num_clients: int, settings: guest.Settings, max_fanout: int
    ) -> None:
        super().__init__(server)
        self.backend = backend
        self._num_clients = num_clients
        self._settings = settings
        self._max_fanout = max_fanout

    @property
    def clients(self) -> int:
        return self._num_clients

    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        await need_event_loop()
        losses = current_scope().losses
        if losses and (suspects := losses.suspects(phase)):
            run = functools.partial(self._run_some, PhaseAtClients(phase, inputs, arguments, clients))
            for some in suspects:
                await find_ending(run, phase, some)
            losses.forget(phase)
        places = (await self.backend.places())[: self._num_clients]
        counts: Sequence[int] = even_counts(self._num_clients, len(places))
        shared = SharedValues()
        children: Sequence[PlacePhases] = [PlacePhases(self.backend, place, shared, self._settings) for place in places]
        if self.backend.keeps_content and not phase.held:  # what is kept is no smaller when it is merged
            children, counts = in_levels(children, counts, self._max_fanout, MergedPlaces)
        phases = composed(self.server, children, counts, self._max_fanout)
        return await phases.fold_phase(phase, inputs, arguments, clients, all_clients=all_clients)

    async def _run_some(self, whole: PhaseAtClients, some: range) -> None:
        """Runs a phase for some clients at one worker, for nothing but to see whether it ends."""
        place = (await self.backend.places())[0]
        with current_scope().replace(progress=None, losses=None).entered():  # the attempt counts them
            await PlacePhases(self.backend, place, SharedValues(), self._settings).kept(whole.at(some))


class BackendExecutor(VerbExecutor):
    """Runs the work of clients at the workers of another engine, and what runs at the server here.

    Results do not depend on which workers these are, so they may come and go between phases.

    Args:
      server: The executor of unplaced work and of work at the server. It is closed with this one.
      backend: The engine. It is not closed with this executor.
      num_clients: The number of clients.
      settings: How phases run there.
      max_fanout: The most parts that a phase is composed of directly; where there are more, in levels.
    """

    def __init__(
        self, server: Executor, backend: Backend, num_clients: int, settings: guest.Settings, max_fanout: int
    ) -> None:
        self.server, programs = with_programs(server)
        self._backend = backend
        phases = BackendPhases(programs, backend, num_clients, settings, max_fanout)
        super().__init__(LazyRecorder(phases), self.server, phases)

    @property
    def label(self) -> str:
        return f"{super().label} with {counted(self.known_clients or 0, 'client')}, over {self._backend!r}"

"""Runs client phases at the workers of another engine, and merges what they contribute along the fixed tree."""

import functools
from collections.abc import Hashable, Sequence
from typing import cast

from fedstack.backends import guest
from fedstack.backends.adoption import AdoptingUnpacker
from fedstack.backends.backend import Backend, Task
from fedstack.backends.task_packer import SharedValues, TaskPacker
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable
from fedstack.computations.leaves.version_skew import warn_of_differing
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import Executor, computation_pb2
from fedstack.errors import FedstackError, RemoteError, WorkerUnavailableError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.fold_arguments import FoldArguments, inputs_are_here, inputs_here, partial_states
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.composing_executor import composed, even_counts
from fedstack.executors.concurrency.off_loop import off_loop, sized
from fedstack.executors.concurrency.phase_events import PhaseNote, told_phase
from fedstack.executors.concurrency.phase_report import PhaseReport
from fedstack.executors.concurrency.sync_driver import need_event_loop
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.phases.phase_messages import write_phase
from fedstack.executors.remote.phases.phase_results import read_result
from fedstack.foundations.error_text import counted
from fedstack.proto.extensions_pb2 import PhaseResponse
from fedstack.transport.wire.status import error_from_status

_ANYWHERE = Destination(takes_code=True)


def _portable(computation: computation_pb2.Computation) -> computation_pb2.Computation:
    return portable(computation, _ANYWHERE)


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
        places = (await self.backend.places())[: self._num_clients]
        counts = even_counts(self._num_clients, len(places))
        shared = SharedValues()
        children = [_PlacePhases(self.backend, place, shared, self._settings) for place in places]
        phases = composed(self.server, children, counts, self._max_fanout)
        return await phases.fold_phase(phase, inputs, arguments, clients, all_clients=all_clients)


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


class _PlacePhases(PhaseRunner):
    """Runs the phases of some clients at one worker."""

    def __init__(self, backend: Backend, place: Hashable, shared: SharedValues, settings: guest.Settings) -> None:
        self._backend = backend
        self._place = place
        self._shared = shared
        self._settings = settings

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        with told_phase(phase.program, clients, str(self._place)) as note:
            reads = self._backend.reads
            packer = TaskPacker(self._shared, reads)
            if not reads and not inputs_are_here(inputs):
                inputs = await off_loop(functools.partial(inputs_here, inputs))
            request = write_phase(phase, inputs, arguments, clients, packer, _portable, _portable, sends_code=True)
            header = request.SerializeToString()
            if note is not None:
                note.bytes_sent = len(header) + packer.segment_bytes
            task = Task(guest.run_phase, (self._settings, header, *await packer.parts(self._backend)))
            with PhaseReport(current_scope().progress, len(clients) if phase.program.steps else 0) as report:
                place, content = await self._answered(task, phase, clients, report)
                read = lambda: _read(content, phase, arguments, clients, place, note)  # noqa: E731
                return await sized(len(content[0]), read)

    async def _answered(
        self, task: Task, phase: Phase, clients: range, report: PhaseReport
    ) -> tuple[str, guest.Content]:
        """Returns where a task has run, and what it has answered."""
        try:
            said, content = cast(guest.Answer, await self._backend.run(self._place, task, report.heard))
        except WorkerUnavailableError as error:
            error.advice = "the engine may know why"
            losses = current_scope().losses
            if losses is not None:
                losses.add(phase, clients, report.running)
            raise
        except FedstackError:
            raise
        except Exception as error:
            raise RemoteError(
                f"Running clients {clients.start} to {clients.stop - 1} at {self._place} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if said["error"] is not None:
            error = error_from_status(*said["error"], said["place"])
            raise error from error.__cause__
        return said["place"], content


def _read(
    content: guest.Content,
    phase: Phase,
    arguments: FoldArguments,
    clients: range,
    place: str,
    note: PhaseNote | None,
) -> PhaseResult:
    header, arrays = content
    response = PhaseResponse.FromString(header)
    if note is not None:
        note.bytes_received = len(header) + sum(array.nbytes for array in arrays)
    unpacker = AdoptingUnpacker(arrays, len(clients))
    received = read_result(phase, partial_states(phase, arguments), clients, response, unpacker)
    unpacker.finish()
    warn_of_differing(response.differing_module, place)
    return received.complete()

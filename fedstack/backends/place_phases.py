"""Runs the phases of some clients at one worker of another engine, or at several, of which one merges what they say."""

import functools
import itertools
from collections.abc import Hashable, Sequence
from typing import cast

import attrs

from fedstack.backends import guest
from fedstack.backends.backend import Backend, Task
from fedstack.backends.task_packer import SharedValues, TaskPacker
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable, warn_of_differing
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import computation_pb2
from fedstack.computations.values.columns import empty_column
from fedstack.errors import FedstackError, RemoteError, WorkerUnavailableError
from fedstack.executors.base.fold_arguments import FoldArguments, inputs_are_here, inputs_here, slice_inputs
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.composing_executor import LOSSES
from fedstack.executors.concurrency.off_loop import off_loop, sized
from fedstack.executors.concurrency.phase_events import PhaseNote, told_phase
from fedstack.executors.concurrency.phase_report import PhaseReport
from fedstack.executors.concurrency.side_by_side import all_in_order
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.remote.phases.phase_messages import write_phase
from fedstack.transport.wire.status import error_from_status

_ANYWHERE = Destination(takes_code=True)


def _portable(computation: computation_pb2.Computation) -> computation_pb2.Computation:
    return portable(computation, _ANYWHERE)


@attrs.frozen(eq=False)
class PhaseAtClients:
    """A phase, and the clients to run it for.

    Attributes:
      phase: The phase.
      inputs: A column of these clients for each of its inputs.
      arguments: What its folds begin with.
      clients: The clients, counted over the whole federation.
    """

    phase: Phase
    inputs: Sequence[object]
    arguments: FoldArguments
    clients: range

    def at(self, clients: range) -> "PhaseAtClients":
        """Returns the same for some of the clients."""
        first = self.clients.start
        inputs = slice_inputs(self.inputs, clients.start - first, clients.stop - first)
        return attrs.evolve(self, inputs=inputs, clients=clients)

    def at_none(self) -> "PhaseAtClients":
        """Returns the same for no clients."""
        inputs = [empty_column(member) for member in self.phase.input_types]
        return attrs.evolve(self, inputs=inputs, clients=self.clients[:0])


class PlacePhases(PhaseRunner):
    """Runs the phases of some clients at one worker.

    Args:
      backend: The engine.
      place: The worker.
      shared: What the tasks of the phase have in common.
      settings: How phases run there.
    """

    def __init__(self, backend: Backend, place: Hashable, shared: SharedValues, settings: guest.Settings) -> None:
        self.backend = backend
        self.place = place
        self.shared = shared
        self.settings = settings

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        with told_phase(phase.program, clients, str(self.place)) as note:
            place, content = await self._answered(PhaseAtClients(phase, inputs, arguments, clients), note)
            content = cast(guest.Content, await self.backend.fetch(content))

            def read() -> PhaseResult:
                result, response = guest.read_content(content, phase, arguments, clients)
                warn_of_differing(response.differing_module, place)
                return result

            if note is not None:
                note.bytes_received = len(content[0]) + sum(array.nbytes for array in content[1])
            return await sized(len(content[0]), read)

    async def kept(self, part: PhaseAtClients) -> object:
        """Runs a phase, and returns what stands for its content, which stays where it is."""
        with told_phase(part.phase.program, part.clients, str(self.place)) as note:
            return (await self._answered(part, note))[1]

    async def _answered(self, part: PhaseAtClients, note: PhaseNote | None) -> tuple[str, object]:
        """Returns where a phase has run, and what stands for its content."""
        header, parts = await self._written(part, note)
        task = Task(guest.run_phase, (self.settings, header, *parts), guest.answer_phase)
        with PhaseReport(current_scope().progress, len(part.clients) if part.phase.program.steps else 0) as report:
            return await self._done(task, part, report)

    async def _written(self, part: PhaseAtClients, note: PhaseNote | None) -> tuple[bytes, list[object]]:
        """Returns a phase as a message, and what belongs to it."""
        reads, inputs = self.backend.reads, part.inputs
        packer = TaskPacker(self.shared, reads)
        if not reads and not inputs_are_here(inputs):
            inputs = await off_loop(functools.partial(inputs_here, inputs))
        request = write_phase(
            part.phase, inputs, part.arguments, part.clients, packer, _portable, _portable, sends_code=True
        )
        header = request.SerializeToString()
        if note is not None:
            note.bytes_sent = len(header) + packer.segment_bytes
        return header, await packer.parts(self.backend)

    async def _done(self, task: Task, part: PhaseAtClients, report: PhaseReport) -> tuple[str, object]:
        """Returns where a task has run, and what stands for the content of its answer."""
        clients = part.clients
        try:
            said, content = cast("tuple[guest.Note, object]", await self.backend.run(self.place, task, report.heard))
        except WorkerUnavailableError as error:
            if error.advice is WorkerUnavailableError.advice:  # which is of workers of ours
                error.advice = "the engine may know why"
            losses = current_scope().losses
            if losses is not None and clients and error.had_begun is not False:
                losses.add(part.phase, clients, report.running, is_sure=error.had_begun is True)
            raise
        except FedstackError:
            raise
        except Exception as error:
            raise RemoteError(
                f"Running clients {clients.start} to {clients.stop - 1} at {self.place} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if said["error"] is not None:
            error = error_from_status(*said["error"], said["place"])
            raise error from error.__cause__
        return said["place"], content


class MergedPlaces(PlacePhases):
    """Runs phases at several workers, the first of which merges what they contribute: it does not come here before.

    Args:
      children: What runs them.
      counts: How many clients each has.
    """

    def __init__(self, children: Sequence[PlacePhases], counts: Sequence[int]) -> None:
        first = children[0]
        super().__init__(first.backend, first.place, first.shared, first.settings)
        self._children = children
        self._counts = counts

    async def _answered(self, part: PhaseAtClients, note: PhaseNote | None) -> tuple[str, object]:
        stops = [part.clients.start + count for count in itertools.accumulate(self._counts)]
        ranges = map(range, [part.clients.start, *stops], stops)
        running = [child.kept(part.at(clients)) for child, clients in zip(self._children, ranges)]
        contents = await all_in_order(running, LOSSES)
        nobody = part.at_none()
        header, parts = await self._written(nobody, note)
        given = (self.settings, header, self._counts, *contents, *parts)
        return await self._done(Task(guest.run_merge, given, guest.answer_merge), nobody, PhaseReport(None, 0))

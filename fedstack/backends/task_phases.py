"""Converts phases to tasks, for engines whose workers can only call functions.

A task runs a phase for some clients on one worker (`worker_side.py`). Values that all clients of the phase receive are
packed once and passed to the engine once (`Backend.share`). If the engine stores the contributions of workers, a worker
merges several contributions before the result is sent to this process.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from fedstack.backends import worker_side
from fedstack.backends.piece_runs import ClientPieces, PieceRun
from fedstack.backends.task_pace import task_pace_of
from fedstack.computations.codec.packing import Packer
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable, warn_of_differing
from fedstack.computations.leaves.work_scope import SystemScope, current_scope
from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import Type, computation_pb2
from fedstack.computations.values.columns import empty_column
from fedstack.computations.values.deferred_column import DeferredColumn, Elsewhere
from fedstack.computations.values.shared_columns import shared_bytes
from fedstack.errors import FedstackError, RemoteError, WorkerUnavailableError
from fedstack.executors.base.hand_ins import SECONDS_PER_BYTE, Contribution, HandIn
from fedstack.executors.base.phase_engine import PhaseRunner
from fedstack.executors.base.phase_sink import PhaseResult
from fedstack.executors.composing_executor import LOSSES
from fedstack.executors.concurrency.coroutines import all_in_order
from fedstack.executors.concurrency.leaf_threads import off_loop, sized
from fedstack.executors.concurrency.observed_phases import PhaseNote, observed_phase
from fedstack.executors.concurrency.progress import PhaseReport
from fedstack.executors.folds.aggregations import FoldArguments, inputs_are_here, inputs_here, slice_inputs
from fedstack.executors.remote.phase_messages import phase_template, write_phase
from fedstack.executors.survivors.failure_messages import write_tolerance
from fedstack.executors.survivors.tolerance import Tolerance, present_among
from fedstack.executors.survivors.unreadable_inputs import error_of_inputs
from fedstack.foundations.segments import Segment, memory_of
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.wire.status import error_from_status

if TYPE_CHECKING:
    from fedstack.backends.backend import Backend

_ANYWHERE = Destination(takes_code=True)


@attrs.frozen
class Task:
    """A function call for a worker. The function, its arguments and its result can be pickled.

    Attributes:
      function: A function at module level in fedstack.
      arguments: The arguments of the function. They may contain results of `Backend.share`. An engine with its own
        store replaces these with the shared arrays before a worker calls the function.
      coroutine: The same function as a coroutine function, for workers with an event loop, which can cancel the call.
        It also accepts an argument `progress`, which counts the clients.
    """

    function: Callable[..., object]
    arguments: tuple[object, ...]
    coroutine: Callable[..., Coroutine[Any, Any, object]]


def _portable(computation: computation_pb2.Computation) -> computation_pb2.Computation:
    return portable(computation, _ANYWHERE)


@attrs.define(eq=False)
class _Shared:
    """A packed value that all clients receive.

    Attributes:
      payload: The value. It is kept alive, since shared values are looked up by identity.
      message: The packed value.
      segments: The segments of the packed value, which are sent separately.
    """

    payload: object
    message: Packed
    segments: list[Segment]
    _given: object = None
    _lock: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    async def given(self, backend: "Backend") -> object:
        """Returns the object that replaces the segments in the arguments of tasks."""
        async with self._lock:
            if self._given is None:
                self._given = await backend.share(memory_of(self.segments))
            return self._given

    def forget(self, arguments: Sequence[object]) -> None:
        """Forgets the object if it is one of the arguments, so that the segments are passed to the engine again."""
        if any(self._given is argument for argument in arguments):
            self._given = None


class SharedValues(SystemScope):
    """Part of the scope of one run of a phase: the values that all clients receive, packed once for all tasks."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Shared] = {}

    def lost(self, arguments: Sequence[object]) -> None:
        """Records that a task with some arguments was lost. What the engine stored for it may be lost, too."""
        for one in self._known.values():
            one.forget(arguments)

    def packed(self, payload: object, type_spec: Type, path: str) -> _Shared:
        """Returns the packed form of a value; packs the value on the first call."""
        key = id(payload), id(type_spec)
        if key not in self._known:
            packer = Packer()
            self._known[key] = _Shared(payload, packer.packed(payload, type_spec, path), packer.segments)
        return self._known[key]


@attrs.frozen(eq=False)
class _Deferred:
    """A column of references, which are sent unchanged because the worker resolves them itself."""

    column: DeferredColumn

    def __len__(self) -> int:
        return 0

    async def given(self, backend: "Backend") -> object:
        return [self.column]


class TaskPacker(Packer):
    """Packs the values of one task. Shared values and references are kept separate from the other segments.

    Args:
      shared: The values that all tasks of the phase share.
      reads: The types of references that the worker resolves itself. Columns of such references are sent unchanged.
    """

    def __init__(self, shared: SharedValues, reads: Sequence[type[Elsewhere]] = ()) -> None:
        super().__init__()
        self._shared = shared
        self._reads = frozenset(reads)
        self._segments = cast("list[Segment | _Shared | _Deferred]", self.segments)

    def pack_deferred(self, proto: Packed, column: DeferredColumn, member: Type, path: str) -> None:
        if column.kinds <= self._reads:
            proto.references.SetInParent()
            self._segments.append(_Deferred(column))
        else:
            super().pack_deferred(proto, column, member, path)

    def pack_shared(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        found = self._shared.packed(payload, type_spec, path)
        proto.CopyFrom(found.message)
        if found.segments:
            self._segments.append(found)

    async def parts(self, backend: "Backend") -> list[object]:
        """Returns the segments of the message as arguments of the task, in the order of the message.

        An argument is a list of arrays, the object that replaces the arrays of a shared value, or a list with a column
        of references.
        """
        parts: list[object] = []
        for is_given, some in itertools.groupby(self._segments, lambda one: isinstance(one, (_Shared, _Deferred))):
            if is_given:
                parts += [await cast("_Shared | _Deferred", one).given(backend) for one in some]
            else:
                parts.append(memory_of(cast("Iterator[Segment]", some)))
        return parts


@attrs.frozen(eq=False)
class PhaseAtClients:
    """A phase, with a range of clients and their inputs.

    Attributes:
      phase: The phase.
      inputs: A column of the clients' values for each input of the phase.
      arguments: The initial arguments of the phase's folds.
      clients: The indices of the clients among all clients of the computation.
    """

    phase: Phase
    inputs: Sequence[object]
    arguments: FoldArguments
    clients: range

    def at(self, clients: range) -> "PhaseAtClients":
        """Returns the same phase for some of the clients."""
        first = self.clients.start
        inputs = slice_inputs(self.inputs, clients.start - first, clients.stop - first)
        return PhaseAtClients(self.phase, inputs, self.arguments, clients)

    def at_none(self) -> "PhaseAtClients":
        """Returns the same phase for no clients."""
        inputs = [empty_column(member) for member in self.phase.input_types]
        return attrs.evolve(self, inputs=inputs, clients=self.clients[:0])


class TaskPhases(PhaseRunner):
    """Runs phases for some clients on one worker.

    Args:
      backend: The engine.
      place: The worker.
      settings: The settings to send to the worker.
    """

    def __init__(self, backend: "Backend", place: Hashable, settings: worker_side.Settings) -> None:
        self.backend = backend
        self.place = place
        self.settings = settings

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        with observed_phase(phase.program, clients, str(self.place)) as note:
            place, content = await self._answered(PhaseAtClients(phase, inputs, arguments, clients), note)
            content = cast(worker_side.Content, await self.backend.fetch(content))
            tolerance = current_scope().of(Tolerance)

            def read() -> tuple[PhaseResult, Sequence[str]]:
                result, response = worker_side.read_content(content, phase, arguments, clients, tolerance, place)
                return result, response.differing_module

            size = len(content[0]) + sum(array.nbytes for array in content[1])
            task_pace_of(phase.program).result_bytes = size
            if note is not None:
                note.bytes_received = size
            result, differing = await sized(len(content[0]), read)
            warn_of_differing(differing, place)
            return result

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        cost = self.backend.task_seconds + shared_bytes(inputs) * SECONDS_PER_BYTE
        pace = task_pace_of(phase.program)
        tolerance = current_scope().of(Tolerance)
        # The share of a small task that must be done may be all of its clients.
        ends = tolerance is not None and tolerance.ending is not None
        if ends or pace.clients_per_task(len(clients), cost) == len(clients):
            return clients, await self.run_phase(phase, inputs, arguments, clients)
        whole = PhaseAtClients(phase, inputs, arguments, clients)

        async def run(some: range, _: HandIn) -> Contribution:
            return some, await self.run_phase(phase, whole.at(some).inputs, arguments, some)

        # The next task is queued at the engine while a task runs.
        pieces = ClientPieces(lambda left: pace.clients_per_task(len(left), cost))
        return await PieceRun(run, pieces, clients, hand_in).run()

    async def kept(self, part: PhaseAtClients) -> object:
        """Runs a phase and returns a reference to its contribution, which the engine stores."""
        with observed_phase(part.phase.program, part.clients, str(self.place)) as note:
            return (await self._answered(part, note))[1]

    async def _answered(self, part: PhaseAtClients, note: PhaseNote | None) -> tuple[str, object]:
        """Runs a phase. Returns the process that ran the phase, and a reference to the contribution."""
        header, parts = await self._written(part, note, part.clients)
        task = Task(worker_side.run_phase, (self.settings, header, *parts), worker_side.answer_phase)
        with PhaseReport(
            current_scope().progress, present_among(part.clients) if part.phase.program.steps else 0
        ) as report:
            return await self._done(task, part, report)

    async def _written(
        self, part: PhaseAtClients, note: PhaseNote | None, clients: range
    ) -> tuple[bytes, list[object]]:
        """Returns a phase as a serialized message, and the arguments with the message's segments.

        Args:
          part: The phase.
          note: Counts the bytes.
          clients: The clients whose results the receiver handles.
        """
        try:
            return await self._packed(part, note, clients)
        except FedstackError as error:
            raise error_of_inputs(error, part.inputs, part.phase.input_types, part.clients) from error.__cause__

    async def _packed(self, part: PhaseAtClients, note: PhaseNote | None, clients: range) -> tuple[bytes, list[object]]:
        reads, inputs = self.backend.reads, part.inputs
        packer = TaskPacker(current_scope().of(SharedValues) or SharedValues(), reads)
        if not reads and not inputs_are_here(inputs):
            inputs = await off_loop(functools.partial(inputs_here, inputs))
        template = phase_template(part.phase, _portable, _portable, sends_code=True)
        request = write_phase(template, part.phase, inputs, part.arguments, part.clients, packer)
        write_tolerance(request, current_scope(), clients, answers_once=True)
        header = request.SerializeToString()
        if note is not None:
            note.bytes_sent = len(header) + packer.segment_bytes
        return header, await packer.parts(self.backend)

    async def _done(self, task: Task, part: PhaseAtClients, report: PhaseReport) -> tuple[str, object]:
        """Runs a task. Returns the process that ran the task, and a reference to the content of the answer."""
        clients = part.clients
        try:
            said, content = cast(
                "tuple[worker_side.Note, object]", await self.backend.run(self.place, task, report.heard)
            )
        except WorkerUnavailableError as error:
            shared = current_scope().of(SharedValues)
            if shared is not None:
                shared.lost(task.arguments)
            if error.advice is WorkerUnavailableError.advice:  # the default advice is for fedstack's workers
                error.advice = "check the engine's logs"
            losses = current_scope().losses
            if losses is not None and clients and error.had_begun is not False:
                is_sure = error.had_begun is True
                losses.lose(part.phase, self.place, clients, running=report.running, is_sure=is_sure)
            raise
        except FedstackError:
            raise
        except Exception as error:
            raise RemoteError(
                f"Running clients {clients.start} to {clients.stop - 1} at {self.place} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        report.left_out(said.get("failed", 0))
        if said["error"] is not None:
            error = error_from_status(*said["error"], said["place"])
            raise error from error.__cause__
        task_pace_of(part.phase.program).note(len(clients), said["seconds"], said["at_once"])
        return said["place"], content


class MergedTasks(TaskPhases):
    """Runs phases on several workers. The first worker merges the contributions of all workers.

    Args:
      children: The runners for the workers.
      counts: The number of clients of each runner.
    """

    def __init__(self, children: Sequence[TaskPhases], counts: Sequence[int]) -> None:
        first = children[0]
        super().__init__(first.backend, first.place, first.settings)
        self._children = children
        self._counts = counts

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        return clients, await self.run_phase(phase, inputs, arguments, clients)

    async def _answered(self, part: PhaseAtClients, note: PhaseNote | None) -> tuple[str, object]:
        stops = [part.clients.start + count for count in itertools.accumulate(self._counts)]
        ranges = map(range, [part.clients.start, *stops], stops)
        running = [child.kept(part.at(clients)) for child, clients in zip(self._children, ranges)]
        contents = await all_in_order(running, LOSSES)
        nobody = part.at_none()
        header, parts = await self._written(nobody, note, part.clients)
        given = (self.settings, header, self._counts, *contents, *parts)
        return await self._done(
            Task(worker_side.run_merge, given, worker_side.answer_merge), nobody, PhaseReport(None, 0)
        )

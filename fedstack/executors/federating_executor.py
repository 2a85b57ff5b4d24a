"""Defines the executor that runs federated intrinsics over all clients in this process."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.program import Expression, Join, Pick, Slot
from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.language import Executor, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.computations.values.shared_columns import shared_bytes, unshared
from fedstack.errors import InvalidValueError
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.hand_ins import Contribution, HandIn, HandInSink
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, folded
from fedstack.executors.base.phase_sink import PhaseSink, fold_resident_columns
from fedstack.executors.base.verb_executor import VerbExecutor
from fedstack.executors.concurrency.leaf_threads import off_loop
from fedstack.executors.concurrency.observed_phases import observed_phase
from fedstack.executors.folds.aggregations import FoldArguments
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.stored.storing_sink import phase_sink
from fedstack.executors.survivors.tolerance import Tolerance, present_among
from fedstack.foundations.error_text import counted


class LocalPhases(PhaseEngine):
    """Runs phases over clients in this process.

    Args:
      server: Runs unplaced work and work on the server.
      client_programs: Runs the work of clients.
      clients: The number of clients.
    """

    def __init__(self, server: ProgramEngine, client_programs: ProgramEngine, clients: int) -> None:
        super().__init__(server)
        self._client_programs = client_programs
        self._clients = clients

    @property
    def clients(self) -> int:
        return self._clients

    @property
    def drives_inline(self) -> bool:
        return self.server.drives_inline and self._client_programs.drives_inline

    def over(self, wrap: Callable[[ProgramEngine], ProgramEngine]) -> PhaseEngine:
        return LocalPhases(wrap(self.server), wrap(self._client_programs), self._clients)

    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        columns, states = await self._begun(phase, inputs, arguments, clients)
        held = await self._fold_held(phase, states, columns, clients, all_clients)
        sink = phase_sink(phase, states, held, len(clients))
        if len(held) < len(phase.folds) or phase.held:
            await self._run(phase, columns, clients, sink)
        return folded(sink)

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        columns, states = await self._begun(phase, inputs, arguments, clients)
        with observed_phase(phase.program, clients):
            held = await self._fold_held(phase, states, columns, clients, False)
            if held or not all(state.merges_in_any_order for state in states):
                sink = PhaseSink(phase, states, held)
                if len(held) < len(phase.folds) or phase.held:
                    await self._run(phase, columns, clients, sink)
                return clients, folded(sink).partials()
            parts = HandInSink(phase, states, clients, hand_in, shared_bytes(columns))
            parts.watch()
            hand_in.begun(parts.leave)
            is_looking = True
            try:
                await self._run(phase, columns, clients, parts)
            finally:
                is_looking = await parts.unwatch()
            return await off_loop(parts.finish) if is_looking else parts.finish()

    async def _begun(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> tuple[Sequence[Column], list[FoldState]]:
        """Returns the columns of the inputs and the states of the folds of a phase that begins."""
        states = [await self.new_state(fold, argument) for fold, argument in zip(phase.folds, arguments)]
        if (progress := current_scope().progress) is not None and phase.program.steps:
            progress.expect(present_among(clients))
        return cast("Sequence[Column]", unshared(inputs)), states

    async def _run(self, phase: Phase, columns: Sequence[Column], clients: range, sink: PhaseSink) -> None:
        if len(clients):
            program = await self._client_programs.linked(phase.program)
            await self._client_programs.run_clients(program, columns, clients, sink)

    async def _fold_held(
        self,
        phase: Phase,
        states: Sequence[FoldState],
        inputs: Sequence[Column],
        clients: range,
        all_clients: bool,
    ) -> frozenset[int]:
        """Folds long vectors in memory, split into ranges of elements; returns the indices of the completed folds."""
        done: set[int] = set()
        tolerance = current_scope().of(Tolerance)
        if tolerance is not None and tolerance.absent_in(clients):
            return frozenset()
        for index, (fold, state) in enumerate(zip(phase.folds, states)):
            column = _input_column(phase.program.results[fold.results[0]], phase, inputs)
            if column is not None and _is_long(column, fold):
                threads, first = self._client_programs.leaf_threads, clients.start
                if await fold_resident_columns(threads, state, column, fold, first, all_clients=all_clients):
                    done.add(index)
        return frozenset(done)


class FederatingExecutor(VerbExecutor):
    """Runs federated intrinsics over any number of clients, processing whole columns at once.

    Args:
      target: The executor that runs unplaced work. It is closed with this executor.
      num_clients: The number of clients.
      client_target: The executor that runs the work of clients; by default `target`.
    """

    def __init__(self, target: Executor, num_clients: int, *, client_target: Executor | None = None) -> None:
        if num_clients < 0:
            raise InvalidValueError(f"Expected num_clients to be at least 0, found {num_clients}")
        self.server, programs = self._client_target, client_programs = with_programs(target)
        if client_target is not None:
            self._client_target, client_programs = with_programs(client_target)
        engine = LocalPhases(programs, client_programs, num_clients)
        super().__init__(LazyRecorder(engine), self.server, self._client_target)

    @property
    def label(self) -> str:
        return f"{super().label} with {counted(self.known_clients or 0, 'client')}"


def _input_column(expression: Expression, phase: Phase, inputs: Sequence[Column]) -> Column | None:
    """Returns the column of a result that is an input or a member of an input; `None` for any other result."""
    if isinstance(expression, Slot):
        slots = phase.program.inputs
        return inputs[slots.index(expression.index)] if expression.index in slots else None
    if isinstance(expression, Pick):
        source = _input_column(expression.source, phase, inputs)
        return None if source is None else source.field(expression.position)
    assert isinstance(expression, Join)
    return None


def _is_long(column: Column, fold: Fold) -> bool:
    return _has_long_leaf(column, fold.member) and fold.uri in ("federated_sum", "federated_mean")


def _has_long_leaf(column: Column, member: Type) -> bool:
    if isinstance(member, StructType):
        fields = enumerate(fields_of(member))
        return bool(fields_of(member)) and all(_has_long_leaf(column.field(i), t) for i, (_, t) in fields)
    if not isinstance(member, TensorType) or is_scalar(member) or not isinstance(column, ListColumn) or not len(column):
        return False
    first = column.values[0]
    return isinstance(first, np.ndarray) and first.size >= 4096

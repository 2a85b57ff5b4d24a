"""Defines what executors of federated work have in common: they run schedules, and finish aggregations.

How a phase is run is the one thing they differ in: over clients here, or over children that have clients.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np

from fedstack.computations.plan.interpreter import ProgramRunner
from fedstack.computations.plan.tasks import Fold, Phase, PhaseTask, SelectTask, ServerTask
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.language import Executor, RetryableError, Type, computation_pb2
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.computations.values.federated_values import wrong_number_of_clients
from fedstack.errors import FedstackError, InvalidComputationError, InvalidValueError
from fedstack.executors.base.bulk import linked
from fedstack.executors.base.one_by_one import as_bulk
from fedstack.executors.base.schedule_run import ScheduleRun, as_column
from fedstack.executors.base.scheduled_executor import ScheduledExecutor
from fedstack.executors.base.unplaced_executor import finish_in
from fedstack.executors.folds.aggregate_state import AggregateState
from fedstack.executors.folds.fold_states import (
    FoldState,
    MeanState,
    TreeState,
    largest_of,
    lowest_of,
    zero_of,
)
from fedstack.executors.folds.phase_sink import PhaseResult
from fedstack.executors.folds.secure_sum import SecureSumState, bounds_of, negative_bound

_T = TypeVar("_T")


class PlacedExecutor(ScheduledExecutor):
    """An executor of values at the server and at clients.

    Args:
      server: The executor of unplaced work and of work at the server.
      closes_server: Whether that is closed with this one.
    """

    def __init__(self, server: Executor, *, closes_server: bool = True) -> None:
        super().__init__()
        self.server = as_bulk(server)
        self._closes_server = closes_server

    @property
    def known_clients(self) -> int | None:
        return self.clients

    @abc.abstractmethod
    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: "FoldArguments", clients: range
    ) -> PhaseResult:
        """Runs a phase for a range of clients.

        Args:
          phase: What to run.
          inputs: For each input of its program a payload that all clients share, or a column of exactly those clients.
          arguments: The server's arguments of the folds.
          clients: The indices of the clients, counted over the whole federation.
        """

    async def run_whole_phase(self, phase: Phase, inputs: Sequence[object], arguments: "FoldArguments") -> PhaseResult:
        """Runs a phase for all clients that there are; whoever knows that may finish folds at once."""
        return await self.run_phase(phase, inputs, arguments, range(self.clients))

    def accepts(self, computation: computation_pb2.Computation) -> None:
        kind = computation.WhichOneof("computation")
        if kind not in ("data", "xla", "tensorflow", "literal", "intrinsic", "lambda", "placement"):
            raise InvalidComputationError(
                f"Expected a function, a literal or an intrinsic in {self!r}, found a {kind}; put a "
                "ReferenceResolvingExecutor above it"
            )

    async def run_server_task(self, task: ServerTask, inputs: Sequence[object]) -> object:
        (result,) = await self.server.run_once(await linked(self.server, task.program), inputs)
        return result

    async def run_phase_task(self, task: PhaseTask, run: ScheduleRun) -> Sequence[object]:
        phase = task.phase
        inputs = [self._checked(run.read_column(expression)) for expression in task.inputs]
        arguments = [
            FoldArgument(
                [run.read(expression) for expression in fold.server_inputs],
                [[run.read(expression) for expression in captures] for captures in fold.captures],
            )
            for fold in phase.folds
        ]
        result = await self.run_whole_phase(phase, inputs, arguments)
        totals = [
            await self._finish_fold(fold, argument, partials)
            for fold, argument, partials in zip(phase.folds, arguments, result.partials)
        ]
        return [*totals, *result.columns]

    def _checked(self, column: Column) -> Column:
        """Returns a column that has a value for each client."""
        if len(column) != self.clients:
            raise wrong_number_of_clients(self.clients, len(column))
        return column

    async def new_state(self, fold: Fold, argument: "FoldArgument", first_client: int = 0) -> FoldState:
        """Returns an empty state for a fold."""
        if fold.uri == "federated_aggregate":
            accumulates, merges = [
                ProgramRunner(await linked(self.server, program)).run for program in fold.functions[:2]
            ]
            return AggregateState(
                first_client,
                argument.values[0],
                # As the client's work, so that errors name it; merging is nobody's in particular.
                lambda left, right, client: accumulates([(left, right), *argument.captures[0]], client)[0],
                lambda left, right: merges([(left, right), *argument.captures[1]], None)[0],
            )
        return tree_state(fold, argument)

    async def _finish_fold(self, fold: Fold, argument: "FoldArgument", partials: object) -> object:
        """Merges what the clients contributed and returns the aggregation's result."""
        if fold.uri != "federated_aggregate":
            state = tree_state(fold, argument)
            state.merge(partials)
            return state.result()
        report = await linked(self.server, fold.functions[2])
        (result,) = await self.server.run_once(report, [partials, *argument.captures[2]])
        return result

    async def run_select_task(self, task: SelectTask, run: ScheduleRun) -> object:
        """Computes the slice of each distinct key once, and gives each client the slices of its keys, in order."""
        keys = as_column(run.read(task.keys), self.clients).items()
        limit = int(cast(int, run.read(task.max_key)))
        if limit < 0:
            raise negative_bound(task.uri, "max_key", limit, "give the largest key that a client may ask for")
        value = run.read(task.value)
        captures = [run.read(expression) for expression in task.captures]
        wanted: dict[int, object] = {}
        lists = [np.asarray(item).tolist() for item in keys]
        for client, client_keys in enumerate(lists):
            for key in client_keys:
                if not 0 <= key <= limit:
                    raise InvalidValueError(
                        f"Expected keys from 0 to max_key {limit} for {task.uri}, found {key}; at client {client}"
                    )
                wanted.setdefault(key, None)
        function = await linked(self.server, task.function)
        for key in wanted:
            try:
                (wanted[key],) = await self.server.run_once(function, [(value, np.int32(key)), *captures])
            except RetryableError:
                raise
            except FedstackError as error:
                raise with_place(error, f"for the key {key} of {task.uri}") from error.__cause__
        return ListColumn([[wanted[key] for key in client_keys] for client_keys in lists])

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await finish_in(self.server, work, type_spec)

    def close(self) -> None:
        super().close()
        if self._closes_server:
            self.server.close()


class FoldArgument:
    """The server's arguments of one fold.

    Attributes:
      values: The payloads of its arguments that are no functions: zero, or the bound of a secure sum.
      captures: For each of its functions, the payloads of what it captures.
    """

    __slots__ = ("captures", "values")

    def __init__(self, values: Sequence[object], captures: Sequence[Sequence[object]]) -> None:
        self.values = values
        self.captures = captures


FoldArguments = Sequence[FoldArgument]


class PhaseRunner(Protocol):
    """What a composing executor spreads phases over."""

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a phase for a range of clients; see `PlacedExecutor.run_phase`."""
        ...

    def close(self) -> None:
        """Closes it. Idempotent; never raises."""
        ...


def tree_state(fold: Fold, argument: FoldArgument) -> FoldState:
    """Returns an empty state for a fold along the fixed tree, which needs no functions: any but the general one."""
    if fold.uri in ("federated_mean", "federated_weighted_mean"):
        return MeanState(fold)
    if fold.uri == "federated_min":
        return TreeState(fold, np.minimum, largest_of)
    if fold.uri == "federated_max":
        return TreeState(fold, np.maximum, lowest_of)
    if fold.uri in ("federated_secure_sum", "federated_secure_sum_bitwidth"):
        return SecureSumState(fold, list(bounds_of(fold, argument.values[0])))
    return TreeState(fold, np.add, zero_of)


def partial_states(phase: Phase, arguments: FoldArguments) -> list[FoldState | None]:
    """Returns what tells the form of the partial results of a phase's folds; `None` for a general aggregation."""
    return [
        None if fold.uri == "federated_aggregate" else tree_state(fold, argument)
        for fold, argument in zip(phase.folds, arguments)
    ]


def slice_inputs(inputs: Sequence[object], start: int, stop: int) -> list[object]:
    """Cuts the columns among a phase's inputs."""
    return [value.slice(start, stop) if isinstance(value, Column) else value for value in inputs]

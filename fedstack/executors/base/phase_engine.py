"""Defines the base of engines that run schedules over clients and fold the clients' results.

The engines differ only in where a phase runs: on their own clients, or on other engines that have clients.
"""

import abc
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar, cast

import attrs
import numpy as np

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.graph import Function
from fedstack.computations.plan.interpreter import ProgramRunner
from fedstack.computations.plan.tasks import Fold, Phase, PhaseTask, SelectTask, ServerTask
from fedstack.computations.types.language import Executor, RetryableError, Type, computation_pb2
from fedstack.computations.values.columns import Column, ListColumn
from fedstack.computations.values.federated_values import wrong_number_of_clients
from fedstack.errors import FedstackError, InvalidComputationError, InvalidValueError
from fedstack.executors.base.engines import Engine, FunctionRun, ProgramEngine
from fedstack.executors.base.hand_ins import Contribution, HandIn
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.base.schedule_run import ScheduleRun, ScheduleValues, as_column, run_whole
from fedstack.executors.concurrency.leaf_threads import LeafThreads, off_loop
from fedstack.executors.concurrency.observed_phases import name_of, observed_phase
from fedstack.executors.folds.aggregate_state import AggregateState, ChecksZeros
from fedstack.executors.folds.aggregations import FoldArgument, FoldArguments, negative_bound, tree_state
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.survivors.outcomes import Ran, Telling
from fedstack.executors.survivors.survivors import Survivors
from fedstack.foundations.blas_threads import with_one_blas_thread
from fedstack.foundations.caches import made_once
from fedstack.foundations.error_text import with_place

_T = TypeVar("_T")
fold_threads = LeafThreads(idle_seconds=1.0)
_PLACED = ("data", "xla", "tensorflow", "literal", "intrinsic", "lambda", "placement")


@made_once
def _work_of(phase: Phase) -> str:
    """Returns what the clients of a phase do: the names of their functions, and the aggregations of the results."""
    folds = dict.fromkeys(fold.uri for fold in phase.folds)
    return " → ".join(filter(None, (name_of(phase.program), ", ".join(folds)))) or "no functions"


@attrs.frozen
class FoldedPhase:
    """The contribution of a range of clients to a phase, as fold states that can be read or merged.

    Attributes:
      states: The state of each fold.
      columns: The column of each kept result.
      failures: The errors of the clients that have failed, by client.
      ran: The clients that ran together, and how long, while somebody asks.
      again: The errors of the clients that are to run again; see `PhaseResult`.
    """

    states: Sequence[FoldState]
    columns: list[Column]
    failures: Mapping[int, FedstackError] = attrs.field(factory=dict[int, FedstackError])
    ran: Sequence[Ran] = ()
    again: Mapping[int, FedstackError] = attrs.field(factory=dict[int, FedstackError])

    def partials(self) -> PhaseResult:
        """Returns the contribution in a form that can be merged into the states of other ranges."""
        partials = [state.partials() for state in self.states]
        return PhaseResult(partials, self.columns, self.failures, self.ran, self.again)


def folded(sink: PhaseSink) -> FoldedPhase:
    """Returns the contribution that a sink has received."""
    return FoldedPhase(sink.states, sink.columns(), sink.failures, sink.ran, sink.again)


class PhaseRunner(abc.ABC):
    """Runs phases for a range of clients. Either a phase engine in this process or a proxy for a remote engine."""

    @property
    def leaf_threads(self) -> LeafThreads | None:
        """The threads that run leaf functions; `None` if these functions run in another process."""
        return None

    @abc.abstractmethod
    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        """Runs a phase for a range of clients.

        Args:
          phase: The phase.
          inputs: For each input of the phase's program, either a payload that all clients share or a column of exactly
            the given clients.
          arguments: The server's arguments to the folds.
          clients: The indices of the clients in the whole federation.
        """

    async def run_in_parts(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, hand_in: HandIn
    ) -> Contribution:
        """Runs a phase like `run_phase`, and may hand in the contributions of the first clients while others run.

        Args:
          phase: The phase.
          inputs: See `run_phase`.
          arguments: The server's arguments of the folds.
          clients: The indices of the clients in the whole federation.
          hand_in: Receives contributions, of consecutive ranges of the clients.

        Returns:
          The contribution of all clients that were not handed in. By default, these are all clients.
        """
        return clients, await self.run_phase(phase, inputs, arguments, clients)

    def over(self, wrap: Callable[[ProgramEngine], ProgramEngine]) -> "PhaseRunner | None":
        """Returns a copy of this runner that uses a wrapped program engine; `None` if programs run elsewhere."""
        return None

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        """Runs `work`, which converts a result of type `type_spec`, on a thread that may run streams of user code."""
        return work()

    def close(self) -> None:  # noqa: B027
        """Releases the resources that belong to this runner alone. Idempotent; never raises."""


class PhaseEngine(Engine, PhaseRunner):
    """Runs functions whose values are placed at the server and at clients.

    Args:
      server: Runs unplaced work and work on the server.
    """

    def __init__(self, server: ProgramEngine) -> None:
        self.server = server

    @property
    @abc.abstractmethod
    def clients(self) -> int:
        """The number of clients."""

    @property
    def phases(self) -> "PhaseEngine":
        return self

    @property
    def known_clients(self) -> int:
        return self.clients

    @property
    def drives_inline(self) -> bool:
        return self.server.drives_inline

    @property
    def leaf_threads(self) -> LeafThreads | None:
        return self.server.leaf_threads

    def over(self, wrap: Callable[[ProgramEngine], ProgramEngine]) -> "PhaseEngine | None":
        return None

    @abc.abstractmethod
    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        """Runs a phase for a range of clients, and folds the clients' results.

        Args:
          phase: The phase.
          inputs: See `run_phase`.
          arguments: The server's arguments to the folds.
          clients: The indices of the clients.
          all_clients: Whether the range contains all clients, so that no other results are merged with the states.
        """

    async def run_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range
    ) -> PhaseResult:
        with observed_phase(phase.program, clients):
            return (await self.fold_phase(phase, inputs, arguments, clients, all_clients=False)).partials()

    def accepts(self, computation: computation_pb2.Computation, executor: Executor) -> None:
        kind = computation.WhichOneof("computation")
        if kind not in _PLACED:
            raise InvalidComputationError(
                f"Expected a function, a literal or an intrinsic in {executor!r}, found a {kind}; wrap this executor "
                "in a ReferenceResolvingExecutor"
            )

    def begin(self, function: Function, *, in_parts: bool = False) -> FunctionRun:
        return ScheduleRun(function, self, self.clients, in_parts=in_parts)

    async def run(self, function: Function, argument: object) -> object:
        return await run_whole(function, self, self.clients, argument)

    async def run_server_task(self, task: ServerTask, inputs: Sequence[object]) -> object:
        """Runs server work and returns the payload of its result."""
        return await self.server.run_server_task(task, inputs)

    async def run_phase_task(self, task: PhaseTask, run: ScheduleValues) -> Sequence[object]:
        """Runs a phase for all clients; returns the results of its aggregations, followed by the kept columns."""
        phase = task.phase
        inputs = [self._checked(run.read_column(expression)) for expression in task.inputs]
        arguments = [
            FoldArgument(
                [run.read(expression) for expression in fold.server_inputs],
                [[run.read(expression) for expression in captures] for captures in fold.captures],
            )
            for fold in phase.folds
        ]
        clients = range(self.clients)
        with observed_phase(phase.program, clients) as note:
            folded = await self._folded(phase, inputs, arguments, clients, run, run.refused(task))
            begin = time.perf_counter()
            totals = [await self._result(*each) for each in zip(phase.folds, arguments, folded.states)]
            if note is not None and totals:
                what = ", ".join(dict.fromkeys(fold.uri for fold in phase.folds))
                note.folded(what, len(clients), time.perf_counter() - begin)
        return [*totals, *folded.columns]

    async def _folded(
        self,
        phase: Phase,
        inputs: Sequence[object],
        arguments: FoldArguments,
        clients: range,
        run: ScheduleValues,
        refused: Mapping[int, FedstackError],
    ) -> FoldedPhase:
        """Runs a phase for all clients, some of which may fail.

        Args:
          phase: The phase.
          inputs: See `run_phase`.
          arguments: The server's arguments to the folds.
          clients: All clients.
          run: The run of the schedule.
          refused: The errors of clients whose inputs are not allowed.
        """
        scope = current_scope()
        survivors, telling = scope.of(Survivors), scope.of(Telling)
        if survivors is None:
            folded = await self.fold_phase(phase, inputs, arguments, clients, all_clients=True)
            if telling is not None:
                telling.record(run.next_phase(), _work_of(phase), folded.ran, {}, (), len(clients))
            return folded
        work = _work_of(phase)
        replayed = survivors.replayed(len(clients), work)
        refused = {**refused, **replayed}
        with scope.adding(survivors.tolerance(refused, len(clients) if phase.program.steps else 0)).entered():
            folded = await self.fold_phase(phase, inputs, arguments, clients, all_clients=True)
        survivors.end_phase(work, {**refused, **folded.failures}, replayed, folded.ran, len(clients))
        return folded

    def _checked(self, column: Column) -> Column:
        """Returns the column after checking that it has one value per client."""
        if len(column) != self.clients:
            raise wrong_number_of_clients(self.clients, len(column))
        return column

    async def new_state(self, fold: Fold, argument: FoldArgument) -> FoldState:
        """Returns an empty state for a fold."""
        if fold.uri == "federated_aggregate":
            accumulates, merges = [
                ProgramRunner(await self.server.linked(program)).run for program in fold.functions[:2]
            ]
            return AggregateState(
                argument.values[0],
                # An error in `accumulate` names the client whose value is added. An error in `merge` names no client.
                lambda left, right, client: accumulates([(left, right), *argument.captures[0]], client)[0],
                with_one_blas_thread(lambda left, right: merges([(left, right), *argument.captures[1]], None)[0]),
            )
        return tree_state(fold, argument)

    async def _result(self, fold: Fold, argument: FoldArgument, state: FoldState) -> object:
        """Returns the result of an aggregation."""
        if fold.uri != "federated_aggregate":
            return state.result()
        threads = self.leaf_threads or fold_threads
        total = await threads.run(state.result)  # it calls the user's functions
        if current_scope().of(ChecksZeros) is not None:
            await threads.run(lambda: cast(AggregateState, state).warn_of_zero(total, fold.server_types[0]))
        report = await self.server.linked(fold.functions[2])
        (result,) = await self.server.run_once(report, [total, *argument.captures[2]])
        return result

    async def run_select_task(self, task: SelectTask, run: ScheduleValues) -> object:
        """Computes the slice of each distinct key once, and returns a column with the slices of each client.

        The slices of a client are in the order of its keys.
        """
        column = as_column(run.read(task.keys), self.clients)
        keys = column.items() if column.is_here else await off_loop(column.items)
        survivors = current_scope().of(Survivors)
        refused = run.refused(task)
        absent: Container[int] = () if survivors is None else {*survivors.absent, *refused}
        failures = dict(refused)
        limit = int(cast(int, run.read(task.max_key)))
        if limit < 0:
            raise negative_bound(task.uri, "max_key", limit, "pass the largest key that a client may request")
        value = run.read(task.value)
        captures = [run.read(expression) for expression in task.captures]
        wanted: dict[int, object] = {}
        lists: list[list[int]] = [
            [] if client in absent else np.asarray(item).tolist() for client, item in enumerate(keys)
        ]
        for client, client_keys in enumerate(lists):
            wrong = next((key for key in client_keys if not 0 <= key <= limit), None)
            if wrong is None:
                wanted.update(dict.fromkeys(client_keys))
                continue
            error = InvalidValueError(
                f"Expected keys from 0 to max_key ({limit}) for {task.uri}, found {wrong} at client {client}"
            )
            error.client_index = client
            if survivors is None:
                raise error
            failures[client] = error
            lists[client] = []
        function = await self.server.linked(task.function)
        for key in wanted:
            try:
                (wanted[key],) = await self.server.run_once(function, [(value, np.int32(key)), *captures])
            except RetryableError:
                raise
            except FedstackError as error:
                raise with_place(error, f"for the key {key} of {task.uri}") from error.__cause__
        run.selected(task, failures)
        return ListColumn([[wanted[key] for key in client_keys] for client_keys in lists])

    async def finish(self, work: Callable[[], _T], type_spec: Type) -> _T:
        return await self.server.finish(work, type_spec)

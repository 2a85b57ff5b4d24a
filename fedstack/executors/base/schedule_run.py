"""Runs each task of a schedule once. Tasks that do not depend on each other run concurrently.

In a call whose clients may fail, tasks run one after another, so that the result does not depend on time.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, cast

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.graph import Function, Pack, Symbol, select
from fedstack.computations.plan.program import Expression, Join, Pick, Slot
from fedstack.computations.plan.schedule import only_task, schedule
from fedstack.computations.plan.tasks import PhaseTask, Schedule, SelectTask, ServerTask, Task
from fedstack.computations.types.language import RetryableError, StructType, Type
from fedstack.computations.types.type_structure import contains_federated, fields_of, is_client_valued
from fedstack.computations.values.columns import Column, ConstantColumn, zip_columns
from fedstack.computations.values.shared_columns import SharedColumn
from fedstack.errors import FedstackError, UnsupportedIntrinsicError
from fedstack.executors.concurrency.coroutines import LazyTask, gather, need_event_loop, owned_by, runs_inline
from fedstack.executors.concurrency.repetition import repeated
from fedstack.executors.survivors.outcomes import Telling
from fedstack.executors.survivors.survivors import Survivors

_NOBODY: Mapping[int, FedstackError] = MappingProxyType({})
# A placeholder for a member of an argument that was not pulled because no task reads it.
UNPULLED = object()


class TaskRunner(Protocol):
    """Runs the tasks of a schedule."""

    async def run_server_task(self, task: ServerTask, inputs: Sequence[object]) -> object:
        """Runs server work and returns the payload of its result."""
        ...

    async def run_phase_task(self, task: PhaseTask, run: "ScheduleValues") -> Sequence[object]:
        """Runs a phase and returns a payload or a column for each target of the task."""
        ...

    async def run_select_task(self, task: SelectTask, run: "ScheduleValues") -> object:
        """Runs a selection and returns the column of the clients' values."""
        ...


class ScheduleValues:
    """The values of a single run of a schedule, stored as tasks complete.

    Args:
      tasks: The schedule.
      clients: The number of clients; `None` for a run without placements.
    """

    def __init__(self, tasks: Schedule, clients: int | None) -> None:
        self.schedule = tasks
        self.clients = clients
        self.values: list[object] = [None] * tasks.slots
        for slot, payload in tasks.constants:
            self.values[slot] = payload
        self._shared: dict[Expression, SharedColumn] = {}
        self._phases = 0
        self._refused: dict[int, Mapping[int, FedstackError]] = {}  # by slot and client

    def read(self, expression: Expression) -> object:
        """Returns the value of an expression. All slots that the expression reads must be filled."""
        return _read_placed(expression, self.values)

    def read_column(self, expression: Expression) -> Column:
        """Returns the value of a phase's input as a column. Phases that share an input receive the same object."""
        found = self._shared.get(expression)
        if found is not None:
            return found
        column = as_column(self.read(expression), self.clients)
        if expression in self.schedule.shared:
            column = self._shared[expression] = SharedColumn(column)
        return column

    def next_phase(self) -> int:
        """Returns the number of a phase, counted in the order in which phases end."""
        self._phases += 1
        return self._phases - 1

    def selected(self, task: SelectTask, failures: Mapping[int, FedstackError]) -> None:
        """Records that values were selected for the clients.

        Args:
          task: The selection.
          failures: The errors of the clients whose values cannot be selected, by client. They fail in the first phase
            that reads the values. If no phase reads them, the selection counts as a phase.
        """
        if not self.schedule.counts_as_phase(task):
            if failures:
                self._refused[task.target] = failures
            return
        scope, clients = current_scope(), self.clients or 0
        survivors, telling = scope.of(Survivors), scope.of(Telling)
        if survivors is not None:
            replayed = survivors.replayed(clients, task.uri)
            survivors.end_phase(task.uri, {**failures, **replayed}, replayed, (), clients)
        elif telling is not None:
            telling.record(self.next_phase(), task.uri, (), {}, (), clients)

    def refused(self, task: Task) -> Mapping[int, FedstackError]:
        """Returns the errors of the clients that have no values for a task, by client."""
        if not self._refused:
            return _NOBODY
        found: dict[int, FedstackError] = {}
        for slot in sorted(self._refused.keys() & task.reads):
            found = {**self._refused[slot], **found}
        return found

    async def run_task(self, task: Task, runner: TaskRunner) -> None:
        """Runs a task whose inputs are available, and stores its results.

        Server work that fails with a retryable error is repeated by itself, so that the results of phases are kept.
        """
        losses = current_scope().losses
        if isinstance(task, ServerTask):
            inputs = [self.read(expression) for expression in task.inputs]
            work = lambda: runner.run_server_task(task, inputs)  # noqa: E731
            self.values[task.target] = await repeated(work, losses, "Running server work", RetryableError)
        elif isinstance(task, PhaseTask):
            results = await runner.run_phase_task(task, self)
            for target, value in zip(task.targets, results):
                self.values[target] = value
        else:
            select = lambda: runner.run_select_task(task, self)  # noqa: E731
            self.values[task.target] = await repeated(select, losses, "Running a selection", RetryableError)


class ScheduleRun(ScheduleValues):
    """A single run of a function's schedule, whose tasks run when their results are pulled.

    Args:
      function: The function.
      runner: Runs the tasks.
      clients: The number of clients; `None` for a run without placements.
      in_parts: Whether members of the result are pulled one by one.
    """

    def __init__(self, function: Function, runner: TaskRunner, clients: int | None, *, in_parts: bool = False) -> None:
        super().__init__(schedule(function, fuse=not in_parts), clients)
        self._result = function.result
        self._runner = runner
        self._tasks: list[tuple[LazyTask[None], Task]] = []
        self._makers: dict[int, LazyTask[None]] = {}
        owner = owned_by(self)
        for task in self.schedule.tasks:
            once: LazyTask[None] = LazyTask(lambda task=task: owner()._run_task(task))
            self._tasks.append((once, task))
            for target in _targets(task):
                self._makers[target] = once

    async def pull(self, path: tuple[int, ...], argument: object) -> object:
        """Runs the remaining tasks for a member of the result, and returns the payload of this member.

        See `FunctionRun`.
        """
        self.values[0] = merged_argument(self.values[0], argument)
        expression, symbol = self.schedule.result, self._result
        for position in path:
            if isinstance(expression, Join) and isinstance(symbol, Pack):
                expression = expression.parts[position]
            else:
                expression = Pick(expression, position)
            symbol = select(symbol, position)
        await self._make(slots_of(expression))
        return whole_columns(self.read(expression), symbol, self.clients)

    async def _make(self, slots: Sequence[int]) -> None:
        if self._makers.keys().isdisjoint(slots):
            return
        waiting = self._unfinished(slots)
        is_serial = current_scope().of(Survivors) is not None  # who fails in a phase is absent from the next one
        if waiting and len(self._tasks) > 1 and (runs_inline() or is_serial):
            in_order, forks = self._needed(slots)
            if forks and self._runs_functions() and not is_serial:
                await need_event_loop()
            if runs_inline() or is_serial:
                # In schedule order, so that the inputs of each task are available and a long chain does not nest calls.
                for once in in_order:
                    await once.get()
        if len(waiting) > 1 and not runs_inline():
            await gather([once.get() for once in waiting])
            return
        # A failed task keeps its error and raises it again here.
        for slot in slots:
            if slot in self._makers:
                await self._makers[slot].get()

    def _unfinished(self, slots: Iterable[int]) -> list[LazyTask[None]]:
        """Returns the unfinished tasks that fill the given slots."""
        makers = dict.fromkeys(self._makers[slot] for slot in slots if slot in self._makers)
        return [once for once in makers if not once.done]

    def _needed(self, slots: Sequence[int]) -> tuple[list[LazyTask[None]], bool]:
        """Returns the unfinished tasks that the slots need, in schedule order, and whether any can run concurrently."""
        wanted = set(slots)
        forks = len(self._unfinished(slots)) > 1
        needed: list[LazyTask[None]] = []
        for once, task in reversed(self._tasks):
            if not once.done and not wanted.isdisjoint(_targets(task)):
                needed.append(once)
                wanted |= task.reads
                forks = forks or len(self._unfinished(task.reads)) > 1
        needed.reverse()
        return needed, forks

    def _runs_functions(self) -> bool:
        """Returns whether any task calls functions, which may run for a long time."""
        tasks = [task for task in self.schedule.tasks if not isinstance(task, SelectTask)]
        return any((task.program if isinstance(task, ServerTask) else task.phase.program).steps for task in tasks)

    async def _run_task(self, task: Task) -> None:
        if not self._makers.keys().isdisjoint(task.reads):
            await self._make(sorted(task.reads))
        await self.run_task(task, self._runner)


async def run_whole(function: Function, runner: TaskRunner, clients: int | None, argument: object) -> object:
    """Runs a function and returns the payload of its whole result."""
    task = only_task(function)
    if task is not None:
        # A single task needs no bookkeeping, which would take half of the time of a small call.
        return await runner.run_server_task(task, [argument] * len(task.inputs))
    tasks = schedule(function)
    if len(tasks.tasks) > 1:
        return await ScheduleRun(function, runner, clients).pull((), argument)
    values = ScheduleValues(tasks, clients)
    values.values[0] = argument
    for task in tasks.tasks:
        await values.run_task(task, runner)
    return whole_columns(values.read(tasks.result), function.result, clients)


def merged_argument(known: object, argument: object) -> object:
    """Returns the known argument, updated with newly pulled members."""
    if not (isinstance(known, tuple) and isinstance(argument, tuple)):
        return argument
    members = zip(cast("tuple[object, ...]", known), cast("tuple[object, ...]", argument))
    return tuple(old if new is UNPULLED else new for old, new in members)


def _targets(task: Task) -> Sequence[int]:
    return task.targets if isinstance(task, PhaseTask) else (task.target,)


def slots_of(expression: Expression) -> list[int]:
    """Returns the slots that an expression reads."""
    if isinstance(expression, Slot):
        return [expression.index]
    if isinstance(expression, Join):
        return [slot for part in expression.parts for slot in slots_of(part)]
    return slots_of(expression.source)


def _read_placed(expression: Expression, values: Sequence[object]) -> object:
    if isinstance(expression, Slot):
        return values[expression.index]
    if isinstance(expression, Join):
        return tuple(_read_placed(part, values) for part in expression.parts)
    if isinstance(expression.source, Join):
        return _read_placed(expression.source.parts[expression.position], values)
    source = _read_placed(expression.source, values)
    return cast("tuple[object, ...]", source)[expression.position]


def no_clients(found: str) -> UnsupportedIntrinsicError:
    """Returns the error to raise when a stack without placements receives work that needs clients."""
    return UnsupportedIntrinsicError(
        f"Expected unplaced work in a stack without clients, found {found}; add a FederatingExecutor to the stack, "
        "or use local_executor_factory"
    )


def as_column(payload: object, clients: int | None) -> Column:
    """Returns a value placed at clients as a column.

    A struct of columns and payloads, which is the result of a zip, is combined into one column.
    """
    if isinstance(payload, Column):
        return payload
    if clients is None:
        raise no_clients("a value placed at clients")
    if _has_column(payload):
        return zip_columns([as_column(member, clients) for member in cast("tuple[object, ...]", payload)], clients)
    return ConstantColumn(payload, clients)


def _has_column(payload: object) -> bool:
    if isinstance(payload, tuple):
        return any(map(_has_column, cast("tuple[object, ...]", payload)))
    return isinstance(payload, Column)


def whole_columns(payload: object, symbol: Symbol, clients: int | None) -> object:
    """Converts a result so that each value placed at clients is a single column.

    Before the conversion, the result of a zip is a struct of columns, and a value that all clients share is represented
    by its payload.
    """
    if isinstance(symbol, Pack):
        members = cast("tuple[object, ...]", payload)
        return tuple(whole_columns(value, member, clients) for value, member in zip(members, symbol.members))
    return _whole_columns_of(payload, symbol.type, clients)


def _whole_columns_of(payload: object, type_spec: Type, clients: int | None) -> object:
    if is_client_valued(type_spec):
        return as_column(payload, clients)
    if isinstance(type_spec, StructType) and contains_federated(type_spec):
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec))
        return tuple(_whole_columns_of(value, member, clients) for value, (_, member) in members)
    return payload

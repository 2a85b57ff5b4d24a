"""Implements pulling for executors that run schedules: whole results, or parts of one that share what they need."""

import abc
from collections.abc import Sequence
from typing import cast

from fedstack.computations.plan.graph import Function, Pack, Symbol, select
from fedstack.computations.plan.program import Expression, Join, Pick
from fedstack.computations.plan.schedule import schedule
from fedstack.computations.types.language import StructType, Type
from fedstack.computations.types.type_structure import contains_federated, fields_of, is_client_valued
from fedstack.executors.base.lazy_executor import LazyExecutor
from fedstack.executors.base.lazy_values import CallValue, KnownValue, LazyValue
from fedstack.executors.base.schedule_run import ScheduleRun, TaskRunner, as_column
from fedstack.executors.concurrency.leaf_threads import runs_inline
from fedstack.executors.concurrency.side_by_side import gather
from fedstack.executors.concurrency.sync_driver import need_event_loop

# So many values are pulled side by side.
_AT_ONCE = 1000


class ScheduledExecutor(LazyExecutor, TaskRunner, abc.ABC):
    """A lazy executor that runs the tasks of schedules itself."""

    @property
    @abc.abstractmethod
    def clients(self) -> int:
        """The number of clients; 0 for an executor without placements."""

    async def evaluate(self, function: Function, argument: object) -> object:
        plan = schedule(function)
        run = ScheduleRun(plan, self, self.clients)
        run.set_argument(argument)
        return whole_columns(await run.pull(plan.result), function.result, self.clients)

    def start_parts(self, function: Function) -> object:
        return function, ScheduleRun(schedule(function, fuse=False), self, self.clients)

    async def evaluate_part(self, session: object, path: tuple[int, ...], argument: object) -> object:
        function, run = cast("tuple[Function, ScheduleRun]", session)
        run.set_argument(argument)
        symbol = function.result
        for position in path:
            symbol = select(symbol, position)
        expression = _part_of(run.schedule.result, function.result, path)
        return whole_columns(await run.pull(expression), symbol, self.clients)

    async def pull_all(self, values: Sequence[LazyValue]) -> tuple[object, ...]:
        return await pull_side_by_side(values)


def _part_of(expression: Expression, symbol: Symbol, path: tuple[int, ...]) -> Expression:
    """Returns the expression for a member of a result."""
    for position in path:
        if isinstance(expression, Join) and isinstance(symbol, Pack):
            expression, symbol = expression.parts[position], symbol.members[position]
        else:
            expression = Pick(expression, position)
    return expression


def whole_columns(payload: object, symbol: Symbol, clients: int) -> object:
    """Returns a result in which every value that differs by client is one column.

    A zip leaves structs of columns, and what is the same for all clients is just its payload.
    """
    if isinstance(symbol, Pack):
        members = cast("tuple[object, ...]", payload)
        return tuple(whole_columns(value, member, clients) for value, member in zip(members, symbol.members))
    return _whole_columns_of(payload, symbol.type, clients)


def _whole_columns_of(payload: object, type_spec: Type, clients: int) -> object:
    if is_client_valued(type_spec):
        return as_column(payload, clients)
    if isinstance(type_spec, StructType) and contains_federated(type_spec):
        members = zip(cast("tuple[object, ...]", payload), fields_of(type_spec))
        return tuple(_whole_columns_of(value, member, clients) for value, (_, member) in members)
    return payload


async def pull_side_by_side(values: Sequence[LazyValue]) -> tuple[object, ...]:
    """Pulls several values, each once however often it comes, on a loop if more than one of them has to run."""
    distinct = list(dict.fromkeys(values))
    if sum(isinstance(value, CallValue) for value in distinct) > 1 and runs_inline():
        await need_event_loop()
    payloads: dict[LazyValue, object] = {}
    # What is known needs no task; of the others there may be any number.
    running = [value for value in distinct if not isinstance(value, KnownValue)]
    if len(running) <= 1 or runs_inline():
        for value in running:
            payloads[value] = await value.pull()
    else:
        for first in range(0, len(running), _AT_ONCE):
            some = running[first : first + _AT_ONCE]
            payloads.update(zip(some, await gather([value.pull() for value in some])))
    for value in distinct:
        if isinstance(value, KnownValue):
            payloads[value] = await value.pull()
    return tuple([payloads[value] for value in values])

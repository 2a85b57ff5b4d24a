"""Describes the work of a computation on the server and on the clients, and the data sent between them.

The description is derived from the schedule that executors run.
"""

import html
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import cast

import attrs

from fedstack.computations.leaves.leaf_runtimes import carrier_of
from fedstack.computations.plan.graph import Function
from fedstack.computations.plan.program import (
    DataSource,
    Expression,
    IntrinsicSource,
    Join,
    LeafSource,
    Operation,
    Program,
    Slot,
)
from fedstack.computations.plan.schedule import schedule, slots_read
from fedstack.computations.plan.tasks import Fold, PhaseTask, Schedule, SelectTask, ServerTask
from fedstack.computations.types.language import FederatedType, StructType, Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import (
    exact_bytes,
    fields_of,
    is_client_valued,
    join_path,
    least_bytes,
)
from fedstack.foundations.error_text import size_text

# The maximum width of a line of function names.
_WIDTH = 84
_NOTHING = "Nothing runs, because the result is already known."


@attrs.frozen
class Item:
    """A value that one client receives, has, contributes or keeps.

    Attributes:
      name: The name of the value.
      type: The type of the value on one client.
    """

    name: str
    type: Type

    @property
    def bytes(self) -> int | None:
        """The number of bytes of the value's arrays on one client; `None` if the number depends on the data."""
        return exact_bytes(self.type)


@attrs.frozen(kw_only=True)
class ExplainedStep:
    """One step of a computation: work on the server, or on each client.

    Attributes:
      place: `server` or `clients`.
      runs: The names of the functions that run, in order.
      receives: The values that are sent to each client.
      has: The values that each client already has: its part of the argument, or results of earlier steps.
      gives: The aggregations to which each client contributes: the intrinsic, with the type of one contribution.
      keeps: The values that each client computes for later steps or for the result.
      phase: The number of the phase, as in `ClientFailure.phase`; `None` if the step is no phase.
    """

    place: str
    runs: tuple[str, ...] = ()
    receives: tuple[Item, ...] = ()
    has: tuple[Item, ...] = ()
    gives: tuple[Item, ...] = ()
    keeps: tuple[Item, ...] = ()
    phase: int | None = None

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields the rows of the description. Each row consists of a verb, a name, a type and a size."""
        for verb, items in (("receives", self.receives), ("has", self.has)):
            yield from (_row(verb, item) for item in items)
        if self.runs:
            yield "runs", ", ".join(self.runs), "", ""
        for verb, items in (("contributes", self.gives), ("keeps", self.keeps)):
            yield from (_row(verb, item) for item in items)

    def traffic(self, clients: int) -> str:
        """Returns a description of the total traffic for a number of clients."""
        return f"{_total(self.receives, clients)} to the clients, {_total((*self.gives, *self.keeps), clients)} back"


class Explanation:
    """A readable description of a computation's plan. Print it to read it; a notebook shows it as a table.

    Attributes:
      signature: The type of the computation.
      num_clients: The number of clients for which totals are computed; `None` for no totals.
      steps: The steps, in order.
    """

    def __init__(self, signature: str, num_clients: int | None, steps: Sequence[ExplainedStep]) -> None:
        self.signature = signature
        self.num_clients = num_clients
        self.steps = tuple(steps)

    def __str__(self) -> str:
        lines = [self.signature]
        for number, step in enumerate(self.steps, 1):
            rows = list(step.rows())
            lines.append(f"{number}. {self._place(step)}")
            widths = [max((len(row[column]) for row in rows if row[2]), default=0) for column in range(3)]
            for verb, name, type_name, size in rows:
                if type_name:
                    cells = (verb.ljust(11), name.ljust(widths[1]), type_name.ljust(widths[2]), size)
                    lines.append(f"   {'  '.join(cells)}".rstrip())
                else:  # the names of functions
                    first, *more = textwrap.wrap(name, _WIDTH, break_long_words=False, break_on_hyphens=False)
                    lines += [f"   {verb:11}  {first}", *(" " * 16 + line for line in more)]
            if self._counts(step):
                lines.append(f"   {'total':11}  {step.traffic(cast(int, self.num_clients))}")
        return "\n".join(lines if self.steps else [*lines, _NOTHING])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns an HTML table for notebooks."""
        rows = [_html_row("th", "step", "where", "", "what", "type", "bytes")]
        for number, step in enumerate(self.steps, 1):
            shown = [*step.rows()]
            if self._counts(step):
                shown.append(("total", "", "", step.traffic(cast(int, self.num_clients))))
            for index, row in enumerate(shown or [("", "", "", "")]):
                rows.append(_html_row("td", *((f"{number}", self._place(step)) if not index else ("", "")), *row))
        table = f"<table>{''.join(rows)}</table>" if self.steps else f"<p>{_NOTHING}</p>"
        return f"<p><code>{html.escape(self.signature)}</code></p>{table}"

    def _place(self, step: ExplainedStep) -> str:
        if step.place == "server":
            return "on the server"
        phase = f" (phase {step.phase})" if step.phase is not None and self._has_phases else ""
        if self.num_clients is None:
            return f"on each client{phase}"
        return f"on 1 client{phase}" if self.num_clients == 1 else f"on each of {self.num_clients:,} clients{phase}"

    @property
    def _has_phases(self) -> bool:
        """Whether there are several phases, so that their numbers matter."""
        return any(step.phase for step in self.steps)

    def _counts(self, step: ExplainedStep) -> bool:
        return step.place == "clients" and self.num_clients is not None


def explain_function(function: Function, signature: Type, num_clients: int | None = None) -> Explanation:
    """Returns the explanation of a traced computation.

    Args:
      function: The computation.
      signature: The type of the computation.
      num_clients: The number of clients for which totals are computed; `None` for no totals.
    """
    return Explanation(type_text(signature), num_clients, list(_ScheduleReader(function).steps()))


class _ScheduleReader:
    """Derives the steps of an explanation from a schedule.

    For each slot, the reader tracks the name, the type, and whether each client has its own value.
    """

    def __init__(self, function: Function) -> None:
        self._schedule = schedule(function)
        parameter = None if function.parameter is None else function.parameter.type
        self._names = {0: "arg"}
        self._types = {0: parameter}
        self._at_clients: set[int] = set()
        self._readers = _readers(self._schedule)
        for slot, payload in self._schedule.constants:
            self._names[slot] = f"the constant {payload!r}" if isinstance(payload, (int, float)) else "a constant"

    def steps(self) -> Iterator[ExplainedStep]:
        phases = itertools.count()
        for task, step in zip(self._schedule.tasks, self._plain_steps()):
            yield attrs.evolve(step, phase=next(phases)) if self._schedule.counts_as_phase(task) else step

    def _plain_steps(self) -> Iterator[ExplainedStep]:
        for number, task in enumerate(self._schedule.tasks, 1):
            if isinstance(task, ServerTask):
                self._names[task.target] = f"step {number}"
                yield ExplainedStep(place="server", runs=_functions(task.program))
            elif isinstance(task, PhaseTask):
                yield self._phase(task, f"step {number}")
            else:
                yield self._select(task, f"step {number}")

    def _phase(self, task: PhaseTask, name: str) -> ExplainedStep:
        phase = task.phase
        receives: list[Item] = []
        has: list[Item] = []
        for expression, type_spec in zip(task.inputs, phase.input_types):
            label, _, is_own = self._found(expression)
            (has if is_own else receives).append(Item(label, type_spec))
        gives = [Item(_fold_name(fold), _given(fold)) for fold in phase.folds]
        held = zip(task.targets[len(phase.folds) :], phase.held)
        keeps = [Item(f"for {self._readers[target]}", member) for target, (_, member) in held]
        for target, member in zip(task.targets, [*(f.type for f in phase.folds), *(held for _, held in phase.held)]):
            self._names[target], self._types[target] = name, member
        self._at_clients.update(task.targets[len(phase.folds) :])
        return ExplainedStep(
            place="clients",
            runs=_functions(phase.program),
            receives=tuple(receives),
            has=tuple(has),
            gives=tuple(gives),
            keeps=tuple(keeps),
        )

    def _select(self, task: SelectTask, name: str) -> ExplainedStep:
        self._names[task.target], self._types[task.target] = name, task.type
        self._at_clients.add(task.target)
        what = f"{task.uri}: a slice of {self._found(task.value)[0]} for each key in {self._found(task.keys)[0]}"
        return ExplainedStep(place="clients", runs=_functions(task.function), receives=(Item(what, task.type),))

    def _found(self, expression: Expression) -> tuple[str, Type | None, bool]:
        """Returns the name of a value, its type if known, and whether each client has its own value."""
        if isinstance(expression, Slot):
            type_spec = self._types.get(expression.index)
            is_own = expression.index in self._at_clients or (type_spec is not None and is_client_valued(type_spec))
            return self._names[expression.index], type_spec, is_own
        if isinstance(expression, Join):
            parts = [self._found(part) for part in expression.parts]
            return f"({', '.join(name for name, _, _ in parts)})", None, any(is_own for *_, is_own in parts)
        source, type_spec, is_own = self._found(expression.source)
        inside = type_spec.member if isinstance(type_spec, FederatedType) else type_spec
        field: tuple[str | None, Type | None] = (None, None)
        if isinstance(inside, StructType):
            field = fields_of(inside)[expression.position]
        name, member = field
        own = is_own or (member is not None and is_client_valued(member))
        return join_path(source, name, expression.position), member, own


def _readers(plan: Schedule) -> dict[int, str]:
    """Returns a description of the readers of each slot, such as `step 2 and the result`."""
    readers: dict[int, list[str]] = {}
    for number, task in enumerate(plan.tasks, 1):
        inputs = slots_read(task.inputs) if isinstance(task, PhaseTask) else frozenset[int]()
        for slot in inputs | task.reads:
            readers.setdefault(slot, []).append(f"step {number}")
    for slot in slots_read([plan.result]):
        readers.setdefault(slot, []).append("the result")
    return {slot: " and ".join(names) for slot, names in readers.items()}


def _given(fold: Fold) -> Type:
    return fold.member if fold.weight is None else StructType([("value", fold.member), ("weight", fold.weight)])


def _fold_name(fold: Fold) -> str:
    names = [", ".join(_functions(program)) for program in fold.functions]
    from_zero = ", each 8 clients from zero" if fold.functions else ""
    return f"{fold.uri}({', '.join(filter(None, names))}){from_zero}" if any(names) else f"{fold.uri}{from_zero}"


def _functions(program: Program) -> tuple[str, ...]:
    return tuple(_name(step.operation) for step in program.steps)


def _name(operation: Operation) -> str:
    if isinstance(operation, LeafSource):
        return operation.name or f"a {carrier_of(operation.computation)}"
    if isinstance(operation, IntrinsicSource):
        inner = ", ".join(name for program in operation.functions for name in _functions(program))
        return f"{operation.uri}({inner})" if inner else operation.uri
    return "a data block" if isinstance(operation, DataSource) else operation.name


def _row(verb: str, item: Item) -> tuple[str, str, str, str]:
    size = item.bytes
    return verb, item.name, type_text(item.type), "" if size is None else size_text(size)


def _total(items: Sequence[Item], clients: int) -> str:
    least = clients * sum(least_bytes(item.type) for item in items)
    return f"{'at least ' if None in [item.bytes for item in items] else ''}{size_text(least)}"


def _html_row(cell: str, *texts: str) -> str:
    style = f'style="text-align: left; white-space: normal; max-width: {_WIDTH}ex"'
    return f"<tr>{''.join(f'<{cell} {style}>{html.escape(text)}</{cell}>' for text in texts)}</tr>"

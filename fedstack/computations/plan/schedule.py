"""Cuts a traced computation into tasks: server work, client phases with aggregations, and selections.

All work on clients between two aggregations is one phase. The phase's program runs once per client, and its results are
passed directly to folds, so values that only folds read are never stored. Phases are ordered by level: a phase at level
k uses results of aggregations at lower levels.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import attrs

from fedstack.computations.plan.graph import (
    Constant,
    Function,
    IntrinsicCall,
    Node,
    Pack,
    Selection,
    Symbol,
    is_aggregation,
    is_barrier,
    is_client_work,
    is_select,
    is_transparent,
    is_zip_or_broadcast,
    made_anew,
    nodes_of,
    type_of,
)
from fedstack.computations.plan.program import Expression, Join, Pick, ProgramBuilder, Slot, closed_program, read_by_one
from fedstack.computations.plan.server_chains import joined
from fedstack.computations.plan.tasks import (
    Fold,
    Phase,
    PhaseTask,
    ProgramTypes,
    Schedule,
    SelectTask,
    ServerTask,
    Task,
    slots_read,
)
from fedstack.computations.types.language import FederatedType, StructType, Type
from fedstack.computations.types.type_structure import contains_federated, fields_of, is_placed_at_clients, struct_of
from fedstack.foundations.caches import made_once


def schedule(function: Function, *, fuse: bool = True) -> Schedule:
    """Returns the schedule of a traced computation. The schedule is created once and cached with the computation.

    Args:
      function: The computation.
      fuse: Whether to join client work into phases. Otherwise, every node becomes a task whose result is stored, for
        callers that read parts of the result one by one.
    """
    return _fused(function) if fuse else _unfused(function)


@made_once
def _fused(function: Function) -> Schedule:
    return _Cutter(function, fuse=True).cut()


@made_once
def only_task(function: Function) -> ServerTask | None:
    """Returns the task of a computation that consists of a single server task, or `None` for other computations."""
    tasks, result = _fused(function).tasks, _fused(function).result
    task = tasks[0] if len(tasks) == 1 else None
    if not isinstance(task, ServerTask) or result != Slot(task.target) or any(one != Slot(0) for one in task.inputs):
        return None
    return None if contains_federated(type_of(function.result)) else task


@made_once
def _unfused(function: Function) -> Schedule:
    return _Cutter(function, fuse=False).cut()


class _Cutter:
    def __init__(self, function: Function, fuse: bool) -> None:
        self.function = function
        self.fuse = fuse
        self.slots = 1
        self.constants: list[tuple[int, object]] = []
        self.place: dict[Node, Expression] = {}
        self.level: dict[Node, int] = {}
        self.tasks: list[Task] = []
        self.anew = made_anew(function) if fuse else frozenset[Node]()
        if function.parameter is not None:
            self.place[function.parameter] = Slot(0)
            self.level[function.parameter] = 0

    def cut(self) -> Schedule:
        self._assign_levels()
        groups: dict[int, list[Node]] = {}
        for node in self.function.nodes:
            if node not in self.anew:
                groups.setdefault(self.level[node], []).append(node)
        for level in sorted(groups):
            self._cut_level(groups[level])
        result = self.expression(self.function.result)
        if self.fuse:
            self._link_phases()
            self.tasks = joined(self.tasks, result, frozenset(slot for slot, _ in self.constants))
        inputs = Counter(e for task in self.tasks if isinstance(task, PhaseTask) for e in frozenset(task.inputs))
        shared = frozenset(expression for expression, phases in inputs.items() if phases > 1)
        return Schedule(tuple(self.tasks), tuple(self.constants), result, self.slots, shared)

    def _link_phases(self) -> None:
        """Sets the `following` attribute of each phase."""
        following: Phase | None = None
        for index, task in reversed(list(enumerate(self.tasks))):
            if isinstance(task, PhaseTask):
                following = attrs.evolve(task.phase, following=following)
                self.tasks[index] = attrs.evolve(task, phase=following)

    def _assign_levels(self) -> None:
        """Computes the level of each node. The result of an aggregation is available one level later."""
        position = 0
        for node in self.function.nodes:
            leaves = (leaf for operand in node.operands() for leaf in nodes_of(operand))
            needed = max(map(self._available, leaves), default=0)
            self.level[node] = needed
            if not self.fuse:
                position += 1
                self.level[node] = max(needed, position)

    def _available(self, node: Node) -> int:
        return self.level.get(node, 0) + (1 if is_barrier(node) else 0)

    def _cut_level(self, nodes: Sequence[Node]) -> None:
        phase = [node for node in nodes if is_client_work(node) or is_aggregation(node)]
        before = [node for node in nodes if not is_client_work(node) and not is_barrier(node)]
        late: list[Node] = []
        for node in before:
            # Zips and selections of client values that this phase computes are placed after the phase.
            if any(leaf in phase for operand in node.operands() for leaf in self._phase_leaves(operand, phase)):
                late.append(node)
            else:
                self._place(node)
        if phase:
            self._phase_task(phase, late)
        for node in late:
            if node not in self.place and all(leaf in self.place for o in node.operands() for leaf in nodes_of(o)):
                self._place(node)
        for node in nodes:
            if is_select(node):
                self._select_task(node)

    def _phase_leaves(self, symbol: Symbol, phase: Sequence[Node]) -> Iterator[Node]:
        """Yields the nodes behind a symbol. Transparent nodes that are not placed are replaced by their operands."""
        for leaf in nodes_of(symbol):
            if leaf not in phase and leaf not in self.place and is_transparent(leaf):
                for operand in leaf.operands():
                    yield from self._phase_leaves(operand, phase)
            else:
                yield leaf

    def expression(self, symbol: Symbol) -> Expression:
        """Returns the expression for the value of a symbol."""
        if isinstance(symbol, Pack):
            return Join(tuple(self.expression(member) for member in symbol.members))
        found = self.place.get(cast(Node, symbol))
        if found is None and isinstance(symbol, Selection):
            found = self.place[symbol] = Pick(self.expression(symbol.source), symbol.position)
        if found is None:
            raise AssertionError(f"{symbol!r} is used before it is placed")
        return found

    def _new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _place(self, node: Node) -> None:
        if isinstance(node, Selection):
            self.place[node] = Pick(self.expression(node.source), node.position)
        elif isinstance(node, Constant):
            slot = self._new_slot()
            self.constants.append((slot, node.payload))
            self.place[node] = Slot(slot)
        elif is_zip_or_broadcast(node):
            # All-equal values and server values are plain payloads, and a struct of columns is a column.
            self.place[node] = self.expression(node.arguments[0])
        else:
            self._server_task(node)

    def _server_task(self, node: Node) -> None:
        builder = ProgramBuilder()
        inputs: list[Expression] = []

        def bind(symbol: Symbol) -> None:
            for leaf in nodes_of(symbol):
                if leaf not in builder.bound:
                    inputs.append(self.expression(leaf))
                    builder.bind(leaf, builder.input())

        for operand in node.operands():
            bind(operand)
        if isinstance(node, IntrinsicCall) and isinstance(node.type, FederatedType):
            function = node.functions[0]  # federated_apply, federated_map_all_equal, federated_eval_at_server
            argument = builder.read(node.arguments[0]) if node.arguments else None
            result = builder.inline(function, argument)
        else:
            result = builder.add(node)
        target = self._new_slot()
        self.tasks.append(ServerTask(builder.finish([result]), tuple(inputs), target, slots_read(inputs)))
        self.place[node] = Slot(target)

    def _phase_task(self, phase: Sequence[Node], late: Sequence[Node]) -> None:
        builder = ProgramBuilder()
        inputs = _PhaseInputs(builder)
        inside = {node for node in phase if not is_barrier(node)}

        def bind(symbol: Symbol) -> None:
            for leaf in nodes_of(symbol):
                if leaf in builder.bound:
                    continue
                if (leaf in late or leaf in self.anew) and isinstance(leaf, IntrinsicCall):
                    for operand in leaf.operands():
                        bind(operand)
                    argument = builder.read(leaf.arguments[0])
                    builder.bind(leaf, builder.inline(leaf.functions[0], argument) if leaf.functions else argument)
                else:
                    builder.bind(leaf, inputs.read(self.expression(leaf), _at_one_client(leaf.type)))

        results: list[Expression] = []
        folds: list[Fold] = []
        fold_targets: list[int] = []
        for node in phase:
            if not isinstance(node, IntrinsicCall):
                continue
            if node in inside:
                for operand in node.operands():
                    bind(operand)
                argument = builder.read(node.arguments[0]) if node.arguments else None
                builder.bind(node, builder.inline(node.functions[0], argument))
            else:
                folds.append(self._fold(node, builder, bind, results))
                fold_targets.append(self._new_slot())
        held: list[tuple[int, Type]] = []
        held_targets: list[int] = []
        for node in self._kept(inside, phase):
            held.append((len(results), _member(node.type)))
            results.append(builder.read(node))
            held_targets.append(self._new_slot())
            self.place[node] = Slot(held_targets[-1])
        for node, target in zip((n for n in phase if is_barrier(n)), fold_targets):
            self.place[node] = Slot(target)
        program = builder.finish(results)
        alone = read_by_one(program, [*(fold.results for fold in folds), *([position] for position, _ in held)])
        folds = [attrs.evolve(fold, reads_alone=alone[index]) for index, fold in enumerate(folds)]
        work = Phase(program, inputs.types, tuple(folds), tuple(held))
        reads = slots_read([*inputs.expressions, *(e for fold in folds for e in _fold_reads(fold))])
        self.tasks.append(PhaseTask(work, inputs.expressions, (*fold_targets, *held_targets), reads))

    def _fold(
        self, node: IntrinsicCall, builder: ProgramBuilder, bind: Callable[[Symbol], None], results: list[Expression]
    ) -> Fold:
        over_clients = [argument for argument in node.arguments if is_placed_at_clients(type_of(argument))]
        others = [pair for pair in zip(node.arguments, node.types) if not is_placed_at_clients(pair[1])]
        positions: list[int] = []
        for argument in over_clients:
            bind(argument)
            positions.append(len(results))
            results.append(builder.read(argument))
        members = [_member(type_of(argument)) for argument in over_clients]
        return Fold(
            node.uri,
            tuple(positions),
            members[0],
            members[1] if len(members) > 1 else None,
            tuple(self.expression(argument) for argument, _ in others),
            tuple(declared for _, declared in others),
            tuple(closed_program(function) for function in node.functions),
            tuple(_signature(function) for function in node.functions),
            tuple(tuple(self.expression(capture) for capture in function.captures) for function in node.functions),
            _member(node.type),
        )

    def _kept(self, inside: set[Node], phase: Sequence[Node]) -> list[Node]:
        """Returns the nodes of a phase that are read outside the phase, by later tasks or as the result."""
        wanted = set(self._deep_leaves(self.function.result))
        members = set(phase)
        for node in self.function.nodes:
            if node not in members and node not in self.anew and not is_transparent(node):
                for operand in node.operands():
                    wanted.update(self._deep_leaves(operand))
        return [node for node in phase if node in inside and node in wanted]

    def _deep_leaves(self, symbol: Symbol) -> Iterator[Node]:
        for leaf in nodes_of(symbol):
            yield leaf
            if is_transparent(leaf) or leaf in self.anew:
                for operand in leaf.operands():
                    yield from self._deep_leaves(operand)

    def _select_task(self, node: IntrinsicCall) -> None:
        keys, max_key, value = (self.expression(argument) for argument in node.arguments)
        function = node.functions[0]
        captures = tuple(self.expression(capture) for capture in function.captures)
        target = self._new_slot()
        reads = slots_read([keys, max_key, value, *captures])
        self.tasks.append(
            SelectTask(
                node.uri, keys, max_key, value, closed_program(function), captures, _member(node.type), target, reads
            )
        )
        self.place[node] = Slot(target)


class _PhaseInputs:
    """The inputs of a phase, without duplicates.

    Each member of a struct is a separate input, because other parts of the phase may read single members.
    """

    def __init__(self, builder: ProgramBuilder) -> None:
        self._builder = builder
        self._slots: dict[tuple[Expression, Type], Slot] = {}

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions for the inputs."""
        return tuple(expression for expression, _ in self._slots)

    @property
    def types(self) -> tuple[Type, ...]:
        """The types of the inputs for one client."""
        return tuple(type_spec for _, type_spec in self._slots)

    def read(self, expression: Expression, type_spec: Type) -> Expression:
        """Returns the expression in the phase's program for an expression of the schedule."""
        if isinstance(expression, Join):
            members = [member for _, member in fields_of(cast(StructType, type_spec))]
            return Join(tuple(map(self.read, expression.parts, members)))
        slot = self._slots.get((expression, type_spec))
        if slot is None:
            slot = self._slots[expression, type_spec] = self._builder.input()
        return slot


def _member(type_spec: Type) -> Type:
    return type_spec.member if isinstance(type_spec, FederatedType) else type_spec


def _signature(function: Function) -> ProgramTypes:
    """Returns the types of a function's closed program, whose inputs are the parameter, if any, then the captures."""
    parameter = () if function.parameter is None else (function.parameter.type,)
    captures = [_at_one_client(capture.type) for capture in function.captures]
    return ProgramTypes((*parameter, *captures), type_of(function.result))


def _at_one_client(type_spec: Type) -> Type:
    """Returns the type of a value for one client. Also supports structs of federated values."""
    if isinstance(type_spec, StructType):
        return struct_of([(name, _at_one_client(member)) for name, member in fields_of(type_spec)])
    return _member(type_spec)


def _fold_reads(fold: Fold) -> Iterator[Expression]:
    yield from fold.server_inputs
    for captures in fold.captures:
        yield from captures

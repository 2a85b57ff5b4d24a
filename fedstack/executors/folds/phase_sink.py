"""Leads what a phase's program yields into its folds and into the columns that are kept."""

import threading
from collections.abc import Iterator, Sequence

import attrs

from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column, column_from_payloads, concatenate, empty_column
from fedstack.executors.folds.aggregate_state import AggregateState
from fedstack.executors.folds.fold_states import FoldState, FoldStream


@attrs.define
class PhaseResult:
    """What a range of clients has contributed to a phase.

    Attributes:
      partials: For each fold, what `FoldState.merge` takes.
      columns: For each kept result, its column.
    """

    partials: list[object]
    columns: list[Column]


class PhaseSink:
    """Takes blocks of clients from any thread, in any order."""

    def __init__(self, phase: Phase, states: Sequence[FoldState], skip: frozenset[int] = frozenset()) -> None:
        self.phase = phase
        self.states = states
        self.ordered = any(isinstance(state, AggregateState) for state in states)
        self._skip = skip
        self._kept: list[dict[int, Column]] = [{} for _ in phase.held]
        self._lock = threading.Lock()

    def feed(self, start: int, results: Sequence[Column]) -> None:
        """Takes in the results of the clients from `start` on."""
        for fold, state in self.folded():
            state.feed(start, [results[position] for position in fold.results])
        if self._kept:
            self.keep(start, [results[position] for position, _ in self.phase.held])

    def stream(self, start: int) -> "PhaseStream | FoldStream":
        """Returns what takes in the clients from `start` on one by one."""
        folded = list(self.folded())
        if len(folded) == 1 and not self._kept:
            (fold, state), results = folded[0], len(self.phase.program.results)
            if fold.results == tuple(range(results)):
                return state.stream(start)  # all that a client yields, as it is
        return PhaseStream(self, start)

    def folded(self) -> Iterator[tuple[Fold, FoldState]]:
        """Yields the folds that take what clients yield, with their states."""
        for index, pair in enumerate(zip(self.phase.folds, self.states)):
            if index not in self._skip:
                yield pair

    def keep(self, start: int, columns: Sequence[Column]) -> None:
        """Keeps the columns of the clients from `start` on, one per result that is held."""
        with self._lock:
            for kept, column in zip(self._kept, columns):
                kept[start] = column

    def columns(self) -> list[Column]:
        """Returns the kept columns, all clients joined in order."""
        joined: list[Column] = []
        for kept, (_, member) in zip(self._kept, self.phase.held):
            blocks = [kept[start] for start in sorted(kept)]
            joined.append(concatenate(blocks, member) if blocks else empty_column(member))
        return joined


class PhaseStream:
    """Leads what clients yield one by one, in their order, to where a sink leads whole blocks."""

    def __init__(self, sink: PhaseSink, start: int) -> None:
        self._sink = sink
        self._start = start
        self._folds: list[tuple[tuple[int, ...], FoldStream]] = [
            (fold.results, state.stream(start)) for fold, state in sink.folded()
        ]
        self._kept: list[tuple[int, Type, list[object]]] = [(p, member, []) for p, member in sink.phase.held]

    def add(self, results: list[object]) -> None:
        """Takes in the results of the next client, one payload each, out of a list that nobody else reads."""
        for positions, stream in self._folds:
            operands = [results[position] for position in positions]
            for position in positions:
                results[position] = None  # the fold may take over what nobody else refers to
            stream.add(operands)
        for position, _, kept in self._kept:
            kept.append(results[position])

    def close(self) -> None:
        """Hands on what is still here."""
        for _, stream in self._folds:
            stream.close()
        if self._kept:
            self._sink.keep(self._start, [column_from_payloads(kept, member) for _, member, kept in self._kept])

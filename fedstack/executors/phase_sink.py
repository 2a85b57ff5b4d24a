"""Leads what a phase's program yields into its folds and into the columns that are kept."""

import threading
from collections.abc import Sequence

import attrs

from fedstack.computations.columns import Column, concatenate, empty_column
from fedstack.computations.tasks import Phase
from fedstack.executors.fold_states import AggregateState, FoldState


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
        for index, (fold, state) in enumerate(zip(self.phase.folds, self.states)):
            if index not in self._skip:
                state.feed(start, [results[position] for position in fold.results])
        if self._kept:
            with self._lock:
                for kept, (position, _) in zip(self._kept, self.phase.held):
                    kept[start] = results[position]

    def columns(self) -> list[Column]:
        """Returns the kept columns, all clients joined in order."""
        joined: list[Column] = []
        for kept, (_, member) in zip(self._kept, self.phase.held):
            blocks = [kept[start] for start in sorted(kept)]
            joined.append(concatenate(blocks, member) if blocks else empty_column(member))
        return joined

"""Defines the executor that distributes clients over child executors and merges the partial results of the children.

Partial results are merged along the fixed tree over client indices.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from fedstack.computations.plan.tasks import Phase
from fedstack.computations.types.language import Executor
from fedstack.computations.values.columns import Column, concatenate, empty_column
from fedstack.errors import (
    DeadlineExceededError,
    FedstackError,
    InvalidValueError,
    StaleSessionError,
    WorkerUnavailableError,
)
from fedstack.executors.base.engines import ProgramEngine
from fedstack.executors.base.lazy_values import LazyRecorder
from fedstack.executors.base.one_by_one import with_programs
from fedstack.executors.base.phase_engine import FoldedPhase, PhaseEngine, PhaseRunner, fold_threads, folded
from fedstack.executors.base.phase_sink import PhaseResult, PhaseSink
from fedstack.executors.base.verb_executor import VerbExecutor, phases_of
from fedstack.executors.concurrency.coroutines import all_in_order, need_event_loop, runs_inline
from fedstack.executors.folds.aggregate_state import BLOCK, AggregateState
from fedstack.executors.folds.aggregations import FoldArguments, slice_inputs, tree_state
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.survivors.ending import ranges_of
from fedstack.executors.survivors.outcomes import Ran
from fedstack.foundations.error_text import counted

# Errors that are not caused by clients. They are raised without waiting for other children, so that the phase can be
# retried soon.
LOSSES = (WorkerUnavailableError, DeadlineExceededError, StaleSessionError)
_C = TypeVar("_C")
# With this many blocks for each part, a part is at most a few percent longer than another one.
_MANY_BLOCKS = 16


class ComposedPhases(PhaseEngine):
    """Splits each phase into contiguous client ranges, one per child runner; see `ComposingExecutor`.

    Args:
      server: Runs unplaced work and work on the server.
      children: The runners of phases. With many children, some of the runners are `ComposedPhases` themselves.
      clients: The number of clients of each child.
    """

    def __init__(self, server: ProgramEngine, children: Sequence[PhaseRunner], clients: Sequence[int]) -> None:
        super().__init__(server)
        self._children = children
        self._counts = clients

    @property
    def clients(self) -> int:
        return sum(self._counts)

    def over(self, wrap: Callable[[ProgramEngine], ProgramEngine]) -> PhaseEngine | None:
        children = [child.over(wrap) for child in self._children]
        found = [child for child in children if child is not None]
        return ComposedPhases(wrap(self.server), found, self._counts) if len(found) == len(children) else None

    async def fold_phase(
        self, phase: Phase, inputs: Sequence[object], arguments: FoldArguments, clients: range, *, all_clients: bool
    ) -> FoldedPhase:
        ranges: list[tuple[PhaseRunner, range]] = []
        start = clients.start
        for child, count in zip(self._children, self._counts):
            if count:
                ranges.append((child, range(start, start + count)))
            start += count
        if len(ranges) > 1 and runs_inline():
            await need_event_loop()

        contributions = Contributions(self, phase, arguments, clients)

        async def call(child: PhaseRunner, part: range) -> None:
            offset = part.start - clients.start
            part_inputs = slice_inputs(inputs, offset, offset + len(part))
            contributions.add(part, await child.run_phase(phase, part_inputs, arguments, part))

        if runs_inline():
            for child, part in ranges:
                await call(child, part)
        else:
            await all_in_order([call(child, part) for child, part in ranges], LOSSES)
        return await contributions.folded()


class Contributions:
    """Merges the contributions of ranges of clients to a phase. The contributions may be added in any order.

    Args:
      engine: Provides the states of the folds.
      phase: The phase.
      arguments: The server's arguments of the folds.
      clients: The indices of all clients of the phase.
    """

    def __init__(self, engine: PhaseEngine, phase: Phase, arguments: FoldArguments, clients: range) -> None:
        self._engine = engine
        self._phase = phase
        self._arguments = arguments
        self._clients = clients
        self._results: dict[int, PhaseResult] = {}
        self._failures: dict[int, FedstackError] = {}
        self._ran: list[Ran] = []
        self._again: dict[int, FedstackError] = {}
        self._repeated: list[tuple[range, PhaseResult]] = []
        self._states = {
            index: tree_state(fold, argument)
            for index, (fold, argument) in enumerate(zip(phase.folds, arguments))
            if not fold.functions
        }
        # The partial results of all ranges may not fit in memory together. Where the order does not matter, each is
        # merged as soon as it is received.
        self._at_once = {index: state for index, state in self._states.items() if state.merges_in_any_order}

    def add(self, clients: range, result: PhaseResult, worker: str = "") -> None:
        """Adds the contribution of a range of clients.

        Args:
          clients: The clients.
          result: The contribution.
          worker: The worker that has run the clients; empty for this process.
        """
        for index, state in self._at_once.items():
            state.merge(result.partials[index])
            result.partials[index] = None
        if clients and clients.start in self._again:  # and so are all others
            self._repeated.append((clients, result))
            for client in clients:
                del self._again[client]
        else:
            self._results[clients.start] = result
        self._again.update(result.again)
        self._failures.update(result.failures)
        self._ran += [(some, where or worker, seconds) for some, where, seconds in result.ran]

    def skip(self, clients: range, errors: Mapping[int, FedstackError], worker: str = "") -> None:
        """Adds clients that are in no contribution, because they have ended their worker or nobody waits for them.

        Args:
          clients: The clients.
          errors: The errors of those that were present, by client.
          worker: The worker that has run the clients, for a time that is not known; empty if there is none.
        """
        self.add(clients, skipped(self._phase, self._arguments, clients, errors))
        if worker:
            self._ran.append((clients, worker, 0.0))

    async def folded(self) -> FoldedPhase:
        """Returns the merged contributions of all clients."""
        first = [self._results[start] for start in sorted(self._results)]
        results = [*first, *(result for _, result in self._repeated)]
        states: list[FoldState] = []
        for index, (fold, argument) in enumerate(zip(self._phase.folds, self._arguments)):
            state = self._states.get(index) or await self._engine.new_state(fold, argument)

            def merge(index: int = index, state: FoldState = state) -> None:
                for result in results:
                    state.merge(result.partials[index])

            if fold.functions:
                await fold_threads.run(merge)  # the merge calls user functions
            elif index not in self._at_once:
                merge()
            states.append(state)
        columns = [
            concatenate([result.columns[index] for result in first], member) if first else empty_column(member)
            for index, (_, member) in enumerate(self._phase.held)
        ]
        if self._repeated:
            columns = [self._with_repeated(index, column) for index, column in enumerate(columns)]
        return FoldedPhase(states, columns, self._failures, self._ran, self._again)

    def _with_repeated(self, index: int, column: Column) -> Column:
        """Returns a column of a kept result with the values of the clients that have run again in their places."""
        values = {
            client: (result.columns[index], place)
            for clients, result in self._repeated
            for place, client in enumerate(clients)
        }
        parts, start = list[Column](), 0
        for client in sorted(values):
            repeated, offset = values[client]
            place = client - self._clients.start
            parts += [column.slice(start, place), repeated.slice(offset, offset + 1)]
            start = place + 1
        return concatenate([*parts, column.slice(start, len(column))], self._phase.held[index][1])


def skipped(
    phase: Phase,
    arguments: FoldArguments,
    clients: range,
    errors: Mapping[int, FedstackError],
    again: Mapping[int, FedstackError] | None = None,
) -> PhaseResult:
    """Returns the contribution of clients none of which is done.

    Args:
      phase: The phase.
      arguments: The server's arguments of the folds.
      clients: The clients. Those without an error are absent.
      errors: The errors of those that have failed, by client.
      again: The errors of those that are to run again, by client.
    """
    states: list[FoldState] = [
        AggregateState(None, _never, _never) if fold.functions else tree_state(fold, argument)
        for fold, argument in zip(phase.folds, arguments)
    ]
    sink = PhaseSink(phase, states)
    again = again or {}
    for some in ranges_of([client for client in clients if client not in again]):
        sink.skip(some, {client: errors[client] for client in some if client in errors})
    for client, error in again.items():
        sink.leave_out(client, error)
    return folded(sink).partials()


def _never(*_: object) -> NoReturn:
    raise AssertionError("a client that has failed is not accumulated")


def even_counts(clients: int, parts: int) -> list[int]:
    """Splits a number of clients into parts whose sizes differ by at most one."""
    whole, rest = divmod(clients, parts)
    return [whole + (index < rest) for index in range(parts)]


def whole_blocks(clients: range, parts: int) -> list[int]:
    """Splits clients into similar parts without cutting the blocks of a general aggregation, if this costs little time.

    The values of a block that is cut have to be sent, instead of a single accumulator.
    """
    if len(clients) < _MANY_BLOCKS * BLOCK * parts:
        return even_counts(len(clients), parts)
    stops = itertools.accumulate(even_counts(len(clients), parts), initial=clients.start)
    bounds = [clients.start, *(stop // BLOCK * BLOCK for stop in list(stops)[1:-1]), clients.stop]
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def in_levels(
    children: Sequence[_C],
    counts: Sequence[int],
    max_fanout: int,
    join: Callable[[Sequence[_C], Sequence[int]], _C],
) -> tuple[Sequence[_C], Sequence[int]]:
    """Repeatedly joins groups of adjacent children until at most `max_fanout` children remain.

    Args:
      children: The children to join, in client order.
      counts: The number of clients of each child.
      max_fanout: The maximum number of children in a group.
      join: Joins a group of children, with their numbers of clients, into a single child.

    Returns:
      The remaining children and the number of clients of each.
    """
    while len(children) > max_fanout:
        groups = [slice(i, i + max_fanout) for i in range(0, len(children), max_fanout)]
        children = [join(children[group], counts[group]) for group in groups]
        counts = [sum(counts[group]) for group in groups]
    return children, counts


class ComposingExecutor(VerbExecutor):
    """Runs each client phase on several children, each with a contiguous range of the clients.

    Each child runs the whole phase for its clients and returns partial results for the aligned blocks of its range.
    Results therefore have the same bits for any number of children. If several clients fail, the error names the first
    of them.

    Args:
      server: The executor of unplaced work and of work on the server.
      children: The executors of phases. With many children, some of these can be composing executors. The children are
        closed with this executor.
      clients: The number of clients of each child.
      closes_server: Whether to close `server` with this executor.
    """

    def __init__(
        self,
        server: Executor,
        children: Sequence[Executor | PhaseRunner],
        clients: Sequence[int],
        *,
        closes_server: bool = True,
    ) -> None:
        if len(children) != len(clients) or any(count < 0 for count in clients):
            raise InvalidValueError(
                f"Expected {len(children)} numbers of clients, each at least 0, found {list(clients)}; pass one number "
                "per child as clients"
            )
        self.server, programs = with_programs(server)
        engine = ComposedPhases(programs, list(map(_phases_in, children)), list(clients))
        super().__init__(LazyRecorder(engine), *([self.server] if closes_server else []), *children)
        self._children = len(children)

    @property
    def label(self) -> str:
        clients, children = counted(self.known_clients or 0, "client"), counted(self._children, "child", "children")
        return f"{super().label} with {clients}, {children}"


def _phases_in(child: Executor | PhaseRunner) -> PhaseRunner:
    found = child if isinstance(child, PhaseRunner) else phases_of(child)
    if found is None:
        raise InvalidValueError(
            f"Expected children that run client phases, found {child!r}; wrap it in a FederatingExecutor"
        )
    return found

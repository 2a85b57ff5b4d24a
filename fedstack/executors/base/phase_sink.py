"""Passes the results of a phase's program to its folds and kept columns, as whole columns or client by client.

Long vectors bypass the program if all of them are in memory before they are folded: `fold_resident_columns` folds
ranges of their elements in parallel, with one output per tensor.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

import attrs
import numpy as np

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.tasks import Fold, Phase
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import zeros
from fedstack.computations.values.columns import (
    Column,
    column_from_payloads,
    concatenate,
    empty_column,
)
from fedstack.errors import FedstackError
from fedstack.executors.concurrency.leaf_threads import CORES, LeafThreads
from fedstack.executors.folds.fold_states import FoldState, FoldStream, TreeState
from fedstack.executors.folds.leaf_fold import LeafFold, leaf_columns
from fedstack.executors.folds.tree_fold import BlockFold, Partial, SpareBuffers, aligned_blocks
from fedstack.executors.survivors.outcomes import Ran, Telling


class ResultStream(Protocol):
    """Receives the results of a program, client by client."""

    def add(self, results: list[object]) -> None:
        """Adds the results of the next client.

        Args:
          results: One payload per result of the program. The stream may change the list.
        """
        ...

    def close(self) -> None:
        """Signals the end of the stream."""
        ...


class Sink(Protocol):
    """Receives the results of a program for blocks of clients, in any order and from several threads."""

    def feed(self, start: int, results: Sequence[Column]) -> None:
        """Adds the results of consecutive clients.

        Args:
          start: The index of the first client.
          results: One column per result of the program.
        """
        ...

    def stream(self, start: int) -> ResultStream:
        """Returns a stream that accepts the results of the clients from `start` on, one client at a time."""
        ...

    def check(self, start: int, results: Sequence[Column]) -> None:
        """Checks the results of consecutive clients, which may fail, before any of them is added; see `feed`.

        Raises:
          InvalidValueError: If a result of a client is not allowed.
        """
        ...

    def skip(self, clients: range, failures: Mapping[int, FedstackError]) -> None:
        """Adds consecutive clients that are absent.

        Args:
          clients: The clients.
          failures: The errors of those that have failed in this phase, by client.
        """
        ...

    def leave_out(self, client: int, error: FedstackError) -> None:
        """Adds nothing for a client that has failed, because it will run again elsewhere.

        Args:
          client: The client.
          error: Its error.
        """
        ...

    def claim(self, stop: int) -> int:
        """Called before each block, in the order of the clients, with the index after the last client of the block.

        Returns:
          The index before which the block must end. If the block would be empty, the run ends without it.
        """
        ...

    def took(self, clients: range, seconds: float) -> None:
        """Called after each block, with its clients and the time that they took, in seconds."""
        ...

    def reached(self, client: int) -> None:
        """Called after each block: the results of all clients before `client` have been added, unless one failed."""
        ...


class PassingSink:
    """Passes everything on to another sink. Base class of sinks that change or count some of it."""

    def __init__(self, target: Sink) -> None:
        self.target = target

    def feed(self, start: int, results: Sequence[Column]) -> None:
        self.target.feed(start, results)

    def stream(self, start: int) -> ResultStream:
        return self.target.stream(start)

    def check(self, start: int, results: Sequence[Column]) -> None:
        self.target.check(start, results)

    def skip(self, clients: range, failures: Mapping[int, FedstackError]) -> None:
        self.target.skip(clients, failures)

    def leave_out(self, client: int, error: FedstackError) -> None:
        self.target.leave_out(client, error)

    def claim(self, stop: int) -> int:
        return self.target.claim(stop)

    def took(self, clients: range, seconds: float) -> None:
        self.target.took(clients, seconds)

    def reached(self, client: int) -> None:
        self.target.reached(client)


@attrs.define
class PhaseResult:
    """The contribution of a range of clients to a phase.

    Attributes:
      partials: For each fold, the partial results to pass to `FoldState.merge`.
      columns: The column of each kept result.
      failures: The errors of the clients that have failed, by client.
      ran: The clients that ran together, and how long, while somebody asks.
      again: The errors of the clients that have failed and are to run again, by client. The partial results leave them
        out, and zeros fill their places in the columns.
    """

    partials: list[object]
    columns: list[Column]
    failures: Mapping[int, FedstackError] = attrs.field(factory=dict[int, FedstackError])
    ran: Sequence[Ran] = ()
    again: Mapping[int, FedstackError] = attrs.field(factory=dict[int, FedstackError])


class PhaseSink:
    """Passes results to the folds of a phase and keeps the columns of the held results.

    Blocks of clients may be added in any order and from any thread.

    Args:
      phase: The phase.
      states: The state of each fold.
      skip: The indices of folds that receive no results because they are already complete.
    """

    def __init__(self, phase: Phase, states: Sequence[FoldState], skip: frozenset[int] = frozenset()) -> None:
        self.phase = phase
        self.states = states
        self._skip = skip
        self._kept: list[dict[int, Column]] = [{} for _ in phase.held]
        self.failures: dict[int, FedstackError] = {}
        self.again: dict[int, FedstackError] = {}
        self.ran: list[Ran] = []
        self._tells = current_scope().of(Telling) is not None
        self._lock = threading.Lock()

    def feed(self, start: int, results: Sequence[Column]) -> None:
        """Adds the results of the clients from `start` on; see `Sink`."""
        for fold, state in self.folded():
            state.feed(start, [results[position] for position in fold.results])
        if self._kept:
            self.keep(start, [results[position] for position, _ in self.phase.held])

    def stream(self, start: int) -> "PhaseStream | FoldStream":
        """Returns a stream that accepts the results of the clients from `start` on, one client at a time."""
        folded = list(self.folded())
        if len(folded) == 1 and not self._kept:
            (fold, state), results = folded[0], len(self.phase.program.results)
            if fold.results == tuple(range(results)):
                return state.stream(start)  # the operands of the fold are exactly the results of a client
        return PhaseStream(self, start)

    def check(self, start: int, results: Sequence[Column]) -> None:
        """Checks the results of clients that may fail; see `Sink`."""
        for fold, state in self.folded():
            state.check(start, [results[position] for position in fold.results])

    def skip(self, clients: range, failures: Mapping[int, FedstackError]) -> None:
        """Adds clients that are absent; see `Sink`. In kept columns, zeros fill their places."""
        for _, state in self.folded():
            state.skip(clients)
        self._fill(clients)
        with self._lock:
            self.failures.update(failures)

    def leave_out(self, client: int, error: FedstackError) -> None:
        """Leaves a client out that will run again elsewhere; see `Sink`. In kept columns, zeros fill its place."""
        self._fill(range(client, client + 1))
        with self._lock:
            self.again[client] = error

    def _fill(self, clients: range) -> None:
        fillers = [column_from_payloads([zeros(member, 0)] * len(clients), member) for _, member in self.phase.held]
        if fillers:
            PhaseSink.keep(self, clients.start, fillers)  # a subclass may do more with what clients return

    def claim(self, stop: int) -> int:
        """Returns `stop`, because all clients are wanted; see `Sink`."""
        return stop

    def took(self, clients: range, seconds: float) -> None:
        """Records how long clients took, while somebody asks; see `Sink`."""
        if self._tells:
            self.ran.append((clients, "", seconds))

    def reached(self, client: int) -> None:
        """Does nothing; see `Sink`."""

    def folded(self) -> Iterator[tuple[Fold, FoldState]]:
        """Yields the folds that receive results of clients, with their states."""
        for index, pair in enumerate(zip(self.phase.folds, self.states)):
            if index not in self._skip:
                yield pair

    def keep(self, start: int, columns: Sequence[Column]) -> None:
        """Stores the columns of the clients from `start` on, one per held result."""
        with self._lock:
            for kept, column in zip(self._kept, columns):
                kept[start] = column

    def columns(self) -> list[Column]:
        """Returns the kept columns, each with all clients in order."""
        joined: list[Column] = []
        for kept, (_, member) in zip(self._kept, self.phase.held):
            blocks = [kept[start] for start in sorted(kept)]
            joined.append(concatenate(blocks, member) if blocks else empty_column(member))
        return joined


class PhaseStream:
    """Passes the results of single clients, in client order, to the folds of a `PhaseSink`."""

    def __init__(self, sink: PhaseSink, start: int) -> None:
        self._sink = sink
        self._start = start
        self._folds: list[tuple[tuple[int, ...], FoldStream]] = [
            (fold.results, state.stream(start)) for fold, state in sink.folded()
        ]
        self._kept: list[tuple[int, Type, list[object]]] = [(p, member, []) for p, member in sink.phase.held]

    def add(self, results: list[object]) -> None:
        """Adds the results of the next client; the list must have no other readers."""
        for positions, stream in self._folds:
            operands = [results[position] for position in positions]
            for position in positions:
                results[position] = None  # the fold may reuse payloads that have no other references
            stream.add(operands)
        for position, _, kept in self._kept:
            kept.append(results[position])

    def close(self) -> None:
        """Adds the remaining results of the stream to the folds and the kept columns."""
        for _, stream in self._folds:
            stream.close()
        if self._kept:
            self._sink.keep(self._start, [column_from_payloads(kept, member) for _, member, kept in self._kept])


_MIN_BYTES_PER_THREAD = 16 << 20
# With this size, a row and the partial results of two or three levels fit into the second-level cache. In measurements,
# a fold of 1,000 arrays takes 1.18 times as long as an in-place sum with arrays of 400 KB, and 1.02 times as long with
# arrays of 40 MB. With half this size, the factor is 1.26, because of the additional calls.
_SCRATCH_BYTES = 200 * 1024


async def fold_resident_columns(
    threads: LeafThreads | None, state: FoldState, column: Column, fold: Fold, first_client: int, *, all_clients: bool
) -> bool:
    """Folds a column of long vectors into a state if possible, and returns whether it did.

    Args:
      threads: The threads that fold ranges of elements; with `None`, the column is not folded.
      state: The state, which must be empty.
      column: The vectors of the clients.
      fold: The aggregation.
      first_client: The index of the client to which the first vector belongs.
      all_clients: Whether the column contains all clients, so that no other results are merged with this fold.
    """
    if threads is None or not isinstance(state, TreeState):
        return False
    pairs = list(zip(state.leaves, leaf_columns(column, fold.member)))
    rows = [cast("Sequence[np.ndarray]", leaf_column.items()) for _, leaf_column in pairs]
    for (leaf, _), arrays in zip(pairs, rows):
        if leaf.dtype != leaf.tensor.dtype or any(array.shape != arrays[0].shape for array in arrays):
            return False
    await threads.run(
        lambda: [_fold_leaf(threads, leaf, arrays, first_client, all_clients) for (leaf, _), arrays in zip(pairs, rows)]
    )
    state.add_clients(len(column))
    return True


def _fold_leaf(
    threads: LeafThreads, leaf: LeafFold, arrays: Sequence[np.ndarray], first_client: int, all_clients: bool
) -> None:
    if all_clients:
        # The complete fold is added as a single partial result; no further results may be added.
        leaf.add([Partial(len(arrays).bit_length(), 0, _fold_block(threads, leaf, arrays), True)])
        return
    for level, position in aligned_blocks(range(first_client, first_client + len(arrays))):
        start = (position << level) - first_client
        block = arrays[start : start + (1 << level)]
        value = block[0] if level == 0 else _fold_block(threads, leaf, block)
        leaf.add([Partial(level, position, value, level > 0)])


def _fold_block(threads: LeafThreads, leaf: LeafFold, arrays: Sequence[np.ndarray]) -> np.ndarray:
    flat = arrays if arrays[0].ndim == 1 else [array.reshape(-1) for array in arrays]
    out = np.empty(arrays[0].shape, leaf.dtype)
    flat_out = out.reshape(-1)
    size = flat_out.size
    cores = current_scope().cores or CORES
    workers = min(cores, threads.max_threads, max(1, size * out.itemsize * len(arrays) // _MIN_BYTES_PER_THREAD))
    bounds = [size * i // workers for i in range(workers + 1)]

    def fold_range(index: int) -> None:
        with np.errstate(all="ignore"):
            fold_elements(leaf.operation, flat, flat_out, bounds[index], bounds[index + 1])

    others = [threads.submit(lambda index=index: fold_range(index)) for index in range(1, workers)]
    fold_range(0)
    for index, other in enumerate(others, 1):
        # All other threads may be busy, or there may be none. This thread folds the ranges that have not started.
        if other.cancel() or isinstance(other.exception(), FedstackError):
            fold_range(index)
        else:
            other.result()
    return out


def fold_elements(operation: np.ufunc, arrays: Sequence[np.ndarray], out: np.ndarray, low: int, high: int) -> None:
    """Folds a range of elements of existing arrays into `out`.

    The fold follows the tree of clients 0 to n-1. The tree is traversed once for each block of elements that fits into
    a cache, so that partial results never leave the cache and the scratch space does not grow with the arrays. Several
    threads may fold different ranges of elements in parallel.

    Args:
      operation: The associative operation.
      arrays: Flat arrays of equal length, one per client; at least one.
      out: A flat array of the same length, to which the result is written.
      low: The index of the first element.
      high: The index after the last element.
    """
    blocks = max(1, -(-(high - low) * out.itemsize // _SCRATCH_BYTES))
    width = max(1, -(-(high - low) // blocks))
    # One partial result per level above the lowest; `out` is the buffer of one of them.
    scratch = [np.empty(width, out.dtype) for _ in range(len(arrays).bit_length() - 2)]
    for begin in range(low, high, width):
        block = slice(begin, min(begin + width, high))
        target = out[block]
        free = [target, *(buffer[: len(target)] for buffer in scratch)]
        pairs = BlockFold(operation, 0, SpareBuffers(free))
        add, is_whole = pairs.add, len(target) == len(out)
        for index in range(1, len(arrays), 2):
            left, right = arrays[index - 1], arrays[index]
            if not is_whole:
                left, right = left[block], right[block]
            add(operation(left, right, out=free.pop()), True)
        if len(arrays) & 1:
            add(arrays[-1][block], False)  # becomes the smallest remaining block, as in the tree of single clients
        total = pairs.total()
        if total is not target:
            target[...] = total

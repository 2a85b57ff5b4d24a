"""Defines the state of a general aggregation, which folds the clients' values with user functions, block by block."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, cast

import attrs
import numpy as np

from fedstack.computations.leaves.work_scope import SystemScope
from fedstack.computations.types.language import Type
from fedstack.computations.types.type_structure import flatten
from fedstack.computations.values.columns import Column
from fedstack.executors.folds.fold_states import FoldState
from fedstack.executors.folds.tree_fold import Partial, TreeFold

_logger = logging.getLogger(__name__)
# A general aggregation accumulates blocks of this many consecutive clients from zero, and merges the blocks along the
# fixed tree. The number is part of the semantics: another one would change results.
BLOCK_LEVEL = 3
BLOCK = 1 << BLOCK_LEVEL
# Stands for the value of an absent client.
ABSENT = object()


def split_blocks(clients: range) -> tuple[range, range, range]:
    """Splits a range of clients into those before its first whole block, its whole blocks, and those behind them."""
    first = min(-(-clients.start // BLOCK) * BLOCK, clients.stop)
    last = max(clients.stop // BLOCK * BLOCK, first)
    return range(clients.start, first), range(first, last), range(last, clients.stop)


def cut_clients(clients: range, without: Set[int] = frozenset()) -> Set[int]:
    """Returns the clients of a range whose blocks are not complete within the range.

    Args:
      clients: The range.
      without: The clients of the range that have no values.
    """
    before, _, behind = split_blocks(clients)
    starts = {client // BLOCK * BLOCK for client in without}
    cut = {client for start in starts for client in range(start, start + BLOCK) if client in clients}
    return cut.union(before, behind)


@attrs.frozen
class ChecksZeros(SystemScope):
    """The scope of calls that check whether the zeros of general aggregations are neutral."""

    def of_invocation(self) -> "ChecksZeros":
        return self


class AggregatePartials(NamedTuple):
    """The partial results of a general aggregation over a range of clients.

    Attributes:
      nodes: The accumulators of aligned blocks, each of at least `BLOCK` clients.
      values: The values of the clients that do not make up whole blocks, by client; `ABSENT` for absent clients.
    """

    nodes: list[Partial]
    values: dict[int, object]


class _MergeTree(TreeFold):
    """The fold of accumulators along the fixed tree.

    Args:
      merge: Combines the accumulators of two adjacent blocks.
    """

    def __init__(self, merge: Callable[[object, object], object]) -> None:
        super().__init__(np.add)
        self._merge = merge

    def _combine(self, left: Partial, right: Partial) -> Partial:
        if left.value is None:
            return right.above()
        if right.value is None:
            return left.above()
        merged = self._merge(left.value, right.value)
        return Partial(left.level + 1, left.position >> 1, cast(np.ndarray, merged), False)

    def total(self) -> Partial | None:
        """Returns the combination of all blocks, from the smallest block up; `None` without blocks.

        The value of the combination is `None` if all clients are absent.
        """
        remaining = self.partials()
        total = remaining.pop() if remaining else None
        while total is not None and remaining:
            total = self._combine(remaining.pop(), total)
        return total


class AggregateState(FoldState):
    """The state of a general aggregation, which folds the clients' values with user functions.

    Each aligned block of `BLOCK` clients is accumulated from zero, in client order, once all of its values are there;
    several threads may do so for different blocks. The blocks are merged along the fixed tree. The result therefore
    does not depend on where clients run, or on the order in which they end.

    Args:
      zero: The initial accumulator of each block.
      accumulate: Takes an accumulator, a client's value, and the client's index for error messages, and returns a new
        accumulator.
      merge: Combines the accumulators of two adjacent ranges of clients.
    """

    def __init__(
        self,
        zero: object,
        accumulate: Callable[[object, object, int], object],
        merge: Callable[[object, object], object],
    ) -> None:
        self._zero = zero
        self._accumulate = accumulate
        self._merge = merge
        self._tree = _MergeTree(merge)
        self._values: dict[int, dict[int, object]] = {}  # of incomplete blocks, by block and client
        self._lock = threading.Lock()

    @property
    def merges_in_any_order(self) -> bool:
        return True

    def feed(self, start: int, columns: Sequence[Column]) -> None:
        clients, values = range(start, start + len(columns[0])), columns[0].items()
        before, whole, behind = split_blocks(clients)
        self._fold(whole.start, values[whole.start - start : whole.stop - start])
        for some in (before, behind):
            self._keep({client: values[client - start] for client in some})

    def skip(self, clients: range) -> None:
        before, whole, behind = split_blocks(clients)
        self._tree.skip(whole)
        self._keep(dict.fromkeys([*before, *behind], ABSENT))

    def _fold(self, first: int, values: Sequence[object]) -> None:
        """Accumulates the values of consecutive blocks, and merges the results with those of other blocks."""
        accumulate, merge, nodes = self._accumulate, self._merge, list[tuple[int, int, object]]()
        for start in range(0, len(values), BLOCK):
            accumulator = self._zero
            for client, value in enumerate(values[start : start + BLOCK], first + start):
                accumulator = accumulate(accumulator, value, client)
            level, position = BLOCK_LEVEL, (first + start) >> BLOCK_LEVEL
            while nodes and position & 1 and nodes[-1][0] == level:
                accumulator = merge(nodes.pop()[2], accumulator)
                level, position = level + 1, position >> 1
            nodes.append((level, position, accumulator))
        self._tree.add([Partial(level, place, cast(np.ndarray, found), False) for level, place, found in nodes])

    def _fold_kept(self, block: Mapping[int, object]) -> None:
        """Folds a block whose values have been added one by one, and of which clients may be absent."""
        clients = sorted(client for client, value in block.items() if value is not ABSENT)
        accumulator = self._zero
        for client in clients:
            accumulator = self._accumulate(accumulator, block[client], client)
        found = cast(np.ndarray, accumulator) if clients else None
        self._tree.add([Partial(BLOCK_LEVEL, min(block) >> BLOCK_LEVEL, found, False)])

    def _keep(self, values: Mapping[int, object]) -> None:
        """Keeps values of incomplete blocks, and folds the blocks that they complete."""
        complete: list[dict[int, object]] = []
        with self._lock:
            for client, value in values.items():
                block = self._values.setdefault(client >> BLOCK_LEVEL, {})
                block[client] = value
                if len(block) == BLOCK:
                    complete.append(self._values.pop(client >> BLOCK_LEVEL))
        for block in complete:
            self._fold_kept(block)

    def partials(self) -> object:
        with self._lock:
            values = {client: value for block in self._values.values() for client, value in block.items()}
        return AggregatePartials(self._tree.partials(), values)

    def take(self, clients: range, without: Set[int] = frozenset()) -> object | None:
        if clients.stop % BLOCK:
            return None  # of a block that is cut, one worker should have as many values as possible
        _, whole, _ = split_blocks(clients)
        cut = cut_clients(clients, without)
        blocks = {client >> BLOCK_LEVEL for client in cut}
        with self._lock:
            values = {client: value for block in blocks for client, value in self._values.get(block, {}).items()}
            if len(values) < len(cut) - len(without):
                return None  # another thread may be folding it together with values from elsewhere
            nodes = self._tree.take(whole, cut)
            if nodes is None:
                return None
            for block in blocks:
                self._values.pop(block, None)
        return AggregatePartials(nodes, values)

    def merge(self, partials: object) -> None:
        nodes, values = cast(AggregatePartials, partials)
        self._tree.add(nodes)
        self._keep(values)

    def result(self) -> object:
        """Returns the accumulator of all clients, and calls the user's functions for it. Call this once."""
        for number in sorted(self._values):  # of all clients, only the last block may be incomplete
            self._fold_kept(self._values.pop(number))
        total = self._tree.total()
        return self._zero if total is None or total.value is None else total.value

    def warn_of_zero(self, total: object, type_spec: Type) -> None:
        """Logs a warning if merging zero with the result of `result` changes it."""
        merged = self._merge(self._zero, total)
        pairs = zip(flatten(merged, type_spec), flatten(total, type_spec))
        if not all(np.array_equal(np.asarray(found), np.asarray(wanted)) for found, wanted in pairs):
            _logger.warning(
                "Expected merge(zero, a) of a federated_aggregate to be a, found another value; the zero counts once "
                "for each %d clients, so pass a zero that changes nothing, and add what should count once in report",
                BLOCK,
            )

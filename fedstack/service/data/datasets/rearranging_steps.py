"""Steps that flatten, select, cache or prefetch elements: interleave, unbatch, shard, cache and prefetch."""

import itertools
import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import attrs
import numpy as np

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string, tensor_leaves
from fedstack.computations.values.column_sequence import SequenceColumn, first_sizes, row_type
from fedstack.computations.values.columns import (
    Column,
    ListColumn,
    Payload,
    RowsColumn,
    ScalarColumn,
    StructColumn,
    concatenate,
)
from fedstack.errors import InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.service.data.datasets.elements import ElementFunction
from fedstack.service.data.datasets.steps import Asks, Step, Upstream
from fedstack.service.data.reading.blocks import Gathering, packed, picked, sequence_blocks
from fedstack.service.data.reading.budget import Blocks, MadeAhead, pieces, rows_at_once

# The approximate overhead of a sequence that has not yielded all of its elements, in bytes.
_OPEN_BYTES = 512
# The maximum number of blocks prepared ahead of time. More blocks would take memory without a gain in speed.
_MOST_AHEAD = 256


@attrs.frozen
class InterleaveStep(Step):
    """Converts each element into a sequence, and yields the elements of several sequences in turn.

    When the step runs on each split separately, it yields the same elements, but in a different order unless
    `cycle_length` is 1.
    """

    function: ElementFunction
    cycle_length: int = 1
    block_length: int = 1

    @property
    def _name(self) -> str:
        return "flat_map" if self.cycle_length == 1 else "interleave"

    def element(self, before: Type) -> Type:
        self.function.check_takes(before, self._name)
        result = self.function.type.result
        if not isinstance(result, SequenceType):
            raise InvalidComputationError(
                f"Expected {self._name} to receive a function that returns a sequence, found {self.function!r} of type "
                f"{self.function.type}; declare its result type as a SequenceType"
            )
        return result.element

    def size(self, before: float | None) -> float | None:
        return 0 if before == 0 else None

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        made = (column for _, column in self.function.applied(upstream(epoch), upstream.place(repr(self))))
        sequence = cast(SequenceType, self.function.type.result)
        with Gathering(sequence, repr(self), _OPEN_BYTES) as gathering:
            if self.cycle_length > 1:
                sequences = itertools.chain.from_iterable(pieces(column, 1) for column in made)
                yield from packed(_by_turns(sequences, self, gathering), sequence.element)
                return
            for column in made:
                gathering.add(column)
                yield from _flat(column, sequence.element)
                gathering.clear()

    def __repr__(self) -> str:
        turns = "" if self.cycle_length == 1 else f", {self.cycle_length}, {self.block_length}"
        return f"{self._name}({self.function!r}{turns})"


def _flat(sequences: Column, element: Type) -> Blocks:
    if isinstance(sequences, SequenceColumn) and sequences.batchings is None:
        first, last = int(sequences.bounds[0]), int(sequences.bounds[-1])
        return pieces(sequences.rows.slice(first, last), rows_at_once(element))
    items = cast("Sequence[Iterable[Payload]]", sequences.items())
    return itertools.chain.from_iterable(sequence_blocks(some, element) for some in items)


def _by_turns(sequences: Iterator[Column], step: InterleaveStep, gathering: Gathering) -> Iterator[Payload]:
    """Yields elements of several sequences in turn.

    If a sequence ends during its turn, the turn ends early, and a new sequence takes its place when its turn comes
    again.

    Args:
      sequences: The sequences, each a column of one row.
      step: The step, which determines the number of sequences and the number of elements per turn.
      gathering: Counts the memory of open sequences.
    """
    places: list[tuple[Column, Iterator[Payload]] | None] = []
    is_over, turn = False, 0
    while places or not is_over:
        if turn == step.cycle_length or (is_over and turn >= len(places)):
            turn = 0
            continue
        if turn == len(places):
            places.append(None)
        place = places[turn]
        if place is None:
            found = None if is_over else next(sequences, None)
            if found is None:
                is_over = True
                del places[turn]
                continue
            gathering.add(found)
            place = places[turn] = (found, iter(cast("Iterable[Payload]", found.items()[0])))
        sequence, elements = place
        left = step.block_length
        for one in itertools.islice(elements, left):
            left -= 1
            yield one
        if left:
            places[turn] = None
            gathering.remove(sequence)
        turn += 1


@attrs.frozen
class UnbatchStep(Step):
    """Splits elements along the first dimension of their arrays."""

    def element(self, before: Type) -> Type:
        found = row_type(before)
        shapes = [tensor.shape for _, tensor in tensor_leaves(before)]
        if found is None or None in shapes or len(first_sizes(before)) > 1 or not shapes:
            raise TypeMismatchError(
                f"Expected unbatch to receive arrays whose first dimensions have the same size, found {before}"
            )
        return found

    def size(self, before: float | None) -> float | None:
        return 0 if before == 0 else None

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        made = self.element(element)
        with Gathering(element, repr(self)) as gathering:
            for block in upstream(epoch):
                lengths = _lengths(block, element)
                if any(found != lengths[0] for found in lengths[1:]):
                    raise InvalidValueError(
                        "Expected unbatch to receive arrays whose first dimensions have the same size in each "
                        "element, found an element with different sizes"
                    )
                gathering.add(block)
                yield from pieces(_rows_of(block, element), rows_at_once(made))
                gathering.clear()

    def __repr__(self) -> str:
        return "unbatch()"


def _lengths(column: Column, element: Type) -> list[list[int]]:
    """Returns, for each tensor, a list of the sizes of the first dimension in the elements of a block."""
    if isinstance(element, StructType):
        fields = [_lengths(column.field(place), t) for place, (_, t) in enumerate(fields_of(element))]
        return list(itertools.chain.from_iterable(fields))
    if isinstance(column, RowsColumn):
        return [[column.shape[1]] * len(column)]
    return [[len(item) for item in cast("Sequence[Sequence[object]]", column.items())]]


def _rows_of(column: Column, element: Type) -> Column:
    """Returns the concatenated rows of all arrays in a block."""
    if isinstance(element, StructType):
        fields = [_rows_of(column.field(place), t) for place, (_, t) in enumerate(fields_of(element))]
        return StructColumn(tuple(fields), len(fields[0]))
    tensor = cast(TensorType, element)
    row = cast(TensorType, row_type(tensor))
    kind = ScalarColumn if is_scalar(row) else RowsColumn
    if isinstance(column, RowsColumn):
        values = column.values
        return kind(values.reshape(values.shape[0] * values.shape[1], *values.shape[2:]))
    items = cast("Sequence[np.ndarray]", column.items())
    if is_string(tensor):
        return ListColumn([one for item in items for one in item], list_is_own=True)
    return concatenate([kind(item) for item in items], row)


@attrs.frozen
class ShardStep(Step):
    """Keeps every `number`-th element, beginning with `index`."""

    number: int
    index: int
    asks = Asks.ORDER

    def size(self, before: float | None) -> float | None:
        if before is None or before == math.inf:
            return before
        return len(range(self.index, int(before), self.number))

    def taken(self, made: int) -> int:
        return made * self.number

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        left = self.index  # the number of elements before the next element to keep
        for block in upstream(epoch):
            if left >= len(block):
                left -= len(block)
                continue
            rows = np.arange(left, len(block), self.number, dtype=np.intp)
            left = (left - len(block)) % self.number
            yield block if len(rows) == len(block) else picked(block, rows)

    def __repr__(self) -> str:
        return f"shard({self.number}, {self.index})"


class Kept:
    """The contents of a cache: all elements of a dataset, or `None` until they have been read."""

    def __init__(self) -> None:
        self.blocks: tuple[Column, ...] | None = None

    def __reduce__(self) -> tuple[type["Kept"], tuple[()]]:
        return Kept, ()  # other processes fill their own cache


@attrs.frozen
class CacheStep(Step):
    """Stores the elements in memory, and yields them from memory after all elements have been read once.

    Attributes:
      kept: The cache, which all iterations over a dataset share; `None` for a separate cache for each iteration.
    """

    kept: Kept | None = attrs.field(default=None, eq=False)
    asks = Asks.ALL
    keeps_count = True

    def for_iteration(self) -> "CacheStep":
        return self if self.kept is not None else self.apart()

    def apart(self) -> "CacheStep":
        return CacheStep(Kept())

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        assert self.kept is not None, "an iteration has begun"
        if self.kept.blocks is not None:
            yield from self.kept.blocks
            return
        found: list[Column] = []
        gathering = Gathering(element, repr(self))
        weakref.finalize(self.kept, gathering.clear).atexit = False
        for block in upstream(0):  # epoch 0, so that the elements do not depend on the epoch that fills the cache
            gathering.add(block)
            found.append(block)
            yield block
        self.kept.blocks = tuple(found)

    def __repr__(self) -> str:
        return "cache()"


@attrs.frozen
class PrefetchStep(Step):
    """Prepares elements ahead of time on a thread."""

    number: int
    keeps_count = True

    def taken(self, made: int) -> int:
        return made

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        threads = LeafThreads(1)
        with Gathering(element, repr(self)) as gathering:

            def gathered() -> Blocks:
                for block in upstream(epoch):
                    gathering.add(block)
                    yield block

            ahead = MadeAhead(gathered(), threads, min(_MOST_AHEAD, max(1, self.number // rows_at_once(element))))
            try:
                while (block := ahead.take().result()) is not None:
                    gathering.remove(block)
                    yield block
            finally:
                ahead.end()
                threads.close()

    def __repr__(self) -> str:
        return f"prefetch({self.number})"

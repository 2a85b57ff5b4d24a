"""Defines pipelines: a source of elements with steps, which run on the whole dataset or split by split."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, cast

import attrs

from fedstack.computations.types.language import Type
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.federated_values import normalize_argument
from fedstack.computations.values.sequences import MAX_SEED
from fedstack.errors import InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.foundations.number_checks import checked_flag, checked_integer, checked_positive, checked_seed
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets import rearranging_steps, steps
from fedstack.service.data.datasets.elements import (
    ElementFunction,
    ElementIterator,
    PlainIterator,
    checked_element,
    shower,
)
from fedstack.service.data.datasets.sources import Source
from fedstack.service.data.datasets.steps import Asks, SkipStep, Step, Upstream
from fedstack.service.data.datasets.window_steps import PaddedBatchStep, WindowStep, paddings_of
from fedstack.service.data.reading.blocks import while_wanted, without_first
from fedstack.service.data.reading.budget import Blocks

_D = TypeVar("_D", bound="Pipeline")
MOST_NUMBER = 2**63 - 1  # the largest number of elements that fits into a field of a message
INT64_NUMBERS = range(-(2**63), 2**63)
# The maximum number of steps: each step calls the step before it, so this limits the depth of calls.
MOST_STEPS = 100


@attrs.frozen
class Division:
    """Divides a dataset into work for the readers of its splits and work for the consumer of all its elements.

    Attributes:
      split: The part that can be read split by split, in any order and by several workers.
      after: The remaining steps, which apply to all elements together, in order.
    """

    split: "Pipeline"
    after: tuple[Step, ...]


class Pipeline(HasBlocks):
    """A source of elements, and the steps that transform the elements.

    Args:
      source: The source of the elements.
      steps: The steps to apply to the elements, in order.
      element: The type of the resulting elements; by default the type of the source's elements.
    """

    def __init__(self, source: Source | None = None, steps: tuple[Step, ...] = (), element: Type | None = None) -> None:
        if not isinstance(source, Source):
            found = "nothing" if source is None else describe(source)
            raise TypeMismatchError(
                f"Expected a source of elements, found {found}; create datasets with Dataset.range, from_arrays, "
                "from_generator, from_npy, …"
            )
        self._source = source
        self._steps = steps
        if self.depth > MOST_STEPS:
            raise InvalidComputationError(
                f"Expected at most {MOST_STEPS} consecutive steps, found {self.depth}; combine several steps in one "
                "function"
            )
        self._element = checked_element(source.element if element is None else element)
        self._shown = shower(self._element)

    @property
    def source(self) -> Source:
        """The source of the elements."""
        return self._source

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps to apply to the source's elements, in order."""
        return self._steps

    @property
    def depth(self) -> int:
        """The maximum number of consecutive steps that an element passes through."""
        return self._source.depth + len(self._steps)

    @property
    def element_type(self) -> Type:
        return self._element

    @property
    def element_spec(self) -> Type:
        """An alias of `element_type`."""
        return self._element

    @property
    def cardinality(self) -> float | None:
        """The number of elements: an integer, `math.inf`, or `None` if unknown."""
        size = self._source.size
        for step in self._steps:
            size = step.size(size)
        return size

    def __len__(self) -> int:
        size = self.cardinality
        if size is None or size == math.inf:
            what = "is not known" if size is None else "is infinite"
            raise TypeError(f"The length of {self!r} {what}")
        return int(size)

    @property
    def is_endless(self) -> bool:
        return self.cardinality == math.inf

    @property
    def held(self) -> Column | None:
        return None if self._steps else self._source.held

    def __iter__(self) -> PlainIterator | ElementIterator:
        return PlainIterator.over(self.blocks(), self._shown)

    def __aiter__(self) -> ElementIterator:
        return ElementIterator(self.blocks(), self._shown)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over the elements, like `iter`."""
        return iter(self)

    def __repr__(self) -> str:
        return " → ".join(map(repr, (self._source, *self._steps))).join(("<Dataset ", f": {self._element}*>"))

    def large_blocks(self) -> Blocks:
        return self.blocks() if self._steps else self._source.large_blocks()

    def blocks(self) -> Blocks:
        # Elements skipped at the beginning need not be read, because most sources can start at a later element.
        left_out = list(itertools.takewhile(lambda step: isinstance(step, SkipStep), self._steps))
        source, skipped = self._source, sum(cast(SkipStep, step).number for step in left_out)
        size = None if source.size is None else max(0, source.size - skipped)
        start = Upstream(lambda _: while_wanted(source.read(0, source.num_splits, skipped)), size=size)
        return self._run(start, self._steps[len(left_out) :])

    @property
    def num_splits(self) -> int:
        """The number of splits."""
        return 1 if self._asks_for_more else self._source.num_splits

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        """Yields the elements of consecutive splits.

        Args:
          first: The first split.
          last: The end of the range of splits, exclusive.
          start: The number of elements to skip at the beginning.
        """
        if not 0 <= first <= last <= self.num_splits:
            raise InvalidValueError(f"Expected splits from 0 to {self.num_splits} of {self!r}, found {first} to {last}")
        if first == last:
            return iter(())
        if self._asks_for_more:
            return without_first(self.blocks(), start)
        source, skipped = self._source, 0
        if all(step.keeps_count for step in self._steps):
            skipped, start = start, 0
        # If each split of the source is a single element, error messages can number elements in the whole dataset.
        place = (first + skipped, 0) if source.size == source.num_splits else (skipped, first)
        blocks = self._run(
            Upstream(lambda _: while_wanted(source.read(first, last, skipped)), first, *place), self._steps
        )
        return without_first(blocks, start) if start else blocks

    def divided(self) -> Division:
        """Returns the division of the work between the readers of splits and the consumer of all elements.

        A step that depends on the order of the elements runs before splits are merged, together with all steps before
        it. The dataset then has a single split, and the step has the same effect as in an undivided dataset.
        """
        ordered = [place + 1 for place, step in enumerate(self._steps) if step.asks is Asks.ORDER]
        first = max(ordered, default=0)
        while first < len(self._steps) and self._steps[first].asks is Asks.NOTHING:
            first += 1
        element = self._source.element
        for step in self._steps[:first]:
            element = step.element(element)
        return Division(type(self)(self._source, self._steps[:first], element), self._steps[first:])

    @property
    def _asks_for_more(self) -> bool:
        return any(step.asks is not Asks.NOTHING for step in self._steps)

    def _run(self, upstream: Upstream, steps: Iterable[Step]) -> Blocks:
        element = self._source.element
        for step in steps:
            upstream = upstream.through(step, element)
            element = step.element(element)
        return upstream(0)

    def _with(self: _D, step: Step) -> _D:
        return type(self)(self._source, (*self._steps, step), step.element(self._element))

    def map(self: _D, computation: object) -> _D:
        """Applies a computation to each element. The computation may run before its result is requested.

        Raises:
          InvalidComputationError: If `computation` is not a computation, or has placements.
          TypeMismatchError: If `computation` does not accept the elements.
        """
        return self._with(steps.MapStep(ElementFunction(computation, "map")))

    def filter(self: _D, computation: object) -> _D:
        """Keeps the elements for which a computation returns true.

        Raises:
          InvalidComputationError: If `computation` is not a computation that returns `bool`.
          TypeMismatchError: If `computation` does not accept the elements.
        """
        return self._with(steps.FilterStep(ElementFunction(computation, "filter")))

    def batch(self: _D, batch_size: int, drop_remainder: bool = False) -> _D:
        """Combines consecutive elements into batches, which adds a first dimension to each array.

        Args:
          batch_size: The number of elements in a batch.
          drop_remainder: Whether to leave out the last batch if it has fewer elements.
        """
        flag = checked_flag("drop_remainder", drop_remainder)
        return self._with(steps.BatchStep(min(checked_positive("batch_size", batch_size), MOST_NUMBER), flag))

    def padded_batch(
        self: _D,
        batch_size: int,
        padded_shapes: object = None,
        padding_values: object = None,
        drop_remainder: bool = False,
    ) -> _D:
        """Combines consecutive elements into batches, and pads arrays at their ends to a common shape.

        Args:
          batch_size: The number of elements in a batch.
          padded_shapes: The padded shape of each array, in the same dicts and tuples as the elements. A size of `None`
            or -1 means the declared size or, without one, the largest size in the batch; a shape of `None` means
            `None` for each dimension.
          padding_values: The padding value, a scalar for each array or one scalar for all arrays; by default 0 for
            numbers and the empty string for strings.
          drop_remainder: Whether to leave out the last batch if it has fewer elements.

        Raises:
          TypeMismatchError: If a shape or a value does not fit the elements, or the rank of an array is unknown.
          ResourceLimitError: If padded arrays would be larger than 2 GiB.
        """
        size = min(checked_positive("batch_size", batch_size), MOST_NUMBER)
        paddings = paddings_of(self._element, padded_shapes, padding_values)
        return self._with(PaddedBatchStep(size, checked_flag("drop_remainder", drop_remainder), paddings=paddings))

    def window(self: _D, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> _D:
        """Combines elements into windows, which may overlap. Each array in a window has an additional first dimension.

        Args:
          size: The number of elements in a window.
          shift: The number of elements between the beginnings of consecutive windows; by default `size`.
          stride: The distance between consecutive elements of a window; 1 for adjacent elements.
          drop_remainder: Whether to leave out the windows at the end that have fewer than `size` elements.
        """
        numbers = [("size", size), ("shift", size if shift is None else shift), ("stride", stride)]
        checked = [min(checked_positive(name, number), MOST_NUMBER) for name, number in numbers]
        return self._with(WindowStep(*checked, drop_remainder=checked_flag("drop_remainder", drop_remainder)))

    def flat_map(self: _D, computation: object) -> _D:
        """Applies to each element a computation that returns a sequence, and concatenates the sequences.

        Raises:
          InvalidComputationError: If `computation` is not a computation that returns a sequence.
          TypeMismatchError: If `computation` does not accept the elements.
        """
        return self._with(rearranging_steps.InterleaveStep(ElementFunction(computation, "flat_map")))

    def interleave(self: _D, computation: object, cycle_length: int, block_length: int = 1) -> _D:
        """Applies to each element a computation that returns a sequence, and interleaves several of the sequences.

        Args:
          computation: A computation that takes an element and returns a sequence.
          cycle_length: The number of sequences to interleave.
          block_length: The number of elements to read from a sequence at each turn.

        Raises:
          InvalidComputationError: If `computation` is not a computation that returns a sequence.
          TypeMismatchError: If `computation` does not accept the elements.
        """
        numbers = [("cycle_length", cycle_length), ("block_length", block_length)]
        turns = [min(checked_positive(name, number), MOST_NUMBER) for name, number in numbers]
        return self._with(rearranging_steps.InterleaveStep(ElementFunction(computation, "interleave"), *turns))

    def unbatch(self: _D) -> _D:
        """Splits elements along the first dimension of their arrays.

        Raises:
          TypeMismatchError: If an array has no first dimension, or the first dimensions differ.
        """
        return self._with(rearranging_steps.UnbatchStep())

    def shard(self: _D, num_shards: int, index: int) -> _D:
        """Keeps the elements whose position modulo `num_shards` equals `index`.

        Raises:
          InvalidValueError: If `index` is not less than `num_shards`.
        """
        number = min(checked_positive("num_shards", num_shards), MOST_NUMBER)
        place = checked_seed("index", index)
        if place >= number:
            raise InvalidValueError(f"Expected a shard index less than {number}, found {place}")
        return self._with(rearranging_steps.ShardStep(number, place))

    def cache(self: _D, filename: object = "", *, only_for_repetitions: bool = False) -> _D:
        """Caches the elements in memory once an iteration has read all of them.

        Datasets derived from the result share the cache. A data worker caches elements only for the repetitions within
        one iteration.

        Args:
          filename: Must be empty, because caches in files are not supported.
          only_for_repetitions: Whether to keep the elements only until the end of an iteration.

        Raises:
          InvalidValueError: If the dataset is infinite, or a file name is specified.
        """
        if filename != "":
            raise InvalidValueError(
                f"Expected an empty file name for cache, which keeps elements in memory, found {describe(filename)}; "
                "to cache elements in files, write the files yourself and create a dataset from them"
            )
        if self.is_endless:
            raise InvalidValueError(f"Expected cache to receive a finite dataset, found {self!r}; call take(n) first")
        return self._with(rearranging_steps.CacheStep(None if only_for_repetitions else rearranging_steps.Kept()))

    def reduce(self, initial_state: object, computation: object) -> object:
        """Applies a computation to a state and each element in turn, and returns the last state.

        Args:
          initial_state: The initial state.
          computation: A computation that takes a state and an element, and returns a state.

        Raises:
          InvalidComputationError: If `computation` is not a computation, or has placements.
          TypeMismatchError: If `computation` does not accept the elements or the state.
        """
        function = ElementFunction(computation, "reduce")
        state = function.check_reduces(self._element)
        initial = normalize_argument(initial_state, state, "initial_state")
        return to_result(function.reduced(initial, self.blocks()), state)

    def shuffle(self: _D, buffer_size: int, seed: int | None = None) -> _D:
        """Shuffles the elements by drawing them from a buffer, which is refilled whenever half of it has been drawn.

        If `repeat` is applied afterwards, each repetition has a different order. The seed determines all orders.

        Args:
          buffer_size: The size of the buffer in elements. If it holds the whole dataset, all orders are equally likely.
          seed: A non-negative integer; required.

        Raises:
          InvalidValueError: If a number is out of range, or the seed is missing.
        """
        if seed is None:
            example = f"shuffle({buffer_size!r}, seed=1)"
            raise InvalidValueError(f"Expected a seed for shuffle, so that all passes agree, found None; try {example}")
        size = min(checked_positive("buffer_size", buffer_size), MOST_NUMBER)
        return self._with(steps.ShuffleStep(size, checked_seed("seed", seed, MAX_SEED)))

    def take(self: _D, count: int) -> _D:
        """Keeps only the first `count` elements."""
        return self._with(steps.TakeStep(checked_seed("count", count, MOST_NUMBER)))

    def skip(self: _D, count: int) -> _D:
        """Leaves out the first `count` elements."""
        return self._with(SkipStep(checked_seed("count", count, MOST_NUMBER)))

    def repeat(self: _D, count: int | None = None) -> _D:
        """Repeats the elements `count` times, or infinitely if `count` is `None`."""
        return self._with(steps.RepeatStep(None if count is None else checked_seed("count", count, MOST_NUMBER)))

    def enumerate(self: _D, start: int = 0) -> _D:
        """Pairs each element with its int64 number, counting from `start`."""
        first = checked_integer("start", start)
        if first not in INT64_NUMBERS:
            raise InvalidValueError(f"Expected the start of enumerate to be an int64 number, found {first}")
        return self._with(steps.EnumerateStep(first))

    def prefetch(self: _D, buffer_size: int) -> _D:
        """Prepares about `buffer_size` elements ahead of time on a thread: at least one block, at most 256 blocks."""
        size = min(checked_positive("buffer_size", buffer_size), MOST_NUMBER)
        return self._with(rearranging_steps.PrefetchStep(size))

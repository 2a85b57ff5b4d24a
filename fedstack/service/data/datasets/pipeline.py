"""Adds steps to the elements of a source, and runs them: on the whole dataset, or split by split."""

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
# What numbers of elements messages hold.
MOST_NUMBER = 2**63 - 1
INT64_NUMBERS = range(-(2**63), 2**63)
# Each step of a dataset calls the one before it.
MOST_STEPS = 100


@attrs.frozen
class Division:
    """How the work on a dataset is divided.

    Attributes:
      split: What can be read split by split, in any order and at several places.
      after: What has to be done to all its elements together, in turn.
    """

    split: "Pipeline"
    after: tuple[Step, ...]


class Pipeline(HasBlocks):
    """A source of elements, and what is done to them.

    Args:
      source: Where the elements come from.
      steps: What is done to them, in turn.
      element: The type of what comes out; by default that of the source.
    """

    def __init__(self, source: Source | None = None, steps: tuple[Step, ...] = (), element: Type | None = None) -> None:
        if not isinstance(source, Source):
            found = "nothing" if source is None else describe(source)
            raise TypeMismatchError(
                f"Expected a source of elements, found {found}; make datasets with Dataset.range, from_arrays, "
                "from_generator, from_npy, …"
            )
        self._source = source
        self._steps = steps
        if self.depth > MOST_STEPS:
            raise InvalidComputationError(
                f"Expected at most {MOST_STEPS} steps one after the other, found {self.depth}; do several in a function"
            )
        self._element = checked_element(source.element if element is None else element)
        self._shown = shower(self._element)

    @property
    def source(self) -> Source:
        """Where its elements come from."""
        return self._source

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to them, in turn."""
        return self._steps

    @property
    def depth(self) -> int:
        """Through how many steps an element goes, one after the other."""
        return self._source.depth + len(self._steps)

    @property
    def element_type(self) -> Type:
        return self._element

    @property
    def element_spec(self) -> Type:
        """The same as `element_type`."""
        return self._element

    @property
    def cardinality(self) -> float | None:
        """The number of elements: an integer, `math.inf`, or `None` where it is not known."""
        size = self._source.size
        for step in self._steps:
            size = step.size(size)
        return size

    def __len__(self) -> int:
        size = self.cardinality
        if size is None or size == math.inf:
            what = "is not known" if size is None else "is infinite"
            raise TypeError(f"Expected a dataset of known length, found {self!r}, whose length {what}")
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
        """Returns an iterator over the elements, the same as `iter` does."""
        return iter(self)

    def __repr__(self) -> str:
        return " → ".join(map(repr, (self._source, *self._steps))).join(("<Dataset ", f": {self._element}*>"))

    def large_blocks(self) -> Blocks:
        return self.blocks() if self._steps else self._source.large_blocks()

    def blocks(self) -> Blocks:
        # What is left out first need not be made: most sources know where to begin.
        left_out = list(itertools.takewhile(lambda step: isinstance(step, SkipStep), self._steps))
        source, skipped = self._source, sum(cast(SkipStep, step).number for step in left_out)
        size = None if source.size is None else max(0, source.size - skipped)
        start = Upstream(lambda _: while_wanted(source.read(0, source.num_splits, skipped)), size=size)
        return self._run(start, self._steps[len(left_out) :])

    @property
    def num_splits(self) -> int:
        """How many splits there are."""
        return 1 if self._asks_for_more else self._source.num_splits

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        """Yields the elements of consecutive splits, from a number of them on."""
        if not 0 <= first <= last <= self.num_splits:
            raise InvalidValueError(f"Expected splits of {self!r} below {self.num_splits}, found {first} to {last}")
        if first == last:
            return iter(())
        if self._asks_for_more:
            return without_first(self.blocks(), start)
        source, skipped = self._source, 0
        if all(step.keeps_count for step in self._steps):
            skipped, start = start, 0
        # Of sources with an element in each split it is known which one of all an element is.
        place = (first + skipped, 0) if source.size == source.num_splits else (skipped, first)
        blocks = self._run(
            Upstream(lambda _: while_wanted(source.read(first, last, skipped)), first, *place), self._steps
        )
        return without_first(blocks, start) if start else blocks

    def divided(self) -> Division:
        """Returns how the work on it is divided among those who read splits, and whoever gets all their elements.

        What asks for the order of elements stays in front of the point where they come together, with all before it, as
        work on one split: so it means there what it means here.
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
        """Applies a computation to each element. It may run for elements ahead of those that are asked for.

        Raises:
          InvalidComputationError: If it is no computation without placements.
          TypeMismatchError: If it does not take the elements.
        """
        return self._with(steps.MapStep(ElementFunction(computation, "map")))

    def filter(self: _D, computation: object) -> _D:
        """Keeps the elements for which a computation returns true.

        Raises:
          InvalidComputationError: If it is no computation that returns `bool`.
          TypeMismatchError: If it does not take the elements.
        """
        return self._with(steps.FilterStep(ElementFunction(computation, "filter")))

    def batch(self: _D, batch_size: int, drop_remainder: bool = False) -> _D:
        """Puts consecutive elements together, each array with a new first dimension.

        Args:
          batch_size: How many make a batch.
          drop_remainder: Whether a last batch of fewer elements is left out.
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
        """Puts consecutive elements together whose arrays differ in shape: they are filled up at their ends.

        Args:
          batch_size: How many make a batch.
          padded_shapes: The shape that arrays get, in dicts and tuples where elements have them. `None` or -1 in it,
            and no shape at all, stand for what the type says, or else for the longest array in the batch.
          padding_values: What they are filled up with: a scalar for each or for all; by default 0 and empty strings.
          drop_remainder: Whether a last batch of fewer elements is left out.

        Raises:
          TypeMismatchError: If a shape or a value does not fit, or the rank of arrays is not known.
          ResourceLimitError: If padded arrays would be larger than 2 GiB.
        """
        size = min(checked_positive("batch_size", batch_size), MOST_NUMBER)
        paddings = paddings_of(self._element, padded_shapes, padding_values)
        return self._with(PaddedBatchStep(size, checked_flag("drop_remainder", drop_remainder), paddings=paddings))

    def window(self: _D, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> _D:
        """Puts elements that follow each other together, each array with a new first dimension; windows may overlap.

        Args:
          size: How many make a window.
          shift: How many elements after the beginning of a window the next one begins; by default `size`.
          stride: How many elements after one in a window the next one of it is.
          drop_remainder: Whether windows at the end of fewer elements are left out.
        """
        numbers = [("size", size), ("shift", size if shift is None else shift), ("stride", stride)]
        checked = [min(checked_positive(name, number), MOST_NUMBER) for name, number in numbers]
        return self._with(WindowStep(*checked, drop_remainder=checked_flag("drop_remainder", drop_remainder)))

    def flat_map(self: _D, computation: object) -> _D:
        """Applies a computation that returns a sequence to each element, and yields the elements of those.

        Raises:
          InvalidComputationError: If it is no computation that returns a sequence.
          TypeMismatchError: If it does not take the elements.
        """
        return self._with(rearranging_steps.InterleaveStep(ElementFunction(computation, "flat_map")))

    def interleave(self: _D, computation: object, cycle_length: int, block_length: int = 1) -> _D:
        """Applies a computation that returns a sequence to each element, and takes of several of those by turns.

        Args:
          computation: Makes a sequence of an element.
          cycle_length: Of how many sequences elements are taken by turns.
          block_length: How many are taken of one before it is the turn of the next.

        Raises:
          InvalidComputationError: If it is no computation that returns a sequence.
          TypeMismatchError: If it does not take the elements.
        """
        numbers = [("cycle_length", cycle_length), ("block_length", block_length)]
        turns = [min(checked_positive(name, number), MOST_NUMBER) for name, number in numbers]
        return self._with(rearranging_steps.InterleaveStep(ElementFunction(computation, "interleave"), *turns))

    def unbatch(self: _D) -> _D:
        """Takes elements apart along the first dimension of their arrays.

        Raises:
          TypeMismatchError: If there is an array without one, or these differ.
        """
        return self._with(rearranging_steps.UnbatchStep())

    def shard(self: _D, num_shards: int, index: int) -> _D:
        """Keeps the elements whose number, divided by `num_shards`, leaves `index`.

        Raises:
          InvalidValueError: If there is no shard of that index.
        """
        number = min(checked_positive("num_shards", num_shards), MOST_NUMBER)
        place = checked_seed("index", index)
        if place >= number:
            raise InvalidValueError(f"Expected an index below {number}, found {place}; at shard")
        return self._with(rearranging_steps.ShardStep(number, place))

    def cache(self: _D, filename: object = "", *, only_for_repetitions: bool = False) -> _D:
        """Keeps the elements in memory: an iteration that comes to the end keeps them for all later ones.

        Datasets that are made of this one share them. What a data worker reads, it keeps for the repetitions of one
        iteration.

        Args:
          filename: Nothing: there are no caches in files.
          only_for_repetitions: Whether to keep them no longer than an iteration lasts.

        Raises:
          InvalidValueError: If there is no last element, or there is a name of a file.
        """
        if filename != "":
            raise InvalidValueError(
                f"Expected no name of a file, found {describe(filename)}; at cache, which keeps elements in memory; "
                "write them into files yourself, and read these"
            )
        if self.is_endless:
            raise InvalidValueError(f"Expected a dataset that ends, found {self!r}; at cache; give its take(n)")
        return self._with(rearranging_steps.CacheStep(None if only_for_repetitions else rearranging_steps.Kept()))

    def reduce(self, initial_state: object, computation: object) -> object:
        """Applies a computation to a state and each element in turn; returns the last state.

        Args:
          initial_state: The state to begin with.
          computation: Takes a state and an element, and returns a state.

        Raises:
          InvalidComputationError: If it is no such computation.
          TypeMismatchError: If it does not take the elements or the state.
        """
        function = ElementFunction(computation, "reduce")
        state = function.check_reduces(self._element)
        return to_result(
            function.reduced(normalize_argument(initial_state, state, "initial_state"), self.blocks()), state
        )

    def shuffle(self: _D, buffer_size: int, seed: int | None = None) -> _D:
        """Shuffles the elements: they are drawn from a buffer, half of which is filled up again when it is drawn.

        Each repetition of a `repeat` after it has another order; all follow from the seed.

        Args:
          buffer_size: How many elements the buffer has. If the dataset has no more, every order is as likely.
          seed: A non-negative integer; there has to be one.

        Raises:
          InvalidValueError: If a number is out of its range, or there is no seed.
        """
        if seed is None:
            raise InvalidValueError(
                f"Expected a seed, found none; at shuffle; give one, as in shuffle({buffer_size!r}, seed=1), so that "
                "each pass has the same order"
            )
        size = min(checked_positive("buffer_size", buffer_size), MOST_NUMBER)
        return self._with(steps.ShuffleStep(size, checked_seed("seed", seed, MAX_SEED)))

    def take(self: _D, count: int) -> _D:
        """Keeps the first elements."""
        return self._with(steps.TakeStep(checked_seed("count", count, MOST_NUMBER)))

    def skip(self: _D, count: int) -> _D:
        """Leaves out the first elements."""
        return self._with(SkipStep(checked_seed("count", count, MOST_NUMBER)))

    def repeat(self: _D, count: int | None = None) -> _D:
        """Goes over the elements several times, without end if `count` is left out."""
        return self._with(steps.RepeatStep(None if count is None else checked_seed("count", count, MOST_NUMBER)))

    def enumerate(self: _D, start: int = 0) -> _D:
        """Makes pairs of an int64 number and an element."""
        first = checked_integer("start", start)
        if first not in INT64_NUMBERS:
            raise InvalidValueError(f"Expected an int64 number, found {first}; at the start of enumerate")
        return self._with(steps.EnumerateStep(first))

    def prefetch(self: _D, buffer_size: int) -> _D:
        """Makes about so many elements ahead, on a thread; at least a block of them, and at most 256 blocks."""
        return self._with(
            rearranging_steps.PrefetchStep(min(checked_positive("buffer_size", buffer_size), MOST_NUMBER))
        )

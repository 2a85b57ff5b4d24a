"""Reads datasets: runs the steps that are done to the elements of a source, whole or split by split."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import attrs

from fedstack.computations.types.language import Type
from fedstack.computations.values.columns import Column
from fedstack.errors import InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.blocks import Blocks, while_wanted, without_first
from fedstack.service.data.datasets.element_types import ElementIterator, PlainIterator, checked_element, shower
from fedstack.service.data.datasets.sources import Elements, Source
from fedstack.service.data.datasets.steps import Asks, SkipStep, Step, Upstream

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


class Pipeline(Elements):
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
        return 1 if self._asks_for_more else self._source.num_splits

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
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

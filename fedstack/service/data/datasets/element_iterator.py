"""Iterates over elements, for loops of both kinds: `for`, and `async for`, which reads on a thread."""

import contextlib
import operator
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

from fedstack.computations.values.column_sequence import lists_of
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.service.data.datasets.blocks import Blocks
from fedstack.service.data.datasets.element_types import Shown


class ElementIterator(Iterator[Any]):
    """An iterator over the elements of a dataset.

    Args:
      blocks: Yields the elements.
      shown: What users see of an element; `None` where that is the element.
    """

    def __init__(self, blocks: Blocks, shown: Shown | None) -> None:
        self._lists = lists_of(blocks)
        self._shown = shown
        self._threads: LeafThreads | None = None
        self._go_on(())

    def _go_on(self, some: Sequence[object]) -> None:
        self._some = iter(some)
        self._elements = self._some if self._shown is None else map(self._shown, self._some)

    @property
    def _left(self) -> int:
        """How many elements of the current list nobody has asked for."""
        return operator.length_hint(self._some)

    def __iter__(self) -> "ElementIterator":
        return self

    def __next__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            self._go_on(next(self._lists))

    def __aiter__(self) -> "ElementIterator":
        return self

    async def __anext__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            threads = self._threads = self._threads or LeafThreads(1)
            some = await threads.run(lambda: next(self._lists, None), cancel=self.close)
            if some is None:
                raise StopAsyncIteration
            self._go_on(some)

    def close(self) -> None:
        """Reads no more. Idempotent."""
        self._go_on(())
        with contextlib.suppress(ValueError):  # a thread is at it, and nobody wants what it gets
            cast("Generator[Sequence[object], None, None]", self._lists).close()

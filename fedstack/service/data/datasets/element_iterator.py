"""Iterates over elements, for loops of both kinds: `for`, and `async for`, which reads on a thread."""

import contextlib
import operator
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

from fedstack.computations.values.column_sequence import lists_of
from fedstack.errors import InvalidValueError
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.service.data.datasets.blocks import Blocks
from fedstack.service.data.datasets.element_types import Shown


class Lists(Iterator[Sequence[object]]):
    """The elements of blocks in lists, for one thread or task at a time.

    Args:
      blocks: The elements.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._lists = lists_of(blocks)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def alone(self) -> Generator[None, None, None]:
        """A block in which nobody else reads.

        Raises:
          InvalidValueError: If somebody does.
        """
        if not self._lock.acquire(blocking=False):
            raise InvalidValueError(
                "Expected one thread or task at a time to ask an iterator for elements, found another one that waits "
                "for some; give each an iterator of its own, or let one read for all"
            )
        try:
            yield
        finally:
            self._lock.release()

    def __next__(self) -> Sequence[object]:
        with self.alone():
            return next(self._lists)

    def take(self) -> Sequence[object] | None:
        """Returns the next list in a block of `alone`; `None` after the last."""
        return next(self._lists, None)

    def close(self) -> None:
        """Reads no more. Idempotent."""
        with contextlib.suppress(ValueError):  # a thread is at it, and nobody wants what it gets
            cast("Generator[Sequence[object], None, None]", self._lists).close()


class ElementIterator(Iterator[Any]):
    """An iterator over the elements of a dataset.

    Args:
      blocks: Yields the elements.
      shown: What users see of an element; `None` where that is the element.
    """

    def __init__(self, blocks: Blocks, shown: Shown | None) -> None:
        self._lists = Lists(blocks)
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
            with self._lists.alone():
                if not self._left:  # else another thread has gone on since
                    some = self._lists.take()
                    if some is None:
                        raise StopIteration
                    self._go_on(some)

    def __aiter__(self) -> "ElementIterator":
        return self

    async def __anext__(self) -> Any:
        while True:
            for element in self._elements:
                return element
            threads = self._threads = self._threads or LeafThreads(1)
            with self._lists.alone():
                some = await threads.run(self._lists.take, cancel=self._interrupt)
                if some is None:
                    raise StopAsyncIteration
                self._go_on(some)

    def close(self) -> None:
        """Reads no more. Idempotent."""
        self._go_on(())
        self._lists.close()

    def _interrupt(self) -> None:
        """Reads no more: whoever waited was cancelled."""
        self.close()

    async def aclose(self) -> None:
        """Does what `close` does, for `contextlib.aclosing`."""
        self.close()

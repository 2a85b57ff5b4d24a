"""Sources of datasets' elements. A source has numbered splits, which can be read from any element onwards."""

import abc
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from fedstack.computations.plan.interpreter import run_once
from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.values.columns import Column, Payload, ScalarColumn, StructColumn
from fedstack.computations.values.sequences import FromGenerator
from fedstack.computations.values.values import SequenceView
from fedstack.errors import CarrierError, FedstackError, InvalidComputationError, InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import name_text, with_place
from fedstack.service.data.datasets.elements import ElementFunction
from fedstack.service.data.reading.blocks import (
    Gathering,
    packed,
    sequence_blocks,
    skipped,
    while_wanted,
    without_first,
)
from fedstack.service.data.reading.budget import BLOCK_ROWS, Blocks, pieces, rows_at_once

if TYPE_CHECKING:
    from fedstack.service.data.datasets.pipeline import Pipeline

INT64 = TensorType(np.int64)
INT32 = TensorType(np.int32)


class Source(abc.ABC):
    """A source of elements.

    Attributes:
      element: The type of an element.
      num_splits: The number of splits.
      size: The number of elements, which may be infinite; `None` if unknown.
    """

    def __init__(self, element: Type, num_splits: int) -> None:
        self.element = element
        self.num_splits = num_splits

    @property
    def size(self) -> float | None:
        return None

    @property
    def depth(self) -> int:
        """The maximum number of consecutive steps that an element of this source has passed through."""
        return 0

    @property
    def held(self) -> Column | None:
        """All elements if the source already has them in memory, otherwise `None`."""
        return None

    def clients(self, column: str) -> "Mapping[str, Source] | None":
        """Returns a source for each client, if the elements of clients can be read separately, otherwise `None`.

        Args:
          column: The member of the elements that contains the client's id. The returned sources omit this member.

        Returns:
          A mapping from the ids of the clients to their sources, in the order of the ids.
        """
        del column
        return None

    @abc.abstractmethod
    def read_split(self, split: int, start: int = 0) -> Blocks:
        """Yields the elements of a split, without its first `start` elements."""

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        """Yields the elements of the splits from `first` to before `last`, without the first `start` elements."""
        if last - first == 1:
            return self.read_split(first, start)
        splits = while_wanted(map(self.read_split, range(first, last)))
        return without_first(itertools.chain.from_iterable(splits), start)

    def blocks(self) -> Blocks:
        """Yields all elements."""
        return self.read(0, self.num_splits)

    def large_blocks(self) -> Blocks:
        """Yields all elements, in larger blocks if this requires no copy."""
        return self.blocks()


class RowsSource(Source):
    """A source in which each element is a split. Any range can be read without reading the preceding elements."""

    def __init__(self, element: Type, rows: int) -> None:
        super().__init__(element, rows)

    @property
    def size(self) -> int:
        return self.num_splits

    def read_split(self, split: int, start: int = 0) -> Blocks:
        return self.read(split, split + 1, start)

    @abc.abstractmethod
    def read(self, first: int, last: int, start: int = 0) -> Blocks: ...


class RangeSource(RowsSource):
    """A source whose elements are the integers of a Python `range`."""

    def __init__(self, numbers: range) -> None:
        super().__init__(INT64, len(numbers))
        self.numbers = numbers

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        mine = self.numbers[min(first + start, last) : last]
        for place in range(0, len(mine), BLOCK_ROWS):
            some = mine[place : place + BLOCK_ROWS]
            values = np.arange(some.start, some.stop, some.step, dtype=np.int64)
            values.flags.writeable = False
            yield ScalarColumn(values)

    def __repr__(self) -> str:
        return repr(self.numbers)


class ArraysSource(RowsSource):
    """A source whose elements are the rows of arrays in memory."""

    def __init__(self, element: Type, column: Column) -> None:
        super().__init__(element, len(column))
        self.column = column

    @property
    def held(self) -> Column:
        return self.column

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        return pieces(self.column.slice(min(first + start, last), last), rows_at_once(self.element))

    def __repr__(self) -> str:
        return "arrays"


class GeneratorSource(Source):
    """A source of the elements that a function returns for each split.

    Attributes:
      function: The function, which takes the number of a split.
      name: The name under which the function is registered; empty if it is not registered.
    """

    def __init__(
        self, function: Callable[[int], Iterable[object]], element: Type, num_splits: int, name: str = ""
    ) -> None:
        super().__init__(element, num_splits)
        self.function = function
        self.name = name
        # A `FromGenerator` remembers the last iterator of its split, and raises an error if the function returns the
        # same iterator again.
        self._splits: dict[int, FromGenerator[object]] = {}

    def read_split(self, split: int, start: int = 0) -> Blocks:
        elements = self._splits.setdefault(split, FromGenerator(functools.partial(self.function, split)))
        view = SequenceView(elements, self.element, f"split {split} of {self!r}")
        return packed(skipped(iter(view), start), self.element)

    def register(self) -> None:
        """Registers the function, so that datasets received from other processes can refer to it by name.

        Raises:
          InvalidValueError: If another function is registered under the name.
        """
        before = _registered.setdefault(self.name, self)
        if _origin(before.function) != _origin(self.function):
            raise InvalidValueError(
                f"Expected an unused name for Dataset.from_generator, found {self.name!r}, which is "
                f"already registered for {_origin(before.function)[1]!r}; choose another name"
            )
        _registered[self.name] = self  # replaces the function of a notebook cell that is run again

    def __repr__(self) -> str:
        return f"generator {self.name or _origin(self.function)[1]!r}"


# The registered generators by name, to which datasets received from other processes may refer.
_registered: dict[str, GeneratorSource] = {}


def registered_generator(name: str) -> GeneratorSource:
    """Returns the source that is registered under a name in this process.

    Raises:
      CarrierError: If no source is registered under the name.
    """
    found = _registered.get(name)
    if found is None:
        known = ", ".join(sorted(_registered)) or "none"
        raise CarrierError(
            f"Expected the name of a generator that is registered in this process ({known}), found "
            f"{name_text(name)!r}; in this process, import the module that calls Dataset.from_generator with this name"
        )
    return found


def _origin(function: object) -> tuple[str, str]:
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__name__)


class ComputationSource(Source):
    """A source of the elements of the sequences that a computation returns: one, or one per split.

    Args:
      function: The computation, of type `( -> T*)` or `(int32 -> T*)`.
      splits: The number of splits; `None` if the computation has no parameter.

    Raises:
      InvalidComputationError: If the computation has another type.
      TypeMismatchError: If `splits` is specified for a computation without a parameter, or `None` for a computation
        with a parameter.
    """

    def __init__(self, function: ElementFunction, splits: int | None) -> None:
        parameter, result = function.type.parameter, function.type.result
        if not isinstance(result, SequenceType) or (parameter is not None and parameter != INT32):
            raise InvalidComputationError(
                "Expected Dataset.from_computation to receive a computation of type ( -> T*) or (int32 -> T*), found "
                f"{function.type}; declare no parameter, or an int32 parameter for the number of the split"
            )
        if (splits is None) != (parameter is None):
            what = "no num_splits for a computation without a parameter"
            if parameter is not None:
                what = "num_splits for a computation that takes the number of a split"
            raise TypeMismatchError(f"Expected Dataset.from_computation to receive {what}, found {splits}")
        super().__init__(result.element, 1 if splits is None else splits)
        self.function = function
        self.splits = splits

    def read_split(self, split: int, start: int = 0) -> Blocks:
        inputs = [] if self.splits is None else [np.int32(split)]
        try:
            (sequence,) = run_once(self.function.program, inputs)
            yield from sequence_blocks(cast("Iterable[Payload]", sequence), self.element, start)
        except FedstackError as error:
            raise with_place(error, f"in split {split}") from error.__cause__

    def __repr__(self) -> str:
        return repr(self.function)


class ZippedSource(Source):
    """A source of tuples with one element from each dataset. The source ends when the shortest dataset ends."""

    def __init__(self, parts: "tuple[Pipeline, ...]") -> None:
        super().__init__(StructType([part.element_type for part in parts]), 1)
        self.parts = parts

    @property
    def depth(self) -> int:
        return 1 + max(part.depth for part in self.parts)

    @property
    def size(self) -> float | None:
        sizes = [part.cardinality for part in self.parts]
        return None if None in sizes else min(cast("list[float]", sizes))

    def read_split(self, split: int, start: int = 0) -> Blocks:
        return without_first(self._side_by_side(), start)

    def _side_by_side(self) -> Blocks:
        waiting: list[Column | None] = [None] * len(self.parts)
        with contextlib.ExitStack() as stack:
            # Elements of one dataset that wait for elements of the others count as gathered memory.
            rests = [stack.enter_context(Gathering(part.element_type, "zip")) for part in self.parts]
            parts = [part.blocks() for part in self.parts]
            while True:
                heads: list[Column] = []
                for part, found in zip(parts, waiting):
                    head = next(part, None) if found is None else found
                    if head is None:
                        return
                    heads.append(head)
                rows = min(map(len, heads))
                yield StructColumn(tuple(head.slice(0, rows) for head in heads), rows)
                waiting = [head.slice(rows, len(head)) if len(head) > rows else None for head in heads]
                for rest, gathering in zip(waiting, rests):
                    gathering.clear()
                    if rest is not None:
                        gathering.add(rest)

    def __repr__(self) -> str:
        return f"zip({', '.join(map(repr, self.parts))})"


class ConcatenatedSource(Source):
    """A source that concatenates datasets. Its splits are the splits of the datasets, in order."""

    def __init__(self, parts: "tuple[Pipeline, ...]") -> None:
        super().__init__(parts[0].element_type, sum(part.num_splits for part in parts))
        self.parts = parts

    @property
    def depth(self) -> int:
        return 1 + max(part.depth for part in self.parts)

    @property
    def size(self) -> float | None:
        sizes = [part.cardinality for part in self.parts]
        return None if None in sizes else sum(cast("list[float]", sizes))

    def read_split(self, split: int, start: int = 0) -> Blocks:
        return self.read(split, split + 1, start)

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        return without_first(itertools.chain.from_iterable(self._parts_read(first, last)), start)

    def _parts_read(self, first: int, last: int) -> Iterator[Blocks]:
        for part in self.parts:
            if first < part.num_splits and last > 0:
                yield part.read(max(0, first), min(last, part.num_splits))
            first -= part.num_splits
            last -= part.num_splits

    def __repr__(self) -> str:
        return f"concatenate({', '.join(map(repr, self.parts))})"

"""What is done to the elements of datasets, step by step. Each says what it asks of their order.

| asks for | means the same | steps |
| --- | --- | --- |
| nothing | on each split by itself | map, filter, prefetch, interleave, unbatch |
| all elements | on all elements together, in any order | batch, padded_batch, shuffle, repeat, cache |
| their order | on all elements in the order of the source | take, skip, enumerate, window, shard |

What has to run after splits come together again, and what keeps a dataset from being split, follows from that.
"""

import abc
import enum
import functools
import itertools
import math
from collections.abc import Callable
from typing import ClassVar, cast

import attrs
import numpy as np

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import Column, ScalarColumn, StructColumn, concatenate
from fedstack.computations.values.sequences import drawn_order
from fedstack.errors import InvalidComputationError, InvalidValueError
from fedstack.service.data.datasets.elements import ElementFunction
from fedstack.service.data.reading.blocks import Gathering, only_first, picked, stacked, without_first
from fedstack.service.data.reading.budget import Blocks, pieces, rows_at_once

_BOOL = TensorType(np.bool_)
_END_INT64 = 1 << 63


@attrs.frozen
class Upstream:
    """Starts what comes before a step.

    Attributes:
      start: Does so, for the number of an epoch, which is new in each repetition.
      split: The split that it begins with.
      number: The number of its first element.
      counts_from: The split from whose beginning on that number counts.
      size: How many elements there are; infinite, and `None` where it is not known.
    """

    start: Callable[[int], Blocks]
    split: int = 0
    number: int = 0
    counts_from: int = 0
    size: float | None = None

    def __call__(self, epoch: int) -> Blocks:
        return self.start(epoch)

    def through(self, step: "Step", element: Type) -> "Upstream":
        """Returns what starts a step after it, on elements of a type."""
        start = functools.partial(step.for_iteration().run, self, element)
        place = (self.number, self.counts_from) if step.keeps_count else (0, self.split)
        return Upstream(start, self.split, *place, step.size(self.size))

    def place(self, where: str) -> Callable[[int], str]:
        """Returns what names an element of a step by its number among those that come."""
        since = f", counted from split {self.counts_from}" if self.counts_from else ""
        return lambda index: f"at element {self.number + index} of {where}{since}"


class Asks(enum.Enum):
    """What a step asks of the elements that it gets."""

    NOTHING = "nothing"
    ALL = "all elements"
    ORDER = "their order"


class Step(abc.ABC):
    """Something that is done to elements.

    Attributes:
      asks: What it asks of them.
      keeps_count: Whether it makes one element of each.
    """

    asks: ClassVar[Asks] = Asks.NOTHING
    keeps_count: ClassVar[bool] = False

    def element(self, before: Type) -> Type:
        """Returns the type of what it makes of elements of a type.

        Raises:
          TypeMismatchError: If it does not take them.
        """
        return before

    def size(self, before: float | None) -> float | None:
        """Returns how many it makes of so many; infinite, and `None` where it is not known."""
        return before

    def taken(self, made: int) -> int | None:
        """Returns after how many elements it would go on as it does now, if it began there, when it has made so many.

        That may be fewer than it has taken, or more, if it leaves out those that come next. `None` if it is not known,
        or it would make others of the rest.
        """
        return None

    def for_iteration(self) -> "Step":
        """Returns what runs in one iteration; another one than this if it keeps something as long as that lasts."""
        return self

    def apart(self) -> "Step":
        """Returns a step that does the same, and shares nothing that this keeps between iterations."""
        return self

    @abc.abstractmethod
    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        """Yields what it makes of elements of a type."""


@attrs.frozen
class MapStep(Step):
    """Applies a function to each element."""

    function: ElementFunction
    keeps_count = True

    def element(self, before: Type) -> Type:
        self.function.check_takes(before, "map")
        return self.function.type.result

    def taken(self, made: int) -> int:
        return made

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        return (made for _, made in self.function.applied(upstream(epoch), upstream.place(repr(self))))

    def __repr__(self) -> str:
        return f"map({self.function!r})"


@attrs.frozen
class FilterStep(Step):
    """Keeps the elements for which a function returns true."""

    function: ElementFunction

    def element(self, before: Type) -> Type:
        self.function.check_takes(before, "filter")
        if self.function.type.result != _BOOL:
            raise InvalidComputationError(
                f"Expected a function that returns bool, found {self.function!r} of type {self.function.type}; "
                "at filter"
            )
        return before

    def size(self, before: float | None) -> float | None:
        return 0 if before == 0 else None

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        for piece, made in self.function.applied(upstream(epoch), upstream.place(repr(self))):
            rows = np.flatnonzero(np.fromiter(made.items(), np.bool_, len(made)))
            if len(rows):
                yield piece if len(rows) == len(piece) else picked(piece, rows)

    def __repr__(self) -> str:
        return f"filter({self.function!r})"


@attrs.frozen
class BatchStep(Step):
    """Puts consecutive elements together, with a new first dimension."""

    number: int
    drop_remainder: bool = False
    asks = Asks.ALL

    def element(self, before: Type) -> Type:
        return batch_type(before, self.number if self.drop_remainder else None)

    def size(self, before: float | None) -> float | None:
        if before is None or before == math.inf:
            return before
        whole, rest = divmod(int(before), self.number)
        return whole + (rest > 0 and not self.drop_remainder)

    def taken(self, made: int) -> int:
        return made * self.number

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        waiting: list[Column] = []  # fewer than a batch
        number, have = self.number, 0
        with Gathering(element, repr(self)) as gathering:
            if upstream.size is not None and (upstream.size >= number or not self.drop_remainder):
                gathering.expect(min(number, upstream.size))
            for block in upstream(epoch):
                first = min(number - have, len(block)) if have else 0
                if first:
                    waiting.append(block.slice(0, first))
                    gathering.add(waiting[-1])
                    have += first
                if have == number:
                    rows, waiting, have = concatenate(waiting, element), [], 0
                    yield self._batches(rows, number, element, gathering)
                    gathering.clear()
                whole = (len(block) - first) // number * number
                if whole:
                    yield self._batches(block.slice(first, first + whole), number, element, gathering)
                    gathering.clear()
                if first + whole < len(block):
                    waiting.append(block.slice(first + whole, len(block)))
                    gathering.add(waiting[-1])
                    have += len(waiting[-1])
            if have and not self.drop_remainder:
                yield self._batches(concatenate(waiting, element), have, element, gathering)

    def _batches(self, rows: Column, number: int, element: Type, gathering: Gathering) -> Column:
        """Returns rows in batches; what these take beside the rows is gathered."""
        return stacked(rows, number, element, repr(self))

    def __repr__(self) -> str:
        return f"batch({self.number}{', drop_remainder=True' * self.drop_remainder})"


def batch_type(element: Type, rows: int | None) -> Type:
    """Returns the type of so many elements that are put together; `None` for any number."""
    if isinstance(element, StructType):
        members = [(name, batch_type(t, rows)) for name, t in fields_of(element)]
        return StructType([t if name is None else (name, t) for name, t in members])
    tensor = cast(TensorType, element)
    return TensorType(tensor.dtype, None if tensor.shape is None else (rows, *tensor.shape))


@attrs.frozen
class ShuffleStep(Step):
    """Draws elements from a buffer in random order; half of it at a time, then it is filled up again."""

    number: int
    seed: int
    asks = Asks.ALL
    keeps_count = True

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        waiting: list[Column] = []
        have, draw = 0, 0
        most = rows_at_once(element)
        with Gathering(element, repr(self)) as gathering:
            if upstream.size is not None:
                gathering.expect(min(self.number, upstream.size))
            for block in itertools.chain.from_iterable(pieces(block, most) for block in upstream(epoch)):
                while len(block):
                    room = min(self.number - have, len(block))
                    waiting.append(block.slice(0, room))
                    gathering.add(waiting[-1])
                    have, block = have + room, block.slice(room, len(block))
                    if have == self.number:
                        out = self._drawn(waiting, element, epoch, draw)
                        half = max(1, have // 2)
                        yield from pieces(out.slice(0, half), most)
                        waiting, have, draw = [out.slice(half, have)], have - half, draw + 1
                        gathering.clear()
                        gathering.add(waiting[0])
            if have:
                yield from pieces(self._drawn(waiting, element, epoch, draw), most)

    def _drawn(self, parts: list[Column], element: Type, epoch: int, draw: int) -> Column:
        buffer = concatenate(parts, element)
        return picked(buffer, drawn_order(self.seed, (epoch, draw), len(buffer)))

    def __repr__(self) -> str:
        return f"shuffle({self.number}, {self.seed})"


@attrs.frozen
class RepeatStep(Step):
    """Starts again from the front: `None` for without end."""

    number: int | None
    asks = Asks.ALL

    def size(self, before: float | None) -> float | None:
        if before == 0 or self.number == 0:
            return 0
        if self.number is None:
            return math.inf
        return None if before is None else before * self.number

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        # An epoch that no repetition around this one gives its own.
        first = epoch << 32
        for repetition in itertools.count() if self.number is None else range(self.number):
            found = False
            for block in upstream(first + repetition):
                found = True
                yield block
            if not found:
                return  # nor would there be anything the next time

    def __repr__(self) -> str:
        return f"repeat({'' if self.number is None else self.number})"


@attrs.frozen
class TakeStep(Step):
    """Keeps the first elements."""

    number: int
    asks = Asks.ORDER

    def size(self, before: float | None) -> float | None:
        return None if before is None else min(before, self.number)

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        return only_first(upstream(epoch), self.number)

    def __repr__(self) -> str:
        return f"take({self.number})"


@attrs.frozen
class SkipStep(Step):
    """Leaves out the first elements."""

    number: int
    asks = Asks.ORDER

    def size(self, before: float | None) -> float | None:
        return None if before is None else max(0, before - self.number)

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        return without_first(upstream(epoch), self.number)

    def __repr__(self) -> str:
        return f"skip({self.number})"


@attrs.frozen
class EnumerateStep(Step):
    """Numbers the elements."""

    start: int = 0
    asks = Asks.ORDER
    keeps_count = True

    def element(self, before: Type) -> Type:
        return StructType([np.int64, before])

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        number = self.start
        for block in upstream(epoch):
            fits = min(len(block), _END_INT64 - number)
            if fits:
                numbers = np.arange(fits, dtype=np.int64) + np.int64(number)
                numbers.flags.writeable = False
                yield StructColumn((ScalarColumn(numbers), block if fits == len(block) else block.slice(0, fits)), fits)
            if fits < len(block):
                raise InvalidValueError(
                    f"Expected at most {_END_INT64 - self.start} elements to number with int64, found more; at "
                    f"{self!r}; start with a smaller number"
                )
            number += fits

    def __repr__(self) -> str:
        return f"enumerate({self.start or ''})"

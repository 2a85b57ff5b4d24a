"""The steps that transform datasets' elements. Each step declares its requirements for its input.

| requirement | the result is the same | steps |
| --- | --- | --- |
| nothing | if the step runs on each split separately | map, filter, prefetch, interleave, unbatch |
| all elements | if the step runs on all elements, in any order | batch, padded_batch, shuffle, repeat, cache |
| their order | if the step runs on all elements, in the order of the source | take, skip, enumerate, window, shard |

The requirements determine which steps run after splits are merged, and which steps prevent a dataset from being split.
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
    """A step's input, which can be started anew for each epoch.

    Attributes:
      start: Starts the input for an epoch. Each repetition passes a new epoch number.
      split: The first split of the input.
      number: The number of the first element of the input, for error messages.
      counts_from: The split from whose beginning `number` is counted.
      size: The number of elements, which may be infinite; `None` if unknown.
    """

    start: Callable[[int], Blocks]
    split: int = 0
    number: int = 0
    counts_from: int = 0
    size: float | None = None

    def __call__(self, epoch: int) -> Blocks:
        return self.start(epoch)

    def through(self, step: "Step", element: Type) -> "Upstream":
        """Returns the output of a step that is applied to this input, as the input of the next step."""
        start = functools.partial(step.for_iteration().run, self, element)
        place = (self.number, self.counts_from) if step.keeps_count else (0, self.split)
        return Upstream(start, self.split, *place, step.size(self.size))

    def place(self, where: str) -> Callable[[int], str]:
        """Returns a function that takes the index of an input element and describes its position in error messages."""
        since = f", counted from split {self.counts_from}" if self.counts_from else ""
        return lambda index: f"at element {self.number + index} of {where}{since}"


class Asks(enum.Enum):
    """A step's requirement for its input elements."""

    NOTHING = "nothing"
    ALL = "all elements"
    ORDER = "their order"


class Step(abc.ABC):
    """A transformation of elements.

    Attributes:
      asks: The step's requirement for its input elements.
      keeps_count: Whether the step yields exactly one element for each input element.
    """

    asks: ClassVar[Asks] = Asks.NOTHING
    keeps_count: ClassVar[bool] = False

    def element(self, before: Type) -> Type:
        """Returns the type of the step's output elements, given the type of its input elements.

        Raises:
          TypeMismatchError: If the step does not accept elements of this type.
        """
        return before

    def size(self, before: float | None) -> float | None:
        """Returns the number of output elements for `before` input elements. `None` means an unknown number."""
        return before

    def taken(self, made: int) -> int | None:
        """Returns the input position at which the step could be restarted after it has yielded `made` elements.

        The position may be before the end of the input read so far or, for a step that skips the next elements, after
        it. The position is `None` if it is unknown, or if a restarted step would yield different elements.
        """
        return None

    def for_iteration(self) -> "Step":
        """Returns the step to run in an iteration: a new step if this step keeps state during an iteration."""
        return self

    def apart(self) -> "Step":
        """Returns an equal step that does not share state with this step."""
        return self

    @abc.abstractmethod
    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        """Yields the output elements.

        Args:
          upstream: The input elements.
          element: The type of the input elements.
          epoch: The number of the epoch.
        """


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
                f"Expected filter to receive a function that returns bool, found {self.function!r} of type "
                f"{self.function.type}; declare its result type as bool"
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
    """Combines consecutive elements into batches, which have an additional first dimension."""

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
        waiting: list[Column] = []  # fewer elements than a batch
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
        """Returns rows in batches. Memory that the batches need in addition to the rows counts as gathered."""
        return stacked(rows, number, element, repr(self))

    def __repr__(self) -> str:
        return f"batch({self.number}{', drop_remainder=True' * self.drop_remainder})"


def batch_type(element: Type, rows: int | None) -> Type:
    """Returns the type of a batch of `rows` elements. If `rows` is `None`, the size of the batch is not known."""
    if isinstance(element, StructType):
        members = [(name, batch_type(t, rows)) for name, t in fields_of(element)]
        return StructType([t if name is None else (name, t) for name, t in members])
    tensor = cast(TensorType, element)
    return TensorType(tensor.dtype, None if tensor.shape is None else (rows, *tensor.shape))


@attrs.frozen
class ShuffleStep(Step):
    """Draws elements in random order from a buffer, which is refilled whenever half of it has been drawn."""

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
    """Repeats the elements `number` times, or infinitely if `number` is `None`."""

    number: int | None
    asks = Asks.ALL

    def size(self, before: float | None) -> float | None:
        if before == 0 or self.number == 0:
            return 0
        if self.number is None:
            return math.inf
        return None if before is None else before * self.number

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        # The epochs of a repetition within an outer repetition must differ from the epochs of the outer repetition.
        first = epoch << 32
        for repetition in itertools.count() if self.number is None else range(self.number):
            found = False
            for block in upstream(first + repetition):
                found = True
                yield block
            if not found:
                return  # the input is empty, so an infinite repetition would never yield an element

    def __repr__(self) -> str:
        return f"repeat({'' if self.number is None else self.number})"


@attrs.frozen
class TakeStep(Step):
    """Keeps only the first `number` elements."""

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
    """Leaves out the first `number` elements."""

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
    """Pairs each element with its number."""

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
                    f"Expected {self!r} to receive at most {_END_INT64 - self.start} elements, so that their numbers "
                    "fit into int64, found more; start with a smaller number"
                )
            number += fits

    def __repr__(self) -> str:
        return f"enumerate({self.start or ''})"

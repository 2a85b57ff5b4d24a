"""Steps that combine consecutive elements into windows, which may overlap, or into batches of padded arrays."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import exact_bytes, fields_of, is_scalar, is_string, tensor_leaves
from fedstack.computations.values.columns import Column, ListColumn, RowsColumn, StructColumn, concatenate
from fedstack.computations.values.tensor_values import normalize_tensor
from fedstack.errors import InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.number_checks import checked_integer
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.steps import Asks, BatchStep, Step, Upstream, batch_type
from fedstack.service.data.reading.blocks import Gathering, picked, stacked
from fedstack.service.data.reading.budget import BLOCK_BYTES, Blocks, pieces, rows_at_once, size_in

# The maximum size of a padded batch in bytes. Without a limit, a small definition could request any amount of memory.
_MOST_BYTES = 1 << 31


@attrs.frozen
class WindowStep(Step):
    """Combines elements into windows. A window begins at every `shift`-th element."""

    number: int
    shift: int
    stride: int = 1
    drop_remainder: bool = False
    asks = Asks.ORDER

    def element(self, before: Type) -> Type:
        return batch_type(before, self.number if self.drop_remainder else None)

    @property
    def _span(self) -> int:
        """The number of input elements from the first to the last element of a window, inclusive."""
        return (self.number - 1) * self.stride + 1

    def size(self, before: float | None) -> float | None:
        if before is None or before == math.inf:
            return before
        begins = int(before) - self._span + 1 if self.drop_remainder else int(before)
        return len(range(0, max(0, begins), self.shift))

    def taken(self, made: int) -> int:
        return made * self.shift

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        waiting: list[Column] = []
        have, skipped = 0, 0  # the number of waiting elements, and the number of later elements that are in no window
        bytes_of = size_in(element)
        with Gathering(element, repr(self)) as gathering:
            for found in upstream(epoch):
                block = found.slice(min(skipped, len(found)), len(found)) if skipped else found
                skipped -= len(found) - len(block)
                if not len(block):
                    continue
                waiting.append(block)
                gathering.add(block)
                have += len(block)
                if have < self._span:
                    continue
                rows, waiting = concatenate(waiting, element), []
                begins = np.arange(0, have - self._span + 1, self.shift, dtype=np.intp)
                window_bytes = max(1, bytes_of(rows) // have * self.number)
                at_once = max(1, min(rows_at_once(element) // self.number, BLOCK_BYTES // window_bytes))
                for place in range(0, len(begins), at_once):
                    yield self._windows(rows, begins[place : place + at_once], element)
                done = len(begins) * self.shift
                skipped = max(0, done - have)
                waiting = [rows.slice(done, have)] if done < have else []
                gathering.clear()
                if waiting:
                    gathering.add(waiting[0])
                have = max(0, have - done)
            if have and not self.drop_remainder:
                rows = concatenate(waiting, element)
                for begin in range(0, have, self.shift):
                    some = np.arange(begin, min(begin + self._span, have), self.stride, dtype=np.intp)
                    yield stacked(picked(rows, some), len(some), element, repr(self))

    def _windows(self, rows: Column, begins: NDArray[np.intp], element: Type) -> Column:
        places = begins[:, None] + np.arange(self.number, dtype=np.intp) * self.stride
        return stacked(picked(rows, places.ravel()), self.number, element, repr(self))

    def __repr__(self) -> str:
        return f"window({self.number}, {self.shift}, {self.stride}{', drop_remainder=True' * self.drop_remainder})"


@attrs.frozen
class Padding:
    """The padding of the arrays of one tensor.

    Attributes:
      sizes: The padded size of each dimension; `None` for the size of the largest array in the batch.
      value: The padding value, a scalar in payload form.
    """

    sizes: tuple[int | None, ...]
    value: Any


@attrs.frozen
class PaddedBatchStep(BatchStep):
    """Combines consecutive elements into batches, and pads their arrays to a common shape.

    Attributes:
      paddings: The padding of each tensor of an element, in depth-first order.
    """

    paddings: tuple[Padding, ...] = attrs.field(kw_only=True, eq=False)

    def element(self, before: Type) -> Type:
        return batch_type(_padded_type(before, iter(self.paddings)), self.number if self.drop_remainder else None)

    def run(self, upstream: Upstream, element: Type, epoch: int) -> Blocks:
        padded = _padded_type(element, iter(self.paddings))
        # Padded elements may be much larger than the input, so at most a block or a batch is padded at a time.
        rows = rows_at_once(padded) // self.number * self.number if exact_bytes(padded) else 0

        def cut(epoch: int) -> Blocks:
            return itertools.chain.from_iterable(pieces(block, max(self.number, rows)) for block in upstream(epoch))

        return super().run(attrs.evolve(upstream, start=cut), element, epoch)

    def _batches(self, rows: Column, number: int, element: Type, gathering: Gathering) -> Column:
        return self._padded(rows, number, element, iter(self.paddings), gathering)

    def _padded(
        self, rows: Column, number: int, element: Type, paddings: Iterator[Padding], gathering: Gathering
    ) -> Column:
        if isinstance(element, StructType):
            members = enumerate(fields_of(element))
            fields = [self._padded(rows.field(i), number, t, paddings, gathering) for i, (_, t) in members]
            return StructColumn(tuple(fields), len(rows) // number)
        tensor, padding = cast(TensorType, element), next(paddings)
        if is_scalar(tensor):
            return stacked(rows, number, element, repr(self))
        if isinstance(rows, RowsColumn):
            return RowsColumn(
                self._filled(rows.values.reshape(-1, number, *rows.shape[1:]), padding, tensor, gathering)
            )
        items = cast("Sequence[NDArray[Any]]", rows.items())
        batches = (items[first : first + number] for first in range(0, len(items), number))
        return ListColumn([self._joined(batch, padding, tensor, gathering) for batch in batches], list_is_own=True)

    def _filled(self, arrays: NDArray[Any], padding: Padding, tensor: TensorType, gathering: Gathering) -> NDArray[Any]:
        """Pads batches of arrays that all have the same shape."""
        found = arrays.shape[2:]
        shape = self._shape([found], padding)
        if shape == found:
            return arrays
        out = self._empty((*arrays.shape[:2], *shape), padding, tensor, gathering)
        out[(slice(None), slice(None), *map(slice, found))] = arrays
        out.flags.writeable = False
        return out

    def _joined(
        self, arrays: Sequence[NDArray[Any]], padding: Padding, tensor: TensorType, gathering: Gathering
    ) -> NDArray[Any]:
        """Pads arrays that may differ in shape, and combines them into a batch."""
        shape = self._shape([array.shape for array in arrays], padding)
        out = self._empty((len(arrays), *shape), padding, tensor, gathering)
        for place, array in enumerate(arrays):
            out[(place, *map(slice, array.shape))] = array
        out.flags.writeable = False
        return out

    def _shape(self, shapes: Sequence[tuple[int, ...]], padding: Padding) -> tuple[int, ...]:
        longest = [max(sizes) for sizes in zip(*shapes)]
        for most, size in zip(longest, padding.sizes):
            if size is not None and most > size:
                raise InvalidValueError(
                    f"Expected {self!r} to receive arrays of size {size} or less in a dimension that is padded to this "
                    f"size, found size {most}; pass larger padded_shapes, or None to pad to the largest array in the "
                    "batch"
                )
        return tuple(most if size is None else size for most, size in zip(longest, padding.sizes))

    def _empty(
        self, shape: tuple[int, ...], padding: Padding, tensor: TensorType, gathering: Gathering
    ) -> NDArray[Any]:
        dtype = np.dtype(np.object_) if is_string(tensor) else tensor.dtype
        size = math.prod(shape[-len(padding.sizes) - 1 :]) * dtype.itemsize
        if size > _MOST_BYTES:
            raise ResourceLimitError(
                f"Expected {self!r} to produce batches of at most {_MOST_BYTES} bytes, found a batch of {size} bytes; "
                "reduce batch_size or padded_shapes"
            )
        gathering.take(math.prod(shape) * dtype.itemsize)
        return np.full(shape, padding.value, dtype)

    def __repr__(self) -> str:
        return f"padded_batch({self.number}{', drop_remainder=True' * self.drop_remainder})"


def paddings_of(element: Type, shapes: object, values: object) -> tuple[Padding, ...]:
    """Converts padded shapes and padding values specified by a user into the padding of each tensor.

    Args:
      element: The type of an element.
      shapes: A shape for each tensor, in the same dicts and tuples as the element; `None` for the shapes in the type.
      values: A scalar for each tensor, in the same dicts and tuples, or one scalar for all tensors; `None` for zeros
        and empty strings.

    Raises:
      TypeMismatchError: If the shapes or values do not fit the element.
      ResourceLimitError: If a padded array would be too large.
    """
    paddings = tuple(_paddings(element, shapes, values, "padded_shapes", "padding_values"))
    for (path, tensor), padding in zip(tensor_leaves(element), paddings):
        if None not in padding.sizes:
            size = math.prod(cast("Sequence[int]", padding.sizes)) * tensor.dtype.itemsize
            if size > _MOST_BYTES:
                raise ResourceLimitError(
                    f"Expected padded arrays of at most {_MOST_BYTES} bytes, found {size}; at padded_batch"
                    f"{path and ', '}{path}; reduce padded_shapes"
                )
    return paddings


def _paddings(element: Type, shapes: object, values: object, shape_at: str, value_at: str) -> Iterator[Padding]:
    if isinstance(element, StructType):
        fields = fields_of(element)
        for place, (name, member) in enumerate(fields):
            key = place if name is None else name
            some = _member(shapes, key, place, len(fields), shape_at)
            is_for_all = not isinstance(values, (Mapping, tuple, list))
            value = values if is_for_all else _member(cast(object, values), key, place, len(fields), value_at)
            yield from _paddings(member, some, value, f"{shape_at}[{key!r}]", f"{value_at}[{key!r}]")
        return
    tensor = cast(TensorType, element)
    yield Padding(_sizes(tensor, shapes, shape_at), _value(tensor, values, value_at))


def _member(found: object, key: object, place: int, count: int, path: str) -> object:
    if found is None:
        return None
    if isinstance(found, Mapping) and len(cast("Mapping[object, object]", found)) == count and key in found:
        return cast("Mapping[object, object]", found)[key]
    if isinstance(found, (tuple, list)) and len(cast("Sequence[object]", found)) == count:
        return cast("Sequence[object]", found)[place]
    raise TypeMismatchError(
        f"Expected {path} to have the {count} members of an element, found {describe(cast(object, found))}"
    )


def _sizes(tensor: TensorType, shape: object, path: str) -> tuple[int | None, ...]:
    if tensor.shape is None:
        raise TypeMismatchError(f"Expected arrays of known rank at {path}, found {tensor}; declare their dimensions")
    known = tuple(tensor.shape)
    if shape is None:
        return known
    if not isinstance(shape, (tuple, list)) or len(cast("Sequence[object]", shape)) != len(known):
        raise TypeMismatchError(
            f"Expected {path} to have {len(known)} dimensions, found {describe(cast(object, shape))}"
        )
    sizes = [None if size in (None, -1) else checked_integer(path, size) for size in cast("Sequence[object]", shape)]
    for size, least in zip(sizes, known):
        if size is not None and size < (least or 0):
            raise TypeMismatchError(f"Expected a size of at least {least or 0} at {path}, found {size}")
    return tuple(least if size is None else size for size, least in zip(sizes, known))


def _value(tensor: TensorType, value: object, path: str) -> object:
    scalar = TensorType(tensor.dtype)
    if value is None:
        return b"" if is_string(tensor) else tensor.dtype.type(0)
    return normalize_tensor(value, scalar, path)


def _padded_type(element: Type, paddings: Iterator[Padding]) -> Type:
    if isinstance(element, StructType):
        members = [(name, _padded_type(t, paddings)) for name, t in fields_of(element)]
        return StructType([t if name is None else (name, t) for name, t in members])
    return TensorType(cast(TensorType, element).dtype, next(paddings).sizes)

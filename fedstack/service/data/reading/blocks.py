"""Cuts, filters and stacks blocks: columns of consecutive elements, the units in which datasets are processed."""

import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.sequence_rows import Pieces
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_sizes import count_leaves
from fedstack.computations.types.type_structure import exact_bytes, fields_of, is_scalar, is_string
from fedstack.computations.values.column_sequence import ColumnSequence
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    Payload,
    RowsColumn,
    ScalarColumn,
    StructColumn,
    column_from_payloads,
    concatenate,
)
from fedstack.computations.values.sequences import take
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import ClosedError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.service.data.reading.budget import SECONDS_TOGETHER, Blocks, BlockSize, pieces, rows_at_once, size_in
from fedstack.service.data.reading.dataset_scope import dataset_scope

_T = TypeVar("_T")
# The first block of a range fits into one message. Later blocks are larger, because the cost of each call is constant.
_FIRST_BYTES = 1 << 20
_GROWTH = 4
# The approximate overhead of an array or a string that is a separate Python object, in bytes.
_OBJECT_BYTES = 64


def column_over(arrays: object, element: Type, rows: int, path: str) -> Column:
    """Returns a column whose elements are the rows of arrays.

    Args:
      arrays: An array for each tensor of the element, in nested tuples for structs. Strings may be NumPy strings or
        Python objects.
      element: The type of an element.
      rows: The number of elements.
      path: The origin of the arrays, for error messages.

    Raises:
      TypeMismatchError: If an array has the wrong dtype or shape.
    """
    if isinstance(element, StructType):
        members = zip(cast("Sequence[object]", arrays), fields_of(element))
        return StructColumn(tuple(column_over(array, t, rows, path) for array, (_, t) in members), rows)
    tensor, array = cast(TensorType, element), cast("NDArray[Any]", arrays)
    found = tensor_of_rows(array)
    if found is None or not tensor.is_assignable_from(found):
        raise TypeMismatchError(f"Expected rows of {tensor} at {path}, found {describe(array)}")
    if not is_string(tensor):
        return (ScalarColumn if is_scalar(tensor) else RowsColumn)(read_only(np.asarray(array, tensor.dtype)))
    return ListColumn([_strings(row, path) for row in array])


def tensor_of_rows(array: NDArray[Any]) -> TensorType | None:
    """Returns the type of the rows of an array, or `None` if the language has no such type."""
    try:
        return TensorType(np.str_ if array.dtype.kind in "SUO" else array.dtype.type, array.shape[1:])
    except (TypeError, ValueError, NotImplementedError):
        return None


def _strings(row: object, path: str) -> object:
    if not isinstance(row, np.ndarray):
        if not isinstance(row, (str, bytes)):
            raise TypeMismatchError(
                f"Expected text at {path}, found {describe(row)}; convert the array to a numeric dtype or to text"
            )
        return row.encode() if isinstance(row, str) else bytes(row)
    rows = cast("NDArray[Any]", row)
    strings = np.empty(rows.shape, np.object_)
    for place, item in np.ndenumerate(rows):
        strings[place] = _strings(item, path)
    strings.flags.writeable = False
    return strings


def picked(column: Column, rows: NDArray[np.intp]) -> Column:
    """Returns a column of the rows at the given indices, which may be in any order."""
    if isinstance(column, StructColumn):
        return StructColumn(tuple([picked(field, rows) for field in column.fields]), len(rows))
    if isinstance(column, RowsColumn):
        return type(column)(take(column.values, rows))
    if isinstance(column, ConstantColumn):
        return ConstantColumn(column.value, len(rows))
    items = column.items()
    return ListColumn([items[row] for row in rows.tolist()], list_is_own=True)


def stacked(column: Column, size: int, element: Type, place: str) -> Column:
    """Stacks every `size` consecutive rows into a batch, and returns the column of batches.

    Args:
      column: The rows, whose number must be a multiple of `size`.
      size: The number of rows in a batch.
      element: The type of a row.
      place: The step that stacks the rows, for error messages.

    Raises:
      InvalidValueError: If the arrays in a batch differ in shape.
    """
    count = len(column) // size
    if isinstance(element, StructType):
        fields = [stacked(column.field(i), size, t, place) for i, (_, t) in enumerate(fields_of(element))]
        return StructColumn(tuple(fields), count)
    if isinstance(column, RowsColumn):
        return RowsColumn(column.values.reshape(count, size, *column.shape[1:]))
    items, tensor = column.items(), cast(TensorType, element)
    cuts = range(0, count * size, size)
    return ListColumn([_array_of(items[first : first + size], tensor, place) for first in cuts], list_is_own=True)


def _array_of(items: Sequence[object], tensor: TensorType, place: str) -> NDArray[Any]:
    if is_scalar(tensor):
        array = np.empty(len(items), np.object_ if is_string(tensor) else tensor.dtype)
        array[:] = items
    else:
        shapes = list(dict.fromkeys(np.shape(cast("NDArray[Any]", item)) for item in items))
        if len(shapes) > 1:
            raise InvalidValueError(
                f"Expected arrays of the same shape at {place}, found shapes {list(shapes[0])} and {list(shapes[1])}; "
                "convert the arrays to the same shape in a map step first, or use padded_batch"
            )
        array = np.stack(cast("Sequence[NDArray[Any]]", items))
    array.flags.writeable = False
    return array


def while_wanted(items: Iterator[_T]) -> Iterator[_T]:
    """Yields items while the reader still needs the elements.

    The check is necessary here because a later step may discard all elements and never yield.

    Raises:
      ClosedError: If the reader has ended.
    """
    for item in items:
        check_wanted()
        yield item


def check_wanted() -> None:
    """Checks that the reader still needs the elements that are being prepared.

    Raises:
      ClosedError: If the reader has ended.
    """
    is_wanted = dataset_scope().is_wanted
    if is_wanted is not None and not is_wanted():
        raise ClosedError("The reader of these elements has ended")


def without_first(blocks: Blocks, number: int) -> Blocks:
    """Yields all but the first `number` elements."""
    for block in while_wanted(blocks):
        if number < len(block):
            yield block.slice(number, len(block)) if number else block
        number = max(0, number - len(block))


def only_first(blocks: Blocks, number: int) -> Blocks:
    """Yields the first `number` elements without requesting later elements."""
    while number:
        block = next(blocks, None)
        if block is None:
            return
        block = block.slice(0, number) if number < len(block) else block
        number -= len(block)
        yield block


def sequence_blocks(sequence: Iterable[Payload], element: Type, start: int = 0) -> Blocks:
    """Yields the elements of a sequence that a function has returned, without the first `start` elements."""
    if isinstance(sequence, ColumnSequence) and sequence.batching is None:
        return pieces(sequence.column, rows_at_once(element), start)
    return packed(skipped(iter(sequence), start), element)


def skipped(elements: Iterator[Payload], start: int) -> Iterator[Payload]:
    """Yields all but the first `start` elements, and stops skipping if the reader has ended."""
    for _ in itertools.islice(while_wanted(elements), start):
        pass
    yield from elements


def packed(elements: Iterable[Payload], element: Type) -> Blocks:
    """Yields payloads in blocks. If the payloads end with an error, the preceding payloads are yielded first."""
    rest, pace = iter(elements), BlockSize(element)
    failure: Exception | None = None
    while failure is None:
        some: list[Payload] = []
        clock = dataset_scope().clock
        begun = clock()
        try:
            some.extend(itertools.islice(rest, pace.rows))
        except Exception as error:
            failure = error
        if some:
            block = column_from_payloads(some, element, list_is_own=True)
            pace.note(block, clock() - begun)
            yield block
        elif failure is None:
            return
    raise failure


class Gathering:
    """The memory of the elements that a step has gathered.

    The memory counts against the limit of the current scope until the `with` block ends.

    Args:
      element: The type of the elements.
      what: The name of the step, for error messages.
      object_bytes: The overhead in bytes of each tensor of an element, if tensors are separate Python objects.
    """

    def __init__(self, element: Type, what: str, object_bytes: int = _OBJECT_BYTES) -> None:
        self._take_room = dataset_scope().take_room
        self._bytes_of = size_in(element)
        self._each = exact_bytes(element) or 0
        self._beside = 0 if self._each else object_bytes * count_leaves(element)
        self._what = what
        self._lock = threading.Lock()  # prefetch adds elements on a thread, which may outlive the `with` block
        self._taken = 0
        self._is_over = False

    def expect(self, rows: float | None) -> None:
        """Checks that `rows` elements can be gathered, without gathering them.

        Args:
          rows: The number of elements, which may be infinite; `None` if the number is unknown.

        Raises:
          ResourceLimitError: If the elements would exceed the limit.
        """
        if self._take_room is not None and rows is not None and rows != math.inf:
            size = int(rows) * self._each
            self._take_room(size, self._what)
            self._take_room(-size, self._what)

    def add(self, block: Column) -> None:
        """Adds the memory of a block of elements.

        Raises:
          ResourceLimitError: If the block would exceed the limit.
        """
        if self._take_room is not None:
            self.take(self._size_of(block))

    def take(self, size: int) -> None:
        """Adds `size` bytes.

        Raises:
          ResourceLimitError: If the bytes would exceed the limit.
        """
        with self._lock:
            if not self._is_over:
                self._take(size)

    def remove(self, block: Column) -> None:
        """Releases the memory of a block that is passed to the next step."""
        if self._take_room is not None:
            self.take(-self._size_of(block))

    def clear(self) -> None:
        """Releases all gathered memory."""
        with self._lock:
            self._take(-self._taken)

    def _size_of(self, block: Column) -> int:
        return self._bytes_of(block) + self._beside * len(block)

    def _take(self, size: int) -> None:
        if self._take_room is not None and size:
            self._take_room(size, self._what)
            self._taken += size

    def __enter__(self) -> "Gathering":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.clear()

    def __repr__(self) -> str:
        return f"<Gathering of {self._what}: {self._taken} bytes>"


# A block of elements, and whether it is known to be the last block.
Sized: TypeAlias = tuple[Column, bool]


def sized_blocks(blocks: Blocks, element: Type, most_bytes: int) -> Iterator[Sized]:
    """Regroups elements into blocks of about `most_bytes`, or smaller blocks if preparing the elements takes long.

    If reading the elements raises an error, the preceding elements are yielded before the error is raised.

    Args:
      blocks: The blocks of elements.
      element: The type of an element.
      most_bytes: The maximum size of a block in bytes, unless a single element is larger.
    """
    held: list[Column] = []
    held_bytes, begun = 0, dataset_scope().clock()
    bound, most_bytes = most_bytes, min(most_bytes, _FIRST_BYTES)
    failure: Exception | None = None
    bytes_of = size_in(element)
    while True:
        block = None
        try:
            block = next(blocks, None)
        except Exception as error:
            failure = error
        if block is None:
            break
        for piece, size in _cut(block, bytes_of(block), most_bytes):
            if held and (held_bytes + size > most_bytes or not _fits(held[0], piece)):
                yield _together(held, element), False
                held, held_bytes, begun = [], 0, dataset_scope().clock()
                most_bytes = min(bound, most_bytes * _GROWTH)
            held.append(piece)
            held_bytes += size
            if held_bytes >= most_bytes or dataset_scope().clock() - begun > SECONDS_TOGETHER:
                yield _together(held, element), False
                held, held_bytes, begun = [], 0, dataset_scope().clock()
                most_bytes = min(bound, most_bytes * _GROWTH)
    if held:
        yield _together(held, element), failure is None
    if failure is not None:
        raise failure


def _fits(one: Column, other: Column) -> bool:
    """Returns whether two columns can be joined into a column of the same kind."""
    if isinstance(one, StructColumn) and isinstance(other, StructColumn):
        return all(map(_fits, one.fields, other.fields))
    if isinstance(one, RowsColumn) and isinstance(other, RowsColumn):
        return one.shape[1:] == other.shape[1:]
    return type(one) is type(other)


def _together(columns: Sequence[Column], element: Type) -> Column:
    """Joins columns of the same kind into one column for packing, without copying large arrays."""
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], StructColumn):
        structs, members = cast("Sequence[StructColumn]", columns), enumerate(fields_of(cast(StructType, element)))
        fields = [_together([column.fields[i] for column in structs], t) for i, (_, t) in members]
        return StructColumn(tuple(fields), sum(map(len, structs)))
    if isinstance(columns[0], RowsColumn):
        return Pieces([column.values for column in cast("Sequence[RowsColumn]", columns)])
    return concatenate(columns, element)


def _cut(block: Column, size: int, most_bytes: int) -> Iterator[tuple[Column, int]]:
    """Cuts a block into pieces of about `most_bytes`, and yields each piece with its approximate size in bytes."""
    if size <= most_bytes:
        yield block, size
        return
    for piece in pieces(block, max(1, most_bytes * len(block) // size)):
        yield piece, size * len(piece) // len(block)

"""Cuts, picks and stacks elements as columns of some: blocks. Datasets handle their elements in these."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.payload_sizes import known_bytes
from fedstack.computations.leaves.work_scope import SystemScope, WorkScope, current_scope
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
)
from fedstack.computations.values.sequences import take
from fedstack.computations.values.tensor_values import read_only
from fedstack.errors import ClosedError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe

_T = TypeVar("_T")
# The elements of a dataset, some at a time, each block with one element at least.
Blocks: TypeAlias = Iterator[Column]

# What a block has at most: many enough that the work of one is not what counts, few enough to stay in the cache.
BLOCK_ROWS = 1 << 13
BLOCK_BYTES = 1 << 20


# How long an element may wait for those after it in the same block.
_SECONDS_AHEAD = 0.005
# About what an array or a string takes beside its content, where each is an object.
_OBJECT_BYTES = 64


@attrs.frozen(kw_only=True, eq=False)
class DatasetScope(SystemScope):
    """Under which rules datasets are read, and for whom.

    Attributes:
      data_roots: The folders below which they may read files; `None` for all of them.
      is_wanted: Returns whether somebody still wants the elements that are read; `None` for always.
      take_room: Takes room for so many bytes that a step of that name gathers, gives it back for a negative number, and
        raises a `ResourceLimitError` if there is not so much; `None` where there is no bound.
      first_stamp: Returns the stamp that a file had when the pass that is read first opened it, given its path and its
        stamp now; `None` where each reading of a source is a pass.
      clock: Tells how long elements take to make, in seconds; a simulation has its own.
    """

    data_roots: tuple[str, ...] | None = None
    is_wanted: Callable[[], bool] | None = None
    take_room: Callable[[int, str], None] | None = None
    first_stamp: Callable[[str, tuple[int, ...]], tuple[int, ...]] | None = None
    clock: Callable[[], float] = time.perf_counter

    def of_invocation(self) -> "DatasetScope":
        return attrs.evolve(self, first_stamp=None)  # what a function reads is none of the pass


_ANY_DATASETS = DatasetScope()


def dataset_scope() -> DatasetScope:
    """Returns the rules for the datasets that are read now."""
    return current_scope().of(DatasetScope) or _ANY_DATASETS


def reading(scope: WorkScope, **rules: Any) -> WorkScope:
    """Returns a scope with other rules for datasets, each an attribute of `DatasetScope`."""
    return scope.adding(attrs.evolve(scope.of(DatasetScope) or _ANY_DATASETS, **rules))


class Pace:
    """Says how many elements to make at a time: one at first, then more, as long as they are small and quickly made.

    Attributes:
      rows: How many.
    """

    def __init__(self, element: Type) -> None:
        self.rows = 1
        self._bytes_of = size_in(element)

    def note(self, block: Column, seconds: float) -> None:
        """Notes what was made, and how long that took."""
        size = self._bytes_of(block)
        if seconds > _SECONDS_AHEAD or size > BLOCK_BYTES:
            self.rows = max(1, self.rows // 2)
        elif 2 * size <= BLOCK_BYTES:
            self.rows = min(BLOCK_ROWS, self.rows * 2)


def rows_at_once(element: Type) -> int:
    """Returns how many elements of a type make a block."""
    size = exact_bytes(element)
    return BLOCK_ROWS if not size else max(1, min(BLOCK_ROWS, BLOCK_BYTES // size))


def size_in(element: Type) -> Callable[[Column], int]:
    """Returns what says about how much memory the elements of a block take, for many blocks of one type."""
    each = exact_bytes(element)
    if each:
        return lambda block: len(block) * each
    return lambda block: sum(known_bytes(item, element) for item in block.items())


def column_over(arrays: object, element: Type, rows: int, path: str) -> Column:
    """Returns arrays with a row for each element as the column of these.

    Args:
      arrays: An array per tensor of the element, in tuples where that has structs; strings as NumPy or Python has them.
      element: The type of an element.
      rows: How many there are.
      path: Where the arrays are from, for messages.

    Raises:
      TypeMismatchError: If the dtype or the shape of one is another.
    """
    if isinstance(element, StructType):
        members = zip(cast("Sequence[object]", arrays), fields_of(element))
        return StructColumn(tuple(column_over(array, t, rows, path) for array, (_, t) in members), rows)
    tensor, array = cast(TensorType, element), cast("NDArray[Any]", arrays)
    found = tensor_of_rows(array)
    if found is None or not tensor.is_assignable_from(found):
        raise TypeMismatchError(f"Expected rows of {tensor}, found {describe(array)}; at {path}")
    if not is_string(tensor):
        return (ScalarColumn if is_scalar(tensor) else RowsColumn)(read_only(np.asarray(array, tensor.dtype)))
    return ListColumn([_strings(row, path) for row in array])


def tensor_of_rows(array: NDArray[Any]) -> TensorType | None:
    """Returns the type of the rows of an array; `None` if the language has no such type."""
    try:
        return TensorType(np.str_ if array.dtype.kind in "SUO" else array.dtype.type, array.shape[1:])
    except (TypeError, ValueError, NotImplementedError):
        return None


def _strings(row: object, path: str) -> object:
    if not isinstance(row, np.ndarray):
        if not isinstance(row, (str, bytes)):
            raise TypeMismatchError(f"Expected text, found {describe(row)}; at {path}; give the array a numeric dtype")
        return row.encode() if isinstance(row, str) else bytes(row)
    rows = cast("NDArray[Any]", row)
    strings = np.empty(rows.shape, np.object_)
    for place, item in np.ndenumerate(rows):
        strings[place] = _strings(item, path)
    strings.flags.writeable = False
    return strings


def pieces(column: Column, rows: int, start: int = 0) -> Blocks:
    """Cuts a column into blocks of so many rows."""
    for first in range(start, len(column), rows):
        yield column.slice(first, min(first + rows, len(column)))


def picked(column: Column, rows: NDArray[np.intp]) -> Column:
    """Returns the column of some rows of another, in any order."""
    if isinstance(column, StructColumn):
        return StructColumn(tuple([picked(field, rows) for field in column.fields]), len(rows))
    if isinstance(column, RowsColumn):
        return type(column)(take(column.values, rows))
    if isinstance(column, ConstantColumn):
        return ConstantColumn(column.value, len(rows))
    items = column.items()
    return ListColumn([items[row] for row in rows.tolist()], list_is_own=True)


def stacked(column: Column, size: int, element: Type, place: str) -> Column:
    """Returns the column of batches of so many rows each; the rows are a multiple of that.

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
                f"Expected arrays of one shape in a batch, found {list(shapes[0])} and {list(shapes[1])}; at {place}; "
                "map them to one shape first"
            )
        array = np.stack(cast("Sequence[NDArray[Any]]", items))
    array.flags.writeable = False
    return array


def side_by_side(parts: Sequence[Blocks], rests: "Sequence[Gathering]") -> Blocks:
    """Yields structs of an element of each; it ends with the first that does. What waits for the others is gathered."""
    waiting: list[Column | None] = [None] * len(parts)
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


def while_wanted(items: Iterator[_T]) -> Iterator[_T]:
    """Yields items as long as somebody wants what is made of them: a step may leave out all there are.

    Raises:
      ClosedError: When nobody does.
    """
    for item in items:
        check_wanted()
        yield item


def check_wanted() -> None:
    """Checks that somebody wants the elements that are being made.

    Raises:
      ClosedError: If not.
    """
    is_wanted = dataset_scope().is_wanted
    if is_wanted is not None and not is_wanted():
        raise ClosedError("Expected somebody who reads a dataset, found that nobody does any more")


def without_first(blocks: Blocks, number: int) -> Blocks:
    """Yields all but the first elements."""
    for block in while_wanted(blocks):
        if number < len(block):
            yield block.slice(number, len(block)) if number else block
        number = max(0, number - len(block))


def only_first(blocks: Blocks, number: int) -> Blocks:
    """Yields the first elements, and asks for none after them."""
    while number:
        block = next(blocks, None)
        if block is None:
            return
        block = block.slice(0, number) if number < len(block) else block
        number -= len(block)
        yield block


def sequence_blocks(sequence: Iterable[Payload], element: Type, start: int = 0) -> Blocks:
    """Yields the elements of a sequence that a function has returned, from a number of them on."""
    if isinstance(sequence, ColumnSequence) and sequence.batching is None:
        return pieces(sequence.column, rows_at_once(element), start)
    return packed(skipped(iter(sequence), start), element)


def skipped(elements: Iterator[Payload], start: int) -> Iterator[Payload]:
    """Yields the elements from one on; those before it are made as long as somebody wants what comes after."""
    for _ in itertools.islice(while_wanted(elements), start):
        pass
    yield from elements


def packed(elements: Iterable[Payload], element: Type) -> Blocks:
    """Yields payloads in blocks; those before an error come out before it."""
    rest, pace = iter(elements), Pace(element)
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
    """What one step has gathered, for the block: it counts against the bound of those for whom the step runs.

    Args:
      element: The type of the elements.
      what: Names the step, for messages.
      object_bytes: What each tensor of an element takes beside its content, where it is an object.
    """

    def __init__(self, element: Type, what: str, object_bytes: int = _OBJECT_BYTES) -> None:
        self._take_room = dataset_scope().take_room
        self._bytes_of = size_in(element)
        self._each = exact_bytes(element) or 0
        self._beside = 0 if self._each else object_bytes * count_leaves(element)
        self._what = what
        self._lock = threading.Lock()  # a prefetch adds on a thread, which may go on for a while after the end
        self._taken = 0
        self._is_over = False

    def expect(self, rows: float | None) -> None:
        """Checks that there is room for so many elements; `None` if it is not known how many there are.

        Raises:
          ResourceLimitError: If not.
        """
        if self._take_room is not None and rows is not None and rows != math.inf:
            size = int(rows) * self._each
            self._take_room(size, self._what)
            self._take_room(-size, self._what)

    def add(self, block: Column) -> None:
        """Gathers elements.

        Raises:
          ResourceLimitError: If there is no room for them.
        """
        if self._take_room is not None:
            self.take(self._size_of(block))

    def take(self, size: int) -> None:
        """Gathers so many bytes.

        Raises:
          ResourceLimitError: If there is no room for them.
        """
        with self._lock:
            if self._take_room is not None and not self._is_over:
                self._take_room(size, self._what)
                self._taken += size

    def remove(self, block: Column) -> None:
        """Passes elements on."""
        if self._take_room is not None:
            with self._lock:
                self._give_back(self._size_of(block))

    def clear(self) -> None:
        """Passes all on."""
        with self._lock:
            self._give_back(self._taken)

    def _size_of(self, block: Column) -> int:
        return self._bytes_of(block) + self._beside * len(block)

    def _give_back(self, size: int) -> None:
        if self._take_room is not None and size:
            self._take_room(-size, self._what)
            self._taken -= size

    def __enter__(self) -> "Gathering":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.clear()

    def __repr__(self) -> str:
        return f"<Gathering of {self._what}: {self._taken} bytes>"

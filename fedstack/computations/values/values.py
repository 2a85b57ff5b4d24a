"""Converts Python and NumPy values to payloads of the language's types. Errors contain the path of the mismatch.

| type | payload |
| --- | --- |
| tensor | NumPy scalar or read-only array of exactly the dtype; strings are `bytes` |
| struct | tuple of payloads, in the order of the type |
| sequence | `ColumnSequence`, or a lazy re-iterable of payloads |

`federated_values.py` builds federated values from these payloads.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import TypeGuard, cast

import numpy as np

from fedstack.computations.types.language import (
    RetryableError,
    SequenceType,
    StructType,
    TensorType,
    Type,
)
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string, join_path, shape_fits
from fedstack.computations.values.column_sequence import (
    BlockSequence,
    ColumnSequence,
    HasBlocks,
    ShownSequence,
    column_of,
)
from fedstack.computations.values.columns import Column, Payload, RowsColumn, ScalarColumn, StructColumn
from fedstack.computations.values.ownership import snapshot_of
from fedstack.computations.values.records import split_struct
from fedstack.computations.values.sequences import AHEAD, Batches, FromGenerator, HasPasses, in_pass, reshuffles
from fedstack.computations.values.tensor_values import ReadTensor, mismatch, normalize_tensor, read_only
from fedstack.errors import FedstackError, InvalidValueError, TypeMismatchError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import users_lines, without_calling_frames
from fedstack.foundations.value_text import describe, is_data_frame


def normalize(value: object, type_spec: Type, path: str = "arg", read: ReadTensor = normalize_tensor) -> Payload:
    """Returns the payload of a value for an unplaced type.

    Args:
      value: Python and NumPy values in suitable containers. Members of dictionaries, named tuples, attrs instances and
        dataclass instances are matched by name, members of lists and tuples by position.
      type_spec: The expected type.
      path: The path of the value, for error messages.
      read: The function that converts tensors.

    Raises:
      TypeMismatchError: If the value does not match the type. The message contains the path of the mismatch.
      InvalidValueError: If a value is missing in a column of a data frame.
    """
    if isinstance(type_spec, TensorType):
        return read(value, type_spec, path)
    if isinstance(type_spec, StructType):
        members = split_struct(value, type_spec, path)
        return tuple(
            normalize(member, member_type, join_path(path, name, index), read)
            for index, (member, (name, member_type)) in enumerate(zip(members, fields_of(type_spec)))
        )
    if isinstance(type_spec, SequenceType):
        return normalize_sequence(value, type_spec, path, read)
    return mismatch(type_spec, describe(value), path, "pass a plain value, not a function or a placement")


class SequenceView(HasPasses):
    """A re-iterable sequence of payloads that normalizes the elements of its source during iteration."""

    __slots__ = ("element", "path", "read", "source")

    def __init__(self, source: Iterable[object], element: Type, path: str, read: ReadTensor = normalize_tensor) -> None:
        self.source = source
        self.element = element
        self.path = path
        self.read = read

    @property
    def reshuffles(self) -> bool:
        return reshuffles(self.source)

    def __iter__(self) -> Iterator[object]:
        return self.in_pass(0)

    def snapshot(self, keep: Callable[[np.ndarray], np.ndarray]) -> "SequenceView":
        """Returns the sequence with existing arrays replaced by the results of `keep`, which will not change."""
        source: object = self.source
        if type(source) is not Batches:
            return self
        return SequenceView(source.over(keep), self.element, self.path, self.read)

    def as_rows(self) -> ColumnSequence | None:
        """Returns batches as a sequence over rows with the dtypes of the element type; `None` for other sequences."""
        source: object = self.source
        rows = _rows_of(source, self.element, self.path, self.read) if isinstance(source, Batches) else None
        return None if rows is None else ColumnSequence(rows, cast(Batches, source).batching)

    def in_pass(self, number: int) -> Iterator[object]:
        source: object = self.source
        quick, snapshot = quick_reader(self.element), snapshot_of(self.element)
        index = 0
        try:
            elements = source.start(self.path) if isinstance(source, FromGenerator) else in_pass(self.source, number)
            # enumerate() would keep a reference to the last value.
            for value in cast("Iterable[object]", elements):
                payload = quick(value)
                if payload is None:
                    payload = normalize(value, self.element, f"{self.path}[{index}]", self.read)
                del value
                if snapshot is not None:
                    payload = snapshot(payload, None)  # the source may fill the same array again
                yield payload
                del payload
                index += 1
        except (FedstackError, RetryableError):
            raise
        except Exception as error:
            error.__traceback__ = without_calling_frames(error.__traceback__)
            shown = repr(source) if isinstance(source, FromGenerator) else type(self.source).__name__
            raise InvalidValueError(
                f"Iterating over {shown} raised {type(error).__name__}: {text_of(error)}; "
                f"at {self.path}{users_lines(error)}"
            ) from error

    def __len__(self) -> int:
        source: object = self.source
        if isinstance(source, Sized):
            return len(source)
        raise TypeError("Expected a sequence of known length, found a stream; iterate over it and count the elements")

    def __repr__(self) -> str:
        return f"<SequenceView of {type(self.source).__name__}>"


def in_lists(sequence: Iterable[object], number: int) -> Iterator[Sequence[object]] | None:
    """Returns an iterator over short lists of elements, or `None` if the sequence creates its elements individually.

    Args:
      sequence: The sequence.
      number: The number of the pass, which matters if the order differs between passes.
    """
    if isinstance(sequence, ColumnSequence):
        return sequence.lists(number)
    if isinstance(sequence, BlockSequence):
        return sequence.lists()
    if not isinstance(sequence, (list, tuple)):
        return None
    return (sequence[first : first + AHEAD] for first in range(0, len(sequence), AHEAD))


def _rows_of(
    batches: Batches, element: Type, path: str, read: ReadTensor, *, as_they_are: bool = False
) -> Column | None:
    """Returns the rows of batches as columns, or `None` if a batch does not match the element type.

    Args:
      batches: The batches.
      element: The type of a batch.
      path: The path of the batches, for error messages.
      read: The function that converts tensors.
      as_they_are: Whether the arrays must have exactly the declared dtypes, so that no array is copied.
    """
    sizes = batches.batching.sizes(batches.num_rows) or {batches.batching.size}

    def column(arrays: object, member: Type, place: str) -> Column | None:
        if isinstance(member, StructType):
            parts = zip(split_struct(arrays, member, place), fields_of(member))
            fields = [column(part, t, join_path(place, name, i)) for i, (part, (name, t)) in enumerate(parts)]
            return None if None in fields else StructColumn(tuple(cast("list[Column]", fields)), batches.num_rows)
        if not isinstance(member, TensorType) or not isinstance(arrays, np.ndarray):
            return None
        array = cast(np.ndarray, arrays)
        if not all(shape_fits((size, *array.shape[1:]), member.shape) for size in sizes):
            return None
        if array.dtype == member.dtype and type(array) is np.ndarray:
            return RowsColumn(read_only(array))
        return None if as_they_are else RowsColumn(cast(np.ndarray, read(array, _any_shape(member), place)))

    try:
        return column(batches.arrays, element, path)
    except TypeMismatchError:
        return None


def quick_reader(type_spec: Type) -> Callable[[object], object]:
    """Returns a fast function that converts typical values of a type to payloads and returns `None` for other values.

    Typical values are NumPy scalars and arrays of exactly the declared dtypes, or tuples, lists and dictionaries of
    them. Most functions have arguments and results of this kind.
    """
    if isinstance(type_spec, StructType) and fields_of(type_spec):
        return _struct_reader(type_spec)
    if not isinstance(type_spec, TensorType) or is_string(type_spec):
        return lambda _: None
    return _scalar_reader(type_spec) if is_scalar(type_spec) else _array_reader(type_spec)


def _scalar_reader(tensor: TensorType) -> Callable[[object], object]:
    kind = tensor.dtype.type
    return lambda value: value if type(value) is kind else None


def _array_reader(tensor: TensorType) -> Callable[[object], object]:
    dtype, shape = tensor.dtype, tensor.shape
    fitting = shape  # with unknown dimensions, the last shape that matched, which is never the shape of a scalar

    def read(value: object) -> object:
        nonlocal fitting
        if type(value) is not np.ndarray or (value.dtype is not dtype and value.dtype != dtype):
            return None
        found = value.shape
        if found != fitting:
            if found == () or not shape_fits(found, shape):
                return None
            fitting = found
        return read_only(value)

    return read


_length = cast("Callable[[object], int]", len)


def _struct_reader(struct: StructType) -> Callable[[object], object]:
    names = [name for name, _ in fields_of(struct)]
    readers = [quick_reader(member) for _, member in fields_of(struct)]
    named_readers = list(zip(names, readers))
    size = len(readers)
    named = None not in names

    def read(value: object) -> object:
        kind = type(value)
        payload: list[object] = []
        append = payload.append
        if kind is tuple or kind is list:
            if _length(value) != size:
                return None
            for reader, member in zip(readers, cast("Iterable[object]", value)):
                if (found := reader(member)) is None:
                    return None
                append(found)
        elif named and isinstance(value, dict):
            if _length(cast(object, value)) != size:
                return None
            get = cast("dict[object, object]", value).get
            for name, reader in named_readers:
                if (found := reader(get(name))) is None:
                    return None
                append(found)
        else:
            return None
        return tuple(payload)

    return read


def _is_iterable(value: object) -> TypeGuard[Iterable[object]]:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set))


def _is_indexed(value: object) -> bool:
    """Returns whether a value that is not iterable provides elements by index, like a PyTorch dataset."""
    known = isinstance(value, (str, bytes, np.ndarray, Mapping))
    return not known and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def normalize_sequence(
    value: object, sequence: SequenceType, path: str, read: ReadTensor = normalize_tensor
) -> Iterable[object]:
    """Returns the payload of a sequence: all elements of a list or tuple, or a lazy view of another re-iterable object.

    Args:
      value: The sequence.
      sequence: The expected type.
      path: The path of the sequence, for error messages.
      read: The function that converts tensors.

    Raises:
      TypeMismatchError: If `value` is not re-iterable, or an element does not match the type.
    """
    if isinstance(value, Batches):  # checked first, since each client may have batches
        return _batches(value, sequence.element, path, read)
    if isinstance(value, HasBlocks):
        return _blocks(value, sequence.element, path)
    if is_data_frame(value):  # iterating over a data frame yields the names of its columns
        mismatch(sequence, describe(value), path, "pass fedstack.batches(df, batch_size)")
    if not _is_iterable(value):
        advice = "pass a list of elements"
        if isinstance(value, Mapping) and isinstance(sequence.element, StructType):
            advice = "pass a list of such dictionaries, or fedstack.batches(value, batch_size)"
        elif _is_indexed(cast(object, value)):
            advice = "pass a list of its elements, list(value), or fedstack.from_generator(lambda: iter(value))"
        mismatch(f"a re-iterable of {sequence.element}", describe(cast(object, value)), path, advice)
    source = value
    if isinstance(source, ShownSequence) and source.element == sequence.element:
        return source.payload
    # Calling `iter` on an iterator is free, whereas for other objects the call may open files.
    if isinstance(source, Iterator) and iter(source) is source:
        kind = type(source).__name__
        mismatch(
            f"a re-iterable of {sequence.element}", f"a one-shot iterator `{kind}`", path,
            "pass a list, or fedstack.from_generator(function)",
        )  # fmt: skip
    element = sequence.element
    if isinstance(source, (list, tuple)):
        payloads = [normalize(item, element, f"{path}[{index}]", read) for index, item in enumerate(source)]
        return column_of(payloads, element)
    rows = _array_rows(source, element, path, read)
    return SequenceView(source, element, path, read) if rows is None else rows


def _blocks(source: HasBlocks, element: Type, path: str) -> Iterable[object]:
    """Returns the payload of a sequence that provides its elements in columns."""
    if not element.is_assignable_from(source.element_type):
        advice = "map its elements to the expected type, or pass its batches(batch_size) if the type is a batch"
        mismatch(SequenceType(element), f"{source!r} of {source.element_type}", path, advice)
    held = source.held
    return BlockSequence(source) if held is None else ColumnSequence(held)


def _batches(batches: Batches, element: Type, path: str, read: ReadTensor) -> Iterable[object]:
    """Returns the payload of batches, after checking the first and the last batch against the element type."""
    fitting = batches.fitting
    if fitting is None or fitting[0] is not element:
        rows = _rows_of(batches, element, path, read, as_they_are=True)
        fitting = None if rows is None else (element, ColumnSequence(rows, batches.batching))
        batches.fitting = fitting
    if fitting is not None:
        return cast(ColumnSequence, fitting[1])
    if not len(batches):
        return column_of([], element)
    # A mismatch appears in the first batch, or in the last batch, which may have fewer rows.
    for index in {0, len(batches) - 1}:
        batch = next(itertools.islice(batches.in_pass(0), index, None))
        normalize(batch, element, f"{path}[{index}]", read)
    return SequenceView(batches, element, path, read)


def _any_shape(tensor: TensorType) -> TensorType:
    return TensorType(tensor.dtype, None)


def _array_rows(source: object, element: Type, path: str, read: ReadTensor) -> ColumnSequence | None:
    """Returns the sequence of an array's rows, or `None` if the rows do not match or the source is not an array."""
    if not isinstance(source, np.ndarray) or not isinstance(element, TensorType) or is_string(element):
        return None
    array = cast(np.ndarray, source)
    if not shape_fits(array.shape[1:], element.shape):
        return None
    try:
        is_one = array.dtype == element.dtype and type(array) is np.ndarray
        rows = read_only(array) if is_one else cast(np.ndarray, read(array, _any_shape(element), path))
    except TypeMismatchError:
        return None
    return ColumnSequence(ScalarColumn(rows) if rows.ndim == 1 else RowsColumn(rows))

"""Packs payloads into `Packed` messages, followed by the bytes of large arrays; `unpacking.py` reads both.

A `Packed` message describes the structure of a value. The bytes of the value's large arrays follow the message as
*segments*. The sender sends segments directly from the arrays' memory, and the receiver reads them directly into the
memory of new arrays. Only the transport copies the bytes, into and out of its own chunks.
"""

import itertools
import math
import sys
from collections.abc import Container, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import dtype_number, write_array
from fedstack.computations.codec.references import (
    reference_of,
    references_of,
    referred_rows,
    write_references,
    write_referred_rows,
)
from fedstack.computations.codec.sequence_rows import (
    Pieces,
    as_columns,
    rows_at_clients,
    sequences_of,
    together,
    write_batchings,
)
from fedstack.computations.codec.stored_values import write_stored
from fedstack.computations.types.language import (
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, is_client_valued, is_string, join_path, shape_fits
from fedstack.computations.values.column_sequence import SequenceColumn, row_type
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    RowsColumn,
    StructColumn,
    column_from_payloads,
)
from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.computations.values.sequences import check_re_iterable
from fedstack.computations.values.tensor_values import mismatch
from fedstack.foundations.error_text import counted
from fedstack.foundations.segments import LARGE_BYTES, Rows, Segment
from fedstack.proto.extensions_pb2 import Packed, TypedValue

ANY_ELEMENT = "[*]"


class Packer:
    """Packs the payloads of one message.

    Attributes:
      segments: The bytes of the large arrays, in the order in which the message announces the arrays.
      shared: Which of the segments belong to values that are the same for all clients.
      stores: See below.
      owners: What has to exist until the peer has read the values whose places it was sent.

    Args:
      large_bytes: The minimum size in bytes at which an array is sent as a segment instead of in the message.
      references: Whether the peer itself can read the elements behind references.
      stores: The ids of the stores of clients' states that the peer has, too.
    """

    def __init__(
        self, large_bytes: int = LARGE_BYTES, *, references: bool = False, stores: Container[str] = ()
    ) -> None:
        self.segments: list[Segment] = []
        self.shared: list[int] = []
        self._large_bytes = large_bytes
        self.owners: list[object] = []
        self._references = references
        self.stores = stores

    @property
    def segment_bytes(self) -> int:
        """The total number of bytes in the segments."""
        return sum(map(len, self.segments))

    def pack(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        """Packs a payload of the given type into an empty message.

        Args:
          proto: The empty message.
          payload: The payload.
          type_spec: The type of the payload.
          path: The path of the payload, for error messages.

        Raises:
          TypeMismatchError: If the payload does not match the type, or a sequence is a one-shot iterator.
        """
        if isinstance(type_spec, TensorType):
            self._tensor(proto, payload, type_spec, path)
        elif isinstance(type_spec, StructType):
            proto.struct.SetInParent()
            add = proto.struct.member.add
            members = zip(members_in(payload, type_spec, path), fields_of(type_spec))
            for index, (member, (name, member_type)) in enumerate(members):
                self.pack(add(), member, member_type, join_path(path, name, index))
        elif isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
            self.pack_column(proto, payload, type_spec.member, path)
        elif isinstance(type_spec, FederatedType):
            self.pack(proto, payload, type_spec.member, path)
        elif isinstance(type_spec, SequenceType):
            check_re_iterable(payload, path)
            reference = reference_of(payload) if self._references else None
            if reference is not None:
                write_references(proto.references, [reference])
                return
            sequence = as_columns(payload, type_spec.element, path)
            found = together([sequence], type_spec.element)
            if found is None:  # one message for each element
                self.pack_elements(proto, sequence.column, type_spec.element, path)
            else:
                self._sequences(proto, found, type_spec.element, path)
        elif isinstance(type_spec, FunctionType) and isinstance(payload, computation_pb2.Computation):
            proto.computation.CopyFrom(payload)
        else:
            mismatch(type_spec, f"`{type(payload).__name__}`", path)

    def packed(self, payload: object, type_spec: Type, path: str = "value") -> Packed:
        """Packs a payload into a new message, and returns the message."""
        proto = Packed()
        self.pack(proto, payload, type_spec, path)
        return proto

    def pack_shared(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        """Packs a payload that is the same for all clients. A subclass may reuse the result for several messages."""
        before = len(self.segments)
        self.pack(proto, payload, type_spec, path)
        self.shared.extend(range(before, len(self.segments)))

    def pack_deferred(self, proto: Packed, column: DeferredColumn, member: Type, path: str) -> None:
        """Packs clients' values that have not been read yet. A subclass may send placeholders instead."""
        rows = referred_rows(column) if self._references else ()
        if rows:
            write_referred_rows(proto.references, column.first, rows)
        elif self.stores and (found := write_stored(proto.stored, column, self.stores)) is not None:
            if found.shared is not None:
                self.pack_shared(proto.stored.shared, found.shared, found.type_spec, path)
            self.owners.append(found.owner)
        else:
            self.pack_column(proto, column.here(), member, path)

    def pack_elements(self, proto: Packed, elements: Column, element: Type, path: str = "value") -> None:
        """Packs the elements of a column as one sequence."""
        self._sequences(proto, sequences_of(elements, [len(elements)]), element, path)

    def _sequences_at_clients(self, proto: Packed, column: Column, element: Type, path: str) -> None:
        """Packs one sequence per client. The sequences are joined if all rows have equal shapes."""
        references = references_of(column.values) if self._references and isinstance(column, ListColumn) else ()
        if references and len(references) == len(column):
            write_references(proto.references, references)
            return
        found = rows_at_clients(column, element) if isinstance(column, SequenceColumn) and len(column) else None
        values: Sequence[object] = ()
        if references:
            values = column.items()
        elif found is None and len(column):
            sequences = [as_columns(item, element, place_of(path, i)) for i, item in enumerate(column.items())]
            values, found = sequences, together(sequences, element)
        if found is None:
            self._list(proto, values, SequenceType(element), path)
        else:
            self._sequences(proto, found, element, path)

    def _sequences(self, proto: Packed, column: SequenceColumn, element: Type, path: str) -> None:
        """Packs sequences whose rows are in one column."""
        message = proto.sequences
        message.rows.extend((column.bounds[1:] - column.bounds[:-1]).tolist())  # three times as fast as np.diff
        write_batchings(message, column.batchings or ())
        row = element if column.batchings is None else cast(Type, row_type(element))
        self.pack_column(message.row, column.rows, row, path + ANY_ELEMENT)

    def _tensor(self, proto: Packed, payload: object, tensor: TensorType, path: str) -> None:
        array = cast("NDArray[Any] | None", payload if isinstance(payload, np.ndarray) else None)
        if array is not None and array.nbytes >= self._large_bytes and not is_string(tensor):
            self._announce(proto.raw, array.shape, tensor)
            self.segments.append(_bytes_of(array, tensor, path))
        else:
            write_array(proto.array, cast(object, payload), tensor.dtype, tensor.shape, path=path)

    def _announce(self, raw: Packed.Raw, shape: Sequence[int], tensor: TensorType) -> None:
        raw.dtype = dtype_number(tensor.dtype)
        raw.dim.extend(shape)

    def pack_column(self, proto: Packed, payload: object, member: Type, path: str = "value") -> None:
        """Packs a column or a list of clients' values, each of type `member`; see `pack`."""
        column = column_in(payload, member, path)
        if isinstance(column, ConstantColumn):
            proto.same.clients = len(column)
            self.pack_shared(proto.same.member, column.value, member, path)
        elif isinstance(column, StructColumn):
            proto.fields.clients = len(column)
            add = proto.fields.column.add
            for index, (name, field_type) in enumerate(fields_of(cast(StructType, member))):
                self.pack_column(add(), column.fields[index], field_type, join_path(path, name, index))
        elif isinstance(column, DeferredColumn):
            self.pack_deferred(proto, column, member, path)
        elif isinstance(member, SequenceType):
            self._sequences_at_clients(proto, column, member.element, path)
        elif isinstance(column, (RowsColumn, Pieces)):
            arrays = column.arrays if isinstance(column, Pieces) else [column.values]
            self._rows(proto, arrays, column.shape, cast(TensorType, member), path)
        else:
            self._list(proto, column.items(), member, path)

    def _list(self, proto: Packed, values: Sequence[object], member: Type, path: str) -> None:
        """Packs one value per client. Arrays of equal shape become the rows of one array; other values are separate."""
        shape = _common_shape(values) if isinstance(member, TensorType) and not is_string(member) else None
        if shape is None or not isinstance(member, TensorType):
            proto.clients.SetInParent()
            for index, value in enumerate(values):
                self.pack(proto.clients.member.add(), value, member, place_of(path, index))
            return
        arrays = cast("Sequence[NDArray[Any]]", values)
        self._rows(proto, arrays, (len(arrays), *shape), member, path, is_each_one=True)

    def _rows(
        self,
        proto: Packed,
        arrays: Sequence[NDArray[Any]],
        shape: Sequence[int],
        tensor: TensorType,
        path: str,
        *,
        is_each_one: bool = False,
    ) -> None:
        """Packs rows from several arrays.

        Args:
          proto: The empty message.
          arrays: The arrays.
          shape: The shape of all rows together.
          tensor: The type of a row.
          path: The path of the column, for error messages.
          is_each_one: Whether each array is one row. Otherwise, each array contains several rows.
        """
        dtype, declared = tensor.dtype, tensor.shape
        of_rows = None if declared is None else (None, *declared)
        if math.prod(shape) * dtype.itemsize < self._large_bytes or is_string(tensor):
            whole = np.stack(arrays) if is_each_one else arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            write_array(proto.column, whole, dtype, of_rows, path=path)
            return
        self._announce(proto.rows, shape, tensor)
        if is_each_one:
            if arrays[0].nbytes:
                self.segments.append(_rows_of(arrays, tensor, path))
            return
        tensor = TensorType(dtype, of_rows)
        filled = [array for array in arrays if array.nbytes]
        if len({array.nbytes for array in filled}) == 1 < len(filled):
            self.segments.append(_rows_of(filled, tensor, path))
            return
        for is_large, some in itertools.groupby(filled, lambda array: array.nbytes >= self._large_bytes):
            # Sending many small segments would take longer than copying the arrays into one segment.
            for array in some if is_large else [np.concatenate(list(some))]:
                self.segments.append(_bytes_of(array, tensor, path))


def place_of(path: str, index: int) -> str:
    """Returns the path of one member of a column: an element of a sequence, or a client's value."""
    return f"{path.removesuffix(ANY_ELEMENT)}[{index}]" if path.endswith(ANY_ELEMENT) else f"{path}, client {index}"


def _bytes_of(array: NDArray[Any], tensor: TensorType, path: str) -> memoryview:
    """Returns the bytes to send for an array."""
    if array.dtype != tensor.dtype or not shape_fits(array.shape, tensor.shape):
        mismatch(tensor, f"{array.dtype}{list(array.shape)}", path)
    if sys.byteorder != "little":
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _rows_of(arrays: Sequence[NDArray[Any]], tensor: TensorType, path: str) -> Rows:
    """Returns the bytes to send for arrays of equal shape."""
    dtype = tensor.dtype
    first = _bytes_of(arrays[0], tensor, path)
    # There may be many arrays, so if Python's buffers support their dtype, they are not checked or viewed one by one.
    if dtype.kind in "iuf" and sys.byteorder == "little":
        if all(array.dtype is dtype and array.flags.c_contiguous for array in arrays):
            return Rows(arrays)
    rest = [_bytes_of(array, tensor, path) for array in arrays[1:]]
    return Rows([np.frombuffer(content, np.uint8) for content in (first, *rest)])


def _common_shape(values: Sequence[object]) -> tuple[int, ...] | None:
    """Returns the shape of `values` if they are arrays of equal shape, otherwise `None`."""
    if not values or not all(isinstance(value, np.ndarray) for value in values):
        return None
    arrays = cast("Sequence[NDArray[Any]]", values)
    shape = arrays[0].shape
    return shape if all(array.shape == shape for array in arrays) else None


def members_in(payload: object, struct: StructType, path: str) -> tuple[object, ...]:
    """Returns the members of a struct, after checking the number of members."""
    if not isinstance(payload, tuple):
        mismatch(struct, f"`{type(payload).__name__}`", path, "pass a tuple of the members in the type's order")
    members = cast("tuple[object, ...]", payload)
    check_count(len(members), len(fields_of(struct)), struct, path)
    return members


def column_in(payload: object, member: Type, path: str) -> Column:
    """Returns clients' values as a column, given a payload that is a column or a list."""
    if isinstance(payload, Column):
        return payload
    if isinstance(payload, (list, tuple)):
        return column_from_payloads(cast("Sequence[object]", payload), member)
    expected = f"a column of {type_text(member)}"
    mismatch(expected, f"`{type(payload).__name__}`", path, "pass a list with one payload per client")


def check_count(found: int, wanted: int, type_spec: Type, path: str) -> None:
    """Checks that a struct has the number of members that its type requires."""
    if found != wanted:
        mismatch(f"{counted(wanted, 'member')} of {type_text(type_spec)}", f"{found}", path)


def write_typed(payload: object, type_spec: Type, packer: Packer, into: TypedValue | None = None) -> TypedValue:
    """Writes a payload together with its type, for a receiver that does not know the type.

    This format is used for values that are created in a session, values of variables, and results of a coordinator's
    functions. If the sender and the receiver know the type, as for arguments of methods and partial results of a
    phase, only the packed value is sent.

    Args:
      payload: The payload.
      type_spec: The type of the payload.
      packer: The packer, which collects the segments that follow the message.
      into: An empty message to write into. By default, a new message is created.

    Returns:
      The message.

    Raises:
      TypeMismatchError: If the payload does not match the type.
    """
    typed = TypedValue() if into is None else into
    typed.type.CopyFrom(type_spec.to_proto())
    packer.pack(typed.value, payload, type_spec)
    return typed

"""Unpacks payloads that `packing` has packed: messages, and buffers for the bytes that follow them.

A message from elsewhere is not trusted: what it announces is counted and compared before anything is allocated, and
memory that it announces is not touched until its bytes come.
"""

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import array_from_proto, dtype_of_number
from fedstack.computations.codec.packing import ANY_ELEMENT, check_count, place_of
from fedstack.computations.codec.references import read_references, read_referred_rows
from fedstack.computations.codec.sequence_rows import read_batching
from fedstack.computations.types.language import FederatedType, FunctionType, SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import fields_of, is_client_valued, is_string, join_path, shape_fits
from fedstack.computations.values.column_sequence import SequenceColumn, first_sizes, row_type
from fedstack.computations.values.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    RowsColumn,
    ScalarColumn,
    StructColumn,
    column_from_payloads,
)
from fedstack.computations.values.tensor_values import mismatch
from fedstack.errors import CardinalityError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.proto.extensions_pb2 import Packed

# From this size on a result of a client is received in memory of its own. Below, it costs less to copy it out later.
OWN_ROW_BYTES = 64 << 10
_MAX_CLIENTS = 10_000_000
# A peer that answers with more than it was asked for is wrong; this only keeps it from filling the memory.
MOST_RESULT_BYTES = 1 << 40
# A few bytes announce any number of them, and each takes as long as any other element to iterate over.
_MAX_EMPTY_ELEMENTS = 100_000


class Unpacker:
    """Unpacks payloads of one message. Call `finish` when the buffers have been filled.

    Attributes:
      buffers: The memory that the announced bytes go into, in order.

    Args:
      max_bytes: The most bytes that may be announced.
      clients: The number of clients that columns must have; `None` for any.
      for_results: Whether the values are results: each client's own large array is then received in memory of its own,
        which can be handed out as it is. One block for all is received faster, but would have to be copied.
    """

    def __init__(self, *, max_bytes: int, clients: int | None = None, for_results: bool = False) -> None:
        self.buffers: list[memoryview] = []
        self._arrays: list[NDArray[Any]] = []
        self._max_bytes = max_bytes
        self._bytes = 0
        self._clients = clients
        self._in_sequence = False
        self._in_batches: bool = False
        self._for_results = for_results

    def unpack(self, proto: Packed, type_spec: Type, path: str = "value") -> object:
        """Returns the payload of a message; its large arrays have undefined content until they are filled.

        Raises:
          TypeMismatchError: If the message does not fit the type.
          InvalidValueError: If it contradicts itself.
          CardinalityError: If a column has another number of clients than it must have.
          ResourceLimitError: If it announces too many bytes or clients.
        """
        kind = proto.WhichOneof("kind")
        if kind == "array" and isinstance(type_spec, TensorType):  # first: most of what is small is made of these
            return array_from_proto(proto.array, type_spec.dtype, type_spec.shape, path=path)
        if kind == "raw" and isinstance(type_spec, TensorType):
            return self._raw(proto.raw, type_spec, path)
        if kind == "struct" and isinstance(type_spec, StructType):
            fields = fields_of(type_spec)
            found = proto.struct.member
            check_count(len(found), len(fields), type_spec, path)
            members = zip(found, fields)
            return tuple([self.unpack(m, t, join_path(path, n, i)) for i, (m, (n, t)) in enumerate(members)])
        if isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
            return self._column(proto, type_spec.member, path)
        if isinstance(type_spec, FederatedType):
            return self.unpack(proto, type_spec.member, path)
        if isinstance(type_spec, SequenceType) and kind == "sequences":
            if len(proto.sequences.rows) != 1:
                raise InvalidValueError(f"Expected one sequence, found {len(proto.sequences.rows)}; at {path}")
            return self._sequences(proto.sequences, type_spec.element, path).items()[0]
        if isinstance(type_spec, SequenceType) and kind == "references" and len(proto.references.key) == 1:
            return read_references(proto.references, type_spec.element, path).items()[0]
        if isinstance(type_spec, FunctionType) and kind == "computation":
            return proto.computation
        mismatch(type_spec, kind or "an empty message", path)

    def _elements(self, proto: Packed, element: Type, path: str, *, in_batches: bool = False) -> Column:
        # There may be any number of elements, whatever the number of clients.
        outside = self._clients, self._in_sequence, self._in_batches
        self._clients, self._in_sequence, self._in_batches = None, True, in_batches
        try:
            return self._column(proto, element, path)
        finally:
            self._clients, self._in_sequence, self._in_batches = outside

    def _sequences(self, proto: Packed.Sequences, element: Type, path: str) -> SequenceColumn:
        counts, batchings = list(proto.rows), [read_batching(message, path) for message in proto.batching]
        if batchings and len(batchings) not in (1, len(counts)):
            raise InvalidValueError(
                f"Expected one batching, or one for each of {len(counts)} sequences, found {len(batchings)}; at {path}"
            )
        row = row_type(element) if batchings else element
        if row is None:
            mismatch(f"elements of {type_text(element)}", "batches of rows", path)
        rows = self._elements(proto.row, row, path + ANY_ELEMENT, in_batches=bool(batchings))
        if sum(counts) != len(rows):
            raise InvalidValueError(f"Expected {sum(counts)} rows of sequences, found {len(rows)}; at {path}")
        bounds = np.cumsum([0, *counts], dtype=np.int64)
        if not batchings:
            return SequenceColumn(rows, bounds)
        if len(batchings) < len(counts):
            batchings *= len(counts)
        declared = first_sizes(element)
        if declared and not all(batching.sizes(n) <= declared for batching, n in zip(batchings, counts)):
            mismatch(f"batches of {type_text(element)}", "some of other sizes", path)
        if len(declared) > 1 and len(rows):
            mismatch(f"batches of {type_text(element)}", "one number of rows", path)
        return SequenceColumn(rows, bounds, batchings)

    def _raw(self, raw: Packed.Raw, tensor: TensorType, path: str) -> NDArray[Any]:
        shape = self._checked_shape(raw, tensor.dtype, path)
        if not shape_fits(shape, tensor.shape):
            mismatch(tensor, f"the shape {list(shape)}", path)
        return self._buffer(shape, tensor.dtype, path)

    def _checked_shape(self, raw: Packed.Raw, dtype: np.dtype[Any], path: str) -> tuple[int, ...]:
        shape = tuple(raw.dim)
        found = dtype_of_number(raw.dtype)  # to NumPy, `None` is float64
        if found is None or found != dtype or dtype.type is np.str_:
            raise TypeMismatchError(f"Expected {dtype}, found the dtype of number {raw.dtype}; at {path}")
        if not 0 < len(shape) <= 64 or any(size < 0 for size in shape):
            raise InvalidValueError(f"Expected the shape of an array, found {list(shape)[:65]}; at {path}")
        self._bytes += math.prod(shape) * dtype.itemsize
        if self._bytes > self._max_bytes:
            raise ResourceLimitError(
                f"Expected at most {self._max_bytes} bytes of arrays in one message, found at least {self._bytes}; "
                f"at {path}; send less at once, or raise the peer's limit (--max-value-bytes)"
            )
        return shape

    def _buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
        try:
            array = np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:
            raise ResourceLimitError(
                f"Expected an array that fits into memory, found {dtype}{list(shape)}; at {path}"
            ) from error
        self._arrays.append(array)
        if array.nbytes:
            self.buffers.append(array.reshape(-1).view(np.uint8).data)
        # A read-only view over memory that nobody else has: what may be handed out as it is, later.
        view = array.view()
        view.setflags(write=False)
        return view

    def _column(self, proto: Packed, member: Type, path: str) -> Column:
        kind = proto.WhichOneof("kind")
        column = self._column_of(kind, proto, member, path)
        if column is None:
            mismatch(f"a column of {type_text(member)}", kind or "an empty message", path)
        return column

    def _column_of(self, kind: str | None, proto: Packed, member: Type, path: str) -> Column | None:
        if self._in_batches and kind not in ("fields", "column", "rows"):
            return None  # rows that are no arrays
        if kind == "same":
            clients = self._size(proto.same.clients, path, takes_bytes=False)
            return ConstantColumn(self.unpack(proto.same.member, member, path), clients)
        if kind == "clients":
            self._size(len(proto.clients.member), path)
            values = enumerate(proto.clients.member)
            return column_from_payloads([self.unpack(v, member, place_of(path, i)) for i, v in values], member)
        if kind == "fields" and isinstance(member, StructType):
            return self._fields(proto.fields, member, path)
        if kind == "sequences" and isinstance(member, SequenceType):
            self._size(len(proto.sequences.rows), path)
            return self._sequences(proto.sequences, member.element, path)
        if kind == "references" and proto.references.HasField("row"):
            self._size(len(proto.references.key), path)
            return read_referred_rows(proto.references, member, path)
        if kind == "references" and isinstance(member, SequenceType):
            self._size(len(proto.references.key), path)
            return read_references(proto.references, member.element, path)
        if not isinstance(member, TensorType):
            return None
        if kind == "column":
            rows = array_from_proto(proto.column, member.dtype, path=path)
        elif kind == "rows":
            shape = self._checked_shape(proto.rows, member.dtype, path)
            if (
                len(shape) > 1
                and not self._in_batches
                and self._is_by_row(math.prod(shape[1:]) * member.dtype.itemsize)
            ):
                return self._own_rows(shape, member, path)
            rows = self._buffer(shape, member.dtype, path)
        else:
            return None
        if not isinstance(rows, np.ndarray):
            mismatch(f"a column of {type_text(member)}", "a scalar", path)
        return self._rows(rows, member, path)

    def _is_by_row(self, row_bytes: int) -> bool:
        """Returns whether rows of so many bytes are received in memory of their own."""
        return self._for_results and row_bytes >= OWN_ROW_BYTES

    def _own_rows(self, shape: tuple[int, ...], member: TensorType, path: str) -> Column:
        """Returns an array for each client, with memory of its own."""
        clients = self._checked_rows(shape, member, path)
        return ListColumn([self._buffer(shape[1:], member.dtype, path) for _ in range(clients)])

    def _checked_rows(self, shape: tuple[int, ...], member: TensorType, path: str) -> int:
        clients = self._size(shape[0], path, takes_bytes=0 not in shape[1:])
        if not shape_fits(shape[1:], member.shape):
            mismatch(f"rows of {member}", f"the shape {list(shape)}", path)
        return clients

    def _rows(self, rows: NDArray[Any], member: TensorType, path: str) -> Column:
        clients = self._checked_rows(rows.shape, member, path)
        if self._in_batches:
            return RowsColumn(rows)
        if rows.ndim > 1 and clients and not rows.size:
            return ConstantColumn(rows[0], clients)  # a few bytes may say so of millions of clients
        if rows.ndim > 1 and self._in_sequence and not is_string(member):
            return RowsColumn(rows)
        if rows.ndim > 1:
            return ListColumn([rows[client] for client in range(clients)])
        if not is_string(member):
            return ScalarColumn(rows)
        return ListColumn(rows.tolist())

    def _fields(self, fields: Packed.Fields, member: StructType, path: str) -> Column:
        types = fields_of(member)
        check_count(len(fields.column), len(types), member, path)
        size = self._size(fields.clients, path, takes_bytes=bool(types))
        columns = [
            self._column(column, field_type, join_path(path, name, index))
            for index, (column, (name, field_type)) in enumerate(zip(fields.column, types))
        ]
        if any(len(column) != size for column in columns):
            raise CardinalityError(
                f"Expected {size} clients in each column of a struct, found {[len(column) for column in columns]}; "
                f"at {path}"
            )
        return StructColumn(tuple(columns), size)

    def _size(self, clients: int, path: str, *, takes_bytes: bool = True) -> int:
        """Returns a number of clients that there may be, before anything is made for each of them.

        Args:
          clients: The number.
          path: Where the column stands, for messages.
          takes_bytes: Whether each takes a byte at least; of elements that do there may be any number.
        """
        if self._in_sequence and not takes_bytes and clients > _MAX_EMPTY_ELEMENTS:
            raise ResourceLimitError(
                f"Expected at most {_MAX_EMPTY_ELEMENTS} elements without content, found {clients}; at {path}"
            )
        if not self._in_sequence and clients > _MAX_CLIENTS:
            raise ResourceLimitError(f"Expected at most {_MAX_CLIENTS} clients, found {clients}; at {path}")
        if self._clients is not None and clients != self._clients:
            raise CardinalityError(
                f"Expected a value for each of {self._clients} clients, found {clients}; at {path}; send one for each"
            )
        return clients

    def finish(self) -> None:
        """Checks the arrays after their content has come, and lets go of them.

        Raises:
          InvalidValueError: If it is none that NumPy takes for the dtype.
        """
        for array in self._arrays:
            if array.dtype == np.bool_ and np.any(array.view(np.uint8) > 1):
                raise InvalidValueError("Expected bytes 0 and 1 for bool, found others; send 0 or 1")
            if sys.byteorder != "little":
                array.byteswap(inplace=True)
        self._arrays.clear()
        self.buffers.clear()

"""Unpacks payloads that `packing.py` has packed, from messages and the bytes that follow the messages.

Messages from peers are not trusted: announced sizes are checked before memory is allocated, and allocated memory is not
accessed until its bytes are received.
"""

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.codec.arrays import array_from_proto, dtype_of_number, read_dims
from fedstack.computations.codec.packing import ANY_ELEMENT, check_count, place_of
from fedstack.computations.codec.received_bytes import ReceivedBytes
from fedstack.computations.codec.references import read_references, read_referred_rows
from fedstack.computations.codec.sequence_rows import read_batchings, sequences_of
from fedstack.computations.codec.stored_values import StoredResult, StoredValue, StoreFolders, read_stored, stored_type
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
from fedstack.computations.types.type_structure import (
    fields_of,
    is_client_valued,
    is_string,
    join_path,
    shape_fits,
    type_from_proto,
    zeros,
)
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
from fedstack.computations.values.deferred_column import DeferredColumn
from fedstack.computations.values.tensor_values import mismatch
from fedstack.errors import CardinalityError, CarrierError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.foundations.segments import Memory
from fedstack.proto.extensions_pb2 import Packed, TypedValue

# A client's result of at least this size is received into separate memory. Copying a smaller result later is cheaper.
OWN_ROW_BYTES = 64 << 10
_MAX_CLIENTS = 10_000_000
# Prevents a faulty peer, whose response is larger than requested, from exhausting memory.
MOST_RESULT_BYTES = 1 << 40
# A few bytes can announce any number of empty elements, but iterating over them takes as long as for other elements.
_MAX_EMPTY_ELEMENTS = 100_000


class Unpacker:
    """Unpacks the payloads of one message. Call `finish` when the buffers have been filled.

    Attributes:
      buffers: The memory into which the announced bytes are to be received, in order.

    Args:
      arrived: The bytes that follow the message, if they have already been received. Arrays are then read-only views of
        these bytes. Columns of values that this process reads can be among the bytes. If `None`, the bytes will be
        received into `buffers`.
      max_bytes: The maximum number of bytes that a message may announce.
      clients: The required number of clients in columns; `None` allows any number.
      for_results: Whether the values are results. If true, each client's large array has separate memory, so that it
        can be returned to the user without a copy. If false, the arrays of all clients share one block, which is
        faster to receive.
      stores: The stores of clients' states that this process has; `None` for none.
      mapped: Returns memory that already has a part of the bytes, given where the part starts and its size, or `None`.
        Arrays are then views of this memory.
    """

    def __init__(
        self,
        arrived: Iterable[Memory | DeferredColumn] | None = None,
        *,
        max_bytes: int = MOST_RESULT_BYTES,
        clients: int | None = None,
        for_results: bool = False,
        stores: StoreFolders | None = None,
        mapped: Callable[[int, int], memoryview | None] | None = None,
    ) -> None:
        self._mapped = mapped
        self.buffers: list[memoryview] = []
        self._arrived = None if arrived is None else ReceivedBytes(arrived)
        self._arrays: list[NDArray[Any]] = []
        self._max_bytes = max_bytes
        self._bytes = 0
        self._clients = clients
        self._in_sequence = False
        self._in_batches: bool = False
        self._for_results = for_results
        self._stores = stores

    def unpack(self, proto: Packed, type_spec: Type, path: str = "value") -> object:
        """Returns the payload of a message. The content of large arrays is undefined until their buffers are filled.

        Args:
          proto: The message.
          type_spec: The expected type.
          path: The path of the value, for error messages.

        Raises:
          TypeMismatchError: If the message does not match the type.
          InvalidValueError: If the message is inconsistent.
          CardinalityError: If a column has the wrong number of clients.
          ResourceLimitError: If the message announces too many bytes or clients.
        """
        kind = proto.WhichOneof("kind")
        if kind == "array" and isinstance(type_spec, TensorType):  # checked first, because small values are arrays
            return array_from_proto(proto.array, type_spec.dtype, type_spec.shape, path=path)
        if kind == "raw" and isinstance(type_spec, TensorType):
            shape = self._checked_shape(proto.raw, type_spec.dtype, path)
            if not shape_fits(shape, type_spec.shape):
                mismatch(type_spec, f"the shape {list(shape)}", path)
            return self._array(shape, type_spec.dtype, path)
        if kind == "struct" and isinstance(type_spec, StructType):
            fields = fields_of(type_spec)
            found = proto.struct.member
            check_count(len(found), len(fields), type_spec, path)
            members = zip(found, fields)
            return tuple([self.unpack(m, t, join_path(path, n, i)) for i, (m, (n, t)) in enumerate(members)])
        if isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
            return self.unpack_column(proto, type_spec.member, path)
        if isinstance(type_spec, FederatedType):
            return self.unpack(proto, type_spec.member, path)
        if isinstance(type_spec, SequenceType) and kind == "sequences":
            if len(proto.sequences.rows) != 1:
                raise InvalidValueError(
                    f"Expected one sequence at {path}, found {len(proto.sequences.rows)} sequences; send exactly one"
                )
            return self._sequences(proto.sequences, type_spec.element, path).items()[0]
        if isinstance(type_spec, SequenceType) and kind == "references" and len(proto.references.key) == 1:
            return read_references(proto.references, type_spec.element, path).items()[0]
        if isinstance(type_spec, FunctionType) and kind == "computation":
            return proto.computation
        mismatch(type_spec, kind or "an empty message", path)

    def _elements(self, proto: Packed, element: Type, path: str, *, in_batches: bool) -> Column:
        # The number of elements is independent of the number of clients.
        outside = self._clients, self._in_sequence, self._in_batches
        self._clients, self._in_sequence, self._in_batches = None, True, in_batches
        try:
            return self.unpack_column(proto, element, path)
        finally:
            self._clients, self._in_sequence, self._in_batches = outside

    def _sequences(self, proto: Packed.Sequences, element: Type, path: str) -> SequenceColumn:
        counts = list(proto.rows)
        batchings = read_batchings(proto.batching, len(counts), "sequences", path)
        row = element if batchings is None else row_type(element)
        if row is None:
            mismatch(f"elements of {type_text(element)}", "batches of rows", path)
        rows = self._elements(proto.row, row, path + ANY_ELEMENT, in_batches=batchings is not None)
        if sum(counts) != len(rows):
            raise InvalidValueError(
                f"Expected the sequences at {path} to have {sum(counts)} rows in total, found {len(rows)} rows; send "
                "the actual number of rows of each sequence"
            )
        if batchings is None:
            return sequences_of(rows, counts)
        declared = first_sizes(element)
        if declared and not all(batching.sizes(n) <= declared for batching, n in zip(batchings, counts)):
            mismatch(f"batches of {type_text(element)}", "a batch of another size", path)
        if len(declared) > 1 and len(rows):
            mismatch(f"batches of {type_text(element)}", "batches whose arrays have equal numbers of rows", path)
        return sequences_of(rows, counts, batchings)

    def _checked_shape(self, raw: Packed.Raw, dtype: np.dtype[Any], path: str) -> tuple[int, ...]:
        shape = read_dims(raw.dim, path)
        found = dtype_of_number(raw.dtype)  # checked for `None` first, which NumPy would treat as float64
        if found is None or found != dtype or dtype.type is np.str_:
            raise TypeMismatchError(
                f"Expected {dtype}, found dtype number {raw.dtype}; at {path}; send a value of the expected type"
            )
        if not shape:
            raise InvalidValueError(
                f"Expected the shape of an array at {path}, found the shape of a scalar; send scalars in the message"
            )
        self._bytes += math.prod(shape) * dtype.itemsize
        if self._bytes > self._max_bytes:
            raise ResourceLimitError(
                f"Expected at most {self._max_bytes} bytes of arrays in one message, found at least "
                f"{self._bytes} bytes up to {path}; send less data per message, or raise the peer's limit "
                "(--max-value-bytes)"
            )
        return shape

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> NDArray[Any]:
        if self._arrived is not None and 0 not in shape:
            array = self._arrived.array(shape, dtype, path)
        elif (found := self._memory_for(shape, dtype)) is not None:
            array = np.frombuffer(found, dtype).reshape(shape)
            self.buffers.append(found)
        else:
            try:
                array = np.empty(shape, dtype)
            except (MemoryError, ValueError) as error:
                raise ResourceLimitError(
                    f"Expected an array that fits into memory at {path}, found {dtype}{list(shape)}; send a smaller "
                    "array"
                ) from error
            if array.nbytes:
                self.buffers.append(array.reshape(-1).view(np.uint8).data)
        self._arrays.append(array)
        # Nothing else will reference the memory of this read-only view, so the view can be returned to the user later.
        view = array.view()
        view.setflags(write=False)
        return view

    def _memory_for(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> memoryview | None:
        """Returns memory that already has the content of the next array, if there is any."""
        size = math.prod(shape) * dtype.itemsize
        if self._mapped is None or not size:
            return None
        return self._mapped(sum(map(len, self.buffers)), size)

    def unpack_column(self, proto: Packed, member: Type, path: str = "value", *, clients: int | None = None) -> Column:
        """Returns the values of all clients, or of another number of clients, of type `member`; see `unpack`."""
        if clients is not None:
            everyone, self._clients = self._clients, clients
            try:
                return self.unpack_column(proto, member, path)
            finally:
                self._clients = everyone
        kind = proto.WhichOneof("kind")
        if isinstance(member, TensorType) and kind == "column":
            rows = array_from_proto(proto.column, member.dtype, path=path)
            if not isinstance(rows, np.ndarray):
                mismatch(f"a column of {type_text(member)}", "a scalar", path)
            return self._rows(rows, member, path)
        if isinstance(member, TensorType) and kind == "rows":
            return self._rows_beside(proto.rows, member, path)
        if isinstance(member, StructType) and kind == "fields":
            return self._fields(proto.fields, member, path)
        # Columns of batches contain arrays, which are handled above.
        column = None if self._in_batches else self._other_column(kind, proto, member, path)
        if column is None:
            mismatch(f"a column of {type_text(member)}", kind or "an empty message", path)
        return column

    def _other_column(self, kind: str | None, proto: Packed, member: Type, path: str) -> Column | None:
        if kind == "same":
            clients = self._size(proto.same.clients, path, takes_bytes=False)
            return ConstantColumn(self.unpack(proto.same.member, member, path), clients)
        if kind == "clients":
            self._size(len(proto.clients.member), path)
            values = enumerate(proto.clients.member)
            return column_from_payloads([self.unpack(v, member, place_of(path, i)) for i, v in values], member)
        if kind == "sequences" and isinstance(member, SequenceType):
            self._size(len(proto.sequences.rows), path)
            return self._sequences(proto.sequences, member.element, path)
        if kind == "references":
            column = None if self._arrived is None else self._arrived.column()
            self._size(len(proto.references.key) if column is None else len(column), path)
            if column is None and proto.references.HasField("row"):
                return read_referred_rows(proto.references, member, path)
            if column is None and isinstance(member, SequenceType):
                return read_references(proto.references, member.element, path)
            return column
        if kind == "stored":
            self._size(len(proto.stored.record), path)
            return self._stored(proto.stored, member, path)
        return None

    def _stored(self, proto: Packed.Stored, member: Type, path: str) -> Column:
        if self._stores is None:
            raise CarrierError(
                f"Expected the values themselves at {path}, found their places in a store of clients' states, but this "
                "process has no stores: fedstack serve --client-states FOLDER, ServerConfig.client_states, or "
                "local_worker_pool(client_states=[...])"
            )
        stored = stored_type(proto.type, self._max_bytes, path)
        if self._for_results:  # clients without a result have failed, and nobody reads it
            return read_stored(proto, zeros(stored, 0), stored, member, path, self._stores, StoredResult)
        shared = self.unpack(proto.shared, stored, path) if proto.HasField("shared") else None
        return read_stored(proto, shared, stored, member, path, self._stores, StoredValue)

    def _rows_beside(self, raw: Packed.Raw, member: TensorType, path: str) -> Column:
        shape = self._checked_shape(raw, member.dtype, path)
        row_bytes = math.prod(shape[1:]) * member.dtype.itemsize
        is_by_row = (self._for_results and row_bytes >= OWN_ROW_BYTES) or (
            row_bytes > 0 and not self._in_sequence and self._arrived is not None and self._arrived.has_next(row_bytes)
        )
        if len(shape) == 1 or self._in_batches or not is_by_row:
            return self._rows(self._array(shape, member.dtype, path), member, path)
        clients = self._checked_rows(shape, member, path)
        rows = None if self._arrived is None else self._arrived.rows(clients, shape[1:], member.dtype)
        return ListColumn(rows or [self._array(shape[1:], member.dtype, path) for _ in range(clients)])

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
            return ConstantColumn(rows[0], clients)  # a few bytes can announce millions of clients with empty values
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
            self.unpack_column(column, field_type, join_path(path, name, index))
            for index, (column, (name, field_type)) in enumerate(zip(fields.column, types))
        ]
        if any(len(column) != size for column in columns):
            raise CardinalityError(
                f"Expected {size} clients in each column of the struct at {path}, found "
                f"{[len(column) for column in columns]}; send a value for each client in each column"
            )
        return StructColumn(tuple(columns), size)

    def _size(self, clients: int, path: str, *, takes_bytes: bool = True) -> int:
        """Checks and returns a number of clients or elements, before any object is created for each of them.

        Args:
          clients: The number of clients or elements.
          path: The path of the column, for error messages.
          takes_bytes: Whether each value occupies at least one byte, so that the message's size limits the count.
        """
        if self._in_sequence and not takes_bytes and clients > _MAX_EMPTY_ELEMENTS:
            raise ResourceLimitError(
                f"Expected at most {_MAX_EMPTY_ELEMENTS} elements without content at {path}, found {clients}; send "
                "fewer elements"
            )
        if not self._in_sequence and clients > _MAX_CLIENTS:
            raise ResourceLimitError(
                f"Expected at most {_MAX_CLIENTS} clients at {path}, found {clients}; send values for fewer clients"
            )
        if self._clients is not None and clients != self._clients:
            raise CardinalityError(
                f"Expected a value for each of {self._clients} clients at {path}, found {clients} values; send one "
                "value per client"
            )
        return clients

    def finish(self) -> None:
        """Checks the arrays after their content has been received, and drops the references to them.

        Raises:
          InvalidValueError: If the content is invalid for the dtype, or bytes have not been used.
        """
        if self._arrived is not None:
            self._arrived.check_end()
        for array in self._arrays:
            if array.dtype == np.bool_ and np.any(array.view(np.uint8) > 1):
                raise InvalidValueError("Expected only bytes 0 and 1 for bool, found other bytes; send 0 or 1")
            if sys.byteorder != "little":
                array.byteswap(inplace=True)
        self._arrays.clear()
        self.buffers.clear()


def read_typed(
    typed: TypedValue,
    unpacker: Unpacker,
    read_type: Callable[[computation_pb2.Type], Type] = type_from_proto,
    path: str = "value",
) -> tuple[object, Type]:
    """Returns a payload and its type; see `write_typed`.

    Args:
      typed: The message.
      unpacker: The unpacker, with the bytes that follow the message or the memory into which they will be received.
      read_type: A function that reads the type. It may reject types.
      path: The path of the value, for error messages.

    Raises:
      FedstackError: If the message is inconsistent, or announces too many bytes or clients.
    """
    type_spec = read_type(typed.type)
    return unpacker.unpack(typed.value, type_spec, path), type_spec

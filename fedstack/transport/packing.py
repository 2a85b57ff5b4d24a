"""Packs payloads into messages, with the bytes of large arrays beside them, and unpacks them into buffers.

`Packed` says what a value is made of; the bytes of its large arrays are *segments*, memory that is sent as it lies
there and received where it will stay. Nothing is copied but into and out of the transport's own chunks. A message from
elsewhere is not trusted: what it announces is counted and compared before anything is allocated, and memory that it
announces is not touched until its bytes come.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.arrays import array_from_proto, dtype_number, dtype_of_number, write_array
from fedstack.computations.client_data import check_re_iterable
from fedstack.computations.columns import (
    Column,
    ConstantColumn,
    ListColumn,
    ScalarColumn,
    StructColumn,
    column_from_payloads,
)
from fedstack.computations.language import (
    FederatedType,
    FunctionType,
    SequenceType,
    StructType,
    TensorType,
    Type,
    computation_pb2,
)
from fedstack.computations.tensor_values import mismatch
from fedstack.computations.type_structure import fields_of, is_client_valued, is_string, join_path
from fedstack.errors import CardinalityError, InvalidValueError, ResourceLimitError, TypeMismatchError
from fedstack.proto.extensions_pb2 import Packed
from fedstack.transport.frames import Chunking
from fedstack.transport.segments import Rows, Segment

# Arrays of at least this many bytes travel beside the message. Below, a segment costs more than the copy it saves.
LARGE_BYTES = Chunking().large_bytes
# From this size on a result of a client is received in memory of its own. Below, it costs less to copy it out later.
_OWN_ROW_BYTES = 64 << 10
_MAX_CLIENTS = 10_000_000


class Packer:
    """Packs payloads of one message.

    Attributes:
      segments: The bytes of the large arrays, in the order in which the message announces them.

    Args:
      large_bytes: From which size on arrays travel beside the message.
    """

    def __init__(self, large_bytes: int = LARGE_BYTES) -> None:
        self.segments: list[Segment] = []
        self._large_bytes = large_bytes

    @property
    def segment_bytes(self) -> int:
        """How many bytes travel beside the message."""
        return sum(map(len, self.segments))

    def pack(self, proto: Packed, payload: object, type_spec: Type, path: str = "value") -> None:
        """Packs a payload of the given type into an empty message.

        Raises:
          TypeMismatchError: If the payload does not fit the type, or a sequence is a one-shot iterator.
        """
        if isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
            column = payload if isinstance(payload, Column) else _column(payload, type_spec, path)
            self._column(proto, column, type_spec.member, path)
        elif isinstance(type_spec, FederatedType):
            self.pack(proto, payload, type_spec.member, path)
        elif isinstance(type_spec, TensorType):
            self._tensor(proto, payload, type_spec, path)
        elif isinstance(type_spec, StructType):
            proto.struct.SetInParent()
            members = zip(_members(payload, type_spec, path), fields_of(type_spec))
            for index, (member, (name, member_type)) in enumerate(members):
                self.pack(proto.struct.member.add(), member, member_type, join_path(path, name, index))
        elif isinstance(type_spec, SequenceType):
            check_re_iterable(payload, path)
            proto.sequence.SetInParent()
            for index, item in enumerate(cast("Iterable[object]", payload)):
                self.pack(proto.sequence.member.add(), item, type_spec.element, f"{path}[{index}]")
        elif isinstance(type_spec, FunctionType) and isinstance(payload, computation_pb2.Computation):
            proto.computation.CopyFrom(payload)
        else:
            mismatch(type_spec, f"`{type(payload).__name__}`", path)

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

    def _column(self, proto: Packed, column: Column, member: Type, path: str) -> None:
        if isinstance(column, ConstantColumn):
            proto.same.clients = len(column)
            self.pack(proto.same.member, column.value, member, path)
        elif isinstance(column, StructColumn):
            proto.fields.clients = len(column)
            for index, (name, field_type) in enumerate(fields_of(cast(StructType, member))):
                self._column(proto.fields.column.add(), column.field(index), field_type, join_path(path, name, index))
        elif isinstance(column, ScalarColumn):
            vector = TensorType(cast(TensorType, member).dtype, [len(column)])
            if column.values.nbytes >= self._large_bytes:
                self._announce(proto.rows, [len(column)], vector)
                self.segments.append(_bytes_of(column.values, vector, path))
            else:
                write_array(proto.column, column.values, vector.dtype, path=path)
        else:
            self._list(proto, column.items(), member, path)

    def _list(self, proto: Packed, values: Sequence[object], member: Type, path: str) -> None:
        """Packs one value per client: equal shapes as rows of one array, anything else one by one."""
        shape = _common_shape(values) if isinstance(member, TensorType) and not is_string(member) else None
        if shape is None or not isinstance(member, TensorType):
            proto.clients.SetInParent()
            for index, value in enumerate(values):
                self.pack(proto.clients.member.add(), value, member, f"{path}, client {index}")
            return
        arrays = cast("Sequence[NDArray[Any]]", values)
        whole = (len(arrays), *shape)
        if math.prod(whole) * member.dtype.itemsize >= self._large_bytes:
            self._announce(proto.rows, whole, member)
            if arrays[0].nbytes:
                self.segments.append(_rows_of(arrays, member, path))
        else:
            rows = None if member.shape is None else (None, *member.shape)
            write_array(proto.column, np.stack(arrays), member.dtype, rows, path=path)


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
        if isinstance(type_spec, FederatedType) and is_client_valued(type_spec):
            return self._column(proto, type_spec.member, path)
        if isinstance(type_spec, FederatedType):
            return self.unpack(proto, type_spec.member, path)
        if isinstance(type_spec, TensorType) and kind == "array":
            return array_from_proto(proto.array, type_spec.dtype, type_spec.shape, path=path)
        if isinstance(type_spec, TensorType) and kind == "raw":
            return self._raw(proto.raw, type_spec, path)
        if isinstance(type_spec, StructType) and kind == "struct":
            fields = fields_of(type_spec)
            _check_count(len(proto.struct.member), len(fields), type_spec, path)
            members = zip(proto.struct.member, fields)
            return tuple([self.unpack(m, t, join_path(path, n, i)) for i, (m, (n, t)) in enumerate(members)])
        if isinstance(type_spec, SequenceType) and kind == "sequence":
            items = enumerate(proto.sequence.member)
            return [self.unpack(item, type_spec.element, f"{path}[{index}]") for index, item in items]
        if isinstance(type_spec, FunctionType) and kind == "computation":
            return proto.computation
        mismatch(type_spec, kind or "an empty message", path)

    def _raw(self, raw: Packed.Raw, tensor: TensorType, path: str) -> NDArray[Any]:
        shape = self._checked_shape(raw, tensor.dtype, path)
        if tensor.shape is not None and not _fits(shape, tensor.shape):
            mismatch(tensor, f"the shape {list(shape)}", path)
        return self._buffer(shape, tensor.dtype, path)

    def _checked_shape(self, raw: Packed.Raw, dtype: np.dtype[Any], path: str) -> tuple[int, ...]:
        shape = tuple(raw.dim)
        if dtype_of_number(raw.dtype) != dtype or dtype.type is np.str_:
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
            mismatch(f"a column of {member}", kind or "an empty message", path)
        return column

    def _column_of(self, kind: str | None, proto: Packed, member: Type, path: str) -> Column | None:
        if kind == "same":
            return ConstantColumn(self.unpack(proto.same.member, member, path), self._size(proto.same.clients, path))
        if kind == "clients":
            self._size(len(proto.clients.member), path)
            values = enumerate(proto.clients.member)
            return column_from_payloads([self.unpack(v, member, f"{path}, client {i}") for i, v in values], member)
        if kind == "fields" and isinstance(member, StructType):
            return self._fields(proto.fields, member, path)
        if not isinstance(member, TensorType):
            return None
        if kind == "column":
            rows = array_from_proto(proto.column, member.dtype, path=path)
        elif kind == "rows":
            shape = self._checked_shape(proto.rows, member.dtype, path)
            if self._for_results and len(shape) > 1 and math.prod(shape[1:]) * member.dtype.itemsize >= _OWN_ROW_BYTES:
                return self._own_rows(shape, member, path)
            rows = self._buffer(shape, member.dtype, path)
        else:
            return None
        if not isinstance(rows, np.ndarray):
            mismatch(f"a column of {member}", "a scalar", path)
        return self._rows(rows, member, path)

    def _own_rows(self, shape: tuple[int, ...], member: TensorType, path: str) -> Column:
        """Returns an array for each client, with memory of its own."""
        clients = self._checked_rows(shape, member, path)
        return ListColumn([self._buffer(shape[1:], member.dtype, path) for _ in range(clients)])

    def _checked_rows(self, shape: Sequence[int], member: TensorType, path: str) -> int:
        clients = self._size(shape[0], path)
        if member.shape is not None and not _fits(shape[1:], member.shape):
            mismatch(f"rows of {member}", f"the shape {list(shape)}", path)
        return clients

    def _rows(self, rows: NDArray[Any], member: TensorType, path: str) -> Column:
        clients = self._checked_rows(rows.shape, member, path)
        if rows.ndim > 1 and clients and not rows.size:
            return ConstantColumn(rows[0], clients)  # a few bytes may say so of millions of clients
        if rows.ndim > 1:
            return ListColumn([rows[client] for client in range(clients)])
        if not is_string(member):
            return ScalarColumn(rows)
        return ListColumn(rows.tolist())

    def _fields(self, fields: Packed.Fields, member: StructType, path: str) -> Column:
        types = fields_of(member)
        _check_count(len(fields.column), len(types), member, path)
        size = self._size(fields.clients, path)
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

    def _size(self, clients: int, path: str) -> int:
        """Returns a number of clients that there may be, before anything is made for each of them."""
        if clients > _MAX_CLIENTS:
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


def _bytes_of(array: NDArray[Any], tensor: TensorType, path: str) -> memoryview:
    """Returns the bytes of an array as they travel."""
    if array.dtype != tensor.dtype or (tensor.shape is not None and not _fits(array.shape, tensor.shape)):
        mismatch(tensor, f"{array.dtype}{list(array.shape)}", path)
    if sys.byteorder != "little":
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _rows_of(arrays: Sequence[NDArray[Any]], tensor: TensorType, path: str) -> Rows:
    """Returns arrays that have the same shape, with bytes, as they travel."""
    dtype = tensor.dtype
    first = _bytes_of(arrays[0], tensor, path)
    # There may be many: what the first has shown of the shape, and a dtype of which Python knows the bytes, save a copy
    # of the checks and a view of each.
    if dtype.kind in "iuf" and sys.byteorder == "little":
        if all(array.dtype is dtype and array.flags.c_contiguous for array in arrays):
            return Rows(arrays)
    rest = [_bytes_of(array, tensor, path) for array in arrays[1:]]
    return Rows([np.frombuffer(content, np.uint8) for content in (first, *rest)])


def _common_shape(values: Sequence[object]) -> tuple[int, ...] | None:
    """Returns the shape that all arrays have, if there are any and they have one."""
    if not values or not all(isinstance(value, np.ndarray) for value in values):
        return None
    arrays = cast("Sequence[NDArray[Any]]", values)
    shape = arrays[0].shape
    return shape if all(array.shape == shape for array in arrays) else None


def _column(payload: object, type_spec: FederatedType, path: str) -> Column:
    if isinstance(payload, (list, tuple)):
        return column_from_payloads(cast("Sequence[object]", payload), type_spec.member)
    mismatch(type_spec, f"`{type(payload).__name__}`", path, "give a column")


def _members(payload: object, struct: StructType, path: str) -> tuple[object, ...]:
    if not isinstance(payload, tuple):
        mismatch(struct, f"`{type(payload).__name__}`", path, "give a tuple of the members in the type's order")
    members = cast("tuple[object, ...]", payload)
    _check_count(len(members), len(fields_of(struct)), struct, path)
    return members


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(want is None or want == size for size, want in zip(shape, wanted))


def _check_count(found: int, wanted: int, type_spec: Type, path: str) -> None:
    if found != wanted:
        mismatch(f"{wanted} members of {type_spec}", f"{found}", path)

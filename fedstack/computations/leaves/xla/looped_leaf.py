"""Runs an exported function in a compiled loop over clients."""

import threading
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.bound_operation import BoundOperation, ColumnCall
from fedstack.computations.leaves.leaf import Leaf, raise_leaf_error
from fedstack.computations.leaves.vectorized_leaf import column_leaves, copied_row, stacked_column
from fedstack.computations.leaves.xla.xla_program import ArrayProgram
from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.types.type_structure import exact_bytes, tensor_leaves
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn, concatenate, empty_column
from fedstack.computations.values.tensor_values import is_plain

# JAX reads memory with this alignment without a copy of its own.
_ALIGNMENT = 64
# To call a function for several clients at once saves a few tenths of a millisecond.
_MOST_CLIENTS = 16
_MOST_BYTES = 16 << 20


def clients_at_once(parameter: Type, result: Type) -> int:
    """Returns for how many clients a function of these types is called at once, which does not affect results."""
    sizes = exact_bytes(parameter), exact_bytes(result)
    if None in sizes:
        return 1
    most = min(_MOST_BYTES // max(1, sum(filter(None, sizes))), _MOST_CLIENTS)
    return 1 << max(1, most).bit_length() - 1


def _bytes_of(tensor: TensorType) -> int:
    return cast(int, exact_bytes(tensor))


class LoopedLeaf(BoundOperation):
    """A leaf that runs a compiled loop over clients. What a client's result is does not depend on the others.

    Unlike those of a vectorized leaf, clients may be in any lane, and fewer clients take less time.

    Args:
      program: The function.
      parameter: The type of the argument of one client.
      result: The type of the result of one client.
      most: The number of clients that one call processes.
      alone: The function as a leaf for calls on the server.
    """

    prefers_columns = True
    least_seconds = 0.005  # each call passes from thread to thread in JAX

    def __init__(self, program: ArrayProgram, parameter: Type, result: Type, most: int, alone: Leaf) -> None:
        self.name = alone.name
        self.parameter = self._parameter = parameter
        self.result = result
        self.most = most
        self.program = program
        self._alone = alone
        sizes = [most * _bytes_of(tensor) for _, tensor in tensor_leaves(parameter)]
        self._bytes = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

    def call(self, argument: object, client: int | None = None) -> object:
        if client is None:
            return self._alone.call(argument)
        return copied_row(self._called(ConstantColumn(argument, 1), client), 0, self.result)

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        assert argument is not None, "a loop is over arguments"
        results: list[Column] = []
        done = bytearray()
        with ColumnCall(first_client, done):
            while len(done) < size:
                count = min(self.most, size - len(done))
                found = self._called(argument.slice(len(done), len(done) + count), first_client + len(done))
                results.append(stacked_column(iter([rows[:count] for rows in found]), self.result, count))
                done += bytes(count)
        return concatenate(results, self.result) if results else empty_column(self.result)

    def _called(self, clients: Column, first_client: int) -> list[NDArray[Any]]:
        try:
            _memory.begin(self._bytes)
            leaves = list(column_leaves(clients, self._parameter))
            arguments = [self._rows(column, tensor) for column, tensor in leaves]
            shared = tuple(isinstance(column, ConstantColumn) for column, _ in leaves)
            return self.program.loop(self.most, shared, len(clients), arguments)
        except Exception as error:
            raise_leaf_error(error, self.name, first_client)

    def _rows(self, column: Column, tensor: TensorType) -> object:
        if isinstance(column, ConstantColumn):
            return column.value
        if isinstance(column, RowsColumn) and len(column) == self.most and is_plain(column.values):
            return column.values
        rows = _memory.empty(self.most, tensor)
        if isinstance(column, RowsColumn):
            rows[: len(column)] = column.values
        else:
            np.stack(cast("list[NDArray[Any]]", column.items()), out=rows[: len(column)])
        return rows

    def __repr__(self) -> str:
        return f"<LoopedLeaf {self.name}, {self.most} clients at once>"


class _ArgumentMemory(threading.local):
    """Memory of a thread for arguments, which is used again in the next call."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def begin(self, size: int) -> None:
        """Starts a call, which needs at most so many bytes."""
        self._used = 0
        if size > len(self._memory):
            memory = np.empty(size + _ALIGNMENT, np.uint8)
            self._memory = memory[-memory.ctypes.data % _ALIGNMENT :]

    def empty(self, rows: int, tensor: TensorType) -> NDArray[Any]:
        """Returns an array of values of a tensor. Its content is what was there before."""
        start, size = self._used, rows * _bytes_of(tensor)
        self._used = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT
        shape = (rows, *cast("tuple[int, ...]", tensor.shape or ()))
        return self._memory[start : start + size].view(tensor.dtype).reshape(shape)


_memory = _ArgumentMemory()

"""Stacks the arguments of compiled loops in memory that JAX reads without a copy of its own."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import TensorType
from fedstack.computations.types.type_structure import exact_bytes
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn
from fedstack.computations.values.tensor_values import is_plain

# JAX reads memory with this alignment without a copy of its own.
_ALIGNMENT = 64


class ArgumentMemory(threading.local):
    """Memory of a thread for arguments, which is used again in the next call."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def rows_of(self, leaves: Sequence[tuple[Column, TensorType]], most: int, *, shares: bool = True) -> list[object]:
        """Returns the tensors of some clients or elements as stacked arrays, until the next call on this thread.

        Args:
          leaves: The column and the type of each tensor. The types have known sizes.
          most: The number of rows of each array. What is in rows beyond the columns is undefined.
          shares: Whether the constant itself is returned for a constant column.
        """
        found: list[object] = []
        missing: list[tuple[Column, TensorType, int, int]] = []
        used = 0
        for column, tensor in leaves:
            if shares and isinstance(column, ConstantColumn):
                found.append(column.value)
            elif isinstance(column, RowsColumn) and len(column) == most and is_plain(column.values):
                found.append(column.values)
            else:
                size = most * cast(int, exact_bytes(tensor))
                missing.append((column, tensor, len(found), used))
                found.append(None)
                used += -(-size // _ALIGNMENT) * _ALIGNMENT
        if used > len(self._memory):
            memory = np.empty(used + _ALIGNMENT, np.uint8)
            self._memory = memory[-memory.ctypes.data % _ALIGNMENT :]
        for column, tensor, index, start in missing:
            shape = most, *cast("tuple[int, ...]", tensor.shape or ())
            stop = start + most * cast(int, exact_bytes(tensor))
            rows = self._memory[start:stop].view(tensor.dtype).reshape(shape)
            if isinstance(column, ConstantColumn):
                rows[: len(column)] = cast("NDArray[Any]", column.value)
            elif isinstance(column, RowsColumn):
                rows[: len(column)] = column.values
            else:
                np.stack(cast("list[NDArray[Any]]", column.items()), out=rows[: len(column)])
            found[index] = rows
        return found


argument_memory = ArgumentMemory()

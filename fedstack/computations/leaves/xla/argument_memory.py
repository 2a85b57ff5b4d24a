"""Stacks the arguments of compiled loops in memory that JAX reads without a copy of its own."""

import itertools
import math
import threading
from collections.abc import Iterator, Sequence, Sized
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import TensorType
from fedstack.computations.values.columns import Column, ConstantColumn, RowsColumn
from fedstack.computations.values.tensor_values import is_plain

# JAX reads memory with this alignment without a copy of its own.
_ALIGNMENT = 64
# Other arguments that are larger than this (100 KiB with jaxlib 0.5 to 0.12) are copied on a thread of XLA's, on which
# the function then runs, too. There is one such thread, so that other threads would wait.
_LARGE_BYTES = 64 << 10
# A thread keeps at most this much between calls. To allocate more takes less time than to compute with it.
_MOST_KEPT_BYTES = 32 << 20


@attrs.frozen
class ArrayKind:
    """The shape and dtype of a tensor of a client or element, whose type has unknown sizes."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


# The values of a tensor, and its type, or its shape and dtype.
ArgumentLeaf: TypeAlias = "tuple[Column, TensorType | ArrayKind]"


class ArgumentMemory(threading.local):
    """Memory of a thread for arguments, which is used again in the next call."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def arrays(self, kinds: Sequence[tuple[Sequence[int], np.dtype[Any]]]) -> list[NDArray[Any]]:
        """Returns arrays of these shapes and dtypes, until the next call on this thread. Their content is undefined."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
        starts = list(itertools.accumulate([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes], initial=0))
        memory = self._memory
        if starts[-1] > len(memory):
            memory = np.empty(starts[-1] + _ALIGNMENT, np.uint8)
            memory = memory[-memory.ctypes.data % _ALIGNMENT :]
            if len(memory) <= _MOST_KEPT_BYTES:
                self._memory = memory
        parts = [memory[start : start + size] for start, size in zip(starts, sizes)]
        return [part.view(dtype).reshape(shape) for part, (shape, dtype) in zip(parts, kinds)]

    def aligned(self, arguments: Sequence[object]) -> Sequence[object]:
        """Returns arguments of a call, of which large ones are copied to memory that JAX reads where it is.

        The copies stay as they are until the next call on this thread.
        """
        if not any(map(_is_copied, arguments)):
            return arguments
        copied = [cast("NDArray[Any]", one) for one in arguments if _is_copied(one)]
        copies = self.arrays([(one.shape, one.dtype) for one in copied])
        for into, one in zip(copies, copied):
            into[...] = one
        rest = iter(copies)
        return [next(rest) if _is_copied(one) else one for one in arguments]

    def rows_of(self, leaves: Sequence[ArgumentLeaf], most: int, *, shares: bool = True) -> list[object]:
        """Returns the tensors of some clients or elements as stacked arrays, until the next call on this thread.

        Args:
          leaves: The column and the type of each tensor, of known sizes.
          most: The number of rows of each array. What is in rows beyond the columns is undefined.
          shares: Whether the constant itself is returned for a constant column.
        """
        found = [_as_it_is(column, most, shares=shares) for column, _ in leaves]
        missing = [index for index, one in enumerate(found) if one is None]
        tensors = [leaves[index][1] for index in missing]
        arrays = self.arrays([((most, *cast("Sequence[int]", one.shape or ())), one.dtype) for one in tensors])
        for index, rows in zip(missing, arrays):
            fill(rows, leaves[index][0])
            found[index] = rows
        return found


def _is_copied(argument: object) -> bool:
    """Returns whether JAX would copy an argument on another thread."""
    if not isinstance(argument, np.ndarray) or argument.nbytes <= _LARGE_BYTES:
        return False
    return argument.__array_interface__["data"][0] % _ALIGNMENT != 0 or not argument.flags.c_contiguous


def _as_it_is(column: Column, most: int, *, shares: bool) -> object:
    if isinstance(column, ConstantColumn):
        return column.value if shares else None
    if isinstance(column, RowsColumn) and len(column) == most and is_plain(column.values):
        return column.values
    return None


def fill(rows: NDArray[Any], column: Column, first: int = 0) -> None:
    """Copies the values of a column into an array, from a row on."""
    into = rows[first : first + len(column)]
    if isinstance(column, ConstantColumn):
        into[:] = cast("NDArray[Any]", column.value)
    elif isinstance(column, RowsColumn):
        into[:] = column.values
    elif len(column):
        np.stack(cast("list[NDArray[Any]]", column.items()), out=into)


def runs_of(leaves: Sequence[tuple[Column, TensorType]]) -> Iterator[tuple[Sequence[ArgumentLeaf], int, int]]:
    """Yields runs of clients or elements whose tensors have the same shapes.

    Args:
      leaves: The column and the type of each tensor. First sizes may be unknown.

    Yields:
      The columns with the shapes of this run, its first index, and the index after its last.
    """
    known = [None if None not in (tensor.shape or ()) else _sizes_of(column) for column, tensor in leaves]
    start, count = 0, len(leaves[0][0])
    while start < count:
        stop = start + 1
        while stop < count and all(found is None or found[stop] == found[start] for found in known):
            stop += 1
        yield (
            [
                (
                    column,
                    tensor if sizes is None else ArrayKind((sizes[start], *(tensor.shape or ())[1:]), tensor.dtype),
                )
                for (column, tensor), sizes in zip(leaves, known)
            ],
            start,
            stop,
        )
        start = stop


def bytes_of(leaves: Sequence[ArgumentLeaf]) -> int:
    """Returns the size in bytes of the tensors of a client or element, whose shapes are known."""
    return sum(math.prod(cast("Sequence[int]", kind.shape or ())) * kind.dtype.itemsize for _, kind in leaves)


def _sizes_of(column: Column) -> Sequence[int]:
    """Returns the first size of the array of each client or element."""
    if isinstance(column, RowsColumn):
        return [column.values.shape[1]] * len(column)
    if isinstance(column, ConstantColumn):
        return [len(cast("Sized", column.value))] * len(column)
    return [len(cast("Sized", array)) for array in column.items()]


argument_memory = ArgumentMemory()
call_memory = ArgumentMemory()

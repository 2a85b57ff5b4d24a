"""Reads arrays from NumPy's `.npy` files block by block, because a file may be larger than memory."""

import io
import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NpyFile:
    """Reads rows of the array in a `.npy` file on demand. As a context manager, closes the file on exit.

    The file is not memory-mapped, because truncating a mapped file would crash the process.

    Args:
      path: The path of the file.

    Attributes:
      shape: The shape of the array.
      dtype: The dtype of the array.

    Raises:
      InvalidValueError: If the array in the file is a scalar, which has no rows.
      ValueError, OSError, EOFError: If the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = io.FileIO(path)
        try:
            version = np.lib.format.read_magic(self._file)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the format, for structured arrays, is not supported")
            self.shape, self._is_by_column, self.dtype = _HEADERS[version](self._file)
            if self.dtype.hasobject:
                raise ValueError("the array contains Python objects, which are not supported")
            if min(self.shape, default=0) < 0:
                raise ValueError(f"the shape {self.shape} has a negative dimension")
            if not self.shape:
                raise InvalidValueError(
                    f"Expected an array with a row per element in {path}, found a scalar; save an array with at least "
                    "one dimension"
                )
            self._begin = self._file.tell()
            self._check_size(math.prod(self.shape) * self.dtype.itemsize)
        except BaseException:
            self._file.close()
            raise

    def _check_size(self, expected: int) -> None:
        found = os.fstat(self._file.fileno()).st_size - self._begin
        if found < expected:
            raise ValueError(f"the file is truncated: it contains {max(0, found)} of the array's {expected} bytes")

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Returns the rows from `first` up to, but not including, `last`.

        Raises:
          EOFError: If the file has been truncated since it was opened.
        """
        members = self.shape[1:]
        if not self._is_by_column:
            return self._rows(first * math.prod(members), (last - first, *members))
        # The file is in Fortran order: the first members of all rows, then the second members of all rows.
        columns = np.empty((math.prod(members), last - first), self.dtype)
        for place in range(len(columns)):
            columns[place] = self._rows(place * len(self) + first, (last - first,))
        return columns.reshape(*reversed(members), last - first).T

    def _rows(self, start: int, shape: tuple[int, ...]) -> NDArray[Any]:
        found = np.empty(shape, self.dtype)
        left = found.reshape(-1).view(np.uint8).data if found.nbytes else memoryview(b"")
        self._file.seek(self._begin + start * self.dtype.itemsize)
        while left:
            count = self._file.readinto(left)
            if not count:
                raise EOFError("the file was truncated while it was being read")
            left = left[count:]
        return found

    def __enter__(self) -> "NpyFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __repr__(self) -> str:
        return f"<NpyFile {self._path}: {self.dtype}{list(self.shape)}>"

"""Reads arrays from NumPy's files a block at a time, since a file may be larger than the memory."""

import io
import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstack.errors import InvalidValueError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NpyFile:
    """The array in a `.npy` file, open within a block; rows are read on demand.

    The file is not mapped into memory: that would end the process if the file is truncated.

    Args:
      path: The file.

    Attributes:
      shape: The shape of the array.
      dtype: Its dtype.

    Raises:
      InvalidValueError: If it has no array with a row for each element.
      ValueError, OSError, EOFError: If it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = io.FileIO(path)
        try:
            version = np.lib.format.read_magic(self._file)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the format is for structured arrays")
            self.shape, self._is_by_column, self.dtype = _HEADERS[version](self._file)
            if self.dtype.hasobject:
                raise ValueError("it has Python objects")
            if min(self.shape, default=0) < 0:
                raise ValueError(f"the shape {self.shape} is none")
            if not self.shape:
                raise InvalidValueError(f"Expected an array with a row per element, found a scalar; in {path}")
            self._begin = self._file.tell()
            self._check_size(math.prod(self.shape) * self.dtype.itemsize)
        except BaseException:
            self._file.close()
            raise

    def _check_size(self, expected: int) -> None:
        found = os.fstat(self._file.fileno()).st_size - self._begin
        if found < expected:
            raise ValueError(f"the array has {expected} bytes, the file only {max(0, found)} of them")

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Returns some rows.

        Raises:
          EOFError: If the file has become shorter.
        """
        members = self.shape[1:]
        if not self._is_by_column:
            return self._rows(first * math.prod(members), (last - first, *members))
        # As Fortran has it: the first members of all rows, then the second members of all.
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
                raise EOFError("the file has become shorter while it was read")
            left = left[count:]
        return found

    def __enter__(self) -> "NpyFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __repr__(self) -> str:
        return f"<NpyFile {self._path}: {self.dtype}{list(self.shape)}>"

"""Defines the base class of sources that read files, and the sources for NumPy's formats.

The module `arrow_files` defines the sources for other formats.
"""

import bisect
import glob
import itertools
import os
import pathlib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.columns import Column, ListColumn, Payload, StructColumn
from fedstack.data.npy_file import NpyFile
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe, shorten
from fedstack.service.data.datasets.sources import Source
from fedstack.service.data.reading.blocks import column_over, tensor_of_rows, while_wanted, without_first
from fedstack.service.data.reading.budget import Blocks, pieces, rows_at_once
from fedstack.service.data.reading.dataset_scope import dataset_scope

_TEXT = TensorType(np.str_)
# Identifies a file and its version: it changes when the file is replaced or written to.
_Stamp: TypeAlias = tuple[int, ...]
# Takes a path and the file's current stamp, and returns the stamp that the file had when it was first opened.
_FirstStamp: TypeAlias = Callable[[str, _Stamp], _Stamp]
# The factor by which blocks are larger when all elements are requested at once.
_LARGE_BLOCKS = 16


def files_of(pattern: object, where: str) -> tuple[str, ...]:
    """Returns the absolute paths of files, given a path, a glob pattern or a list of paths.

    The files that match a pattern are sorted by name.

    Raises:
      TypeMismatchError: If `pattern` is not a path, a pattern or a list of paths.
      InvalidValueError: If no file matches the pattern, or the list is empty.
    """
    if isinstance(pattern, (str, os.PathLike)):
        text = os.fspath(cast("str | os.PathLike[str]", pattern))
        paths = [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))
    elif isinstance(pattern, (list, tuple)):
        paths = [os.fspath(cast("str | os.PathLike[str]", path)) for path in cast("Sequence[Any]", pattern)]
    else:
        raise TypeMismatchError(
            f"Expected {where} to receive a path, a pattern or a list of paths, found {describe(pattern)}"
        )
    if not paths:
        raise InvalidValueError(
            f"Expected {where} to find at least one file, found no match for {shorten(cast(object, pattern))}; check "
            "the pattern"
        )
    return tuple(map(os.path.abspath, paths))


class FilesSource(Source):
    """A source that reads elements from files.

    Args:
      element: The type of an element.
      paths: The absolute paths of the files, in order.
      delimiter: The character that separates the cells of a line, for formats whose lines consist of cells.
      client: The name of the last member of the elements, if this member is the client's id and is derived from the
        file's path; otherwise empty.
      parts: The number of splits of each file; by default each file is one split.

    Raises:
      TypeMismatchError: If `client` is neither empty nor the name of the last member, or if that member is not a
        string.
      InvalidValueError: If some but not all paths contain a part that names the client, such as `user=alice` for the
        member `user`.

    Attributes:
      in_files: The type of an element in the files, without the client's id.
    """

    format: ClassVar[str]

    def __init__(
        self, element: Type, paths: tuple[str, ...], delimiter: str = "", client: str = "", parts: Sequence[int] = ()
    ) -> None:
        super().__init__(element, sum(parts) if parts else len(paths))
        self.paths = paths
        self.delimiter = delimiter
        self.client = client
        self.parts = tuple(parts)
        self.in_files = _without_client(element, client) if client else element
        self._owners = clients_of_paths(paths, client) if client else ()
        self._first_split = [0, *itertools.accumulate(parts)]

    def read_split(self, split: int, start: int = 0) -> Blocks:
        return self._read(split, start, rows_at_once(self.in_files), _as_it_is)

    def read(self, first: int, last: int, start: int = 0) -> Blocks:
        if last - first == 1:
            return self.read_split(first, start)
        return without_first(self._read_all(first, last, rows_at_once(self.in_files)), start)

    def large_blocks(self) -> Blocks:
        return self._read_all(0, self.num_splits, _LARGE_BLOCKS * rows_at_once(self.in_files))

    def _read_all(self, first: int, last: int, rows: int) -> Blocks:
        opened: dict[str, _Stamp] = {}
        first_stamp = opened.setdefault if self.parts else _as_it_is  # a file with a single split is opened only once
        splits = (self._read(split, 0, rows, first_stamp) for split in range(first, last))
        return itertools.chain.from_iterable(while_wanted(splits))

    def _read(self, split: int, start: int, rows: int, first_stamp: _FirstStamp) -> Blocks:
        place, part = split, None
        if self.parts:
            place = bisect.bisect_right(self._first_split, split) - 1
            part = split - self._first_split[place]
        path = self.paths[place]
        try:
            blocks = self.read_part(_allowed(path), part, start, rows)
            for block in _unchanged(path, blocks, dataset_scope().first_stamp or first_stamp):
                yield self._with_client(block, place) if self.client else block
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error

    def read_part(self, path: str, part: int | None, start: int, rows: int) -> Blocks:
        """Yields the elements of a file, without the client's id.

        Args:
          path: The path of the file.
          part: The number of the part to read; `None` for the whole file.
          start: The number of elements to skip.
          rows: The maximum number of elements per block.
        """
        raise NotImplementedError

    def parts_of(self, path: str) -> int:
        """Returns the number of splits of a file."""
        return self.parts[self.paths.index(path)] if self.parts else 1

    def clients(self, column: str) -> "Mapping[str, Source] | None":
        if column != self.client:
            return None
        paths: dict[str, list[str]] = {}
        for owner, path in zip(self._owners, self.paths):
            paths.setdefault(owner, []).append(path)
        return {
            owner: type(self)(self.in_files, tuple(paths[owner]), delimiter=self.delimiter) for owner in sorted(paths)
        }

    def _with_client(self, block: Column, place: int) -> Column:
        owner: Payload = self._owners[place].encode()
        return StructColumn((*cast(StructColumn, block).fields, ListColumn([owner] * len(block))), len(block))

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more" * (len(self.paths) > 1)
        return f"{os.path.basename(self.paths[0])}{more}"


def with_client(element: Type, client: str) -> Type:
    """Appends a member for the client's id to an element's type.

    Args:
      element: The type of an element.
      client: The name of the member; if empty, the type is returned unchanged.

    Raises:
      TypeMismatchError: If the element has no named members, or already has a member named `client`.
    """
    if not client:
        return element
    check_named(element, lambda _: True)
    members = fields_of(cast(StructType, element))
    if client in [name for name, _ in members]:
        raise TypeMismatchError(
            f"Expected files without a column {client!r}, because client_from_path adds this column, found {element}; "
            "choose another name"
        )
    return StructType([*members, (client, _TEXT)])


def _without_client(element: Type, client: str) -> Type:
    members = fields_of(element) if isinstance(element, StructType) else ()
    if len(members) < 2 or members[-1] != (client, _TEXT):
        raise TypeMismatchError(
            f"Expected the last column to be a text column {client!r}, as client_from_path requires, found {element}"
        )
    return StructType(list(members[:-1]))


def clients_of_paths(paths: Sequence[str], name: str) -> tuple[str, ...]:
    """Returns each file's client, derived from the file's path.

    The client is the text after `name=` in the last part of the path that begins with `name=`. If no path has such a
    part, the client is the file's name without the extension.

    Raises:
      InvalidValueError: If some but not all paths have a part that begins with `name=`.
    """
    folders = [[part for part in pathlib.PurePath(path).parts if part.startswith(f"{name}=")] for path in paths]
    if all(folders):
        return tuple(urllib.parse.unquote(found[-1].partition("=")[2]) for found in folders)
    if any(folders):
        odd = paths[[bool(found) for found in folders].index(False)]
        raise InvalidValueError(
            f"Expected either all paths or no path to contain a folder {name}=…, found {odd} without such a folder; "
            "move the file into such a folder, or omit the file"
        )
    return tuple(pathlib.PurePath(path).stem for path in paths)


def _unchanged(path: str, blocks: Blocks, first_stamp: _FirstStamp) -> Blocks:
    """Yields the blocks of a file and checks that the file does not change while it is read.

    Raises:
      InvalidValueError: If the file has been replaced or written to since it was first opened.
    """
    before = first_stamp(path, _stamp(path))
    try:
        for block in blocks:
            _check_unchanged(path, before)
            yield block
    except (OSError, EOFError, TypeError, ValueError):  # reading while a file is being written may raise any of these
        _check_unchanged(path, before)
        raise
    _check_unchanged(path, before)  # a truncated text file ends early without an error


def _check_unchanged(path: str, before: _Stamp) -> None:
    if _stamp(path) != before:
        raise InvalidValueError(
            f"The file {path} has changed since it was first opened; write a new file, and move it to this path "
            "between two passes"
        )


def _stamp(path: str) -> _Stamp:
    found = os.stat(path)  # programs can reset `st_mtime`, but not `st_ctime`
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _as_it_is(path: str, stamp: _Stamp) -> _Stamp:
    del path
    return stamp


def _allowed(path: str) -> str:
    """Returns the real path of a file, if the file may be read.

    Raises:
      CarrierError: If the file is not below a permitted data root, whether or not the file exists.
    """
    roots = dataset_scope().data_roots
    if roots is None:
        return path
    try:
        found = os.path.realpath(path)
        is_below = any(os.path.commonpath([root, found]) == root for root in roots)
    except ValueError:  # the path is invalid, or on another drive
        found, is_below = path, False
    if not is_below:
        raise CarrierError(
            f"Expected a file below {' or '.join(roots) or 'a folder that is declared as a data root'}, found {path}; "
            "start the data worker with the file's folder as --data-root (WorkerConfig.data_roots)"
        )
    return found


def _unreadable(path: str, error: Exception) -> InvalidValueError:
    return InvalidValueError(f"Reading {path} raised {type(error).__name__}: {error}")


class NpyFiles(FilesSource):
    """A source whose elements are the rows of arrays, one array per file. Rows are read on demand."""

    format = "NPY"

    def read_part(self, path: str, part: int | None, start: int, rows: int) -> Blocks:
        with npy_file(path) as array:
            for first in range(start, len(array), at_once := rows_at_once(self.element)):
                last = min(first + at_once, len(array))
                yield column_over(array.read(first, last), self.element, last - first, path)


class NpzFiles(FilesSource):
    """A source whose elements are dicts with one row of each array in a file."""

    format = "NPZ"

    def __init__(self, element: Type, paths: tuple[str, ...], delimiter: str = "", **options: Any) -> None:
        super().__init__(element, paths, delimiter, **options)
        check_named(self.in_files, lambda t: isinstance(t, TensorType))

    def read_part(self, path: str, part: int | None, start: int, rows: int) -> Blocks:
        found = npz_arrays(path)
        names = [cast(str, name) for name, _ in fields_of(cast(StructType, self.in_files))]
        if missing := [name for name in names if name not in found]:
            raise InvalidValueError(f"Expected an array {missing[0]!r} in {path}, found the arrays {sorted(found)}")
        arrays = tuple(found[name] for name in names)
        count = check_rows({name: found[name] for name in names}, path)
        return pieces(column_over(arrays, self.in_files, count, path), rows_at_once(self.in_files), start)


def check_named(element: Type, is_one: Callable[[Type], bool]) -> None:
    """Checks that elements have named members, each of a permitted type.

    Args:
      element: The type of an element.
      is_one: Returns whether a type is permitted for a member.

    Raises:
      TypeMismatchError: If the element has no members, a member has no name, or its type is not permitted.
    """
    members = fields_of(element) if isinstance(element, StructType) else ()
    if not members or not all(name and is_one(t) for name, t in members):
        raise TypeMismatchError(
            f"Expected a dict with a type for each column, found {element}; pass a dict such as "
            "{'x': np.float32, 'label': np.int32}"
        )


def npy_file(path: str) -> NpyFile:
    """Opens the array in an `.npy` file without reading its rows.

    Raises:
      InvalidValueError: If the file cannot be read or does not contain an array.
    """
    try:
        return NpyFile(path)
    except FedstackError:
        raise
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(path, error) from error


def npz_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays in an `.npz` file by name.

    Raises:
      InvalidValueError: If the file does not contain named arrays, or cannot be read.
    """
    try:
        with open(path, "rb") as file:  # NumPy does not close files that it cannot read
            found: object = np.load(file, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise InvalidValueError(
                    f"Expected named arrays in {path}, found {describe(found)}; read the file with Dataset.from_npy, "
                    "or write the arrays with np.savez"
                )
            with found:
                return {name: found[name] for name in found.files}
    except FedstackError:
        raise
    except Exception as error:  # zip files raise many kinds of errors
        raise _unreadable(path, error) from error


def check_rows(arrays: Mapping[str, NDArray[Any]], path: str) -> int:
    """Returns the number of rows, which must be the same for all arrays.

    Raises:
      InvalidValueError: If the numbers of rows differ, an array is a scalar, or there are no arrays.
    """
    rows = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(rows.values())) != 1 or None in rows.values():
        found = ", ".join(f"{name}: {'a scalar' if n is None else n}" for name, n in rows.items()) or "no arrays"
        raise InvalidValueError(f"Expected arrays with the same number of rows in {path}, found {found}")
    return cast(int, next(iter(rows.values())))


def npy_type(path: str) -> Type:
    """Returns the type of the rows of the array in an `.npy` file."""
    with npy_file(path) as array:
        return _row_type(np.empty((0, *array.shape[1:]), array.dtype), path)


def npz_type(path: str) -> Type:
    """Returns the type of the elements of an `.npz` file: a struct with a row of each array."""
    arrays = npz_arrays(path)
    check_rows(arrays, path)
    return StructType([(name, _row_type(array, f"{path}, array {name!r}")) for name, array in arrays.items()])


def _row_type(array: NDArray[Any], path: str) -> TensorType:
    found = tensor_of_rows(array)
    if found is None:
        raise TypeMismatchError(
            f"Expected an array of numbers or text in {path}, found {describe(array)}; convert the array first"
        )
    return found

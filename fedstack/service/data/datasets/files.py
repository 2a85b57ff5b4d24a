"""Reads elements from files, each of which is a split: arrays of NumPy, CSV, and JSON by the line."""

import abc
import csv
import glob
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar, is_string
from fedstack.computations.values.columns import Payload
from fedstack.computations.values.tensor_values import describe, kind_of_dtype, normalize_tensor, shorten
from fedstack.computations.values.values import normalize
from fedstack.errors import CarrierError, FedstackError, InvalidValueError, TypeMismatchError
from fedstack.service.data.datasets.blocks import Blocks, column_over, packed, pieces, rows_at_once, tensor_of_rows
from fedstack.service.data.datasets.sources import Source

_TRUTH = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


def files_of(pattern: object, where: str) -> tuple[str, ...]:
    """Returns the absolute paths of files, those that match a glob pattern in the order of their names.

    Raises:
      TypeMismatchError: If it is neither a path, nor a pattern, nor a list of paths.
      InvalidValueError: If there are none.
    """
    if isinstance(pattern, (str, os.PathLike)):
        text = os.fspath(cast("str | os.PathLike[str]", pattern))
        paths = [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))
    elif isinstance(pattern, (list, tuple)):
        paths = [os.fspath(cast("str | os.PathLike[str]", path)) for path in cast("Sequence[Any]", pattern)]
    else:
        raise TypeMismatchError(f"Expected a path, a pattern or a list of paths, found {describe(pattern)}; at {where}")
    if not paths:
        raise InvalidValueError(
            f"Expected files, found none for {shorten(cast(object, pattern))}; at {where}; check the pattern"
        )
    return tuple(map(os.path.abspath, paths))


class FilesSource(Source):
    """Elements from files.

    Attributes:
      element: The type of an element.
      paths: The absolute paths, in order.
      delimiter: What is between the cells of a line, if there are any.
    """

    format: ClassVar[str]

    def __init__(self, element: Type, paths: tuple[str, ...], delimiter: str = "") -> None:
        super().__init__(element, len(paths))
        self.paths = paths
        self.delimiter = delimiter

    def read_split(self, split: int, start: int = 0) -> Blocks:
        path = self.paths[split]
        try:
            yield from self.read_file(_allowed(path), start)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error

    @abc.abstractmethod
    def read_file(self, path: str, start: int) -> Blocks:
        """Yields the elements of a file, from a number of them on."""

    def __repr__(self) -> str:
        more = f" and {len(self.paths) - 1} more" * (len(self.paths) > 1)
        return f"{os.path.basename(self.paths[0])}{more}"


def _allowed(path: str) -> str:
    """Returns where a file really is, if it may be read there for whoever the current work is for.

    Raises:
      CarrierError: If it may not, whether or not it is there.
    """
    roots = current_scope().data_roots
    if roots is None:
        return path
    try:
        found = os.path.realpath(path)
        is_below = any(os.path.commonpath([root, found]) == root for root in roots)
    except ValueError:  # there is no such path, or it is on another drive
        found, is_below = path, False
    if not is_below:
        raise CarrierError(
            f"Expected a file below {' or '.join(roots) or 'a folder that is named as one of data'}, found {path}; "
            "start the data worker with --data-root (WorkerConfig.data_roots) for the folder that it is in"
        )
    return found


def _unreadable(path: str, error: Exception) -> InvalidValueError:
    return InvalidValueError(f"Reading {path} raised {type(error).__name__}: {error}")


class NpyFiles(FilesSource):
    """The rows of arrays, an array per file. They are read as they are wanted."""

    format = "NPY"

    def read_file(self, path: str, start: int) -> Blocks:
        array = npy_array(path)
        for first in range(start, len(array), rows := rows_at_once(self.element)):
            # A copy: what of the file is in memory is not what somebody writes into it later.
            yield column_over(np.array(array[first : first + rows]), self.element, min(rows, len(array) - first), path)


class NpzFiles(FilesSource):
    """The rows of several arrays side by side, which are in one file under names."""

    format = "NPZ"

    def __init__(self, element: Type, paths: tuple[str, ...], delimiter: str = "") -> None:
        super().__init__(element, paths, delimiter)
        _check_named(element, lambda t: isinstance(t, TensorType))

    def read_file(self, path: str, start: int) -> Blocks:
        found = npz_arrays(path)
        names = [cast(str, name) for name, _ in fields_of(cast(StructType, self.element))]
        if missing := [name for name in names if name not in found]:
            raise InvalidValueError(f"Expected an array {missing[0]!r}, found {sorted(found)}; in {path}")
        arrays = tuple(found[name] for name in names)
        rows = check_rows({name: found[name] for name in names}, path)
        return pieces(column_over(arrays, self.element, rows, path), rows_at_once(self.element), start)


def _check_named(element: Type, is_one: Callable[[Type], bool]) -> None:
    members = fields_of(element) if isinstance(element, StructType) else ()
    if not members or not all(name and is_one(t) for name, t in members):
        raise TypeMismatchError(
            f"Expected a type for each column, found {element}; give a dict such as "
            "{'x': np.float32, 'label': np.int32}"
        )


def npy_array(path: str) -> NDArray[Any]:
    """Returns the array in a file, not yet read.

    Raises:
      InvalidValueError: If there is none.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(path, error) from error
    if not array.ndim:
        raise InvalidValueError(f"Expected an array with a row per element, found a scalar; in {path}")
    return array


def npz_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays in a file.

    Raises:
      InvalidValueError: If there are none, or one cannot be read.
    """
    try:
        with open(path, "rb") as file:  # NumPy does not close what it cannot read
            found: object = np.load(file, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise InvalidValueError(f"Expected arrays under names, found {describe(found)}; in {path}")
            with found:
                return {name: found[name] for name in found.files}
    except FedstackError:
        raise
    except Exception as error:  # what zip files raise is many things
        raise _unreadable(path, error) from error


def check_rows(arrays: Mapping[str, NDArray[Any]], path: str) -> int:
    """Returns how many rows arrays have.

    Raises:
      InvalidValueError: If they have different numbers of them, or one has none.
    """
    rows = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(rows.values())) != 1 or None in rows.values():
        found = ", ".join(f"{name}: {'a scalar' if n is None else n}" for name, n in rows.items()) or "no arrays"
        raise InvalidValueError(f"Expected arrays of one leading dimension, found {found}; in {path}")
    return cast(int, next(iter(rows.values())))


def npy_type(path: str) -> Type:
    """Returns the type of the rows of the array in a file."""
    return _row_type(npy_array(path), path)


def npz_type(path: str) -> Type:
    """Returns the type of the rows of the arrays in a file."""
    arrays = npz_arrays(path)
    check_rows(arrays, path)
    return StructType([(name, _row_type(array, f"{path}, array {name!r}")) for name, array in arrays.items()])


def _row_type(array: NDArray[Any], path: str) -> TensorType:
    found = tensor_of_rows(array)
    if found is None:
        raise TypeMismatchError(f"Expected numbers or text, found {describe(array)}; in {path}")
    return found


class CsvFiles(FilesSource):
    """Dicts of scalars from tables whose first line has the names of the columns.

    Raises:
      TypeMismatchError: If the element is no struct of named scalars.
      InvalidValueError: If the delimiter is none.
    """

    format = "CSV"

    def __init__(self, element: Type, paths: tuple[str, ...], delimiter: str) -> None:
        super().__init__(element, paths, delimiter)
        _check_named(element, lambda t: isinstance(t, TensorType) and is_scalar(t))
        if not isinstance(cast(object, delimiter), str) or len(delimiter) != 1 or delimiter in '\r\n"':
            raise InvalidValueError(f"Expected a character, found {describe(delimiter)}; at the delimiter of CSV")

    def read_file(self, path: str, start: int) -> Blocks:
        return packed(self._rows(path, start), self.element)

    def _rows(self, path: str, start: int) -> Generator[Payload]:
        columns = fields_of(cast(StructType, self.element))
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter, strict=True)
            try:
                header = next(reader, list[str]())
                places = [_place_of(cast(str, name), header, path) for name, _ in columns]
                parsers = [(place, _parser(cast(TensorType, t))) for place, (_, t) in zip(places, columns)]
                for row in itertools.islice((cells for cells in reader if cells), start, None):
                    if len(row) != len(header):
                        raise InvalidValueError(
                            f"Expected {len(header)} cells as in the first line, found {len(row)}; "
                            f"in {path}, line {reader.line_num}"
                        )
                    try:
                        yield tuple([parse(row[place]) for place, parse in parsers])
                    except (ValueError, OverflowError, FedstackError):
                        name, tensor, text = _misfit(columns, parsers, row)
                        raise InvalidValueError(
                            f"Expected {tensor}, found {shorten(text)}; in {path}, line {reader.line_num}, "
                            f"column {name!r}; correct the file, or read the column as text (np.str_)"
                        ) from None
            except csv.Error as error:
                raise InvalidValueError(
                    f"Expected CSV, found none: {error}; in {path}, line {reader.line_num}"
                ) from error
            except UnicodeDecodeError as error:
                raise InvalidValueError(
                    f"Expected UTF-8, found none: {error}; in {path}, after line {reader.line_num}"
                ) from error


def _place_of(name: str, header: Sequence[str], path: str) -> int:
    if header.count(name) != 1:
        what = f"several columns {name!r}" if name in header else f"the columns {shorten(list(header))}"
        raise InvalidValueError(f"Expected one column {name!r}, found {what}; in {path}, line 1")
    return header.index(name)


def _parser(tensor: TensorType) -> Callable[[str], object]:
    """Returns the function from the text of a cell to the payload of a scalar."""
    if is_string(tensor):
        return str.encode
    kind, make = kind_of_dtype(tensor.dtype), cast("Callable[[object], object]", tensor.dtype.type)
    if kind == "b":
        return lambda text: np.bool_(_truth(text))
    if kind == "f" and tensor.dtype.itemsize == 8:
        return lambda text: make(float(text))
    number: Callable[[str], object] = int if kind == "i" else float if kind == "f" else complex
    return lambda text: normalize_tensor(number(text), tensor, "the cell")


def _truth(text: str) -> bool:
    if text not in _TRUTH:
        raise ValueError(text)
    return _TRUTH[text]


def _misfit(
    columns: Iterable[tuple[str | None, Type]],
    parsers: Iterable[tuple[int, Callable[[str], object]]],
    row: Sequence[str],
) -> tuple[str | None, Type, str]:
    """Returns the name and the type of the first column whose cell does not fit, and its text."""
    for (name, tensor), (place, parse) in zip(columns, parsers):
        try:
            parse(row[place])
        except (ValueError, OverflowError, FedstackError):
            return name, tensor, row[place]
    raise AssertionError("all cells fit")


class JsonLinesFiles(FilesSource):
    """Elements from files with a JSON value on each line. Of objects the members are read that the element has."""

    format = "JSON_LINES"

    def read_file(self, path: str, start: int) -> Blocks:
        return packed(self._rows(path, start), self.element)

    def _rows(self, path: str, start: int) -> Generator[Payload]:
        with open(path, "rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            for number, line in itertools.islice(lines, start, None):
                place = f"{path}, line {number}"
                try:
                    value = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:  # json's own errors and UTF-8's are both the former
                    raise InvalidValueError(f"Expected a JSON value, found none: {error}; in {place}") from error
                try:
                    yield normalize(_chosen(value, self.element), self.element, place, _read_json)
                except TypeMismatchError as error:
                    raise InvalidValueError(*error.args) from error


def _chosen(value: object, element: Type) -> object:
    """Returns a JSON value without the members of objects that a type has not."""
    if isinstance(element, StructType) and isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {n: _chosen(members[n], t) for n, t in fields_of(element) if n is not None and n in members}
    return value


def _read_json(value: object, tensor: TensorType, path: str) -> Payload:
    if kind_of_dtype(tensor.dtype) == "f":
        value = _floats(value)  # JSON does not tell 1 from 1.0
    return normalize_tensor(value, tensor, path)


def _floats(value: object) -> object:
    if isinstance(value, list):
        return [_floats(item) for item in cast("list[object]", value)]
    return float(value) if type(value) is int else value

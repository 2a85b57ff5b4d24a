"""Reads elements from Parquet, Arrow, CSV and JSON Lines files with pyarrow."""

import abc
import contextlib
import csv
import io
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from fedstack.computations.types.language import StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of, is_scalar
from fedstack.data.client_columns import imported_pyarrow
from fedstack.errors import FedstackError, InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe, shorten
from fedstack.service.data.datasets.arrow_elements import ArrowReader, arrow_type, check_text, type_of_arrow
from fedstack.service.data.datasets.elements import type_of
from fedstack.service.data.datasets.files import FilesSource, check_named
from fedstack.service.data.reading.blocks import without_first
from fedstack.service.data.reading.budget import Blocks, pieces

# The number of bytes of a text file that are read at a time, and thus the maximum length of a line.
_TEXT_BYTES = 16 << 20
# The number of bytes of lines among which one is searched for that cannot be read.
_SEARCHED_BYTES = 64 << 10
_MISFIT = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to .*?: invalid value '(.*)'", re.DOTALL)


class ArrowFiles(FilesSource):
    """A source whose elements are the rows of files with named columns.

    Raises:
      ImportError: If pyarrow is not installed when the files are read.
    """

    from_text: ClassVar[bool] = False
    first_row: ClassVar[int] = 1

    def __init__(self, element: Type, paths: tuple[str, ...], **options: Any) -> None:
        super().__init__(element, paths, **options)
        check_named(self.in_files, lambda _: True)
        if self.from_text:
            check_text(self.in_files)

    @property
    def columns(self) -> dict[str, Type]:
        """The types of the columns to read, by name."""
        return {cast(str, name): member for name, member in fields_of(cast(StructType, self.in_files))}

    def read_part(self, path: str, part: int | None, start: int, rows: int) -> Blocks:
        try:
            yield from without_first(self._blocks(path, part, rows), start)
        except imported_pyarrow().ArrowException as error:
            raise self.misread(path, error) from error

    def _blocks(self, path: str, part: int | None, rows: int) -> Blocks:
        reader, row = ArrowReader(path, self.from_text), self.first_row
        for batch in self.batches(path, part, rows):
            values = batch.to_struct_array()
            try:
                found = reader.column(values, self.in_files, row)
            except FedstackError:
                before = self.rows_before(path, part) if part else 0
                yield from reader.until_failure(values, self.in_files, before + row)
                raise
            row += len(found)
            yield from pieces(found, rows)

    @abc.abstractmethod
    def batches(self, path: str, part: int | None, rows: int) -> Iterator[Any]:
        """Yields `pyarrow.RecordBatch` objects that contain the columns of the elements.

        The arguments are those of `read_part`.
        """

    def rows_before(self, path: str, part: int) -> int:
        """Returns the number of rows that precede a part of a file, for error messages."""
        raise NotImplementedError

    def misread(self, path: str, error: Exception) -> InvalidValueError:
        """Returns the error to raise for a file that pyarrow cannot read."""
        return InvalidValueError(f"Reading {path} raised {type(error).__name__}: {error}")


def check_columns(wanted: Sequence[str], found: Sequence[str], path: str, where: str = "") -> None:
    """Checks that a file has exactly one column with each wanted name.

    Raises:
      InvalidValueError: If a wanted column is missing or occurs more than once.
    """
    for name in wanted:
        if list(found).count(name) != 1:
            what = f"several columns {name!r}" if name in found else f"the columns {shorten(list(found))}"
            raise InvalidValueError(f"Expected exactly one column {name!r} in {path}{where}, found {what}")


class FilesWithSchema(ArrowFiles):
    """Files that declare the types of their columns and whose parts can be read separately."""

    @classmethod
    @abc.abstractmethod
    def look(cls, path: str) -> tuple[Any, int]:
        """Returns a file's `pyarrow.Schema` and the number of its parts."""

    @classmethod
    def looked(cls, path: str) -> tuple[Any, int]:
        """Like `look`, but raises `InvalidValueError` instead of pyarrow's errors and `OSError`.

        Raises:
          InvalidValueError: If the file cannot be read.
        """
        try:
            return cls.look(path)
        except (imported_pyarrow().ArrowException, OSError) as error:
            raise InvalidValueError(f"Reading {path} raised {type(error).__name__}: {error}") from error

    def _check(self, path: str, part: int | None) -> tuple[list[str], int]:
        """Checks the columns and parts of a file, and returns the names of its columns and its number of parts."""
        schema, parts = self.look(path)
        check_columns(list(self.columns), schema.names, path)
        wanted = self.parts_of(path)
        if part is not None and parts != wanted:
            raise InvalidValueError(
                f"Expected {wanted} row groups or record batches in {path}, found {parts}; define the dataset again, "
                "because the file has changed since the dataset was defined"
            )
        return schema.names, parts


class ParquetFiles(FilesWithSchema):
    """A source whose elements are the rows of Parquet files. The parts of a file are its row groups."""

    format = "PARQUET"

    @classmethod
    def look(cls, path: str) -> tuple[Any, int]:
        with _opened_parquet(path) as file:
            return file.schema_arrow, file.num_row_groups

    def batches(self, path: str, part: int | None, rows: int) -> Iterator[Any]:
        _, parts = self._check(path, part)
        groups = list(range(parts)) if part is None else [part]
        with _opened_parquet(path) as file:
            yield from file.iter_batches(rows, row_groups=groups, columns=list(self.columns))

    def rows_before(self, path: str, part: int) -> int:
        with _opened_parquet(path) as file:
            return sum(file.metadata.row_group(before).num_rows for before in range(part))


@contextlib.contextmanager
def _opened_parquet(path: str) -> Generator[Any]:
    # The file is not memory-mapped: a mapped file that shrinks would crash the process.
    with imported_pyarrow().OSFile(path) as file:
        yield imported_pyarrow(".parquet").ParquetFile(file)


class ArrowIpcFiles(FilesWithSchema):
    """A source whose elements are the rows of Arrow IPC files (Feather) or Arrow streams.

    The parts of a file are its record batches; a stream is a single part.
    """

    format = "ARROW"

    @classmethod
    def look(cls, path: str) -> tuple[Any, int]:
        with _opened_ipc(path) as found:
            return found.schema, getattr(found, "num_record_batches", 1)

    def batches(self, path: str, part: int | None, rows: int) -> Iterator[Any]:
        names, parts = self._check(path, part)
        with _opened_ipc(path, [names.index(name) for name in self.columns]) as found:
            if hasattr(found, "get_batch"):
                yield from map(found.get_batch, range(parts) if part is None else [part])
            else:
                yield from found

    def rows_before(self, path: str, part: int) -> int:
        with _opened_ipc(path) as found:
            return sum(found.get_batch(before).num_rows for before in range(part))


@contextlib.contextmanager
def _opened_ipc(path: str, columns: Sequence[int] = ()) -> Generator[Any]:
    pa, ipc = imported_pyarrow(), imported_pyarrow(".ipc")
    with pa.OSFile(path) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        options = ipc.IpcReadOptions(included_fields=list(columns))
        yield (ipc.open_file if is_file else ipc.open_stream)(file, options=options)


class CsvFiles(ArrowFiles):
    """A source of dicts of scalars from CSV files whose first line contains the names of the columns.

    Raises:
      TypeMismatchError: If the element type is not a struct of named scalars.
      InvalidValueError: If the delimiter is not a single character, or is a quotation mark or a line break.
    """

    format = "CSV"
    from_text = True
    first_row = 2  # row 1 contains the names of the columns

    def __init__(self, element: Type, paths: tuple[str, ...], **options: Any) -> None:
        super().__init__(element, paths, **options)
        check_named(self.in_files, lambda t: isinstance(t, TensorType) and is_scalar(t))
        if not isinstance(cast(object, self.delimiter), str) or len(self.delimiter) != 1 or self.delimiter in '\r\n"':
            raise InvalidValueError(
                "Expected the delimiter of Dataset.from_csv to be a single character other than a quotation mark or a "
                f"line break, found {describe(self.delimiter)}"
            )

    def batches(self, path: str, part: int | None, rows: int) -> Iterator[Any]:
        pa_csv = imported_pyarrow(".csv")
        check_columns(list(self.columns), self._header(path), path, ", row 1")
        with imported_pyarrow().input_stream(path) as file:
            yield from pa_csv.open_csv(
                file,
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=_TEXT_BYTES),  # for row numbers in errors
                parse_options=pa_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(
                    column_types={name: arrow_type(t) for name, t in self.columns.items()},
                    include_columns=list(self.columns),
                    null_values=[],
                    true_values=["true", "True", "1"],
                    false_values=["false", "False", "0"],
                ),
            )

    def _header(self, path: str) -> list[str]:
        with imported_pyarrow().input_stream(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
            return next(csv.reader(text, delimiter=self.delimiter), list[str]())

    def misread(self, path: str, error: Exception) -> InvalidValueError:
        found = _MISFIT.search(str(error))
        if found is None:
            return super().misread(path, error)
        name = self._header(path)[int(found[1])]
        tensor = self.columns[name]
        return InvalidValueError(
            f"Expected {tensor} in {path}, row {found[2]}, column {name!r}, found {shorten(found[3])}; correct the "
            "file, or read the column as text (np.str_)"
        )


class JsonLinesFiles(ArrowFiles):
    """A source of elements from files with a JSON object on each line.

    Members of the objects that are not in the element type are ignored.
    """

    format = "JSON_LINES"
    from_text = True

    def batches(self, path: str, part: int | None, rows: int) -> Iterator[Any]:
        with imported_pyarrow().input_stream(path) as file:
            if not file.read(1):
                return  # pyarrow would raise an error for an empty file
        with imported_pyarrow().input_stream(path) as file:
            yield from _parsed_json(file, self.columns)

    def misread(self, path: str, error: Exception) -> InvalidValueError:
        for row, line in _json_rows(path, self.columns):
            found = f"{path}, row {row}"
            if len(line) > _TEXT_BYTES:
                return InvalidValueError(
                    f"Expected at most {_TEXT_BYTES} bytes in {found}, found {len(line)}; divide the object into more"
                )
            try:
                members = cast(object, json.loads(line))
            except ValueError as reason:
                members = reason
            if not isinstance(members, dict):
                why = f": {members}" if isinstance(members, ValueError) else ""
                text = shorten(line.decode(errors="replace").strip())
                return InvalidValueError(f"Expected a JSON object in {found}, found {text}{why}; correct the file")
            values = cast("dict[str, object]", members)
            for name, member in self.columns.items():
                if not _is_json([line], {name: member}):
                    return InvalidValueError(
                        f"Expected {member} in {found}, column {name!r}, found {shorten(values.get(name))}; correct "
                        "the file, or declare another type"
                    )
            return InvalidValueError(f"Reading {found} raised {type(error).__name__}: {error}; correct the file")
        return super().misread(path, error)


def _parsed_json(file: Any, columns: Mapping[str, Type]) -> Iterator[Any]:
    """Yields `pyarrow.RecordBatch` objects with the columns of a JSON Lines file."""
    pa_json = imported_pyarrow(".json")
    schema = imported_pyarrow().schema([(name, arrow_type(member)) for name, member in columns.items()])
    for batch in pa_json.open_json(
        file,
        read_options=pa_json.ReadOptions(use_threads=False, block_size=_TEXT_BYTES),
        parse_options=pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    ):
        batch.validate(full=True)  # checks that text is UTF-8
        yield batch


def _is_json(lines: Sequence[bytes], columns: Mapping[str, Type]) -> bool:
    """Returns whether pyarrow reads these lines."""
    try:
        for _ in _parsed_json(io.BytesIO(b"".join(lines)), columns):
            pass
    except imported_pyarrow().ArrowException:
        return False
    return True


def _json_rows(path: str, columns: Mapping[str, Type]) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that pyarrow does not read, with their rows: the rows in its errors count from some block on."""
    row = 0
    with imported_pyarrow().input_stream(path) as file:
        reader = io.BufferedReader(file)
        while lines := reader.readlines(_SEARCHED_BYTES):
            some = [line for line in lines if line.strip()]
            if some and not _is_json(some, columns):
                yield from ((row + place, line) for place, line in enumerate(some, 1) if not _is_json([line], columns))
            row += len(some)


def type_in_file(kind: type[FilesWithSchema], path: str, columns: object, where: str) -> StructType:
    """Returns the type of the elements in files, as determined by the first file.

    Args:
      kind: The class of the source that reads the files.
      path: The path of the first file.
      columns: The names of the columns to read, or a dict from names to types; `None` for all columns.
      where: The name of the function that received the arguments, for error messages.

    Raises:
      TypeMismatchError: If `columns` is neither a sequence of names nor a dict, or the language has no type for a
        column.
      InvalidValueError: If the file lacks a column, or does not have the expected format.
    """
    if isinstance(columns, Mapping):
        return cast(StructType, type_of(cast(object, columns), where))
    if columns is not None and (isinstance(columns, str) or not isinstance(columns, Sequence)):
        raise TypeMismatchError(
            f"Expected the columns of {where} to be a list of names or a dict from names to types, found "
            f"{describe(columns)}"
        )
    schema, _ = kind.looked(path)
    names = schema.names if columns is None else list(cast("Sequence[str]", columns))
    check_columns(names, schema.names, path)
    if len(set(names)) < len(names):
        raise InvalidValueError(
            f"Expected distinct column names in {where}, found {shorten(names)}; name each column once"
        )
    return StructType([(n, type_of_arrow(schema.field(n).type, f"{path}, column {n!r}")) for n in names])

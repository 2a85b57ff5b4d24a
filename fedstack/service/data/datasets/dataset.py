"""Defines `Dataset`: a source of elements and the steps that transform the elements."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from fedstack.computations.values.deferred_column import ClientRows
from fedstack.data.client_columns import imported_pyarrow
from fedstack.data.client_data import batching_of, frozen_arrays
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.number_checks import checked_integer, checked_positive
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets import files
from fedstack.service.data.datasets.arrow_files import (
    ArrowIpcFiles,
    CsvFiles,
    FilesWithSchema,
    JsonLinesFiles,
    ParquetFiles,
    type_in_file,
)
from fedstack.service.data.datasets.client_datasets import ClientDatasets
from fedstack.service.data.datasets.elements import ElementFunction, checked_element, laid_out, type_of
from fedstack.service.data.datasets.pipeline import INT64_NUMBERS, MOST_NUMBER, Pipeline
from fedstack.service.data.datasets.sources import (
    ArraysSource,
    ComputationSource,
    ConcatenatedSource,
    GeneratorSource,
    RangeSource,
    ZippedSource,
)
from fedstack.service.data.reading.blocks import column_over

_T = TypeVar("_T")


class Dataset(Pipeline):
    """A sequence of elements of one type, in an order that is the same in each iteration.

    A dataset consists of a *source* and the *steps* that are applied to the source's elements. Datasets are created by
    `Dataset.range`, `from_arrays`, `from_parquet`, `from_arrow`, `from_csv`, `from_json_lines`, `from_npy`, `from_npz`,
    `from_generator` and `from_computation`. Each step returns a new dataset. No elements are read before iteration
    begins.

    Elements are NumPy scalars, read-only arrays, `bytes` for strings, and `dict`s and tuples of these. A dataset can be
    passed to a computation wherever the computation accepts a sequence of the dataset's elements. If the dataset is the
    value of a client, the computation may also accept a struct of arrays with a row for each element.

    Attributes:
      element_type: The type of an element.
    """

    def batches(self, batch_size: int, **options: Any) -> ClientRows:
        """Returns the elements in batches, as a client's value for a computation; see `fedstack.batches`.

        Unlike the result of `batch`, the value is not a dataset, and the order of its elements can differ between
        passes.

        Args:
          batch_size: The number of elements of each batch.
          **options: The options of `fedstack.batches`.
        """
        return ClientRows(self, batching_of(batch_size, **options))

    def zip(self, *others: "Dataset") -> "Dataset":
        """Returns a dataset of tuples with one element from each dataset. It ends when the shortest dataset ends."""
        return Dataset(ZippedSource(_datasets((self, *others), "zip")))

    def concatenate(self, *others: "Dataset") -> "Dataset":
        """Appends the elements of other datasets, which must have the same type.

        Raises:
          TypeMismatchError: If the types of the elements differ.
        """
        first, *rest = datasets = _datasets((self, *others), "concatenate")
        for other in rest:
            if not first.element_type.is_equivalent_to(other.element_type):
                raise TypeMismatchError(
                    f"Expected concatenate to receive elements of type {first.element_type}, found elements of type "
                    f"{other.element_type}; convert the elements with map first"
                )
        return Dataset(ConcatenatedSource(datasets))

    def by_client(self, column: str) -> "ClientDatasets[Dataset]":
        """Splits the dataset into one dataset per client.

        The elements of the clients' datasets do not have the member `column`.

        Args:
          column: The member of the elements that contains the client's id.

        Raises:
          TypeMismatchError: If the elements have no member `column`, or the member is not a scalar.
        """
        return ClientDatasets(self, column, Dataset)

    def apply(self, transformation: "Callable[[Dataset], _T]") -> _T:
        """Applies a transformation to the dataset and returns its result."""
        return transformation(self)

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> "Dataset":
        """Returns a dataset of the int64 numbers in Python's `range` with the same arguments."""
        first, last = (0, start) if stop is None else (start, stop)
        checked = [checked_integer(n, value) for n, value in (("start", first), ("stop", last), ("step", step))]
        if not checked[2] or not all(number in INT64_NUMBERS for number in checked):
            raise InvalidValueError(
                "Expected the start, stop and step of Dataset.range to be int64 numbers, and the step to be nonzero, "
                f"found {checked}"
            )
        numbers = range(*checked)
        if numbers and abs(numbers[-1] - numbers[0]) // abs(checked[2]) >= MOST_NUMBER:
            raise InvalidValueError(
                f"Expected at most {MOST_NUMBER} numbers in Dataset.range, found more for the start, stop and step "
                f"{checked}"
            )
        return Dataset(RangeSource(numbers))

    @staticmethod
    def from_arrays(arrays: object) -> "Dataset":
        """Returns a dataset whose elements are the rows of arrays.

        Args:
          arrays: An array, arbitrarily nested dicts and tuples of arrays, or a data frame. All arrays must have the
            same number of rows. The arrays are not copied and must not be modified afterwards.

        Raises:
          TypeMismatchError: If an array is a scalar or masked, or the language has no type for its dtype.
          InvalidValueError: If the numbers of rows differ.
        """
        frozen, rows = frozen_arrays(arrays, "Dataset.from_arrays")
        element, members = laid_out(frozen, "arrays")
        return Dataset(
            ArraysSource(checked_element(element), column_over(members, element, rows, "Dataset.from_arrays"))
        )

    @staticmethod
    def from_npy(files_or_pattern: object) -> "Dataset":
        """Returns a dataset of the rows of the arrays in `.npy` files, which are read on demand. Each file is a split.

        Args:
          files_or_pattern: A path, a pattern such as `"data/*.npy"`, or a list of paths. The first file determines the
            type of the elements.

        Raises:
          InvalidValueError: If there are no such files, or the first file does not contain an array. During iteration,
            if a file contains rows of a different type.
        """
        paths = files.files_of(files_or_pattern, "Dataset.from_npy")
        return Dataset(files.NpyFiles(files.npy_type(paths[0]), paths))

    @staticmethod
    def from_npz(files_or_pattern: object, *, client_from_path: str = "") -> "Dataset":
        """Returns a dataset of dicts, each with one row of each array in an `.npz` file. Each file is a split.

        Args:
          files_or_pattern: See `from_npy`.
          client_from_path: See `from_parquet`.
        """
        paths = files.files_of(files_or_pattern, "Dataset.from_npz")
        element = files.with_client(files.npz_type(paths[0]), client_from_path)
        return Dataset(files.NpzFiles(element, paths, client=client_from_path))

    @staticmethod
    def from_parquet(files_or_pattern: object, columns: object = None, *, client_from_path: str = "") -> "Dataset":
        """Returns a dataset of the rows of Parquet files, as dicts. Each row group is a split.

        >>> dataset = Dataset.from_parquet("data/user=*/*.parquet", client_from_path="user")  # doctest: +SKIP
        >>> clients = dataset.by_client("user")  # doctest: +SKIP

        Args:
          files_or_pattern: A path, a pattern such as `"data/**/*.parquet"`, or a list of paths.
          columns: The names of the columns to read, or a dict from names to types. By default all columns are read,
            with the types in the first file. Lists of variable length are arrays of shape `[None]`; a type with a size,
            as in `{"x": (np.float32, [32])}`, declares a fixed length.
          client_from_path: The name of an additional string member that contains the client's id, which is derived from
            the file's path. For the name `user` and the path `user=alice/part-0.parquet`, the id is `alice`. If no path
            has such a part, the id is the file's name without the extension. With this option, each file is one split,
            and is read only for its client.

        Raises:
          ImportError: If pyarrow is not installed; the extra `arrow` includes pyarrow.
          TypeMismatchError: If the language has no type for a column.
          InvalidValueError: If there are no such files or columns. During iteration, if a file contains columns of
            different types, or changes while it is read.
        """
        return _of_columns(ParquetFiles, files_or_pattern, columns, client_from_path, "Dataset.from_parquet")

    @staticmethod
    def from_arrow(files_or_pattern: object, columns: object = None, *, client_from_path: str = "") -> "Dataset":
        """Returns a dataset of the rows of Arrow IPC files (Feather), as dicts. Each record batch is a split.

        A file that contains an Arrow stream is one split. The arguments are those of `from_parquet`.
        """
        return _of_columns(ArrowIpcFiles, files_or_pattern, columns, client_from_path, "Dataset.from_arrow")

    @staticmethod
    def from_csv(
        files_or_pattern: object, types: object, *, delimiter: str = ",", client_from_path: str = ""
    ) -> "Dataset":
        """Returns a dataset of the rows of CSV files, as dicts. The first line of each file contains the column names.

        Args:
          files_or_pattern: A path, a pattern such as `"data/*.csv"`, or a list of paths. Each file is a split.
          types: A dict from the names of the columns to read to their dtypes; `np.str_` for text.
          delimiter: The character that separates cells.
          client_from_path: See `from_parquet`.

        Raises:
          ImportError: If pyarrow is not installed; the extra `arrow` includes pyarrow.
          TypeMismatchError: If `types` is not a dict from names to dtypes.
          InvalidValueError: If there are no such files. During iteration, if a cell cannot be converted to the type of
            its column; the message names the file and the row.
        """
        imported_pyarrow()  # if it is missing, the error comes here, and not in a later call
        element = files.with_client(type_of(types, "Dataset.from_csv"), client_from_path)
        paths = files.files_of(files_or_pattern, "Dataset.from_csv")
        return Dataset(CsvFiles(element, paths, delimiter=delimiter, client=client_from_path))

    @staticmethod
    def from_json_lines(files_or_pattern: object, element_type: object, *, client_from_path: str = "") -> "Dataset":
        """Returns a dataset of the JSON objects in files with one object on each line.

        Args:
          files_or_pattern: A path, a pattern such as `"data/*.jsonl"`, or a list of paths. Each file is a split.
          element_type: The type of an element, a dict. Members of the JSON objects that are not in the type are left
            out.
          client_from_path: See `from_parquet`.

        Raises:
          ImportError: If pyarrow is not installed; the extra `arrow` includes pyarrow.
          TypeMismatchError: If `element_type` is not the type of a dict.
          InvalidValueError: If there are no such files. During iteration, if an object does not match `element_type`.
        """
        imported_pyarrow()
        element = checked_element(type_of(element_type, "Dataset.from_json_lines"))
        paths = files.files_of(files_or_pattern, "Dataset.from_json_lines")
        return Dataset(JsonLinesFiles(files.with_client(element, client_from_path), paths, client=client_from_path))

    @staticmethod
    def from_generator(
        function: Callable[[int], Iterable[object]], element_type: object, num_splits: int = 1, *, name: str = ""
    ) -> "Dataset":
        """Returns a dataset of the elements that a function yields for each split.

        Args:
          function: Takes the number of a split, which is less than `num_splits`, and returns an iterable of the split's
            elements. The elements must be the same in each call.
          element_type: The type of an element.
          num_splits: The number of splits.
          name: The name under which to register the function in this process, so that datasets received from other
            processes can refer to it; by default the function is not registered.

        Raises:
          TypeMismatchError: If `function` is not a function. Generators and other iterators are not accepted, because
            they can be read only once.
          InvalidValueError: If another function is registered under the name.
        """
        if not callable(cast(object, function)):
            once = "the one-shot iterator " * isinstance(cast(object, function), Iterator)
            raise TypeMismatchError(
                f"Expected Dataset.from_generator to receive a function, found {once}`{type(function).__name__}`; pass "
                "a function that creates the iterator"
            )
        _check_takes_a_split(function)
        element = checked_element(type_of(element_type, "Dataset.from_generator"))
        source = GeneratorSource(function, element, checked_positive("num_splits", num_splits), name)
        if name:
            source.register()
        return Dataset(source)

    @staticmethod
    def from_computation(computation: object, num_splits: int | None = None) -> "Dataset":
        """Returns a dataset of the elements of the sequences that a computation returns: one, or one per split.

        Args:
          computation: A computation of type `( -> T*)`, or of type `(int32 -> T*)` if its argument is the number of a
            split.
          num_splits: The number of splits, if the computation takes the number of a split.

        Raises:
          InvalidComputationError: If the computation has another type.
          TypeMismatchError: If `num_splits` is specified for a computation without a parameter, or missing for a
            computation with a parameter.
        """
        splits = None if num_splits is None else checked_positive("num_splits", num_splits)
        return Dataset(ComputationSource(ElementFunction(computation, "Dataset.from_computation"), splits))


def _check_takes_a_split(function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions implemented in C do not provide a signature
    try:
        signature.bind(0)
    except TypeError as error:
        raise TypeMismatchError(
            "Expected Dataset.from_generator to receive a function that takes the number of a split, found a function "
            f"with the parameters {signature}; declare one parameter, even if there is only one split"
        ) from error


def _of_columns(
    kind: type[FilesWithSchema], files_or_pattern: object, columns: object, client: str, where: str
) -> Dataset:
    paths = files.files_of(files_or_pattern, where)
    element = files.with_client(type_in_file(kind, paths[0], columns, where), client)
    # Clients often have many small files, so the files are not opened before they are read.
    parts = () if client else [kind.looked(path)[1] for path in paths]
    return Dataset(kind(element, paths, client=client, parts=parts))


def _datasets(found: Sequence[object], where: str) -> "tuple[Dataset, ...]":
    for one in found:
        if not isinstance(one, Dataset):
            advice = "create a dataset from it, for example with Dataset.from_arrays"
            if isinstance(one, (tuple, list)):
                advice = f"pass each dataset as a separate argument, as in a.{where}(b)"
            raise TypeMismatchError(
                f"Expected {where} to receive datasets, found {describe(cast(object, one))}; {advice}"
            )
    return cast("tuple[Dataset, ...]", tuple(found))

"""Splits a `ray.data.Dataset` by client. The rows stay in Ray, and placeholders represent the rows of each client."""

import contextlib
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import SequenceType, StructType, TensorType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.column_sequence import HasBlocks
from fedstack.computations.values.columns import Column, ListColumn, RowsColumn, ScalarColumn, StructColumn
from fedstack.computations.values.deferred_column import Elsewhere, Where, refuse
from fedstack.computations.values.sequences import Batches, Batching
from fedstack.computations.values.tensor_values import mismatch
from fedstack.data.client_columns import is_missing, unusable_ids
from fedstack.data.client_data import batching_of
from fedstack.data.object_refs import imported_ray, read_refs, said_in_task
from fedstack.errors import FedstackError, InvalidValueError
from fedstack.foundations.after_fork import renew_after_fork
from fedstack.foundations.error_text import counted

for _name in ("dataset.Dataset", "dataset.MaterializedDataset", "grouped_data.GroupedData"):
    refuse(
        f"ray.data.{_name}",
        f"a ray.data.{_name.rpartition('.')[2]}",
        "pass list(fedstack.by_client(ds, id).values()), where id is the column with the client id of each row",
    )


@runtime_checkable
class RayDataset(Protocol):
    """The methods of `ray.data.Dataset` that fedstack uses."""

    def columns(self) -> Any:
        """Returns the names of the dataset's columns."""
        ...

    def select_columns(self, cols: Any) -> Any:
        """Returns a dataset with only the columns `cols`."""
        ...

    def to_numpy_refs(self) -> Any:
        """Returns an `ObjectRef` for each block of rows. A block is a dict from column names to arrays."""
        ...


# Consecutive rows of a block: the `ray.ObjectRef` of the block, which is a dict from column names to arrays, the index
# of the first row, and the index after the last row.
Part: TypeAlias = tuple[Any, int, int]


@attrs.frozen(repr=False)
class RayRows(Elsewhere):
    """A placeholder for the rows of a client in Ray's object store. It can be passed to a computation.

    Depending on the type of its parameter, a computation receives a struct with one array per column, or a sequence
    of rows.
    """

    _names: tuple[str, ...]
    _parts: tuple[Part, ...]
    _batching: Batching | None = None

    def batches(self, batch_size: int, **options: Any) -> "RayRows":
        """Returns the rows as a sequence of batches.

        Args:
          batch_size: The number of rows per batch.
          **options: The keyword arguments of `fedstack.batches`.
        """
        return attrs.evolve(self, batching=batching_of(batch_size, **options))

    @classmethod
    def read(cls, found: "Sequence[RayRows]", member: Type, where: Where) -> Sequence[object]:
        first: dict[Any, int] = {}
        for index, rows in enumerate(found):
            for block, _, _ in rows._parts:
                first.setdefault(block, index)
        places = list(first.values())
        blocks = dict(zip(first, read_refs(list(first), lambda index: where(places[index]))))
        return [rows._value(blocks, member, where(index)) for index, rows in enumerate(found)]

    def _value(self, blocks: Mapping[Any, Mapping[str, NDArray[Any]]], member: Type, place: str) -> object:
        arrays: dict[str, NDArray[Any]] = {}
        for name in self._names:
            pieces = [blocks[block][name][start:stop] for block, start, stop in self._parts]
            arrays[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            arrays[name].flags.writeable = False
        if self._batching is not None:
            return Batches(arrays, len(self), self._batching)
        return _RowsInMemory(arrays, len(self), member.element, place) if isinstance(member, SequenceType) else arrays

    def __len__(self) -> int:
        return sum(stop - start for _, start, stop in self._parts)

    def __repr__(self) -> str:
        return f"<RayRows: {counted(len(self), 'row')} of {', '.join(self._names) or 'no columns'}>"


class _RowsInMemory(HasBlocks):
    """A sequence whose elements are the rows of one client.

    Args:
      arrays: The columns of the rows, by name.
      rows: The number of rows.
      element: The expected type of a row: a struct with the names of the columns in any order, or a tensor if the rows
        have only one column.
      place: The path of the value, for error messages.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], rows: int, element: Type, place: str) -> None:
        self._rows = rows
        if not isinstance(element, StructType) and len(arrays) == 1:
            ((self._type, self._column),) = map(_typed_column, arrays.values())
            return
        names = [name for name, _ in fields_of(element)] if isinstance(element, StructType) else []
        if set(names) != set(arrays):
            advice = "select columns with fedstack.by_client(dataset, id, columns=[...]), and a type with their names"
            mismatch(SequenceType(element), f"rows of {', '.join(arrays)}", place, advice)
        columns = [(name, *_typed_column(arrays[name])) for name in names if name is not None]
        self._type = StructType([(name, type_spec) for name, type_spec, _ in columns])
        self._column = StructColumn(tuple(column for _, _, column in columns), rows)

    @property
    def element_type(self) -> Type:
        return self._type

    @property
    def held(self) -> Column:
        return self._column

    def blocks(self) -> Iterator[Column]:
        yield self._column

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        return counted(self._rows, "row")


def _typed_column(array: NDArray[Any]) -> tuple[Type, Column]:
    if array.dtype.kind in "OSU":
        texts = [item.encode() if isinstance(item, str) else item for item in array.tolist()]
        return TensorType(np.str_), ListColumn(texts)
    return TensorType(array.dtype.type, array.shape[1:]), (ScalarColumn if array.ndim == 1 else RowsColumn)(array)


def columns_of(dataset: RayDataset, client_id: str) -> list[str]:
    """Returns the names of the columns of a dataset, or an empty list if they are unknown.

    Args:
      dataset: The dataset.
      client_id: The name of the column by which the dataset is split, for error messages.
    """
    with _telling(client_id):
        return list(dataset.columns() or ())


def rows_by_client(dataset: RayDataset, client_id: str, columns: Sequence[str]) -> dict[Any, RayRows]:
    """Sorts the rows of a dataset by client, in Ray, and returns a placeholder for the rows of each client.

    Args:
      dataset: A `ray.data.Dataset`.
      client_id: The name of the column with the client id of each row.
      columns: The names of the columns to keep.

    Raises:
      InvalidValueError: If a row has no client id, the ids cannot be sorted, or Ray cannot compute the rows.
    """
    with _telling(client_id), _ordered.block(dataset):
        ray = imported_ray()
        blocks = dataset.select_columns(list(dict.fromkeys([client_id, *columns]))).sort(client_id).to_numpy_refs()
        index = ray.remote(_clients_of_block)
        found = ray.get([index.remote(block, client_id) for block in blocks])
    parts: dict[Any, list[Part]] = {}
    for block, (clients, bounds) in zip(blocks, found):
        for client, start, stop in zip(clients, bounds, bounds[1:]):
            if is_missing(client):
                raise InvalidValueError(
                    f"Expected a client id in every row of column {client_id!r}, found {client!r}; drop rows "
                    "without an id, or assign ids to them"
                )
            try:
                parts.setdefault(client, []).append((block, start, stop))
            except TypeError as error:
                raise unusable_ids(error, client_id) from error
    names = tuple(dict.fromkeys(columns))
    return {client: RayRows(names, tuple(some)) for client, some in parts.items()}


def _clients_of_block(block: Mapping[str, NDArray[Any]], client_id: str) -> tuple[list[Any], list[int]]:
    """Returns the clients of a block whose rows are sorted by client, and the bounds of each client's rows."""
    if client_id not in block:  # a block without rows has no columns
        return [], [0]
    ids = block[client_id]
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()] if len(ids) else []
    return ids[starts].tolist(), [*starts, len(ids)]


@attrs.define
class _OrderSwitch:
    """The state of Ray's `preserve_order` option, for a dataset and the datasets derived from it.

    Attributes:
      options: Ray's options, which include `preserve_order`.
      before: The user's setting, to be restored.
      blocks: The number of active `with` blocks that need the option.
    """

    options: Any
    before: bool
    blocks: int = 0


class _Ordered:
    """Makes Ray keep the order of rows within `with` blocks, which can run on several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switches: dict[int, _OrderSwitch] = {}  # by the `id()` of the options
        renew_after_fork(self)

    def renew(self) -> None:
        """See `after_fork`."""
        self._lock = threading.Lock()
        for switch in self._switches.values():
            switch.options.preserve_order = switch.before
        self._switches = {}

    @contextlib.contextmanager
    def block(self, dataset: RayDataset) -> Generator[None]:
        """Makes Ray keep the order of a dataset's rows within a `with` block, if this Ray release supports it.

        By default, Ray forwards blocks of rows as they become ready, so the order of a client's rows would vary.
        """
        options: Any = getattr(getattr(dataset, "context", None), "execution_options", None)
        if getattr(options, "preserve_order", None) is None:
            yield
            return
        with self._lock:
            switch = self._switches.setdefault(id(options), _OrderSwitch(options, options.preserve_order))
            switch.blocks += 1
            options.preserve_order = True
        try:
            yield
        finally:
            with self._lock:
                switch.blocks -= 1
                if not switch.blocks:
                    options.preserve_order = switch.before
                    self._switches.pop(id(options), None)


_ordered = _Ordered()


@contextlib.contextmanager
def _telling(client_id: str) -> Generator[None]:
    """Replaces an error that Ray raises in the block with a concise error.

    Ray's own errors contain the tracebacks of all its processes.
    """
    try:
        yield
    except FedstackError:
        raise
    except Exception as error:
        said, lines = said_in_task(error)
        if lines:
            raised = InvalidValueError(
                f"A function applied by the dataset raised {said} in by_client(dataset, {client_id!r})\n{lines}"
            )
        else:
            advice = "; use ids of one sortable type, text or integers" if "sort" in said.lower() else ""
            raised = InvalidValueError(
                f"Splitting the dataset in by_client(dataset, {client_id!r}) raised {said}{advice}"
            )
        raise raised from None

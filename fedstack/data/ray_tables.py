"""Splits a `ray.data.Dataset` with the rows of many clients: stand-ins for the rows of each, which stay in Ray."""

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
        "give list(fedstack.by_client(ds, id).values()), with the column that says whose row it is",
    )


@runtime_checkable
class RayDataset(Protocol):
    """The methods of a `ray.data.Dataset` that are used."""

    def columns(self) -> Any:
        """Returns the names of its columns."""
        ...

    def select_columns(self, cols: Any) -> Any:
        """Returns the dataset with some of its columns."""
        ...

    def to_numpy_refs(self) -> Any:
        """Returns an `ObjectRef` for each block of rows, which are arrays by name there."""
        ...


# Consecutive rows: the `ray.ObjectRef` of a block of arrays by name, the first row, and the one after the last.
Part: TypeAlias = tuple[Any, int, int]


@attrs.frozen(repr=False)
class RayRows(Elsewhere):
    """Stands for the rows of a client in Ray's object store: a value for a computation.

    The value is a struct of arrays, one for each column, or a sequence of rows, depending on the type.
    """

    _names: tuple[str, ...]
    _parts: tuple[Part, ...]
    _batching: Batching | None = None

    def batches(self, batch_size: int, **options: Any) -> "RayRows":
        """Returns the rows as a sequence of batches.

        Args:
          batch_size: The number of rows of each.
          **options: As of `fedstack.batches`.
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
    """The rows of a client as elements.

    Args:
      arrays: Their columns.
      rows: How many there are.
      element: The type that is wanted of them: a struct with these names in any order, or if there is but one column
        a tensor.
      place: Where they stand, for error messages.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], rows: int, element: Type, place: str) -> None:
        self._rows = rows
        if not isinstance(element, StructType) and len(arrays) == 1:
            ((self._type, self._column),) = map(_typed_column, arrays.values())
            return
        names = [name for name, _ in fields_of(element)] if isinstance(element, StructType) else []
        if set(names) != set(arrays):
            advice = "choose columns with fedstack.by_client(dataset, id, columns=[...]), and a type with their names"
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
    """Returns the names of the columns of a dataset; empty if they are not known.

    Args:
      dataset: The dataset.
      client_id: The column to split by, for error messages.
    """
    with _telling(client_id):
        return list(dataset.columns() or ())


def rows_by_client(dataset: RayDataset, client_id: str, columns: Sequence[str]) -> dict[Any, RayRows]:
    """Sorts the rows of a dataset by client, in Ray, and returns stand-ins for those of each client.

    Args:
      dataset: A `ray.data.Dataset`.
      client_id: The name of the column with the client of each row.
      columns: The names of the columns to keep.

    Raises:
      InvalidValueError: If a row has no client id, the ids cannot be sorted, or Ray cannot make the rows.
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
                    f"Expected a client id in every row, found {client!r}; at column {client_id!r}; drop such rows or "
                    "give them an id"
                )
            try:
                parts.setdefault(client, []).append((block, start, stop))
            except TypeError as error:
                raise unusable_ids(error, client_id) from error
    names = tuple(dict.fromkeys(columns))
    return {client: RayRows(names, tuple(some)) for client, some in parts.items()}


def _clients_of_block(block: Mapping[str, NDArray[Any]], client_id: str) -> tuple[list[Any], list[int]]:
    """Returns the clients of rows sorted by client, and the bounds of their rows."""
    if client_id not in block:  # as in a block without rows
        return [], [0]
    ids = block[client_id]
    starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()] if len(ids) else []
    return ids[starts].tolist(), [*starts, len(ids)]


@attrs.define
class _OrderSwitch:
    """Ray's option to keep the order of rows, for a dataset and those derived from it.

    Attributes:
      options: The options.
      before: The user's setting.
      blocks: The number of blocks for which it is on now.
    """

    options: Any
    before: bool
    blocks: int = 0


class _Ordered:
    """Makes Ray keep the order of rows within blocks, on several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._switches: dict[int, _OrderSwitch] = {}  # by the identity of options
        renew_after_fork(self)

    def renew(self) -> None:
        """See `after_fork`."""
        self._lock = threading.Lock()
        for switch in self._switches.values():
            switch.options.preserve_order = switch.before
        self._switches = {}

    @contextlib.contextmanager
    def block(self, dataset: RayDataset) -> Generator[None]:
        """Makes Ray keep the order of a dataset's rows in the block, if this release of Ray has the option.

        By default blocks of rows are passed on as they are ready, and the order of a client's rows would vary.
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
    """Replaces errors that Ray raises in the block, and that have the tracebacks of all its processes, by one."""
    try:
        yield
    except FedstackError:
        raise
    except Exception as error:
        said, lines = said_in_task(error)
        if lines:
            raised = InvalidValueError(
                f"A function of the dataset raised {said}; at by_client(dataset, {client_id!r})\n{lines}"
            )
        else:
            advice = "; give ids of one kind that can be sorted: text or integers" if "sort" in said.lower() else ""
            raised = InvalidValueError(
                f"Splitting the dataset raised {said}; at by_client(dataset, {client_id!r}){advice}"
            )
        raise raised from None

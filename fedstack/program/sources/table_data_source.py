"""Selects clients of a table in memory for the rounds of a program."""

import copy
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import CLIENTS, FederatedType, SequenceType, StructType, TensorType
from fedstack.computations.types.type_structure import fields_of
from fedstack.data.client_data import batches
from fedstack.data.client_tables import sorted_by_client
from fedstack.errors import InvalidValueError
from fedstack.foundations.number_checks import checked_positive
from fedstack.foundations.value_text import ArrowTable, DataFrameLike, describe
from fedstack.program.sources.client_data_source import ClientDataSource, ClientDataSourceIterator
from fedstack.service.data.datasets.elements import checked_element, laid_out


class TableDataSource(ClientDataSource):
    """A data source that selects clients of a table for a program.

    The value of a client is a dict of its rows in each column, which are views of the sorted table. With `batch_size`,
    it is the sequence of their batches. A selection costs nothing for the clients that it has not drawn.

        source = TableDataSource(frame, "user", seed=1)
        iterator = source.iterator()
        model = train(model, iterator.select(20))

    Args:
      table: A mapping from names to columns, a data frame of pandas or polars, an Arrow table, or any other object with
        `__arrow_c_stream__`. Columns are `dtype[rows, ...]`; see `fedstack.by_client`.
      client_id: The name of the column with the client id of each row.
      columns: The names of the columns to keep, in this order. By default, all columns except `client_id` are kept.
      batch_size: The number of rows in a batch; by default there are no batches.
      seed: The seed for the selections that iterators make.

    Raises:
      TypeMismatchError: If the table is of another type, a column is a masked array, or the language has no type for a
        column.
      InvalidValueError: If a column is missing, differs in length or shares its name with another column, a row has no
        client id, or a column lacks a value in a row.
    """

    def __init__(
        self,
        table: Mapping[str, Any] | DataFrameLike | ArrowTable,
        client_id: str,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        self._places, self._columns = sorted_by_client(table, client_id, columns, "TableDataSource")
        self._clients = list(self._places)
        self._batch_size = None if batch_size is None else checked_positive("batch_size", batch_size)
        row = cast(StructType, checked_element(laid_out(self._columns, "table")[0]))
        members = [(name, cast(TensorType, member)) for name, member in fields_of(row)]
        rows = StructType([(name, TensorType(one.dtype, [None, *(one.shape or ())])) for name, one in members])
        super().__init__(FederatedType(rows if batch_size is None else SequenceType(rows), CLIENTS), seed)
        _sources.add(self)

    def iterator(self) -> "TableDataSourceIterator":
        """Returns an iterator that draws the clients for successive rounds."""
        return TableDataSourceIterator(self, 0)

    @property
    def seed(self) -> int:
        """The seed for the selections that iterators make."""
        return self._seed

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 digest of the sorted table, as hexadecimal digits. Equal sources have the same digest."""
        found = hashlib.sha256(repr((str(self._type), self._batch_size, self._clients)).encode())
        found.update(repr([place.stop for place in self._places.values()]).encode())
        for column in self._columns.values():
            found.update(str(column.dtype).encode())
            found.update(repr(column.tolist()).encode() if column.dtype.hasobject else _bytes_of(column))
        return found.hexdigest()

    def with_seed(self, seed: int) -> "TableDataSource":
        """Returns a source of the same table with another seed."""
        if seed == self._seed:
            return self
        other = copy.copy(self)
        other._seed = seed
        _sources.add(other)
        return other

    def _ids(self) -> Sequence[Any]:
        return self._clients

    def _values(self, client_ids: Sequence[Any]) -> list[Any]:
        places = [self._place(client) for client in client_ids]
        parts = [{name: column[place] for name, column in self._columns.items()} for place in places]
        return parts if self._batch_size is None else [batches(part, self._batch_size) for part in parts]

    def _place(self, client: Any) -> slice:
        try:
            return self._places[client]
        except (KeyError, TypeError):
            raise InvalidValueError(
                f"Expected the id of a client of {self!r}, found {describe(client)}; client_ids lists the ids"
            ) from None

    def __repr__(self) -> str:
        return f"<TableDataSource of {len(self._clients)} clients with the columns {', '.join(self._columns)}>"


class TableDataSourceIterator(ClientDataSourceIterator[TableDataSource]):
    """Draws the clients for successive rounds. Created by `TableDataSource.iterator`. See its base class."""

    def to_bytes(self) -> bytes:
        """Returns the state of the iterator for `from_bytes`: a few numbers, and a digest in place of the table."""
        state = {"table": self.source.digest, "seed": self.source.seed, "selections": self._selections}
        return json.dumps(state).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "TableDataSourceIterator":
        """Returns an iterator that continues from a saved state.

        The state has no rows: this process must have a `TableDataSource` of the same table, as a program has whose
        iterator is part of the structure that it loads.

        Args:
          buffer: The state, as returned by `to_bytes`.

        Raises:
          InvalidValueError: If `buffer` is malformed, or this process has no source of the same table.
        """
        try:
            state = json.loads(bytes(buffer))
            digest, seed, selections = str(state["table"]), int(state["seed"]), int(state["selections"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidValueError(
                f"Expected bytes returned by an iterator's to_bytes(), found {describe(buffer)}: {error}; pass the "
                "bytes unchanged"
            ) from error
        for source in list(_sources):
            if source.digest == digest:
                return cls(source.with_seed(seed), selections)
        raise InvalidValueError(
            f"Expected a TableDataSource of the table {digest[:16]}… in this process, found "
            f"{', '.join(repr(source) for source in list(_sources)) or 'none'}; create it from the table with which "
            "the state was saved before you load the state, or begin in another folder"
        )


def _bytes_of(column: "NDArray[Any]") -> memoryview:
    return memoryview(cast(Any, np.ascontiguousarray(column).reshape(-1).view(np.uint8)))


_sources: "WeakSet[TableDataSource]" = WeakSet()
